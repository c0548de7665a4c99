"""Data sets whose masks are wrong, each in one way, with the finding that each must give."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tests.data.healthy import HEIGHT, WIDTH, Broken, blocks, broken, write_image, write_mask

CASES: list[Broken] = []


# Pairs of image and mask


@broken(CASES, "missing-mask", "images/b.png", "no mask", "masks/b.png")
def mask_deleted(root: Path) -> None:
    (root / "masks/b.png").unlink()


@broken(CASES, "missing-mask", "val/images/q.png", "no mask", "val/masks/q.png")
def val_mask_deleted(root: Path) -> None:
    (root / "val/masks/q.png").unlink()


@broken(CASES, "extra-mask", "masks/stray.png", "no image", "images/stray", level="warning")
def mask_without_image(root: Path) -> None:
    write_mask(root / "masks/stray.png", blocks())


@broken(CASES, "name-clash", "images/a.png", ("images/a.bmp", "`a`"), "rename")
def two_images_with_one_stem(root: Path) -> None:
    write_image(root / "images/a.bmp", 900)


def write_palette_mask(path: Path, label: np.ndarray, colors: list[list[int]]) -> None:
    picture = Image.fromarray(label)
    picture.putpalette([part for color in colors for part in color] + [255] * (768 - 3 * len(colors)))
    picture.save(path)


@broken(
    CASES,
    "palette-order",
    "masks/b.png",
    ("value 1", "palette's color of `car`", "its place is `road`"),
    "in the order in which the masks number them",
)
def palette_in_another_order(root: Path) -> None:
    """As of a labeling tool that numbers classes by itself; the values alone look right."""
    colors = {"background": [0, 0, 0], "road": [10, 20, 30], "car": [200, 10, 10]}
    (root / "classes.txt").unlink()
    (root / "classes.yaml").write_text("".join(f"{name}: {color}\n" for name, color in colors.items()))
    for name, order in (("a", ("background", "road", "car")), ("b", ("background", "car", "road"))):
        write_palette_mask(root / f"masks/{name}.png", blocks(), [colors[each] for each in order])


# Sizes


@broken(CASES, "size-mismatch", "masks/b.png", ("32x24", "20x24"), "re-export")
def mask_of_another_size(root: Path) -> None:
    write_mask(root / "masks/b.png", blocks((HEIGHT, 20)))


@broken(CASES, "size-mismatch", "masks/b.png", ("24x32", "32x24", "EXIF"), "orientation")
def image_rotated_by_exif(root: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees when shown
    image = Image.open(root / "images/b.png")
    image.load()
    image.save(root / "images/b.png", exif=exif)


# Mask values


@broken(CASES, "label-outside-classes", "masks/c.png", ("7 (15 pixels)", "0 to 2"), "classes.txt")
def label_outside_classes(root: Path) -> None:
    label = blocks()
    label[3:6, 5:10] = 7
    write_mask(root / "masks/c.png", label)


@broken(CASES, "label-outside-classes", "val/masks/p.png", ("3 (4 pixels)", "0 to 2"), "classes.txt")
def label_one_too_large_in_val(root: Path) -> None:
    label = blocks()
    label[0, :4] = 3
    write_mask(root / "val/masks/p.png", label)


@broken(CASES, "gray-edges", "masks/a.png", "between", "nearest")
def mask_resampled(root: Path) -> None:
    sharp = Image.fromarray((blocks() == 1).astype(np.uint8) * 255)
    soft = np.asarray(
        sharp.rotate(17, resample=Image.Resampling.BICUBIC).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    )
    write_mask(root / "masks/a.png", soft)


@broken(CASES, "binary-ambiguous", "masks", ("0 and 255", "3 classes"), "--foreground 255")
def binary_masks_with_three_classes(root: Path) -> None:
    for path in sorted(root.glob("**/masks/*.png")):
        write_mask(path, (blocks() == 1).astype(np.uint8) * 255)


@broken(CASES, "no-color-table", "masks/c.png", "(128, 64, 0)", "classes.yaml")
def mask_in_colors_without_a_table(root: Path) -> None:
    write_mask(root / "masks/c.png", np.array([(0, 0, 0), (128, 64, 0)], np.uint8)[blocks() % 2])


@broken(CASES, "empty-mask", "masks/d.png", "only ignore", "unlabeled/", level="warning")
def mask_only_ignore(root: Path) -> None:
    write_mask(root / "masks/d.png", np.full((HEIGHT, WIDTH), 255, np.uint8))


@broken(CASES, "jpeg-mask", "masks/b.jpg", "JPEG", "PNG")
def mask_is_jpeg(root: Path) -> None:
    (root / "masks/b.png").unlink()
    Image.fromarray(blocks() * 80).save(root / "masks/b.jpg")


@broken(CASES, "jpeg-mask", "masks/b.png", "JPEG", "PNG")
def mask_is_jpeg_named_png(root: Path) -> None:
    Image.fromarray(blocks() * 80).save(root / "masks/b.png", format="JPEG")


def _write_binary(root: Path, classes: str) -> None:
    (root / "classes.txt").write_text(classes)
    for path in sorted(root.glob("**/masks/*.png")):
        write_mask(path, (blocks() == 1).astype(np.uint8) * 255)


@broken(
    CASES,
    "foreground-absent",
    "masks",
    ("value 7", "they hold 0 and 255; 255 was read as ignore"),
    "--foreground 255",
    foreground=7,
)
def foreground_mistyped(root: Path) -> None:
    _write_binary(root, "background\nroad\n")


@broken(CASES, "foreground-absent", "masks", ("value 300", "they hold 0 and 255"), "--foreground 255", foreground=300)
def foreground_beyond_8_bits(root: Path) -> None:
    _write_binary(root, "road\n")


@broken(CASES, "class-absent", "masks", ("`car`", "labeled"), "label", level="warning")
def class_absent(root: Path) -> None:
    for path in sorted((root / "masks").glob("*.png")):
        write_mask(path, np.where(blocks() == 2, 1, blocks()).astype(np.uint8))


@broken(CASES, "single-class", "masks", "`road`", "label", level="warning")
def one_class_in_all_masks(root: Path) -> None:
    for path in sorted((root / "masks").glob("*.png")):
        write_mask(path, np.ones((HEIGHT, WIDTH), np.uint8))


@broken(CASES, "single-class", "masks", "`background`", "label", level="warning")
def only_background_in_all_masks(root: Path) -> None:
    for path in sorted((root / "masks").glob("*.png")):
        write_mask(path, np.zeros((HEIGHT, WIDTH), np.uint8))


@broken(CASES, "size-mismatch", "val/masks/p.png", ("image is 32x24 (no EXIF", "24x32 with its EXIF"), "of the mask")
def mask_rotated_by_exif(root: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    Image.fromarray(blocks()).save(root / "val/masks/p.png", exif=exif)


@broken(CASES, "gray-edges", "val/masks/q.png", "between", "nearest")
def mask_was_a_jpeg_once(root: Path) -> None:
    memory = BytesIO()
    Image.fromarray((blocks() == 1).astype(np.uint8) * 255).save(memory, format="JPEG", quality=90)
    Image.open(memory).save(root / "val/masks/q.png")


COLORS = np.array([(0, 0, 0), (250, 50, 83), (51, 221, 255)], np.uint8)


def _write_colors(root: Path) -> None:
    (root / "classes.txt").unlink()
    (root / "classes.yaml").write_text("background: [0, 0, 0]\nroad: [250, 50, 83]\ncar: [51, 221, 255]\n")
    for path in sorted(root.glob("**/masks/*.png")):
        write_mask(path, COLORS[blocks() % 255])


@broken(CASES, "gray-edges", "masks/a.png", "between", "without smoothing")
def thin_color_marks_smoothed(root: Path) -> None:
    """As drawn with anti-aliasing: no pixel of the marks keeps its class's color."""
    _write_colors(root)
    drawing = Image.new("RGB", (4 * WIDTH, 4 * HEIGHT))
    ImageDraw.Draw(drawing).line([(10, 12), (110, 50)], fill=tuple(COLORS[1].tolist()), width=7)
    ImageDraw.Draw(drawing).ellipse([20, 60, 34, 74], fill=tuple(COLORS[2].tolist()))
    write_mask(root / "masks/a.png", np.asarray(drawing.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)))


@broken(CASES, "label-outside-classes", "masks/a.png", "(9, 8, 7) (15 pixels)", "the color to classes.yaml")
def color_outside_classes(root: Path) -> None:
    _write_colors(root)
    colors = COLORS[blocks() % 255]
    colors[3:6, 5:10] = (9, 8, 7)
    write_mask(root / "masks/a.png", colors)

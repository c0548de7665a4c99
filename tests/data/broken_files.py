"""Data sets whose files or folders are wrong, each in one way, with the finding that each must give."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image

from tests.data.healthy import HEIGHT, WIDTH, Broken, broken, write_image, write_mask

CASES: list[Broken] = []


# Files


@broken(CASES, "unreadable", "images/c.png", "not an image", "replace")
def image_is_text(root: Path) -> None:
    (root / "images/c.png").write_text("this was a download error page\n" * 9)


@broken(CASES, "unreadable", "masks/c.png", "not an image", "replace")
def mask_is_text(root: Path) -> None:
    (root / "masks/c.png").write_text("{}" * 99)


@broken(CASES, "bad-name", "images/caf\\udce9.png", "not UTF-8", "rename")
def names_in_latin_1(root: Path) -> None:
    for folder in ("images", "masks"):
        (root / folder / "c.png").rename(root / folder / os.fsdecode(b"caf\xe9.png"))


@broken(CASES, "zero-size", "unlabeled/y.png", "0 bytes", "copy")
def image_has_no_bytes(root: Path) -> None:
    (root / "unlabeled/y.png").write_bytes(b"")


@broken(CASES, "truncated", "unlabeled/x.png", "ends early", "copy")
def image_truncated(root: Path) -> None:
    whole = (root / "unlabeled/x.png").read_bytes()
    (root / "unlabeled/x.png").write_bytes(whole[: len(whole) // 2])


@broken(CASES, "truncated", "masks/d.png", "ends early", "copy")
def mask_truncated(root: Path) -> None:
    noise = np.random.default_rng(5).integers(0, 3, (HEIGHT, WIDTH), dtype=np.uint8)
    write_mask(root / "masks/d.png", noise)
    whole = (root / "masks/d.png").read_bytes()
    (root / "masks/d.png").write_bytes(whole[: len(whole) // 2])


@broken(CASES, "too-large", "unlabeled/z.png", ("40x30", "1,200", "1,000"), "max_pixels", max_pixels=1000)
def image_over_the_pixel_limit(root: Path) -> None:
    write_image(root / "unlabeled/z.png", 901, size=(30, 40))


@broken(CASES, "wrong-format", "unlabeled/x.png", "GIF", "PNG")
def image_is_gif_named_png(root: Path) -> None:
    Image.open(root / "unlabeled/x.png").save(root / "unlabeled/x.png", format="GIF")


@broken(CASES, "wrong-format", "unlabeled/w.gif", "GIF", "PNG", level="warning")
def gif_among_the_images(root: Path) -> None:
    write_image(root / "unlabeled/w.gif", 902)


@broken(
    CASES, "wrong-channels", "images/d.png", ("1 channel", "most have 3"), "same number of channels", level="warning"
)
def gray_among_color(root: Path) -> None:
    write_image(root / "images/d.png", 903, channels=1)


def _turn_gray(root: Path) -> None:
    for seed, path in enumerate(sorted([*root.glob("**/images/*.png"), *root.glob("unlabeled/*.png")])):
        write_image(path, 910 + seed, channels=1)


@broken(CASES, "wrong-channels", "test/images/s.png", ("3 channels", "network takes 1"), "gray")
def color_in_test_of_a_gray_set(root: Path) -> None:
    _turn_gray(root)
    write_image(root / "test/images/s.png", 904)


@broken(
    CASES, "wrong-channels", "val/images/p.png", ("3 channels", "most have 1", "repeated"), "all gray", level="warning"
)
def color_in_val_of_a_gray_set(root: Path) -> None:
    _turn_gray(root)
    write_image(root / "val/images/p.png", 904)


@broken(CASES, "wrong-channels", "unlabeled/y.tif", "CMYK", "RGB")
def image_in_print_colors(root: Path) -> None:
    Image.open(root / "unlabeled/y.png").convert("CMYK").save(root / "unlabeled/y.tif")
    (root / "unlabeled/y.png").unlink()


def _as_tiff(root: Path, name: str, mode: str, **options: object) -> None:
    Image.open(root / f"{name}.png").convert(mode).save(root / f"{name}.tif", **options)
    (root / f"{name}.png").unlink()


@broken(CASES, "read-in-part", "images/a.tif", ("4 channels", "beyond the first 3"), "gray or RGB", level="warning")
def color_and_infrared(root: Path) -> None:
    _as_tiff(root, "images/a", "RGBX")


@broken(CASES, "read-in-part", "unlabeled/y.tif", ("several pages", "first is read"), "one page", level="warning")
def stack_of_slices(root: Path) -> None:
    slices = [Image.open(root / "images/a.png")]
    _as_tiff(root, "unlabeled/y", "RGB", save_all=True, append_images=slices)


@broken(CASES, "read-in-part", "masks/d.tif", ("several pages", "first is read"), "one page", level="warning")
def mask_with_a_page_per_object(root: Path) -> None:
    _as_tiff(root, "masks/d", "L", save_all=True, append_images=[Image.open(root / "masks/a.png")])


def _write_deep(root: Path, largest: int) -> None:
    random = np.random.default_rng(8)
    for path in sorted([*root.glob("**/images/*.png"), *root.glob("unlabeled/*.png")]):
        deep = random.integers(0, largest, (HEIGHT, WIDTH), dtype=np.uint16, endpoint=True)
        deep[0, 0] = largest
        Image.fromarray(deep).save(path)


@broken(CASES, "mixed-depth", "unlabeled/z.png", ("16-bit", "8-bit"), "depth", level="warning")
def sixteen_bit_among_gray(root: Path) -> None:
    _turn_gray(root)
    deep = np.random.default_rng(9).integers(0, 65536, (HEIGHT, WIDTH), dtype=np.uint16)
    Image.fromarray(deep).save(root / "unlabeled/z.png")


@broken(CASES, "narrow-range", "", ("is 4095 of 65535", "almost black"), "by one number, at most 16", level="warning")
def twelve_bits_in_sixteen(root: Path) -> None:
    _write_deep(root, 4095)


# Duplicates


def _copy(root: Path, source: str, target: str) -> None:
    (root / target).write_bytes((root / source).read_bytes())


@broken(CASES, "duplicate-image", "val/images/p.png", ("images/a.png", "val", "labeled"), "remove")
def labeled_image_in_val(root: Path) -> None:
    _copy(root, "images/a.png", "val/images/p.png")


@broken(CASES, "duplicate-image", "test/images/s.bmp", ("images/a.png", "test", "labeled"), "remove")
def labeled_image_in_test_in_another_format(root: Path) -> None:
    Image.open(root / "images/a.png").save(root / "test/images/s.bmp")
    (root / "test/images/s.png").unlink()


@broken(
    CASES, "duplicate-image", "val/images/q.png", ("unlabeled/x.png", "val", "unlabeled"), "remove", level="warning"
)
def unlabeled_image_in_val(root: Path) -> None:
    _copy(root, "unlabeled/x.png", "val/images/q.png")


@broken(CASES, "duplicate-image", "unlabeled/y.png", ("images/c.png", "labeled"), "remove", level="warning")
def labeled_image_in_unlabeled(root: Path) -> None:
    _copy(root, "images/c.png", "unlabeled/y.png")


@broken(CASES, "duplicate-image", "unlabeled/z.png", ("unlabeled/x.png",), "remove", level="warning")
def image_twice_in_unlabeled(root: Path) -> None:
    _copy(root, "unlabeled/x.png", "unlabeled/z.png")


# The folder as a whole


@broken(CASES, "outside-root", "images/b.png", "outside", "copy")
def image_links_outside(root: Path) -> None:
    outside = root.parent / f"{root.name}_elsewhere.png"
    os.replace(root / "images/b.png", outside)
    (root / "images/b.png").symlink_to(outside)


@broken(CASES, "outside-root", "masks/b.png", "outside", "copy")
def mask_links_outside(root: Path) -> None:
    outside = root.parent / f"{root.name}_elsewhere.png"
    os.replace(root / "masks/b.png", outside)
    (root / "masks/b.png").symlink_to(os.path.relpath(outside, root / "masks"))


@broken(CASES, "outside-root", "split.txt, line 2", "`../secret`", "below", split="split.txt")
def split_file_points_outside(root: Path) -> None:
    (root / "split.txt").write_text("a\n../secret\n")


@broken(CASES, "bad-split", "split.txt", "not in the data set, 1 in all: nobody", "names such as a", split="split.txt")
def split_file_names_a_stranger(root: Path) -> None:
    (root / "split.txt").write_text("a\nb\nnobody\n")


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


@broken(CASES, "no-labeled", "", "no labeled image", "masks/")
def nothing_labeled(root: Path) -> None:
    _remove(root / "images")
    _remove(root / "masks")


@broken(CASES, "no-unlabeled", "unlabeled", "no unlabeled image", "unlabeled/", level="warning")
def nothing_unlabeled(root: Path) -> None:
    _remove(root / "unlabeled")


@broken(CASES, "no-val", "val", "no validation image", "val/images", level="warning")
def nothing_to_validate_on(root: Path) -> None:
    _remove(root / "val")


@broken(CASES, "bad-classes", "classes.txt", "road", "once")
def class_named_twice(root: Path) -> None:
    (root / "classes.txt").write_text("background\nroad\nroad\n")


@broken(CASES, "bad-classes", "classes.txt", "no class", "one name per line")
def classes_file_empty(root: Path) -> None:
    (root / "classes.txt").write_text("\n\n")


@broken(CASES, "single-class", "classes.txt", "one class", "two")
def one_class_declared(root: Path) -> None:
    (root / "classes.txt").write_text("background\n")
    for path in sorted(root.glob("**/masks/*.png")):
        write_mask(path, np.zeros((HEIGHT, WIDTH), np.uint8))


@broken(CASES, "unknown-layout", "", "images", "images/")
def folder_without_images(root: Path) -> None:
    for folder in ("images", "masks", "unlabeled", "val", "test"):
        _remove(root / folder)
    (root / "readme.md").write_text("the images are on another disk\n")

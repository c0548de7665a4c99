"""`fewmask predict`: which images it finds, where their masks go, and what it says about those it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.commands.conftest import Fewmask
from tests.commands.folders import files, noise, write_folder, write_model


def test_nested_folders_keep_their_paths_and_odd_names_their_letters(fewmask: Fewmask, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    photos = tmp_path / "my photos ü"
    for name in ("a.jpg", "deep/er/[red]b <i>.png", "deep/c 日本.tiff", ".hidden.png", "notes.txt"):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("txt"):
            (photos / name).write_text("no image")
        else:
            Image.fromarray(noise((20, 30))).save(photos / name)
    result = fewmask("predict", tmp_path / "model", photos, "--out", photos / "masks")
    assert (result.code, result.err) == (0, f"3 of 3 masks in {photos / 'masks'}\n")
    assert files(photos / "masks") == ["a.png", "deep/c 日本.png", "deep/er/[red]b <i>.png"]
    again = fewmask("predict", tmp_path / "model", photos, "--out", photos / "masks")
    assert again.err == f"3 of 3 masks in {photos / 'masks'}\n"  # the masks are not taken for images


def test_images_below_the_folder_for_the_masks_are_found(fewmask: Fewmask, tmp_path: Path) -> None:
    """As with --out . beside them: they had been taken for masks of an earlier call, all of them."""
    write_model(tmp_path / "model")
    (tmp_path / "photos").mkdir()
    Image.fromarray(noise((20, 30))).save(tmp_path / "photos/a.png")
    for _ in range(2):
        result = fewmask("predict", tmp_path / "model", tmp_path / "photos", "--out", tmp_path)
        assert (result.code, result.err) == (0, f"1 of 1 masks in {tmp_path}\n")
    assert [name for name in files(tmp_path) if name.endswith("png")] == ["a.png", "photos/a.png"]


def test_files_and_globs_are_each_predicted_once(fewmask: Fewmask, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    for name in ("a.png", "b.png", "sub/a.png", "sub/c.bmp", "sub/readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(noise((20, 30))).save(tmp_path / name, format="PNG")
    words = (tmp_path / "b.png", f"{tmp_path}/*.png", f"{tmp_path}/sub/../b.png")
    result = fewmask("predict", tmp_path / "model", *words, "--out", tmp_path / "flat")
    assert (result.code, files(tmp_path / "flat")) == (0, ["a.png", "b.png"])
    result = fewmask("predict", tmp_path / "model", f"{tmp_path}/s*/*", "--out", tmp_path / "below")
    assert (result.code, files(tmp_path / "below")) == (0, ["sub/a.png", "sub/c.png"])
    result = fewmask("predict", tmp_path / "model", f"{tmp_path}/*.gif", "--out", tmp_path / "none")
    assert result.code == 2
    assert result.err == (
        f"error: no images found\n  where: {tmp_path}/*.gif\n"
        "  valid: a folder, files, or a quoted glob, of .png, .jpg, .jpeg, .tif, .tiff, .bmp, .webp\n"
    )
    assert not (tmp_path / "none").exists()


def test_no_mask_overwrites_another_mask_or_an_image(fewmask: Fewmask, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    photos, other = tmp_path / "photos", tmp_path / "other"
    for path in (photos / "a.jpg", photos / "a.png", photos / "a_confidence.png", other / "a.png"):
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noise((20, 30))).save(path)
    fewmask("predict", tmp_path / "model", photos, "--out", tmp_path / "plain")
    assert files(tmp_path / "plain") == ["a.png", "a_confidence.png", "a_png.png"]
    fewmask("predict", tmp_path / "model", photos, "--out", tmp_path / "both", "--confidence")
    assert files(tmp_path / "both") == [
        "a.png",
        "a_confidence.png",
        "a_confidence_png.png",
        "a_confidence_png_confidence.png",
        "a_png.png",
        "a_png_confidence.png",
    ]
    result = fewmask("predict", tmp_path / "model", photos / "a.jpg", photos, other, "--out", tmp_path / "clash")
    assert result.code == 2
    assert result.err == (
        f"error: two images would write {tmp_path / 'clash/a_png.png'}\n"
        f"  where: {photos / 'a.png'} and {other / 'a.png'}\n"
        "  valid: another --out, or the folder that holds both: below it relative paths are kept\n"
    )
    before = (photos / "a.png").read_bytes()
    result = fewmask("predict", tmp_path / "model", photos, "--out", photos)
    assert result.code == 2
    assert result.err == (
        f"error: the masks would lie among the images\n  where: {photos}\n  valid: another folder for --out\n"
    )
    assert fewmask("predict", tmp_path / "model", photos / "a.png", "--out", photos).code == 0
    assert (photos / "a.png").read_bytes() == before
    assert (photos / "a_png.png").is_file()


@pytest.mark.parametrize("words", [(), ("--confidence",)])
def test_masks_made_by_hand_are_never_overwritten(fewmask: Fewmask, tmp_path: Path, words: tuple[str, ...]) -> None:
    """In a data folder `--out masks` would put guesses in the place of the labels."""
    write_model(tmp_path / "model")
    data = write_folder(tmp_path / "data", labeled=3, unlabeled=0)
    (data / "masks/photo 0.png").unlink()
    before = {name: (data / name).read_bytes() for name in files(data)}
    result = fewmask("predict", tmp_path / "model", data / "images", "--out", data / "masks", *words)
    assert (result.code, result.out, result.err) == (
        2,
        "",
        "error: 2 files would be overwritten, and fewmask predict did not write them\n"
        f"  where: {data / 'masks/photo 1.png'}\n  valid: another --out, e.g. --out predictions\n",
    )
    assert {name: (data / name).read_bytes() for name in files(data)} == before  # and nothing was added


def test_own_predictions_are_replaced_until_another_program_saves_them(fewmask: Fewmask, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    write_model(tmp_path / "other", seed=2)
    Image.fromarray(noise((20, 30))).save(tmp_path / "a.png")
    mask, map_ = tmp_path / "out/a.png", tmp_path / "out/a_confidence.png"
    words = (tmp_path / "a.png", "--out", tmp_path / "out", "--confidence")
    assert fewmask("predict", tmp_path / "model", *words).code == 0
    first = (mask.read_bytes(), map_.read_bytes())
    assert fewmask("predict", tmp_path / "other", *words).code == 0
    second = (mask.read_bytes(), map_.read_bytes())
    assert (first[0] != second[0], first[1] != second[1]) == (True, True)
    for corrected in (mask, map_):
        written = corrected.read_bytes()
        with Image.open(corrected) as picture:
            picture.load()
        picture.save(corrected)  # as an editor does
        result = fewmask("predict", tmp_path / "model", *words)
        assert (result.code, result.err.splitlines()[:2]) == (
            2,
            ["error: 1 file would be overwritten, and fewmask predict did not write it", f"  where: {corrected}"],
        )
        corrected.write_bytes(written)
    assert (mask.read_bytes(), map_.read_bytes()) == second


def test_unreadable_images_are_passed_over_and_named_at_the_end(fewmask: Fewmask, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.fromarray(noise((40, 40))).save(photos / "1.png")
    whole = (photos / "1.png").read_bytes()
    (photos / "2 [bold].png").write_bytes(whole[: len(whole) // 2])
    (photos / "3.jpg").write_bytes(b"")
    Image.fromarray(noise((20, 30))).save(photos / "4.png")
    result = fewmask("predict", tmp_path / "model", photos, "--out", tmp_path / "masks")
    assert (result.code, result.out) == (1, "")
    lines = result.err.splitlines()
    assert lines[0] == f"2 of 4 masks in {tmp_path / 'masks'}"
    assert lines[1].startswith(f"warning: not predicted: {photos / '2 [bold].png'}: the file ends early (truncated)")
    assert lines[2] == (
        f"warning: not predicted: {photos / '3.jpg'}: the file has 0 bytes (copy it again, or remove it)"
    )
    assert len(lines) == 3
    assert files(tmp_path / "masks") == ["1.png", "4.png"]


def test_a_mask_is_whole_or_not_there(fewmask: Fewmask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "model")
    Image.fromarray(noise((20, 30))).save(tmp_path / "a.png")
    out = tmp_path / "masks"
    assert fewmask("predict", tmp_path / "model", tmp_path / "a.png", "--out", out).code == 0
    before = (out / "a.png").read_bytes()

    def full_disk(file, label, colors) -> None:
        file.write(b"half of a mask")
        raise OSError(28, "No space left on device", str(out / "a.png"))

    monkeypatch.setattr("fewmask.commands.predict.write_index_png", full_disk)
    result = fewmask("predict", tmp_path / "model", tmp_path / "a.png", "--out", out)
    assert result.code == 2
    assert result.err.startswith(f"error: a.png cannot be written: No space left on device\n  where: {out}\n")
    assert files(out) == ["a.png"]
    assert (out / "a.png").read_bytes() == before


def test_the_folder_for_the_masks_must_be_makeable(fewmask: Fewmask, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    Image.fromarray(noise((20, 30))).save(tmp_path / "a.png")
    for out, reason in ((tmp_path / "a.png", "File exists"), (tmp_path / "a.png" / "x", "Not a directory")):
        result = fewmask("predict", tmp_path / "model", tmp_path / "a.png", "--out", out)
        assert (result.code, result.err) == (
            2,
            f"error: the folder for the masks cannot be made: {reason}\n  where: {out}\n  valid: another --out\n",
        )


def test_the_pixel_limit_can_be_set(fewmask: Fewmask, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    write_model(tmp_path / "model")
    Image.fromarray(noise((40, 40))).save(tmp_path / "a.png")
    words = ("predict", tmp_path / "model", tmp_path / "a.png", "--out", tmp_path / "masks", "--max-pixels")
    result = fewmask(*words, 1000)
    assert (result.code, "40x40 = 1,600 pixels, more than the limit of 1,000" in result.err) == (1, True)
    assert "(up to 1,000 pixels; if the file can be trusted, a larger --max-pixels)" in result.err
    assert "data.max_pixels" not in result.err
    assert fewmask(*words, 1600).code == 0
    for nothing in (0, -5):
        result = fewmask(*words, nothing)
        what = f"error: a limit of {nothing} pixels lets no image in\n  where: --max-pixels\n  valid: 1 or more\n"
        assert (result.code, result.err) == (2, what)
    assert not [each for each in recwarn if issubclass(each.category, Image.DecompressionBombWarning)]


def test_what_a_file_holds_beside_what_is_read_is_said_once(fewmask: Fewmask, tmp_path: Path) -> None:
    """A stack of slices gave one mask, and nothing was said of the others."""
    write_model(tmp_path / "model")
    slices = [Image.fromarray(noise((20, 30), seed)) for seed in range(3)]
    for name in ("a.tif", "b.tif"):
        slices[0].save(tmp_path / name, save_all=True, append_images=slices[1:])
    slices[0].save(tmp_path / "plain.tif")
    result = fewmask("predict", tmp_path / "model", f"{tmp_path}/*.tif", "--out", tmp_path / "masks")
    assert (result.code, files(tmp_path / "masks")) == (0, ["a.png", "b.png", "plain.png"])
    which = f"{tmp_path / 'a.tif'} and 1 more"
    assert result.err == (
        f"3 of 3 masks in {tmp_path / 'masks'}\n"
        f"warning: read in part: {which}: the file has several pages, of which the first is read\n"
    )


def test_confidence_maps_of_earlier_masks_are_not_left_without_a_word(fewmask: Fewmask, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    photos, masks = tmp_path / "photos", tmp_path / "masks"
    photos.mkdir()
    for name in ("a", "b", "b_confidence"):  # the last one's mask is no map
        Image.fromarray(noise((20, 30))).save(photos / f"{name}.jpg")
    assert fewmask("predict", tmp_path / "model", photos, "--out", masks).err == f"3 of 3 masks in {masks}\n"
    (photos / "b_confidence.jpg").unlink()
    (masks / "b_confidence.png").unlink()
    assert fewmask("predict", tmp_path / "model", photos, "--out", masks, "--confidence").code == 0
    result = fewmask("predict", tmp_path / "model", photos, "--out", masks)
    old = f"{masks / 'a_confidence.png'} and 1 more"
    assert (result.code, result.err) == (
        0,
        f"2 of 2 masks in {masks}\n"
        f"warning: not of these masks, but of earlier ones: {old} (--confidence replaces them)\n",
    )

"""Image files against Pillow, hand-written bytes and tifffile."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from fewmask.data.problem import DataProblem
from fewmask.data.reading import file_format, image_size, raw_size, read_image
from fewmask.errors import DataError

ORIENTATION = 0x0112


def noise(*shape: int, dtype: type = np.uint8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(array: np.ndarray, depth: int, color_type: int, behind: bytes = b"") -> bytes:
    """A PNG written byte by byte: rows of `array` [H, bytes], no filter, `behind` between pixels and end."""
    height, row = array.shape
    bands = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color_type]
    head = struct.pack(">IIBBBBB", row * 8 // (bands * depth), height, depth, color_type, 0, 0, 0)
    rows = b"".join(b"\0" + line.tobytes() for line in array)
    pixels = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + pixels + behind + chunk(b"IEND", b"")


def wide(array: np.ndarray) -> np.ndarray:
    """[H, W, C] 16-bit numbers as PNG rows, [H, bytes]."""
    return array.astype(">u2").reshape(len(array), -1).view(np.uint8)


@pytest.mark.parametrize("suffix", ["png", "tif", "bmp", "webp"])
@pytest.mark.parametrize("channels", [1, 3])
def test_lossless_files_come_back_as_written(tmp_path: Path, suffix: str, channels: int) -> None:
    array = noise(7, 5, channels)
    path = tmp_path / f"image.{suffix}"
    options = {"lossless": True} if suffix == "webp" else {}
    Image.fromarray(array[:, :, 0] if channels == 1 else array).save(path, **options)
    expected = np.repeat(array, 3, axis=2) if suffix == "webp" and channels == 1 else array  # WebP has no gray
    np.testing.assert_array_equal(read_image(path), expected)


def test_jpeg_equals_pillow(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.fromarray(noise(16, 24, 3)).save(path)
    np.testing.assert_array_equal(read_image(path), np.asarray(Image.open(path)))
    assert file_format(path) == "JPEG"


def test_alpha_is_dropped_not_blended(tmp_path: Path) -> None:
    color, gray = noise(4, 6, 4), noise(4, 6, 2)
    Image.fromarray(color).save(tmp_path / "rgba.png")
    Image.fromarray(gray, "LA").save(tmp_path / "la.png")
    np.testing.assert_array_equal(read_image(tmp_path / "rgba.png"), color[:, :, :3])
    np.testing.assert_array_equal(read_image(tmp_path / "la.png"), gray[:, :, :1])


def test_palette_becomes_its_colors(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), "P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.save(tmp_path / "palette.png")
    expected = [[[10, 20, 30], [40, 50, 60]], [[70, 80, 90], [40, 50, 60]]]
    np.testing.assert_array_equal(read_image(tmp_path / "palette.png"), expected)


def test_one_bit_images_are_black_and_white(tmp_path: Path) -> None:
    Image.fromarray(np.array([[True, False, True]])).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(read_image(tmp_path / "bits.png")[:, :, 0], [[255, 0, 255]])


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_gray_stays_16_bit(tmp_path: Path, suffix: str) -> None:
    array = noise(5, 3, dtype=np.uint16)
    Image.fromarray(array).save(tmp_path / f"deep.{suffix}")
    read = read_image(tmp_path / f"deep.{suffix}")
    assert read.dtype == np.uint16
    np.testing.assert_array_equal(read[:, :, 0], array)


@pytest.mark.parametrize(("bands", "color_type", "kept"), [(3, 2, 3), (4, 6, 3), (2, 4, 1)])
def test_16_bit_png_keeps_the_lower_bytes(tmp_path: Path, bands: int, color_type: int, kept: int) -> None:
    array = noise(5, 7, bands, dtype=np.uint16)
    (tmp_path / "deep.png").write_bytes(png(wide(array), 16, color_type))
    read = read_image(tmp_path / "deep.png")
    assert read.dtype == np.uint16
    np.testing.assert_array_equal(read, array[:, :, :kept])


@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_16_bit_color_tiff(tmp_path: Path, planar: str) -> None:
    tifffile = pytest.importorskip("tifffile")
    array = noise(6, 9, 3, dtype=np.uint16)
    stored = array if planar == "contig" else np.moveaxis(array, 2, 0)
    tifffile.imwrite(tmp_path / "deep.tif", stored, photometric="rgb", planarconfig=planar)
    np.testing.assert_array_equal(read_image(tmp_path / "deep.tif"), array)


def test_16_bit_color_tiff_without_tifffile_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "deep.tif", noise(6, 9, 3, dtype=np.uint16), photometric="rgb")
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(DataError, match=r"fewmask\[tiff\]"):
        read_image(tmp_path / "deep.tif")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp"])
def test_exif_orientation_equals_pillow(tmp_path: Path, suffix: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    path = tmp_path / f"turned.{suffix}"
    Image.fromarray(noise(16, 24, 3)).save(path, exif=exif)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(read_image(path), expected)
    assert image_size(path) == expected.shape[:2]
    assert raw_size(path) == (16, 24)


@pytest.mark.parametrize("orientation", [3, 6])
def test_compressed_and_16_bit_tiffs_are_turned_once(tmp_path: Path, orientation: int) -> None:
    tifffile = pytest.importorskip("tifffile")
    array = noise(4, 6, 3, dtype=np.uint16)
    turned = np.rot90(array, {3: 2, 6: -1}[orientation])
    tag = [(ORIENTATION, "H", 1, orientation, True)]
    tifffile.imwrite(tmp_path / "deep.tif", array, photometric="rgb", extratags=tag)
    np.testing.assert_array_equal(read_image(tmp_path / "deep.tif"), turned)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray((array >> 8).astype(np.uint8)).save(tmp_path / "lzw.tif", compression="tiff_lzw", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "lzw.tif"), turned >> 8)


def test_orientation_behind_the_pixels_is_seen(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    array = noise(2, 3)
    (tmp_path / "late.png").write_bytes(png(array, 8, 0, chunk(b"eXIf", exif.tobytes()[6:])))
    assert image_size(tmp_path / "late.png") == (3, 2)
    np.testing.assert_array_equal(read_image(tmp_path / "late.png")[:, :, 0], np.rot90(array, -1))


def test_damaged_exif_leaves_the_image_as_stored(tmp_path: Path) -> None:
    array = noise(2, 3)
    (tmp_path / "odd.png").write_bytes(png(array, 8, 0, chunk(b"eXIf", b"no such thing")))
    np.testing.assert_array_equal(read_image(tmp_path / "odd.png")[:, :, 0], array)


def test_pixel_limit_is_checked_before_decoding(tmp_path: Path) -> None:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 50_000, 8, 2, 0, 0, 0))
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    for read in (read_image, image_size):
        with pytest.raises(DataProblem, match=r"data\.max_pixels") as caught:
            read(tmp_path / "bomb.png")
        assert caught.value.code == "too-large"


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_pixel_limit_can_be_raised_and_lowered(tmp_path: Path) -> None:
    Image.fromarray(noise(30, 40)).save(tmp_path / "image.png")
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(DataError, match="40x30 = 1,200 pixels, more than the limit of 1,199"):
        read_image(tmp_path / "image.png", max_pixels=1199)
    assert read_image(tmp_path / "image.png", max_pixels=1200).shape == (30, 40, 1)
    assert before == Image.MAX_IMAGE_PIXELS


def test_raised_limit_lifts_pillows_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow by itself refuses anything above 200 pixels
    array = noise(30, 40)
    Image.fromarray(array).save(tmp_path / "image.tif")
    np.testing.assert_array_equal(read_image(tmp_path / "image.tif")[:, :, 0], array)
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "bmp", "webp"])
def test_truncated_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(noise(40, 40, 3)).save(path)
    whole = path.read_bytes()
    for length in (len(whole) // 2, 20):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError) as caught:
            read_image(path)
        assert caught.value.where == str(path)
        assert caught.value.fix


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "bmp", "webp"])
def test_damaged_files_are_read_or_refused_but_never_crash(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"image.{suffix}"
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.fromarray(noise(12, 9, 3)).save(path, **({} if suffix == "bmp" else {"exif": exif}))
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    for _ in range(60):
        content = bytearray(whole)
        for place in random.integers(0, min(len(whole), 200), 3):
            content[place] = random.integers(0, 256)
        path.write_bytes(content)
        try:
            array = read_image(path, max_pixels=100_000)
        except DataError:
            continue
        assert array.shape[:2] == image_size(path)


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", "zero-size", "0 bytes"),
        (b"<html>not found</html>", "unreadable", "not an image"),
        (b"GIF89a" + bytes(40), "wrong-format", "GIF"),
        (b"\0\0\0\x1cftypavif" + bytes(40), "wrong-format", "AVIF"),
        (b"\xff\xd8" + b"x" * 40, "unreadable", "starts like a JPEG"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, code: str, words: str) -> None:
    (tmp_path / "file.png").write_bytes(content)
    with pytest.raises(DataProblem, match=words) as caught:
        read_image(tmp_path / "file.png")
    assert caught.value.code == code


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_image(tmp_path / "nowhere.png")


def test_unsupported_channels_are_named(tmp_path: Path) -> None:
    Image.fromarray(noise(4, 4, 4), "CMYK").save(tmp_path / "print.jpg")
    with pytest.raises(DataProblem, match="CMYK") as caught:
        read_image(tmp_path / "print.jpg")
    assert caught.value.code == "wrong-channels"
    Image.fromarray(noise(4, 4).astype(np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(DataError, match="32-bit floats"):
        read_image(tmp_path / "float.tif")


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("<i2", "signed 16-bit integers"),
        (">i2", "signed 16-bit integers"),
        ("<i4", "32-bit integers"),
        ("<f4", "32-bit floats"),
    ],
)
def test_numbers_that_have_to_be_rescaled_are_named_and_what_to_do(tmp_path: Path, dtype: str, words: str) -> None:
    """As CT images are stored; the words serve training and prediction alike."""
    tifffile = pytest.importorskip("tifffile")
    array = np.linspace(-1000, 3000, 20).reshape(4, 5).astype(dtype)
    tifffile.imwrite(tmp_path / "ct.tif", array, byteorder=dtype[0])
    with pytest.raises(DataProblem) as caught:
        read_image(tmp_path / "ct.tif")
    assert caught.value.what == f"the image holds {words}, which cannot be used"
    assert caught.value.fix.startswith("unsigned 16 bits: shift and scale the values of all images alike")


def test_five_bands_are_counted(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "bands.tif", noise(5, 8, 8), photometric="minisblack", planarconfig="separate")
    with pytest.raises(DataProblem, match="5 channels of 8 bits") as caught:
        read_image(tmp_path / "bands.tif")
    assert caught.value.code == "wrong-channels"

"""Images and masks at another size, once, when they are decoded."""

from __future__ import annotations

import numpy as np
from PIL import Image

Size = tuple[int, int]  # height, width


def resize_image(array: np.ndarray, size: Size) -> np.ndarray:
    """[H, W, C] at another size, in its own depth."""
    if array.dtype == np.uint8:
        picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
        return np.asarray(_resized(picture, size)).reshape(*size, -1)
    planes = [Image.fromarray(array[:, :, band].astype(np.float32)) for band in range(array.shape[2])]
    smooth = np.stack([np.asarray(_resized(plane, size)) for plane in planes], axis=2)
    return np.rint(smooth).clip(0, 65535).astype(np.uint16)


def _resized(picture: Image.Image, size: Size) -> Image.Image:
    height, width = size
    if picture.height % height == 0 and picture.width % width == 0:
        return picture.reduce((picture.width // width, picture.height // height))  # rounds once; resize rounds per axis
    return picture.resize((width, height), Image.Resampling.BILINEAR)


def resize_mask(label: np.ndarray, size: Size) -> np.ndarray:
    """[H, W] at another size: exactly half is a majority vote of 2x2 (as French et al.), anything else is nearest.

    In a tie the upper left pixel of those tied wins; ignore votes like a class.
    """
    if label.shape == (2 * size[0], 2 * size[1]):
        votes = np.stack([label[0::2, 0::2], label[0::2, 1::2], label[1::2, 0::2], label[1::2, 1::2]])  # [4, h, w]
        support = (votes[:, None] == votes[None]).sum(axis=1)
        return np.take_along_axis(votes, support.argmax(axis=0)[None], axis=0)[0]
    return np.asarray(Image.fromarray(label).resize((size[1], size[0]), Image.Resampling.NEAREST))

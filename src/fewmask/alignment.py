"""Where the cells of a feature map lie: one every `stride` pixels from the image's edge, whatever the image's size.

A network gives ceil(size / stride) cells, of which the last may hang over the edge. Were each cell taken for an equal
share of the image, cells would lie up to a stride off where the size is no multiple of it, and differently in a crop
than in the whole image.
"""

from __future__ import annotations


def pitch(size: int, cells: int) -> float:
    """Pixels from one cell's middle to the next: the power of two that gives so many cells, else an equal share.

    From two cells on at most one power of two does.
    """
    stride = 1
    while -(-size // stride) > cells:
        stride *= 2
    return stride if -(-size // stride) == cells else size / cells

"""What a network says about images seen in several ways: enlarged or reduced, and mirrored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor
from torch.nn import functional as F

from fewmask.alignment import pitch

Ask = Callable[[Tensor], Tensor]  # images [N, C, H, W] -> logits [N, K, h, w]


def view_probabilities(
    ask: Ask, images: Tensor, own: Tensor, *, scales: Sequence[float], flip: bool
) -> Iterator[Tensor]:
    """The softmax of each view, on the images' own grid; `own` are the logits of the images as they are.

    Other views are of images filled up to whole cells: mirrored or resized, their cells then lie on those of `own`.
    """
    cells = own.shape[-2:]
    sides = [round(count * pitch(size, count)) for count, size in zip(cells, images.shape[-2:], strict=True)]
    missing = [full - size for full, size in zip(sides, images.shape[-2:], strict=True)]
    whole = F.pad(images, (0, missing[1], 0, missing[0]), mode="replicate")
    for scale in scales:
        size = [side // count * max(1, round(count * scale)) for side, count in zip(sides, cells, strict=True)]
        view = whole if scale == 1 else F.interpolate(whole, size=size, mode="bilinear", antialias=True)
        yield _on_grid(own if scale == 1 else ask(view), own)
        if flip:
            yield _on_grid(ask(view.flip(-1)).flip(-1), own)


def _on_grid(logits: Tensor, own: Tensor) -> Tensor:
    """Probabilities [N, K, h, w] at the cells of `own`: of whole cells, each is its share of the image at any scale."""
    probability = logits.float().softmax(1)
    if logits.shape == own.shape:
        return probability
    size = (own.shape[-2], own.shape[-1])
    return F.interpolate(probability, size=size, mode="bilinear", antialias=True)

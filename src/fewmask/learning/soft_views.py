"""What a network says about images seen in several ways: enlarged or reduced, and mirrored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor
from torch.nn import functional as F

Ask = Callable[[Tensor], Tensor]  # images [N, C, H, W] -> logits [N, K, h, w]


def view_probabilities(
    ask: Ask, images: Tensor, own: Tensor, *, scales: Sequence[float], flip: bool
) -> Iterator[Tensor]:
    """The softmax of each view, on the images' own grid; `own` are the logits of the images as they are."""
    for scale in scales:
        view = images if scale == 1 else F.interpolate(images, scale_factor=scale, mode="bilinear", antialias=True)
        logits = own if scale == 1 else ask(view)
        yield _on_grid(logits, own)
        if flip:
            yield _on_grid(ask(view.flip(-1)).flip(-1), own)


def _on_grid(logits: Tensor, own: Tensor) -> Tensor:
    """Probabilities [N, K, h, w] at the cells of `own`; every cell is its share of the image, whatever the scale."""
    probability = logits.float().softmax(1)
    if logits.shape == own.shape:
        return probability
    size = (own.shape[-2], own.shape[-1])
    return F.interpolate(probability, size=size, mode="bilinear", antialias=True)

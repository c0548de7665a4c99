"""Which tensor of a weight file belongs to which tensor of a backbone, and what to say about it.

timm renames modules when it cuts a model down to its feature maps (stages.0 becomes stages_0, a transformer moves below
model.), and files carry prefixes such as module. or backbone.; both are seen through here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_WRAPPED = ("model.", "body.")  # timm's feature wrappers
_MOST_PREFIX_PARTS = 4
DRAWN = "drawn at random"
_COUNTER = "num_batches_tracked"  # absent in many files, and without effect


@dataclass(frozen=True)
class WeightReport:
    """Which of the backbone's tensors came from where, by the backbone's own names."""

    source: str
    matched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    wrong_shape: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()  # in the file only
    adapted: tuple[str, ...] = ()  # first convolutions fitted to another number of image channels

    @property
    def total(self) -> int:
        return len(self.matched) + len(self.missing) + len(self.wrong_shape)

    def text(self) -> str:
        if not self.total:
            return f"weights: {self.source}"
        parts = [f"{len(self.matched)} of {self.total} backbone tensors"]
        for label in ("missing", "wrong_shape", "unexpected", "adapted"):
            names = getattr(self, label)
            if names:
                parts.append(f"{len(names)} {label.replace('_', ' ')} ({_shortened(names)})")
        return f"weights: {self.source}: " + "; ".join(parts)


def match_weights(
    own: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str
) -> tuple[dict[str, Tensor], WeightReport]:
    """The tensors that fit by name and shape, under the backbone's own names, and a report."""
    own = {name: value for name, value in own.items() if not name.endswith(_COUNTER)}
    names = _names_in_file(own, given)
    inputs = next((name for name, value in own.items() if value.ndim == 4), None)  # the first convolution
    fitting, adapted = {}, []
    for name, file_name in names.items():
        value = given[file_name]
        if name == inputs and _differs_in_channels_only(value, own[name]):
            value = fitted_to_channels(value, own[name].shape[1])
            adapted.append(name)
        if value.shape == own[name].shape:
            fitting[name] = value.to(own[name].dtype)
    used = set(names.values())
    report = WeightReport(
        source=source,
        matched=tuple(fitting),
        missing=tuple(name for name in own if name not in names),
        wrong_shape=tuple(name for name in names if name not in fitting),
        unexpected=tuple(name for name in given if name not in used and not name.endswith(_COUNTER)),
        adapted=tuple(adapted),
    )
    return fitting, report


def fitted_to_channels(weight: Tensor, channels: int) -> Tensor:
    """An input convolution [D, C, k, k] for images with another number of channels.

    Gray images get the sum (gray shown as RGB gives the same response); more channels get the filters in turn, scaled
    so that the response keeps its size.
    """
    weight = weight.float()
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    turn = torch.arange(channels) % weight.shape[1]
    return weight[:, turn] * (weight.shape[1] / channels)


def _names_in_file(own: Iterable[str], given: Iterable[str]) -> dict[str, str]:
    """Own name -> name in the file, under the prefix that explains most names."""
    wanted = {_canonical(_unprefixed(name)): name for name in own}
    there = {_canonical(name): name for name in given}
    prefixes = {""}
    for name in there:
        parts = name.split(".")[: _MOST_PREFIX_PARTS + 1]
        prefixes.update(".".join(parts[:length]) + "." for length in range(1, len(parts)))
    in_order = sorted(prefixes, key=lambda prefix: (len(prefix), prefix))  # where several fit as well, always the same
    best = max(in_order, key=lambda prefix: sum(prefix + name in there for name in wanted))
    return {name: there[best + canonical] for canonical, name in wanted.items() if best + canonical in there}


def _canonical(name: str) -> str:
    return name.replace("_", ".")


def _unprefixed(name: str) -> str:
    return next((name.removeprefix(prefix) for prefix in _WRAPPED if name.startswith(prefix)), name)


def _differs_in_channels_only(given: Tensor, own: Tensor) -> bool:
    return given.ndim == 4 and given.shape[1] != own.shape[1] and given.shape[2:] == own.shape[2:]


def _shortened(names: tuple[str, ...], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")

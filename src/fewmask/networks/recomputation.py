"""Less memory for more computing: blocks that compute their activations again, and passes in several parts.

Both change what calling a module does, in the place where torch.compile puts its code as well: no name of a parameter
changes, hooks still run, and a copy of a network is a plain one again. Compile first, then come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fewmask.networks.model_noise import ResidualGate, gated_blocks
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.randomness import Noise
from fewmask.types import Prediction

Call = Callable[..., Any]
Cut = Callable[[Tensor, int], Sequence[Tensor]]


def recompute_blocks(network: SegmentationNetwork) -> None:
    """Residual blocks and the heads' embeddings keep their inputs; the backward pass computes the rest again."""
    for module in recomputed_modules(network):
        module._compiled_call_impl = partial(_recomputed, module, _call_of(module))


def recomputed_modules(network: SegmentationNetwork) -> list[nn.Module]:
    """Blocks of every class that has a gate somewhere: those without a shortcut have lost theirs."""
    kinds = {type(block) for block in gated_blocks(network)}
    blocks = [module for module in network.modules() if type(module) in kinds]
    return [*blocks, *(each for each in network.embeddings() if not isinstance(each, nn.Identity))]


def split_passes(network: SegmentationNetwork, parts: int) -> None:
    """Images go through in up to `parts` parts, whose answers are joined; a part's activations are computed again.

    So only one part's activations are alive in the backward pass, and the loss is still that of the whole batch. In
    passes with gradients every part has images from everywhere in the batch.
    """
    network._compiled_call_impl = partial(_in_parts, network, _call_of(network), parts)


def _call_of(module: nn.Module) -> Call:
    return module._compiled_call_impl or module._call_impl


def _in_parts(
    network: SegmentationNetwork, call: Call, most: int, images: Tensor, noise: Noise | None = None
) -> Prediction:
    parts = min(most, len(images))
    if parts <= 1 or torch.is_inference_mode_enabled():  # evaluation has a batch size of its own
        whole: Prediction = call(images, noise)
        return whole
    cut, join = (_dealt, _undealt) if torch.is_grad_enabled() else (_in_order, torch.cat)
    answers = []
    for each in zip(cut(images, parts), _noise_parts(noise, cut, parts), strict=True):
        answers.append(_recomputed(network, call, *each))
        torch.clear_autocast_cache()  # each part casts the weights itself, so gradients are added up in float32
    return Prediction.joined(answers, join)


def _in_order(rows: Tensor, parts: int) -> Sequence[Tensor]:
    """Where nothing is learned, images pass in their order, so that a hook can tell the first ones."""
    return rows.tensor_split(parts)


def _dealt(rows: Tensor, parts: int) -> Sequence[Tensor]:
    """Like cards: a batch has the unlabeled images after the labeled, and BatchNorm must not normalize them apart."""
    return [rows[part::parts] for part in range(parts)]


def _undealt(answers: Sequence[Tensor]) -> Tensor:
    """In the order of the batch; whole rows are copied, so nothing is indexed and the layout in memory stays."""
    rows = zip_longest(*(answer.split(1) for answer in answers))
    return torch.cat([row for each in rows for row in each if row is not None])


def _noise_parts(noise: Noise | None, cut: Cut, parts: int) -> list[Noise | None]:
    if noise is None:
        return [None] * parts
    return [replace(noise, position=position) for position in cut(noise.position, parts)]


def _recomputed(module: nn.Module, call: Call, *arguments: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return call(*arguments, **named)
    return checkpoint(
        call,
        *arguments,
        use_reentrant=False,
        preserve_rng_state=False,  # noise is addressed; the state of a generator could not be captured either
        context_fn=partial(_contexts, module),
        **named,
    )


def _contexts(module: nn.Module) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Around the first computation and around the second."""
    gates = [each for each in module.modules() if isinstance(each, ResidualGate)]
    return nullcontext(), _once_more(module, [(gate, gate.keep) for gate in gates])


@contextmanager
def _once_more(module: nn.Module, keeps: list[tuple[ResidualGate, Tensor | None]]) -> Iterator[None]:
    """Gates as they were the first time; statistics move in copies, so that an image counts once.

    Copies, and not `track_running_stats = False`: checkpoint wants the same tensors to be saved both times.
    """
    layers = [layer for layer in module.modules() if layer.training]
    buffers = [(layer, name, value) for layer in layers for name, value in layer.named_buffers(recurse=False)]
    now = [(gate, gate.keep) for gate, _ in keeps]
    try:
        _set_gates(keeps)
        for layer, name, value in buffers:
            setattr(layer, name, value.clone())
        yield
    finally:
        _set_gates(now)
        for layer, name, value in buffers:
            setattr(layer, name, value)


def _set_gates(keeps: list[tuple[ResidualGate, Tensor | None]]) -> None:
    for gate, keep in keeps:
        gate.keep = keep

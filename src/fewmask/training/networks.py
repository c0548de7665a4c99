"""The networks of a finished run, for evaluation and prediction."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fewmask.errors import CheckpointError
from fewmask.evaluation.inference import Predictor
from fewmask.evaluation.scoring import ENSEMBLE
from fewmask.methods.table import method_class
from fewmask.networks.compilation import for_any_size
from fewmask.networks.folding import FoldedTwin
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training.checkpoint import load_newest
from fewmask.training.engine import choose_precision
from fewmask.training.learners import learner_config
from fewmask.training.model_file import ModelCard, empty_network, load_card, load_model, load_weights
from fewmask.training.run_folder import RunFolder
from fewmask.training.state import network_state


def load_networks(
    folder: RunFolder, warn: Callable[[str], None] | None = None
) -> tuple[dict[str, SegmentationNetwork], ModelCard, tuple[str, ...]]:
    """Every predictor of the run, the model card, and who forms the ensemble; without checkpoints only what ships.

    Learners may have networks of their own, so each is built as the run's settings say. A checkpoint of another step
    than what ships, as of a run that is being extended or whose last one is damaged, is not this model's: that is an
    error, or with `warn` only what ships is given.
    """
    shipped, card = load_model(folder.path)
    state = load_newest(folder.checkpoints)
    if state is None:
        return {card.predictor: shipped}, card, ()
    method, config = method_class(card.method), folder.read_config()
    networks = {}
    for name in method.predictors:
        networks[name] = empty_network(replace(card, network=learner_config(config, method.learner_of(name)).network))
        load_weights(networks[name], network_state(state, name), where=str(folder.checkpoints))
    if _same_weights(networks[card.predictor], shipped):
        return networks, card, method.ensemble
    problem = _of_another_step(folder, int(state["step"]), card.predictor)
    if warn is None:
        raise problem
    warn(f"{problem.what}: only {card.predictor} is scored")
    return {card.predictor: shipped}, card, ()


def _same_weights(one: SegmentationNetwork, other: SegmentationNetwork) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def _of_another_step(folder: RunFolder, step: int, predictor: str) -> CheckpointError:
    what = f"the newest readable checkpoint, of step {step}, is not of the model that ships"
    fix = f"{predictor}, or `fewmask train --out {shlex.quote(str(folder.path))} --resume` first"
    return CheckpointError(what, where=str(folder.checkpoints), fix=fix)


def load_network(folder: RunFolder, name: str | None) -> tuple[SegmentationNetwork, ModelCard]:
    """The named network, or the one that ships."""
    card = load_card(folder.path)
    if name is None or name == card.predictor:
        return load_model(folder.path)
    networks, card, ensemble = load_networks(folder)
    if name not in networks:
        names = [*networks, ENSEMBLE] if len(ensemble) > 1 else networks
        raise CheckpointError(f"the run has no network {name!r}", where=str(folder.path), fix=", ".join(names))
    return networks[name], card


def autocast_logits(network: SegmentationNetwork, device: torch.device, precision: str = "auto") -> Predictor:
    """The network as evaluation sees it: in eval mode on the device, without gradients, its weights as they are now."""
    network.to(device=device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    dtype = next(network.parameters()).dtype
    bf16 = choose_precision(precision, device) == "bf16"
    answer = network
    if device.type == "cpu":
        answer = FoldedTwin(network, dtype=torch.bfloat16 if bf16 else None, fused=True).network

    @torch.inference_mode()
    def logits(images: Tensor) -> Tensor:
        with for_any_size(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return answer(images.to(device, dtype, memory_format=torch.channels_last)).logits

    return logits

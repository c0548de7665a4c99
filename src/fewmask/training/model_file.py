"""What a run ships: model.safetensors with a JSON card that says all that prediction needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fewmask.config import NetworkSettings
from fewmask.data.dataset import Classes, MaskCoding
from fewmask.errors import CheckpointError
from fewmask.networks.build import build_network
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.settings import read_section
from fewmask.training.checkpoint import write_atomically

CARD_VERSION = 1


@dataclass(frozen=True)
class ModelCard:
    """How to rebuild the network and read its answers."""

    network: NetworkSettings
    channels: int
    classes: Classes
    predictor: str
    selected_on: str | None
    miou: float | None
    method: str
    resize: tuple[int, int] | None = None  # height and width that images had been resized to before training
    coding: MaskCoding | None = None  # how the run read its masks; older cards do not say

    def to_json(self) -> dict[str, Any]:
        return {
            "format_version": CARD_VERSION,
            "method": self.method,
            "predictor": self.predictor,
            "selected_on": self.selected_on,
            "miou": self.miou,
            "channels": self.channels,
            "resize": list(self.resize) if self.resize else None,
            "classes": [
                {"name": name, "color": list(color)}
                for name, color in zip(self.classes.names, self.classes.colors, strict=True)
            ],
            "masks": _coding_json(self.coding) if self.coding else None,
            "network": self.network.model_dump(mode="json"),
        }


def _coding_json(coding: MaskCoding) -> dict[str, Any]:
    return {
        "kind": coding.kind,
        "values": [list(pair) for pair in coding.lookup.items()],
        "colors": [[list(color), label] for color, label in coding.color_lookup.items()],
        "ignore": sorted(coding.ignore),
        "ignore_colors": [list(color) for color in sorted(coding.ignore_colors)],
    }


def _coding(content: dict[str, Any]) -> MaskCoding:
    return MaskCoding(
        content["kind"],
        dict(map(tuple, content["values"])),
        {tuple(color): label for color, label in content["colors"]},
        frozenset(content["ignore"]),
        frozenset(map(tuple, content["ignore_colors"])),
    )


def save_model(folder: Path, network: SegmentationNetwork, card: ModelCard) -> None:
    tensors = {key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()}
    write_atomically(folder / "model.safetensors", lambda file: file.write(save(tensors)))
    text = json.dumps(card.to_json(), indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / "model.json", lambda file: file.write(text.encode()))


def load_card(folder: Path) -> ModelCard:
    path = folder / "model.json"
    if not path.is_file():
        raise CheckpointError("no model here", where=str(folder), fix="the folder of a finished run, with model.json")
    try:
        return _card(json.loads(path.read_text(encoding="utf-8")), path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"the model card cannot be read ({type(error).__name__}: {error})"
        raise CheckpointError(what, where=str(path), fix="model.json as `fewmask train` writes it") from None


def _card(content: dict[str, Any], path: Path) -> ModelCard:
    if content.get("format_version") != CARD_VERSION:
        raise CheckpointError("a model card of another version", where=str(path), fix=f"format_version {CARD_VERSION}")
    classes = Classes(
        tuple(each["name"] for each in content["classes"]), tuple(tuple(each["color"]) for each in content["classes"])
    )
    network = read_section(NetworkSettings, content["network"], where=str(path))
    plain = {key: content[key] for key in ("channels", "predictor", "selected_on", "miou", "method")}
    resize = tuple(content["resize"]) if content.get("resize") else None
    coding = _coding(content["masks"]) if content.get("masks") else None
    return ModelCard(network=network, classes=classes, resize=resize, coding=coding, **plain)


def empty_network(card: ModelCard) -> SegmentationNetwork:
    """The card's architecture; its weights are about to be replaced, so nothing pretrained is looked for."""
    settings = card.network.model_copy(update={"pretrained": "none"})
    return build_network(settings, num_classes=len(card.classes), channels=card.channels).eval()


def load_model(folder: Path) -> tuple[SegmentationNetwork, ModelCard]:
    card = load_card(folder)
    network, path = empty_network(card), folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        what = f"the model's weights cannot be read ({error})"
        raise CheckpointError(what, where=str(path), fix="model.safetensors as `fewmask train` writes it") from None
    load_weights(network, tensors, where=str(path))
    return network, card


def load_weights(network: SegmentationNetwork, tensors: dict[str, torch.Tensor], where: str) -> None:
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"the weights do not fit the network: {reason}", where=where) from None

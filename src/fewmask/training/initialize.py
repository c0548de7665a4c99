"""`--init RUN`: networks start from the model another run shipped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fewmask.errors import CheckpointError
from fewmask.methods.method import Method
from fewmask.training.model_file import load_model


def initialize_from(method: Method, run: Path, names: Sequence[str] | None = None) -> str:
    """Copy the run's model into the named networks, or all; tensors of another shape (other classes) stay fresh."""
    source, card = load_model(run)
    tensors = source.state_dict()
    kept: list[str] = []
    networks = method.networks()
    for network in (networks[name] for name in (names or networks)):
        own = network.state_dict()
        fitting = {key: value for key, value in tensors.items() if key in own and own[key].shape == value.shape}
        kept = [key for key in own if key not in fitting]
        if len(fitting) < len(own) / 2:
            raise CheckpointError(
                "the run's network is another one: less than half of its tensors fit",
                where=str(run),
                fix=f"network.backbone={card.network.backbone} network.head={card.network.head}",
            )
        network.load_state_dict(fitting, strict=False)
    fresh = f"; fresh start for {', '.join(kept)}" if kept else ""
    return f"networks start from {card.predictor} of {run}{fresh}"

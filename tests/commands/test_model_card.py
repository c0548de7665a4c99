"""The card beside a model: how masks were read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fewmask.config import DataSettings
from fewmask.data.dataset import MaskCoding
from fewmask.data.opening import open_dataset
from fewmask.training.model_file import load_card, load_model, save_model


@pytest.mark.parametrize(
    "coding",
    [
        MaskCoding("index", {0: 0, 3: 1}, ignore=frozenset({1, 255})),
        MaskCoding("color", color_lookup={(0, 9, 8): 0, (1, 2, 3): 1}, ignore_colors=frozenset({(5, 5, 5)})),
        None,  # an older version's
    ],
)
def test_the_card_says_how_masks_were_read(
    trained: Path, scenes: Path, tmp_path: Path, coding: MaskCoding | None
) -> None:
    network, card = load_model(trained)
    assert card.coding == open_dataset(scenes, DataSettings()).coding
    save_model(tmp_path, network, replace(card, coding=coding))
    assert load_card(tmp_path) == replace(card, coding=coding)

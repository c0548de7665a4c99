"""`prior: pixel_count`: classes weigh as much as they have labeled pixels."""

from dataclasses import replace

import numpy as np
import torch

from fewmask.labels import IGNORE
from fewmask.methods.rml import P0
from tests.methods.pixel_rml import K, batch_of, method_of


def test_the_pixel_count_prior_pulls_toward_frequent_classes():
    method, batch = method_of(prior="pixel_count"), batch_of()
    method.pixel_count.copy_(torch.tensor([1e9, 1.0, 1.0]))
    batch = replace(batch, stored={P0: torch.zeros_like(batch.stored[P0])})
    label = method.pseudo_labels(batch)[0].label
    assert set(label.unique().tolist()) == {0, IGNORE}
    uniform = method_of()  # which counts, too, and does not look at it
    uniform.load_state_dict(method.state_dict())
    assert set(uniform.pseudo_labels(batch)[0].label.unique().tolist()) == {2, IGNORE}


def counted(maps: list[torch.Tensor]) -> list[int]:
    """Pixels of each class, one by one."""
    found = [0] * K
    for label in maps:
        for place in np.ndindex(*label.shape):
            if label[place] != IGNORE:
                found[int(label[place])] += 1
    return found


def test_a_sweep_counts_the_labeled_pixels_of_its_own_stage():
    """Two batches of labels, other sizes each, then images without any; a second stage counts anew."""
    method, generator = method_of(prior="pixel_count"), torch.Generator().manual_seed(7)
    maps = [torch.randint(0, size, (2, 8, 4 * size), generator=generator) for size in (2, K)]  # class 2 is rarer
    for label in maps:
        label[0, :3] = IGNORE
    images = [torch.rand(2, 3, *label.shape[1:], dtype=torch.float64, generator=generator) for label in maps]
    expected = counted(maps)
    assert 0 < expected[2] < expected[0]
    assert sum(expected) < sum(label.numel() for label in maps)
    for stage in (0, 1):
        method.start_stage(stage)
        for image, label in zip(images, maps, strict=True):
            method.sweep(image, label)
        method.sweep(images[0], None)
        method.finish_sweep()
        assert method.pixel_count.tolist() == expected

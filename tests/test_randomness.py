"""Addressed random numbers: reproducible, independent, evenly spread."""

from __future__ import annotations

import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fewmask.randomness import Noise, Randomness, shuffled


def at(seed: int = 0, step: int = 0) -> Randomness:
    return Randomness(seed, torch.tensor(step))


def test_golden_values() -> None:
    """Pinned: a change here changes every run and breaks resuming."""
    position = torch.tensor([0, 1, 1000])
    bits = [[2634694673, 2965776923], [3771246388, 2105836063], [292607135, 3143882113]]
    assert at(7, 42).bits("stream", position, 2).tolist() == bits
    assert at(7, 42).integers("stream", position, 1000).tolist() == [613, 878, 68]
    assert at(7, 42).uniform("stream", position).tolist() == [(row[0] >> 8) / 2**24 for row in bits]
    assert shuffled(3, "labeled", torch.arange(20), 10).reshape(2, 10).tolist() == [
        [1, 8, 3, 6, 5, 2, 0, 9, 7, 4],
        [1, 3, 8, 4, 7, 2, 0, 5, 9, 6],
    ]
    assert shuffled(3, "labeled", torch.arange(6), 100_000).tolist() == [99108, 81105, 37243, 32618, 8321, 67372]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 5))
def test_bits_equal_unbounded_integers(seed: int, step: int, position: int, elements: int) -> None:
    """Python's integers never overflow, so they show that the tensors' wrapping ones lose nothing."""
    key = (zlib.crc32(b"stream") ^ (seed * 0x85EBCA6B)) % 2**32
    key = combine(combine(key, step), position)
    expected = [finalized(combine(key, element)) for element in range(elements)]
    assert at(seed, step).bits("stream", torch.tensor([position]), elements)[0].tolist() == expected


def finalized(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ (x >> 16)


def combine(key: int, value: int) -> int:
    return finalized((key * 31 + value * 0x9E3779B9 + 0x7F4A7C15) % 2**32)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_shuffled_holds_each_item_once_per_pass(seed: int) -> None:
    for size in range(1, 501):
        items = shuffled(seed, "labeled", torch.arange(3 * size), size).reshape(3, size)
        assert torch.equal(items.sort(dim=1).values, torch.arange(size).expand(3, size)), size


def test_shuffled_orders_passes_and_streams_and_seeds_differently() -> None:
    place, size = torch.arange(400), 100
    passes = shuffled(0, "labeled", place, size).reshape(4, size)
    others = [shuffled(0, "unlabeled", place[:size], size), shuffled(1, "labeled", place[:size], size)]
    orders = [*passes, *others]
    for i, first in enumerate(orders):
        for second in orders[:i]:
            # Two independent orders agree in one place on average
            assert int((first == second).sum()) <= 7


def test_shuffled_puts_every_item_everywhere() -> None:
    """Over 3,000 passes each of 7 items stands at each of 7 places about equally often."""
    items = shuffled(5, "labeled", torch.arange(7 * 3000), 7).reshape(3000, 7)
    for place in range(7):
        share = torch.bincount(items[:, place], minlength=7) / 3000
        assert float((share - 1 / 7).abs().max()) < 0.03


@pytest.mark.parametrize("size", [4096, 4097, 4160, 4161, 4225, 4226, 5000, 9973, 10582])
def test_shuffled_holds_each_item_of_a_large_pool_once_per_pass(size: int) -> None:
    """Around squares, products and primes: with a full last row, with one cell in it, and between."""
    place = torch.arange(size, 3 * size)
    items = torch.cat([shuffled(1, "labeled", part, size) for part in place.split(500)]).reshape(2, size)
    assert torch.equal(items.sort(dim=1).values, torch.arange(size).expand(2, size))
    assert int((items[0] == items[1]).sum()) <= 7


def test_shuffled_repeats_nothing_in_a_part_of_a_very_large_pool() -> None:
    size = 1_000_003
    items = shuffled(0, "unlabeled", torch.arange(1000) + 7 * size, size)
    assert len(items.unique()) == 1000
    assert 0 <= int(items.min()) < 10_000
    assert size - 10_000 < int(items.max()) < size


@pytest.mark.parametrize("size", [10, 100_000])
def test_shuffled_never_asks_the_host(size: int) -> None:
    with FakeTensorMode():
        assert shuffled(0, "labeled", torch.arange(8), size).shape == (8,)


def test_shuffled_spreads_a_large_pool_evenly() -> None:
    """4,161 items leave one alone in the last row of a grid; it must travel like the others."""
    size, passes = 4161, 3000
    start = size * torch.arange(passes)
    for place in (0, 70, 2080, size - 1):
        items = torch.cat([shuffled(1, "labeled", part + place, size) for part in start.split(500)])
        assert int((items == place).sum()) <= 8
        share = torch.histc(items.double(), 20, 0, size) / passes
        assert float((share - 0.05).abs().max()) < 5 * (0.05 / passes) ** 0.5
    order = shuffled(1, "labeled", torch.arange(size), size).double()
    along, steps = torch.arange(size).double(), order.diff()
    assert abs(float(torch.corrcoef(torch.stack([along, order]))[0, 1])) < 5 / size**0.5
    assert int((steps.abs() == 1).sum()) <= 12  # neighbors stay neighbors twice on average
    assert abs(float(torch.corrcoef(torch.stack([order[1:], order[:-1]]))[0, 1])) < 5 / size**0.5


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9000), st.integers(0, 10**9), st.integers(1, 9), st.integers(0, 2**31))
def test_shuffled_item_depends_on_its_place_only(size: int, start: int, count: int, seed: int) -> None:
    places = range(start, start + count)
    together = shuffled(seed, "labeled", torch.tensor(places), size)
    alone = torch.cat([shuffled(seed, "labeled", torch.tensor([place]), size) for place in places])
    assert torch.equal(together, alone)
    assert 0 <= int(together.min()) <= int(together.max()) < size


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=9), st.integers(0, 2**40), st.integers(0, 2**40))
def test_numbers_are_addressed(positions: list[int], seed: int, step: int) -> None:
    """The number of a position is the same whichever other positions are asked for, and in whatever order."""
    random = at(seed, step)
    together = random.bits("stream", torch.tensor(positions), 3)
    alone = torch.cat([random.bits("stream", torch.tensor([position]), 3) for position in positions])
    assert torch.equal(together, alone)
    assert 0 <= int(together.min()) <= int(together.max()) < 2**32


def test_elements_keep_their_numbers_when_more_are_asked_for() -> None:
    position = torch.arange(5)
    assert torch.equal(at().bits("s", position, 8)[:, :3], at().bits("s", position, 3))
    assert torch.equal(at().bits("s", position, 2, 4).reshape(5, 8), at().bits("s", position, 8))


def test_different_addresses_give_unrelated_numbers() -> None:
    """Neighbors in seed, stream, step, position or element neither repeat nor correlate."""
    position = torch.arange(20000)
    reference = at().uniform("s", position)
    others = [
        at(seed=1).uniform("s", position),
        at(step=1).uniform("s", position),
        at().uniform("t", position),
        at().uniform("s", position + 1),
        at().uniform("s", position, 2)[:, 1],
        at(seed=1, step=1).uniform("s", position),
    ]
    for other in others:
        assert int((reference == other).sum()) < 5
        assert abs(float(torch.corrcoef(torch.stack([reference, other]))[0, 1])) < 0.03


def along_steps(count: int) -> Tensor:
    """One position over many steps: what a sample sees in the course of training."""
    position = torch.zeros(1, dtype=torch.int64)
    return torch.cat([at(step=step).uniform("s", position) for step in range(count)])


@pytest.mark.parametrize("kind", ["positions", "elements", "steps"])
def test_uniform_moments(kind: str) -> None:
    position = torch.arange(60000)
    numbers = {
        "positions": lambda: at().uniform("s", position),
        "elements": lambda: at().uniform("s", position[:2], 30000).flatten(),
        "steps": lambda: along_steps(6000),
    }[kind]().double()
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    bound = 5 / len(numbers) ** 0.5  # five standard errors, about
    for power in range(1, 5):
        assert abs(float((numbers**power).mean()) - 1 / (power + 1)) < bound / 3
    share = torch.histc(numbers, 50, 0, 1) / len(numbers)
    assert float((share - 0.02).abs().max()) < 5 * (0.02 / len(numbers)) ** 0.5
    serial = torch.corrcoef(torch.stack([numbers[1:], numbers[:-1]]))[0, 1]
    assert abs(float(serial)) < bound


@pytest.mark.parametrize("bound", [1, 2, 7, 1000])
def test_integers_cover_their_range_evenly(bound: int) -> None:
    numbers = at().integers("s", torch.arange(20000), bound)
    share = torch.bincount(numbers, minlength=bound) / 20000
    assert len(share) == bound
    assert float((share - 1 / bound).abs().max()) < 5 * (1 / bound / 20000) ** 0.5


def test_noise_is_told_apart_by_learner_and_stream() -> None:
    position = torch.arange(6)
    first, second = Noise(at(), "student_1", position), Noise(at(), "student_2", position)
    assert torch.equal(first.uniform("dropout", 4), at().uniform("student_1/dropout", position, 4))
    assert not torch.equal(first.uniform("dropout", 4), second.uniform("dropout", 4))
    assert not torch.equal(first.uniform("dropout", 4), first.uniform("depth", 4))

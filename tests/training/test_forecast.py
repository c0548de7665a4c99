"""The forecast's arithmetic, against numbers computed by hand."""

import pytest
import torch

from fewmask.config import TrainingSettings
from fewmask.training.clock import Clock
from fewmask.training.costs import Costs, restart_seconds, whole_pass
from fewmask.training.forecast import (
    Forecast,
    Part,
    comparison,
    comparison_line,
    duration,
    happening,
    largest_peak,
    run_parts,
)
from fewmask.types import FlatImages

COSTS = Costs(step=0.047, restart=2.0, diagnosis=0.1, checkpoint=1.0, sweep=12.0, validation=8.0, peak=7)
STAGES = TrainingSettings(steps=2500, checkpoint_every=1000, diagnose_every=100, evaluate_every=2000)


def counts(start: int, total: int = 5000, staged: bool = True, **more: object) -> dict[str, int]:
    parts = run_parts(STAGES, COSTS, start=start, total=total, staged=staged, **more)
    return {part.what: part.count for part in parts}


def sized(*sizes: tuple[int, int]) -> FlatImages:
    height, width = torch.tensor(sizes).T
    return FlatImages(torch.zeros(0), torch.zeros(len(sizes)), height, width, channels=3)


def test_two_stages_from_the_start():
    """Checkpoints: 5 by their number, 2 ends of stages of which one is among them, and the start."""
    parts = run_parts(STAGES, COSTS, start=0, total=5000, staged=True, saved=False)
    assert {part.what: part.count for part in parts} == {
        "steps": 5000,
        "sweeps": 2,
        "starts of a stage": 2,
        "looks at pseudo labels": 50,
        "checkpoints": 7,
        "validations": 3,
    }
    assert Forecast(parts, 0, 0).seconds == pytest.approx(235 + 24 + 4 + 5 + 7 + 24)


def test_the_rest_of_an_interrupted_run():
    """From the middle of the second stage nothing is swept any more."""
    assert counts(2600) == {"steps": 2400, "looks at pseudo labels": 24, "checkpoints": 3, "validations": 2}
    assert counts(2500)["sweeps"] == 1
    assert counts(2400)["sweeps"] == 1


def test_a_baseline_starts_anew_after_it_was_measured():
    found = counts(0, 2500, staged=False, dropped=True, prefix="baseline ")
    assert found["baseline start"] == 1
    assert "baseline sweeps" not in found
    assert "start" not in counts(0, 2500, staged=False)


def test_what_costs_nothing_is_no_part():
    parts = run_parts(STAGES, Costs(step=0.5), start=0, total=10, staged=False)
    assert [(part.what, part.count, part.each) for part in parts] == [("steps", 10, 0.5)]


@pytest.mark.parametrize(
    ("start", "total", "every", "wanted"), [(0, 10, 5, 2), (5, 10, 5, 1), (4, 9, 5, 1), (0, 9, 0, 0)]
)
def test_what_happens_every_so_many_steps(start: int, total: int, every: int, wanted: int):
    assert (
        happening(start, total, every)
        == wanted
        == sum(every > 0 and step % every == 0 for step in range(start + 1, total + 1))
    )


def test_another_start_does_not_compile_again():
    """Warm-up of 60, 2, 1 and 5 s at a lasting pace of 0.5 s: 2 + 2 + 1 + 5 - 4 * 0.5."""
    assert restart_seconds([60.0, 2.0, 1.0, 5.0], 0.5) == pytest.approx(8.0)
    assert restart_seconds([0.5, 0.5], 0.6) == 0.0


def test_a_pass_has_a_fixed_part_and_goes_by_pixels():
    """100 pixels in 3 s and 200 in 5 s: 1 s, and 2 s per 100. 800 pixels: 1 + 16 s."""
    few, many = sized((10, 10)), sized((10, 10), (10, 10))
    images = sized(*[(10, 10)] * 8)
    assert whole_pass(5.0, 5.0, 3.0, many=many, few=few, images=images) == pytest.approx(17.0)
    assert whole_pass(5.0, 5.0, 3.0, many=many, few=few, images=many) == pytest.approx(5.0)


def test_new_sizes_cost_extra():
    """200 pixels of one size: 7 s, then 5 s. 500 pixels of three: 5 s, 3 * 2 s more, and 2 * 2 s for two sizes."""
    few, many = sized((10, 10)), sized((10, 10), (10, 10))
    images = sized((10, 10), (10, 10), (20, 10), (5, 20))
    assert whole_pass(7.0, 5.0, 3.0, many=many, few=few, images=images) == pytest.approx(5.0 + 6.0 + 4.0)


@pytest.mark.parametrize("short", [0.5, 6.0])
def test_a_busy_machine_gives_no_pass_a_negative_part(short: float):
    """A short pass that took next to nothing, or longer than the long one: at least flat, at most by pixels alone."""
    few, many, images = sized((10, 10)), sized((10, 10), (10, 10)), sized(*[(10, 10)] * 8)
    assert 5.0 <= whole_pass(5.0, 5.0, short, many=many, few=few, images=images) <= 20.0


def test_images_of_one_batch_are_measured_whole():
    images = sized((10, 10), (10, 10))
    assert whole_pass(2.0, 1.0, 1.5, many=images, few=images, images=images) == pytest.approx(1.0)


def test_the_lines_of_the_plan():
    parts = (Part("baseline steps", 4000, 0.015), Part("steps", 5000, 0.047), Part("checkpoints", 3, 0.1))
    forecast = Forecast(parts, int(6.1 * 2**30), int(139.8 * 2**30))
    told = "baseline steps 4000 x 15 ms, steps 5000 x 47 ms, the rest 300 ms: about 4 min 55 s in all"
    assert forecast.time_line() == told
    assert forecast.memory_line() == "peak about 6.1 GiB of 139.8 GiB"
    over = Forecast(parts, int(9.5 * 2**30), 8 * 2**30)
    told = "peak about 9.5 GiB, 1.5 GiB more than the 8.0 GiB that there are: the run will not fit"
    assert over.memory_line() == told
    assert over.memory_line("change this") == f"{told}; change this"
    assert comparison_line(forecast, seconds=310, peak=2**33).startswith(
        "took 5 min 10 s (forecast 4 min 55 s), peak 8.0 GiB"
    )


def test_the_file_has_both():
    forecast = Forecast((Part("steps", 4, 0.5),), 7, 9)
    clock = Clock()
    clock.add("files", 0.25)
    clock.add("steps", 1.5, 3)
    clock.add("steps", 0.5)
    assert comparison(forecast, clock, seconds=2.5, peak=8) == {
        "predicted": {"seconds": 2.0, "peak_bytes": 7, "parts": [{"what": "steps", "count": 4, "each": 0.5}]},
        "actual": {
            "seconds": 2.5,
            "peak_bytes": 8,
            "parts": [{"what": "steps", "count": 4, "seconds": 2.0}, {"what": "files", "count": 1, "seconds": 0.25}],
        },
    }


def test_more_of_a_part_is_not_counted_again():
    clock = Clock()
    for count in (1, 0, 1):
        with clock.part("start", torch.device("cpu"), count):
            pass
    assert clock.spent["start"][0] == 2


def test_the_peak_is_that_of_the_largest_part():
    assert largest_peak([None, COSTS, Costs(step=1.0, peak=9)]) == 9
    assert largest_peak([]) == 0


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        *[(0.047, "47 ms"), (0.9996, "1.0 s"), (3.21, "3.2 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s")],
        *[(61, "1 min 1 s"), (214, "3 min 34 s"), (599.6, "10 min"), (630, "10 min"), (3580, "1 h 0 min")],
        (8_100, "2 h 15 min"),
    ],
)
def test_durations(seconds: float, wanted: str):
    assert duration(seconds) == wanted

"""What the MNIST experiment found: means and spread over the seeds, and in how many of them the paper's order held."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fewmask.experiments.mnist import VARIANTS, Curve, Plan, Variant

_DIGITS = 5


@dataclass(frozen=True)
class Order:
    """In how many seeds the paper's statements hold, for one number per curve."""

    direct_lowest: int  # direct mutual learning is the first to collapse
    noise_highest: int  # model noise keeps the highest divergence
    both: int  # direct < indirect < indirect with model noise


def summary(curves: Sequence[Curve], plan: Plan) -> dict[str, Any]:
    """The content of mnist.json."""
    return {
        "experiment": "mnist",
        "figure": "Zhang et al., CVPR 2022, Figure 2",
        "plan": asdict(plan),
        "steps": curves[0].steps,
        "variants": {variant.name: _variant(variant, of_variant(curves, variant)) for variant in VARIANTS},
        "order": {
            "seeds": plan.seeds,
            "over_training": asdict(order(curves, over_training)),
            "at_end": asdict(order(curves, at_end)),
        },
    }


def of_variant(curves: Sequence[Curve], variant: Variant) -> list[Curve]:
    return [curve for curve in curves if curve.variant == variant.name]


def over_training(curve: Curve) -> float:
    """The mean of the curve: low where the learners grew alike early."""
    return statistics.fmean(curve.total_variation)


def at_end(curve: Curve) -> float:
    return curve.total_variation[-1]


def teacher_accuracy(curve: Curve) -> float:
    """On the test images, mean of both teachers."""
    return statistics.fmean(curve.test_accuracy[name] for name in ("teacher_1", "teacher_2"))


def order(curves: Sequence[Curve], number: Callable[[Curve], float]) -> Order:
    rows = zip(*([number(curve) for curve in of_variant(curves, variant)] for variant in VARIANTS), strict=True)
    lowest, highest, both = 0, 0, 0
    for direct, indirect, noise in rows:
        lowest += direct < min(indirect, noise)
        highest += noise > max(direct, indirect)
        both += direct < indirect < noise
    return Order(lowest, highest, both)


def band(series: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation over the seeds, at each measured step."""
    points = list(zip(*series, strict=True))
    return [statistics.fmean(values) for values in points], [spread(values) for values in points]


def spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _variant(variant: Variant, curves: Sequence[Curve]) -> dict[str, Any]:
    mean, deviation = band([curve.total_variation for curve in curves])
    return {
        "settings": dict(variant.settings),
        "total_variation": {"mean": _rounded(mean), "deviation": _rounded(deviation)},
        "over_training": _mean_and_spread([over_training(curve) for curve in curves]),
        "at_end": _mean_and_spread([at_end(curve) for curve in curves]),
        "test_accuracy": _mean_and_spread([teacher_accuracy(curve) for curve in curves]),
        "seeds": [_seed(curve) for curve in curves],
    }


def _seed(curve: Curve) -> dict[str, Any]:
    return {
        "seed": curve.seed,
        "total_variation": _rounded(curve.total_variation),
        "label_accuracy": _rounded(curve.label_accuracy),
        "test_accuracy": {name: round(value, _DIGITS) for name, value in curve.test_accuracy.items()},
    }


def _mean_and_spread(values: Sequence[float]) -> dict[str, float]:
    mean, deviation = _rounded([statistics.fmean(values), spread(values)])
    return {"mean": mean, "deviation": deviation}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, _DIGITS) for value in values]

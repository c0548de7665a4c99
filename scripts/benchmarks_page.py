"""Writes benchmarks/README.md from what `fewmask bench ... --out` left in benchmarks/results/speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "speed"
PAGE = ROOT / "benchmarks" / "README.md"
_START = (Path(__file__).parent / "benchmarks_start.md").read_text(encoding="utf-8")
Result = dict[str, Any]


def page() -> str:
    found = [result for path in sorted(RESULTS.glob("*.json")) for result in json.loads(path.read_text())]
    sections = [_section(title, made, found, kind) for kind, title, made in _KINDS]
    return "\n".join([_START, *(filter(None, sections) if found else ["Nothing was measured yet.\n"])])


def _section(title: str, made: Callable[[Sequence[Result]], str], found: Sequence[Result], kind: str) -> str:
    """One table for each machine and day."""
    groups: dict[str, list[Result]] = {}
    for result in found:
        if result["benchmark"] == kind:
            where = f"{result['date']}, {result['machine']}, torch {result['torch']}."
            groups.setdefault(where, []).append(result)
    parts = [f"{where}\n\n{made(results)}\n" for where, results in groups.items()]
    return "\n".join([f"## {title}\n", *parts]) if parts else ""


def _steps(results: Sequence[Result]) -> str:
    head = (
        "preset",
        "batch",
        "ms",
        "images/s",
        "TFLOP/s of least work",
        "share of matrix rate",
        "peak GiB",
        "batch alone",
    )
    table = _noted(results, _table(head, [_step(result) for result in results]))
    compared = [result for result in results if result["reference_ms"] is not None]
    return f"{table}\n\n{_comparison(compared)}" if compared else table


def _yardsticks(results: Sequence[Result]) -> str:
    """The research-style step by itself, beside a script that was written before this project."""
    text = "The research-style step, beside a plain script of the same method that was timed before this project began."
    head = ("preset", "precision and process", "ms", "that script, ms", "off by", "waits for")
    rows = [
        [_preset(result), result["way"], *_against(result["ms"], result["expected_ms"]), result["bound"]]
        for result in results
    ]
    return f"{text} {_notes(results)}\n\n{_table(head, rows)}"


def _against(measured: float | Sequence[float], expected: float) -> list[str]:
    """What was measured once or several times, what was expected, and by how much they differ."""
    both = measured if isinstance(measured, list) else [measured]
    off = [f"{value / expected - 1:+.0%}" for value in both]
    return [" to ".join(f"{value:.0f}" for value in both), f"{expected:.0f}", " to ".join(off)]


def _step(result: Result) -> list[str]:
    labeled, unlabeled = result["batch"]
    return [
        _preset(result),
        f"{labeled} + {unlabeled} of {_size(result['crop'])}, {result['precision']}",
        f"**{result['ms']:.1f}**",
        f"{result['images_per_second']:.0f}",
        f"{result['tflops']:.3g} ({result['least_tflop']:.3g} TFLOP)",
        f"{result['share_of_matrix_rate']:.0%} of {result['matrix_tflops']:.3g}",
        _peak(result),
        f"{result['data_ms']:.2f} ms, {result['data_share']:.1%}",
    ]


def _peak(result: Result) -> str:
    """What tensors held at most, and what was taken from the device for them where that was written down."""
    if "CPU" in result["machine"]:  # which does not tell them apart
        return f"{result['peak_memory_gib']:.1f}, the process"
    taken = f", {result['reserved_memory_gib']:.1f} taken" if "reserved_memory_gib" in result else ""
    return f"{result['peak_memory_gib']:.1f}{taken}"


def _comparison(results: Sequence[Result]) -> str:
    head = ("preset", "research style, ms", "ours, ms", "ratio", "ours with independent pairs, ms", "ratio")
    rows = [
        [
            _preset(result),
            _reference(result),
            f"{result['ms']:.1f}",
            f"**{result['ratio']:.2f}**",
            f"{result['independent_ms']:.1f}",
            f"{result['independent_ratio']:.2f}",
        ]
        for result in results
    ]
    return _table(head, rows)


def _reference(result: Result) -> str:
    """With what tells the GPU's part from the host's, which was not measured at first."""
    busy, launch = result.get("reference_busy_ms"), result.get("launch_us")
    works = f", the GPU busy for {busy:.1f}" if busy else ""
    starts = f", {launch:.1f} µs a launch" if launch else ""
    return f"{result['reference_ms']:.1f}{works}{starts}"


def _training(results: Sequence[Result]) -> str:
    head = ("preset", "training, ms per step", "bare step, ms", "more", "steps", "checkpoints", "all stages, hours")
    rows = [
        [
            _preset(result),
            f"**{result['ms']:.1f}**",
            f"{result['step_ms']:.1f}",
            f"{result['overhead']:+.1%}",
            f"{result['steps']:,} in {result['seconds']:.0f} s",
            str(result["checkpoints"]),
            f"{result['planned_hours']:.2f} for {result['planned_steps']:,} steps",
        ]
        for result in results
    ]
    return _table(head, rows)


def _predictions(results: Sequence[Result]) -> str:
    rows = [
        [
            _preset(result),
            f"{_size(result['size'])}, {result['mode']}, {result['precision']}",
            str(row["batch"]),
            f"{row['ms_per_image']:.2f}",
            f"{row['images_per_second']:.{0 if row['images_per_second'] >= 10 else 1}f}",
        ]
        for result in results
        for row in result["batches"]
    ]
    return _table(("preset", "images", "batch", "ms per image", "images/s"), rows)


def _data(results: Sequence[Result]) -> str:
    rows = [
        [
            _preset(result),
            _size(result["size"]),
            *(
                f"{row['images_per_second']:.0f}/s, {row['megabytes_per_second']:.0f} MB/s"
                for row in result["decoding"]
            ),
            f"{result['views_per_second']:.0f}/s of {_size(result['crop'])}",
        ]
        for result in results
    ]
    return _noted(results, _table(("preset", "images", "PNG decoded", "JPEG decoded", "views"), rows))


def _growth(results: Sequence[Result]) -> str:
    start = ("unlabeled images", "check and read, ms each", "sweep, ms each")
    head = (*start, "store MiB", "where", "process MiB", "batch alone, ms", "step, ms")
    start_keys, keys = (
        ("reading_ms_per_image", "sweep_ms_per_image", "store_mib"),
        ("resident_mib", "batch_ms", "step_ms"),
    )
    rows = [
        [
            f"{row['unlabeled_images']:,}",
            *(f"{row[key]:.4g}" for key in start_keys),
            "staged" if row["staged"] else "resident",
            *(f"{row[key]:.4g}" for key in keys),
        ]
        for result in results
        for row in result["rows"]
    ]
    budget = f"the store may take {results[0]['budget_mib']:g} MiB of memory; beyond that it is a mapped file"
    what = f"Images of {_size(results[0]['size'])} and a very small network; {budget}."
    text = f"{what} {_notes(results)}".rstrip() + f"\n\n{_table(head, rows)}"
    return f"{text}\n\n![Growth of the pool](growth.png)" if (PAGE.parent / "growth.png").is_file() else text


def _cpu(results: Sequence[Result]) -> str:
    """The demo's step and predictions, in several ways, and what a step spends its time on."""
    parts = []
    for result in results:
        tables = {
            "step of `rml`": "steps",
            "step of `rml` by the clock": "clock",
            "prediction, per image": "predictions",
        }
        for head, rows in ((head, result[key]) for head, key in tables.items()):
            cells = [[row["way"], f"{row['median_ms']:.4g}", f"{row['least_ms']:.4g}"] for row in rows]
            parts.append(_table((f"`{result['preset']}`, {head}", "median, ms", "least, ms"), cells))
        shares = ", ".join(f"{name} {share:.0%}" for name, share in result["shares"].items())
        parts.append(f"{result['note']} A step's time: {shares}.")
    return "\n\n".join(parts)


def _captured(results: Sequence[Result]) -> str:
    """What deterministic steps cost, and how far losses are apart, at worst, from one span of steps to the next."""
    text = "Largest relative difference of any loss of captured steps, 10 steps after 10: from computed steps, and"
    head = ("preset", "deterministic", "ms", "from computed steps", "from the same once more")
    rows = [
        [
            f"{_preset(result)}, {result['precision']}",
            "yes" if result["deterministic"] else "no",
            f"{result['ms']:.2f}",
            ", ".join(f"{value:.2g}" for value in result["captured_from_computed"]),
            ", ".join(f"{value:.2g}" for value in result["captured_from_itself"]),
        ]
        for result in results
    ]
    return f"{text} from a second captured run. {_notes(results)}\n\n{_table(head, rows)}"


def _forecasts(results: Sequence[Result]) -> str:
    head = ("run", "steps", "foreseen, s", "took, s", "off by", "foreseen peak, GiB", "peak, GiB", "off by")
    rows = [
        [
            _preset(result),
            f"{result['steps']:,}",
            f"{result['predicted_seconds']:.1f}",
            f"{result['seconds']:.1f}",
            f"{result['time_error_percent']:+.1f} %",
            f"{result['predicted_peak_gib']:.2f}",
            f"{result['peak_gib']:.2f}",
            f"{result['memory_error_percent']:+.1f} %",
        ]
        for result in results
    ]
    text = f"What the plan said after up to 10 steps on trial, and what came. {_notes(results)}".rstrip()
    return f"{text}\n\n{_table(head, rows)}"


def _profiles(results: Sequence[Result]) -> str:
    """A table for each preset, with a column for each state."""
    presets = dict.fromkeys(result["preset"] for result in results)
    tables = [_profile([result for result in results if result["preset"] == preset]) for preset in presets]
    text = "Milliseconds that kernels ran in one step, and how many they were. Learners run side by side, so this adds"
    return "\n\n".join([f"{text} up to more than the step takes. {_notes(results)}".rstrip(), *tables])


def _profile(states: Sequence[Result]) -> str:
    found = [{each["group"]: each for each in state["groups"]} for state in states]
    groups = dict.fromkeys(group for state in reversed(found) for group in state)  # in the order of the last state
    head = [f"`{states[0]['preset']}`", *(state["state"] for state in states)]
    rows = [[group, *(_kernels(state.get(group)) for state in found)] for group in groups]
    return _table(head, [["**the step**", *(f"**{state['ms']:.1f}**" for state in states)], *rows])


def _kernels(group: Result | None) -> str:
    return f"{group['ms']:.2f} ({group['kernels']:,})" if group else ""


_KINDS = (
    ("step", "A training step", _steps),
    ("yardstick", "The yardstick", _yardsticks),
    ("profile", "What a step's time goes into", _profiles),
    ("train", "Training", _training),
    ("capture", "Deterministic steps", _captured),
    ("forecast", "Forecasts", _forecasts),
    ("predict", "Prediction", _predictions),
    ("data", "Data", _data),
    ("growth", "Growth of the pool", _growth),
    ("cpu", "The demo on a CPU", _cpu),
)


def _notes(results: Sequence[Result]) -> str:
    """What was written beside measurements, each remark once."""
    return " ".join(dict.fromkeys(result["note"] for result in results if "note" in result))


def _noted(results: Sequence[Result], table: str) -> str:
    """The table, and what was written beside its measurements below it."""
    return f"{table}\n\n{_notes(results)}".rstrip()


def _preset(result: Result) -> str:
    """Its name, and what it had then where it has been changed since."""
    then = f" with `{result['settings_then']}`" if "settings_then" in result else ""
    return f"`{result['preset']}`{then}"


def _size(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""`fewmask bench`: how fast a preset's step, its predictions and its data are on this machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fewmask.commands import options
from fewmask.errors import ConfigError, TrainingError

if TYPE_CHECKING:  # --help does without it
    from fewmask.config import Config

_PICTURES = (".png", ".svg", ".pdf")

app = typer.Typer(no_args_is_help=True)


@app.command(epilog="Example: fewmask bench step --preset paper-voc --reference --json")
def step(
    preset: options.BenchPresets,
    words: options.Words = None,
    as_json: options.Json = False,
    reference: options.Reference = False,
    steps: options.BenchSteps = 50,
    device: options.Device = None,
    out: options.BenchResult = None,
) -> int:
    """Time the training step of a preset: milliseconds, images/s, TFLOP/s, memory, the share of its data."""
    from fewmask.benchmarks.step import measure_step

    command = _command("step", words, preset=preset, reference=reference, steps=steps, device=device)
    measure = partial(measure_step, steps=steps, reference=reference)
    return _hand_over(preset, _trained(preset, words, measure, device, command), as_json, out)


@app.command(epilog="Example: fewmask bench train --preset paper-cityscapes --steps 5600")
def train(
    preset: options.BenchPresets,
    words: options.Words = None,
    as_json: options.Json = False,
    steps: options.BenchTrainSteps = 1000,
    device: options.Device = None,
    out: options.BenchResult = None,
) -> int:
    """Time the training loop, logging, diagnostics and checkpoints included, beside the bare step."""
    from fewmask.benchmarks.training import measure_training

    command = _command("train", words, preset=preset, steps=steps, device=device)
    measure = partial(measure_training, steps=steps)
    return _hand_over(preset, _trained(preset, words, measure, device, command), as_json, out)


@app.command(epilog="Example: fewmask bench predict --preset camvid --device cpu")
def predict(
    preset: options.BenchPresets,
    words: options.Words = None,
    model: options.BenchModel = None,
    tile: options.Tile = None,
    as_json: options.Json = False,
    steps: options.BenchSteps = 20,
    device: options.Device = None,
    out: options.BenchResult = None,
) -> int:
    """Time predictions at the size of the preset's images, one at a time and eight at a time."""
    from fewmask.benchmarks.predict import measure_predict
    from fewmask.benchmarks.timing import surroundings
    from fewmask.training.engine import choose_device

    configs, target = _configs(preset, words), choose_device(device)
    named = {"preset": preset, "model": model and model.name, "tile": tile, "steps": steps, "device": device}
    command = _command("predict", words, **named)
    results = (
        measure_predict(config, model=model, tile=tile, device=target, steps=steps) | surroundings(target, command)
        for config in configs
    )
    return _hand_over(preset, results, as_json, out)


@app.command(epilog="Example: fewmask bench data --growth --picture growth.png")
def data(
    words: options.Words = None,
    preset: options.DataPresets = None,
    growth: options.Growth = False,
    largest: options.Largest = 100_000,
    budget: options.Budget = 8,
    picture: options.Picture = None,
    files: options.BenchFiles = 64,
    as_json: options.Json = False,
    steps: options.BenchSteps = 30,
    device: options.Device = None,
    out: options.BenchResult = None,
) -> int:
    """Time the decoding of files and the making of views; or how both grow with the number of images."""
    from fewmask.benchmarks.timing import surroundings
    from fewmask.training.engine import choose_device

    _require_drawable(picture, growth)
    given = [*(preset or []), *(words or [])]
    if growth and given:
        fix = "no presets or settings beside --growth"
        raise ConfigError("--growth has a session of its own", where=" ".join(given), fix=fix)
    target, presets = choose_device(device), preset or ["camvid"]
    shared = {"device": target, "steps": steps}
    if growth:
        results = _grown(largest, budget=budget, **shared)
    else:
        _configs(presets, words)
        results = _decoded(presets, words or [], files=files, **shared)
    own = {"growth": True, "largest": largest, "budget": budget} if growth else {"preset": presets, "files": files}
    command = _command("data", words, **own, steps=steps, device=device)
    results = (result | surroundings(target, command) for result in results)
    return _hand_over(["--growth"] if growth else presets, results, as_json, out, picture)


def _require_drawable(picture: Path | None, growth: bool) -> None:
    _require_writable(picture)
    if picture and not (growth and picture.suffix in _PICTURES):
        fix = f"--growth --picture FILE, which ends in {', '.join(_PICTURES)}"
        raise ConfigError(f"{picture} cannot be drawn", where="--picture", fix=fix)


def _grown(largest: int, **measured: Any) -> Iterator[dict[str, Any]]:
    from fewmask.benchmarks.growth import measure_growth, pool_sizes

    yield _watched(partial(measure_growth, pool_sizes(largest), **measured))


def _decoded(presets: Sequence[str], words: list[str], **measured: Any) -> Iterator[dict[str, Any]]:
    from fewmask.benchmarks.data import measure_data

    for name in presets:
        yield _watched(partial(measure_data, name, words, **measured))


def _trained(
    presets: Sequence[str],
    words: Sequence[str] | None,
    measure: Callable[..., dict[str, Any]],
    device: str | None,
    command: str,
) -> Iterator[dict[str, Any]]:
    """`measure` of each preset's session, one after the other."""
    from fewmask.benchmarks.timing import surroundings
    from fewmask.training.device_memory import release
    from fewmask.training.engine import choose_device

    configs, target = _configs(presets, words), choose_device(device)
    for config in configs:
        yield _watched(partial(measure, config, device=target)) | surroundings(target, command)
        release(target)


def _configs(presets: Sequence[str], words: Sequence[str] | None) -> list[Config]:
    """What is wrong with the last preset is said before the first is measured."""
    from fewmask.benchmarks.workloads import benchmark_config, workload_of

    configs = [benchmark_config(name, words or []) for name in presets]
    for config in configs:
        workload_of(config)
    return configs


def _watched(measure: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """With a bar, which is gone before the result is printed."""
    from fewmask.console import ConsoleObserver

    with ConsoleObserver(looks=False) as observer:
        return measure(observer=observer)


def _require_writable(file: Path | None) -> None:
    """Said before minutes of measuring, not after."""
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        what = "this is a folder" if file.is_dir() else "there is no folder for this file"
        raise ConfigError(what, where=str(file), fix="a file in a folder that exists")


def _hand_over(
    names: Sequence[str],
    measured: Iterable[dict[str, Any]],
    as_json: bool,
    out: Path | None,
    picture: Path | None = None,
) -> int:
    """One JSON object per preset, or lines to read; the file always holds the JSON.

    Each is handed over before the next is measured, so that minutes are not lost where that one fails or is stopped.
    """
    from fewmask.benchmarks.summary import summary
    from fewmask.cli import print_json

    _require_writable(out)
    results: list[dict[str, Any]] = []
    try:
        for result in _with_memory_errors(names, measured):
            results.append(rounded(result))
            if not as_json:
                typer.echo(summary(results[-1]))
            if out is not None:
                _write(results, out)
    finally:
        if as_json and results:
            print_json(results)
    if picture is not None:
        _draw(results[0], picture)
    return 0


def _with_memory_errors(names: Sequence[str], measured: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Too little memory is no fault of the program: it gets a way out instead of a traceback."""
    from fewmask.training.device_memory import is_out_of_memory
    from fewmask.training.memory_advice import allocation

    done = 0
    try:
        for result in measured:
            done += 1
            yield result
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        fix = "a smaller training.batch or views.crop; --tile 512 for predictions"
        raise TrainingError(f"out of memory: {allocation(error)}", where=names[done], fix=fix) from None


def _write(results: Sequence[dict[str, Any]], out: Path) -> None:
    from fewmask.training.checkpoint import write_atomically

    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(out, lambda file: file.write(text.encode()))


def _draw(growth: dict[str, Any], picture: Path) -> None:
    from fewmask.benchmarks.growth_picture import draw_growth

    draw_growth(growth, picture)


def rounded(value: Any) -> Any:
    """Six digits are more than any clock gives."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def _command(name: str, words: Sequence[str] | None, **named: Any) -> str:
    """The command line that measures the same again."""
    parts = ["fewmask", "bench", name]
    for option, value in named.items():
        values = value if isinstance(value, list) else [value]
        parts += [part for each in values if each not in (None, False) for part in _option_words(option, each)]
    return shlex.join([*parts, *(words or [])])


def _option_words(option: str, value: Any) -> list[str]:
    return [f"--{option}"] if value is True else [f"--{option}", str(value)]

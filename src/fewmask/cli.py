"""The command line. Each command imports what it needs when it runs, so that --help starts without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fewmask import __version__
from fewmask.commands import bench, options
from fewmask.errors import FewmaskError

_LISTS = "What there is"
_FIRST_STEPS = "Start with `fewmask demo`. Your own data: fewmask check DATA, then fewmask train DATA --out RUN."

app = typer.Typer(
    name="fewmask",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_FIRST_STEPS,
)


def run(arguments: list[str]) -> int:
    """Run one command; user errors become one block on standard error and exit code 2."""
    debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]
    try:
        return int(app(args=arguments, prog_name="fewmask", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        return 130
    except FewmaskError as error:
        if debug:
            raise
        return _fail(error.what, error.where, error.fix)
    except OSError as error:  # a full disk, a folder that may not be written
        if debug:
            raise
        return _fail(error.strerror or str(error), str(error.filename or ""), "--debug shows where it happened")
    except Exception as error:
        if debug or not hasattr(error, "exit_code"):
            raise
        if hasattr(error, "show"):  # a usage error
            error.show()
        return int(error.exit_code)


def _fail(what: str, where: str, fix: str) -> int:
    """One block: what is wrong, where, and what would be valid."""
    from fewmask.console import printable

    parts = [f"{name}: {text}" for name, text in (("error", what), ("  where", where), ("  valid", fix)) if text]
    block = "\n".join(part.replace("\n", "\n" + " " * 9) for part in parts)
    print(printable(block), file=sys.stderr)  # noqa: T201
    return 2


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fewmask {__version__}")
        raise typer.Exit


@app.callback()
def fewmask(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Few masks, many images, one good segmentation model."""


@app.command()
def demo(out: options.DemoFolder = Path("demo"), seed: options.DemoSeed = 0, device: options.DemoDevice = "cpu") -> int:
    """See it work in five minutes: a semi-supervised method against two supervised ones on street scenes."""
    from fewmask.commands.demo import run_demo

    return run_demo(out, seed=seed, device=device)


@app.command(epilog="Example: fewmask check data --foreground 255")
def check(
    data: options.Data,
    words: options.Words = None,
    as_json: options.Json = False,
    labels: options.Labels = None,
    seed: options.Seed = None,
    split: options.Split = None,
    layout: options.Layout = None,
    foreground: options.Foreground = None,
    ignore: options.Ignore = None,
) -> int:
    """Find what would go wrong before training. Exit code 0: can be trained on, 1: cannot."""
    from fewmask.settings import resolve

    choices = {"labels": labels, "split": str(split) if split else None, "layout": layout}
    flags = _flags(None, seed, **choices, foreground=foreground, ignore=ignore or None)
    config = resolve({"data": {"root": str(data)}}, flags, words=words or [])
    from fewmask.commands.check import run_check  # wrong words are answered before torch is loaded

    return run_check(config, as_json=as_json)


@app.command(epilog="Example: fewmask train data --out runs/first --labels 1/8 training.steps=2000")
def train(
    data: options.OwnData = None,
    words: options.Words = None,
    out: options.NewRun = None,
    method: options.Method = None,
    preset: options.Preset = None,
    labels: options.Labels = None,
    resume: options.Resume = False,
    device: options.Device = None,
    seed: options.Seed = None,
    split: options.Split = None,
    layout: options.Layout = None,
    foreground: options.Foreground = None,
    ignore: options.Ignore = None,
    config: options.SettingsFile = None,
    init: options.Init = None,
    baseline: options.Baseline = None,
    deterministic: options.Deterministic = False,
) -> int:
    """Train a model. Prints the plan first; leaves a run folder with the model, its scores and a report."""
    from fewmask.settings import resolve

    words = list(words or [])
    if data is not None and "=" in str(data) and not data.exists():
        words, data = [str(data), *words], None
    choices = {"labels": labels, "split": str(split) if split else None, "layout": layout}
    flags = _flags(method, seed, **choices, foreground=foreground, ignore=ignore or None)
    flags |= {"training": {"deterministic": True}} if deterministic else {}
    resolve(flags, words=words)  # what is wrong under every preset is answered before torch is loaded
    from fewmask.commands.train import run_train

    return run_train(
        data,
        out,
        preset=preset,
        config_file=config,
        flags=flags,
        words=words,
        device=device,
        init=init,
        baselines=baseline or [],
        resume=resume,
    )


@app.command(epilog="Example: fewmask evaluate runs/first --split test --json")
def evaluate(
    run_folder: options.RunFolder,
    split: options.ScoredSplit = "val",
    data: options.OtherData = None,
    as_json: options.Json = False,
    device: options.Device = None,
) -> int:
    """Score every network of a run. Which one ships stays as it was chosen at the end of training."""
    from fewmask.commands.evaluate import run_evaluate

    return run_evaluate(run_folder, data=data, split=split, as_json=as_json, device=device)


@app.command(epilog="Example: fewmask predict runs/first photos --out predictions --confidence")
def predict(
    run_folder: options.RunFolder,
    images: options.Images,
    out: options.MaskFolder,
    confidence: options.Confidence = False,
    network: options.Network = None,
    tile: options.Tile = None,
    device: options.Device = None,
    max_pixels: options.MaxPixels = None,
) -> int:
    """Segment images: index PNGs with a palette, at each image's own size. Exit code 1: some could not be read."""
    from fewmask.commands.predict import run_predict

    limits = {"tile": tile, "max_pixels": max_pixels}
    return run_predict(run_folder, images, out, network=network, confidence=confidence, device=device, **limits)


@app.command(epilog="Example: fewmask reproduce mnist --data MNIST --out runs/mnist")
def reproduce(
    name: options.Experiment,
    data: options.ExperimentData,
    out: options.ExperimentFolder = Path("runs/mnist"),
    seeds: options.Seeds = 5,
    steps: options.Steps = None,
    baseline_steps: options.BaselineSteps = None,
    decay: options.Decay = None,
    as_json: options.Json = False,
) -> int:
    """Make a figure of the paper again, on the CPU in minutes: the picture, and all numbers as JSON."""
    from fewmask.commands.reproduce import run_reproduce

    changes = {"seeds": seeds, "steps": steps, "baseline_steps": baseline_steps, "decay": decay}
    return run_reproduce(name, data, out, as_json=as_json, changes=changes)


app.add_typer(bench.app, name="bench", help="Measure speed on this machine: step, train, predict, data.")


@app.command(rich_help_panel=_LISTS)
def methods(as_json: options.Json = False) -> int:
    """List the methods and their settings."""
    from fewmask.commands.listing import show_methods

    return show_methods(as_json)


@app.command(rich_help_panel=_LISTS)
def networks(as_json: options.Json = False) -> int:
    """List heads and recommended backbones."""
    from fewmask.commands.listing import show_networks

    return show_networks(as_json)


@app.command(rich_help_panel=_LISTS)
def presets(as_json: options.Json = False) -> int:
    """List the presets."""
    from fewmask.commands.listing import show_presets

    return show_presets(as_json)


def print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=str))


def _flags(method: str | None = None, seed: int | None = None, **data: Any) -> dict[str, Any]:
    """The options that were given, in the shape of a Config."""
    top = {"method": method, "seed": seed, "data": {key: value for key, value in data.items() if value is not None}}
    return {key: value for key, value in top.items() if value not in (None, {})}

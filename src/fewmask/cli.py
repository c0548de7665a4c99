"""The command line. Each command imports what it needs when it runs, so that --help starts without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fewmask import __version__
from fewmask.errors import FewmaskError

app = typer.Typer(
    name="fewmask",
    help="Few masks, many images, one good segmentation model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:0; the GPU if there is one when left away.")]
Foreground = Annotated[int | None, typer.Option(help="Mask value that means class 1 in two-class masks, e.g. 255.")]
Ignore = Annotated[list[int] | None, typer.Option(help="Mask value that means ignore; may be given several times.")]
Layout = Annotated[str | None, typer.Option(help="auto, folder, voc, cityscapes or camvid.")]
Words = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, e.g. training.steps=2000.")
]


def run(arguments: list[str]) -> int:
    """Run one command; user errors become one block on standard error and exit code 2."""
    debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]
    try:
        result = app(args=arguments, prog_name="fewmask", standalone_mode=False)
        return int(result or 0)
    except FewmaskError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug or not hasattr(error, "exit_code"):
            raise
        if hasattr(error, "show"):
            error.show()
        return int(error.exit_code)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fewmask {__version__}")
        raise typer.Exit


@app.callback()
def fewmask(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
) -> None:
    """Few masks, many images, one good segmentation model."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the scenes, the runs and the report.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the scenes and of the training.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> int:
    """Render street scenes, train two supervised twins and a semi-supervised method, and compare them (5 minutes)."""
    from fewmask.commands.demo import run_demo

    return run_demo(out, seed=seed, device=device)


@app.command()
def check(
    data: Annotated[Path, typer.Argument(help="The data folder.")],
    as_json: Json = False,
    layout: Layout = None,
    foreground: Foreground = None,
    ignore: Ignore = None,
    words: Words = None,
) -> int:
    """Find what would go wrong before training. Exit code 0: can be trained on, 1: cannot."""
    from fewmask.commands.check import run_check

    return run_check(_config(data, layout=layout, foreground=foreground, ignore=ignore, words=words), as_json=as_json)


@app.command()
def train(
    data: Annotated[Path | None, typer.Argument(help="The data folder; a resumed run remembers its own.")] = None,
    words: Words = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to write.")] = None,
    preset: Annotated[str | None, typer.Option(help="A named set of settings, see `fewmask presets`.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file of settings, e.g. another run's config.yaml.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `fewmask methods`.")] = None,
    labels: Annotated[
        str | None, typer.Option(help="Use 46 or 1/8 of the masks; the other images count as unlabeled.")
    ] = None,
    split: Annotated[
        Path | None, typer.Option(help="File with the labeled images' names, or `image mask` pairs.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything that is drawn.")] = None,
    device: Device = None,
    init: Annotated[Path | None, typer.Option(help="Start from the model of this finished run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    layout: Layout = None,
    foreground: Foreground = None,
    ignore: Ignore = None,
) -> int:
    """Train a model. Prints the plan first; leaves a run folder with the model, its scores and a report."""
    from fewmask.commands.train import run_train

    words = list(words or [])
    if data is not None and "=" in str(data) and not data.exists():
        words, data = [str(data), *words], None
    return run_train(
        data,
        out,
        preset=preset,
        config_file=config,
        flags=_flags(method, labels, split, seed, layout, foreground, ignore),
        words=words,
        device=device,
        init=init,
        resume=resume,
    )


@app.command()
def evaluate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    data: Annotated[Path | None, typer.Option(help="Another data folder than the run's own.")] = None,
    split: Annotated[str, typer.Option(help="val or test.")] = "val",
    as_json: Json = False,
    device: Device = None,
) -> int:
    """Score every network of a run."""
    from fewmask.commands.evaluate import run_evaluate

    return run_evaluate(run_folder, data=data, split=split, as_json=as_json, device=device)


@app.command()
def predict(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    images: Annotated[list[str], typer.Argument(help="A folder, files, or a quoted glob.")],
    out: Annotated[Path, typer.Option(help="Folder for the masks.")],
    network: Annotated[str | None, typer.Option(help="Which network; the selected one when left away.")] = None,
    confidence: Annotated[bool, typer.Option("--confidence", help="Write confidence maps, too.")] = False,
    tile: Annotated[int | None, typer.Option(help="Predict in tiles of this many pixels, with blended seams.")] = None,
    device: Device = None,
) -> int:
    """Segment images: index PNGs with a palette, at each image's own size."""
    from fewmask.commands.predict import run_predict

    return run_predict(run_folder, images, out, network=network, confidence=confidence, tile=tile, device=device)


@app.command()
def methods(as_json: Json = False) -> int:
    """List the methods and their settings."""
    from fewmask.commands.listing import show_methods

    return show_methods(as_json)


@app.command()
def networks(as_json: Json = False) -> int:
    """List heads and recommended backbones."""
    from fewmask.commands.listing import show_networks

    return show_networks(as_json)


@app.command()
def presets(as_json: Json = False) -> int:
    """List the presets."""
    from fewmask.commands.listing import show_presets

    return show_presets(as_json)


def print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False, default=str))


def _flags(
    method: str | None,
    labels: str | None,
    split: Path | None,
    seed: int | None,
    layout: str | None,
    foreground: int | None,
    ignore: list[int] | None,
) -> dict[str, Any]:
    """The options that were given, in the shape of a Config."""
    data: dict[str, Any] = {"labels": labels, "layout": layout, "foreground": foreground, "ignore": ignore or None}
    data["split"] = str(split) if split else None
    top = {"method": method, "seed": seed, "data": {key: value for key, value in data.items() if value is not None}}
    return {key: value for key, value in top.items() if value not in (None, {})}


def _config(
    data: Path, *, layout: str | None, foreground: int | None, ignore: list[int] | None, words: list[str] | None
) -> Any:
    from fewmask.settings import resolve

    flags = _flags(None, None, None, None, layout, foreground, ignore)
    return resolve({"data": {"root": str(data)}}, flags, words=words or [])

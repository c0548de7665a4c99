"""The options of the command line, with what --help says about each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fewmask.errors import ConfigError

_DATA, _MORE = "Reading the data", "More options"


def _option(name: str, *, metavar: str, text: str, panel: str | None = None, **rest: Any) -> Any:
    # Every option says its name: typer 0.27 loses an option whose metavar is its name in capitals.
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, **rest)


def _flag(name: str, text: str, **rest: Any) -> Any:
    return _option(name, metavar="", text=text, **rest)


def _named_folder(word: str | Path) -> Path:
    """An empty word, as an unset variable of a shell leaves it, would otherwise mean the current folder."""
    if not str(word).strip():
        raise ConfigError("the name of the folder is empty", where="--out", fix="a folder, e.g. --out runs/first")
    return Path(word)


def _argument(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text, show_default=False)


Data = Annotated[Path, _argument("DATA", "The data folder.")]
OwnData = Annotated[Path | None, _argument("DATA", "The data folder; a resumed run remembers its own.")]
Words = Annotated[
    list[str] | None, _argument("KEY=VALUE", "Settings, e.g. training.steps=2000 views.crop=256x320 (height x width).")
]
RunFolder = Annotated[Path, _argument("RUN", "A run folder, as `fewmask train` leaves it.")]
Images = Annotated[list[str], _argument("IMAGES", "A folder, files, or a quoted glob.")]

Debug = Annotated[bool, _flag("--debug", "Show the traceback of errors.")]
Json = Annotated[bool, _flag("--json", "Print JSON on standard output.")]
Device = Annotated[
    str | None, _option("--device", metavar="DEVICE", text="cpu, cuda or cuda:0; without it the GPU, if there is one.")
]
DemoDevice = Annotated[str, _option("--device", metavar="DEVICE", text="cpu or cuda.")]
DemoFolder = Annotated[Path, _option("--out", metavar="DIR", text="Folder for the scenes, the runs and the report.")]
DemoSeed = Annotated[int, _option("--seed", metavar="N", text="Seed of the scenes and of the training.")]

NewRun = Annotated[Path | None, _option("--out", metavar="RUN", text="The run folder to write.", parser=_named_folder)]
Method = Annotated[str | None, _option("--method", metavar="NAME", text="See `fewmask methods`.")]
Preset = Annotated[
    str | None,
    _option("--preset", metavar="NAME", text="A named set of settings, see `fewmask presets`; general without it."),
]
Labels = Annotated[
    str | None,
    _option("--labels", metavar="N", text="Use 46 or 1/8 of the masks; the other images count as unlabeled."),
]
Deterministic = Annotated[
    bool, _flag("--deterministic", "On a GPU, add in one fixed order, for the same weights again.", panel=_MORE)
]
Resume = Annotated[bool, _flag("--resume", "Go on with the run in --out.")]
Seed = Annotated[int | None, _option("--seed", metavar="N", text="Seed of everything that is drawn.")]
Split = Annotated[
    Path | None,
    _option(
        "--split", metavar="FILE", text="Names of the labeled images, or `image mask` pairs, one per line.", panel=_DATA
    ),
]
Layout = Annotated[
    str | None,
    _option("--layout", metavar="NAME", text="folder, voc, cityscapes or camvid; recognized without it.", panel=_DATA),
]
Foreground = Annotated[
    int | None,
    _option("--foreground", metavar="VALUE", text="What means class 1 in two-class masks, e.g. 255.", panel=_DATA),
]
Ignore = Annotated[
    list[int] | None,
    _option("--ignore", metavar="VALUE", text="What means ignore in masks; may be repeated.", panel=_DATA),
]
SettingsFile = Annotated[
    Path | None, _option("--config", metavar="FILE", text="YAML settings, e.g. another run's config.yaml.", panel=_MORE)
]
Init = Annotated[
    Path | None, _option("--init", metavar="RUN", text="Start from the model of this finished run.", panel=_MORE)
]
Baseline = Annotated[
    list[Path] | None,
    _option(
        "--baseline",
        metavar="RUN",
        text="The supervised run that rml starts from, or one per learner; without it they are trained.",
        panel=_MORE,
    ),
]

OtherData = Annotated[Path | None, _option("--data", metavar="DATA", text="Another data folder than the run's own.")]
ScoredSplit = Annotated[
    str, _option("--split", metavar="NAME", text="val, test, or unlabeled: where masks were left out.")
]
MaskFolder = Annotated[Path, _option("--out", metavar="DIR", text="Folder for the masks.", show_default=False)]
Confidence = Annotated[bool, _flag("--confidence", "Write confidence maps, too; 255 is certain.")]
Network = Annotated[
    str | None, _option("--network", metavar="NAME", text="Which network; without it the one that was selected.")
]
Tile = Annotated[
    int | None, _option("--tile", metavar="PIXELS", text="Predict in overlapping tiles, for images of any size.")
]
MaxPixels = Annotated[
    int | None,
    _option("--max-pixels", metavar="N", text="Largest image to open, if the files can be trusted.", panel=_MORE),
]

BenchPresets = Annotated[list[str], _option("--preset", metavar="NAME", text="What to measure; may be repeated.")]
DataPresets = Annotated[
    list[str] | None, _option("--preset", metavar="NAME", text="What to measure; may be repeated; camvid without it.")
]
BenchSteps = Annotated[int, _option("--steps", metavar="N", text="Repetitions; the median counts.", min=1)]
BenchTrainSteps = Annotated[int, _option("--steps", metavar="N", text="Steps of training; their mean counts.", min=1)]
BenchResult = Annotated[Path | None, _option("--out", metavar="FILE", text="Write the JSON to this file, too.")]
Reference = Annotated[
    bool, _flag("--reference", "Time the same method as research code writes it, too, and print the ratio.")
]
BenchModel = Annotated[
    Path | None, _option("--model", metavar="RUN", text="The model of this run, not one with random weights.")
]
Growth = Annotated[
    bool, _flag("--growth", "Start-up, memory and step time over 100, 1,000, ... small unlabeled images.")
]
Largest = Annotated[int, _option("--largest", metavar="N", text="Where --growth ends.", min=100)]
Budget = Annotated[
    float, _option("--budget", metavar="MIB", text="Memory that images may take with --growth; more is mapped.", min=0)
]
Picture = Annotated[Path | None, _option("--picture", metavar="FILE", text="Draw --growth as PNG, SVG or PDF.")]
BenchFiles = Annotated[int, _option("--files", metavar="N", text="Files of each format to decode.", min=1)]


Experiment = Annotated[str, _argument("NAME", "mnist: Figure 2, how fast two learners grow alike.")]
ExperimentData = Annotated[
    Path, _option("--data", metavar="DIR", text="Folder with the four idx files of MNIST.", show_default=False)
]
ExperimentFolder = Annotated[Path, _option("--out", metavar="DIR", text="Folder for the picture and the numbers.")]
Seeds = Annotated[int, _option("--seeds", metavar="N", text="How often it is run, from other initial weights.", min=1)]
Steps = Annotated[
    int | None, _option("--steps", metavar="N", text="Steps of each run; without it the experiment's own.", min=1)
]
BaselineSteps = Annotated[
    int | None,
    _option(
        "--baseline-steps",
        metavar="N",
        text="Supervised steps before; without it both learners start untrained.",
        min=0,
    ),
]
Decay = Annotated[
    float | None,
    _option(
        "--decay",
        metavar="X",
        text="How much of a mean teacher stays at each step; without it 0.996.",
        min=0.0,
        max=1.0,
    ),
]

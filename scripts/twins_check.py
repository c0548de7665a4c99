"""Holds rml against its supervised twins on several draws of labels, and writes one JSON row per run as it goes.

    python scripts/twins_check.py camvid --split labeled_46_draw0.txt --split labeled_46_draw1.txt --preset camvid \\
        --out runs/twins network.pretrained=resnet50_layers1to3.safetensors \\
        --variant "three stages: settings.stages=3" --twin "weak 2: --seed 1" --start weak --start "weak 2"

For each draw: the weak twin, the strong one (color noise), further twins, then rml and each of its variants, which
start from the weak and the strong one, or from those that `--start` names. Words for `settings` and `learners` are
rml's alone, and so is `training.steps` where the preset has another length for baselines. A run that is there is not
trained again, and one that was interrupted goes on, so the command can be repeated, with more variants, until all are
done. `--seconds` starts no further run once they are over.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fewmask.cli import run
from fewmask.settings import preset, resolve

Row = dict[str, Any]
WEAK, STRONG, RML = "weak", "strong", "rml"
RMLS_OWN = ("settings.", "learners.")
STEPS = "training.steps="
LOOKS = (
    "pseudo/accuracy", "pseudo/miou", "rectification/miou_before", "rectification/flipped",
    "rectification/flips_right", "rectification/flips_from_right", "rectification/certain",
)  # fmt: skip


class Trial(NamedTuple):
    """One run: its folder's name and its words on the command line."""

    name: str
    words: tuple[str, ...]


def trials(asked: argparse.Namespace, draw: Path) -> Iterator[Trial]:
    """Twins first: rml starts from them."""
    supervised = (*shared_words(asked), "--method", "supervised")
    yield Trial(WEAK, supervised)
    yield Trial(STRONG, (*supervised, "settings.photometric=true"))
    yield from (Trial(name, (*supervised, *words)) for name, words in map(named, asked.twin))
    starts = tuple(word for twin in asked.start or (WEAK, STRONG) for word in ("--baseline", str(draw / twin)))
    for name, words in [(RML, []), *map(named, asked.variant)]:
        yield Trial(name, (*asked.words, *starts, "training.evaluate_every=" + stage_steps(asked, words), *words))


def shared_words(asked: argparse.Namespace) -> list[str]:
    """What twins have in common with rml; they are as long as a baseline, where the preset has a length for those."""
    length = "steps" in preset(asked.preset).get("baseline", {}).get("training", {})
    apart = (*RMLS_OWN, STEPS) if length else RMLS_OWN
    return [word for word in asked.words if not word.startswith(apart)]


def named(text: str) -> tuple[str, list[str]]:
    """`long: training.steps=8000` is a name and words."""
    name, colon, words = text.partition(":")
    if not (name.strip() and colon):
        raise SystemExit(f"{text!r} is not NAME: key=value ...")
    return name.strip(), words.split()


def stage_steps(asked: argparse.Namespace, words: Sequence[str]) -> str:
    """Each stage is scored at its end."""
    pairs = [word for word in (*asked.words, *words) if "=" in word]  # and no options
    return str(resolve(preset(asked.preset), words=pairs).training.steps)


def train(asked: argparse.Namespace, split: Path, draw: Path, trial: Trial) -> None:
    """Whatever of the run and its scores is not there yet."""
    out, device = draw / trial.name, ("--device", asked.device) if asked.device else ()
    if (out / "timing.json").is_file():  # what a run writes last
        pass
    elif (out / "config.yaml").is_file():
        finished(run(["train", "--out", str(out), "--resume", *device]))
    else:
        where = (str(asked.data), "--split", str(split), "--out", str(out), "--preset", asked.preset)
        finished(run(["train", *where, *trial.words, *device]))
    if asked.pool and not pool_scores(out):
        finished(run(["evaluate", str(out), "--split", "unlabeled", *device]))


def finished(code: int) -> None:
    if code:
        raise SystemExit(code)


def row(split: Path, draw: Path, trial: Trial) -> Row:
    """Scores of all networks, of the end of each stage, and the mean of what was seen of the pseudo labels."""
    out = draw / trial.name
    scores = json.loads((out / "evaluation.json").read_text())["networks"]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        "split": split.stem,
        "run": trial.name,
        "words": " ".join(trial.words),
        "miou": {name: each["miou"] for name, each in scores.items()},
        "iou": next(iter(scores.values()))["iou"],
        "pool": pool_scores(out),
        "stages": [score for line in lines if (score := line.get("val_miou/teacher_1")) is not None],
        "pseudo_labels": {key: mean(lines, key) for key in LOOKS if any(key in line for line in lines)},
        "seconds": json.loads((out / "timing.json").read_text())["actual"]["seconds"],
    }


def pool_scores(out: Path) -> dict[str, float]:
    file = out / "evaluation_unlabeled.json"
    found = json.loads(file.read_text())["networks"] if file.is_file() else {}
    return {name: each["miou"] for name, each in found.items()}


def mean(lines: Sequence[Row], key: str) -> float:
    values = [line[key] for line in lines if key in line]
    return sum(values) / len(values)


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--split", type=Path, action="append", required=True, help="names of the labeled images")
    parser.add_argument("--out", type=Path, required=True, help="a folder per draw, and rows.json")
    parser.add_argument("--preset", default="general")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME: WORDS", help="another rml")
    parser.add_argument("--twin", action="append", default=[], metavar="NAME: WORDS", help="another supervised run")
    parser.add_argument("--start", action="append", metavar="NAME", help="a twin that rml starts from, once or twice")
    parser.add_argument("--pool", action="store_true", help="score the unlabeled images by their hidden masks, too")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--device")
    parser.add_argument("words", nargs="*", help="key=value settings of all runs")
    return parser.parse_intermixed_args(words)


def main(words: Sequence[str]) -> None:
    asked = arguments(words)
    end, rows = time.monotonic() + asked.seconds, []
    for split in asked.split:
        draw = asked.out / split.stem
        for trial in trials(asked, draw):
            if time.monotonic() > end:
                return
            train(asked, split, draw, trial)
            rows.append(row(split, draw, trial))
            sys.stdout.write(
                json.dumps({key: rows[-1][key] for key in ("split", "run", "miou", "pool", "stages")}) + "\n"
            )
            sys.stdout.flush()
            (asked.out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

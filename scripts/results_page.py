"""Writes docs/results.md, README's tables and CamVid's picture from the measurements kept in benchmarks/results.

Without arguments, or with `demo/summary.json MACHINE DATE` to take a finished demo in first.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
_DEMO = RESULTS / "demo.json"
_CAMVID = RESULTS / "camvid_comparison.json"
_CAMVID_PICTURE = ROOT / "docs" / "camvid.png"
_START = """# Measurements

Made by `python scripts/results_page.py` from `benchmarks/results/*.json`; every number was measured, on the machine and
the day that stand above its table. How fast it is stands in [benchmarks/README.md](../benchmarks/README.md).
"""
_REACHED = ("demo", "demo_seeds", "camvid_comparison", "mnist_figure2")  # the others are what was tried for these
_LEARNS_FROM = {
    "supervised": "12 labeled images",
    "supervised_strong": "12 labeled images, with color noise and as many steps as `rml` in all",
    "rml": "12 labeled and 300 unlabeled images",
}


def page() -> str:
    """What is reached today first, and links to all of it."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    reached = [found.pop(name) for name in _REACHED]
    tried = list(found.values())
    links = f"**What it reaches**\n\n{_links(reached)}\n\n**What was tried on the way**\n\n{_links(tried)}\n"
    return "\n".join([_START, links, *map(_section, reached + tried)])


def _links(contents: Sequence[dict[str, Any]]) -> str:
    """To headings, whose address is their text in small letters, with hyphens for spaces and no other signs."""
    address = {
        content["title"]: re.sub(r"[^\w -]", "", content["title"].lower()).replace(" ", "-") for content in contents
    }
    return "\n".join(f"- [{title}](#{place})" for title, place in address.items())


def readme() -> str:
    """README with the tables of the demo and of CamVid as they were last measured."""
    text = README.read_text()
    for name, table in (("demo", _demo_table()), ("camvid", _camvid_table())):
        block = f"<!-- {name}:begin -->\n{table}\n<!-- {name}:end -->"
        text = re.sub(rf"<!-- {name}:begin -->.*<!-- {name}:end -->", lambda _, new=block: new, text, flags=re.DOTALL)
    return text


def _demo_table() -> str:
    demo = json.loads(_DEMO.read_text())
    rows = [(f"`{run['run']}`", _LEARNS_FROM[run["run"]], _percent(run["miou"])) for run in demo["runs"]]
    where = f"{demo['date']}, {demo['machine']}, {demo['seconds']:.0f} s in all."
    return f"{_table(('run', 'learns from', 'mIoU, %'), rows)}\n\n{where}"


def _camvid_table() -> str:
    camvid = json.loads(_CAMVID.read_text())
    head = ("draw of labels", "`supervised`, two seeds", "with color noise", "`rml`, teacher 1", "both teachers")
    twins, shown = ("weak_twin", "weak_twin,_seed_1"), ("strong_twin", "teacher_1", "ensemble")
    rows = [
        (run["draw"], " and ".join(str(run[key]) for key in twins), *(str(run[key]) for key in shown))
        for run in camvid["runs"]
    ]
    return f"{_table(head, rows)}\n\n{camvid['date']}, {camvid['machine']}; one run per cell."


def take_demo(summary: Path, machine: str, date: str) -> None:
    """Keep a finished demo's summary.json as the measurement that README shows."""
    values = json.loads(summary.read_text())
    content = {
        "title": "The demo",
        "date": date,
        "machine": machine,
        "command": "make demo",
        "note": "mIoU on 60 validation scenes of the network that ships; of rml it is the best of four on these same "
        "scenes, which flatters it a little. One seed: scenes and training vary by several points between seeds.",
        "seconds": values.pop("seconds"),
        "runs": [{"run": name, "miou": round(scores["miou"], 4)} for name, scores in values.items()],
    }
    _DEMO.write_text(json.dumps(content, indent=1) + "\n")


def _section(content: dict[str, Any]) -> str:
    columns = list(content["runs"][0])
    rows = [[_cell(column, run[column]) for column in columns] for run in content["runs"]]
    head = f"## {content['title']}\n\n{content['date']}, {content['machine']}.\n\n```sh\n{content['command']}\n```\n"
    if "settings_then" in content:  # the command stays as it was run
        head += f"\nDefaults have changed since that day; to have its settings back, add {_then(content)}.\n"
    table = _table([column.replace("_", " ") for column in columns], rows)
    picture = f"![{content['title']}]({content['picture']})\n\n" if "picture" in content else ""
    return f"{head}\n{picture}{table}\n\n{_note(content['note'])}\n"


def _note(note: str | dict[str, str]) -> str:
    """A text, or one under each of several headings."""
    return note if isinstance(note, str) else "\n".join(f"- **{name}.** {text}" for name, text in note.items())


def _then(content: dict[str, Any]) -> str:
    """Words for all commands, or those of each method."""
    words = content["settings_then"]
    return f"`{words}`" if isinstance(words, str) else " and ".join(f"`{words[name]}` for `{name}`" for name in words)


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "all"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _percent(value) if column == "miou" else str(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" if line is not lines[1] else "|" + "---|" * len(head) for line in lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take_demo(Path(sys.argv[1]), *sys.argv[2:4])
    import camvid_picture  # beside this script

    camvid_picture.draw(json.loads(_CAMVID.read_text()), _CAMVID_PICTURE)
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")

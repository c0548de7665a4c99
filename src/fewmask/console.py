"""What a person sees while a command works: a live bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fewmask.looks import is_look, look_words
from fewmask.training.observer import Observer

_PLAIN_SECONDS = 15.0
_LOOK_SECONDS = 30.0  # between looks at pseudo labels that are told in full
_MOST_WORDS = 3  # beside the bar: losses, then up to two diagnostics; metrics.jsonl has all of them
_DIAGNOSTICS = {  # the ones worth a word, best first
    "pseudo/accuracy": "pseudo accuracy",
    "coupling/total_variation": "total variation",
    "rectification/flipped": "flipped",
}
_DETAILS = ("pseudo", "coupling", "rectification", "prototypes", "prior_share", "lr")  # first parts of other names
_SMALL_PRINT = ("gradient", "auxiliary")  # anywhere in a name
_BAR_WIDTH = 20
_BESIDE_BAR = 28  # columns of the step count, the remaining time and the gaps
_ANY_WIDTH = 1000  # lines in a file are never cut or folded
_HIDDEN = {code: "?" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}


def plain_console(file: TextIO) -> Console:
    """A console that shows text as it is: nothing in a class or file name is read as markup, emoji or number."""
    width = None if file.isatty() else _ANY_WIDTH
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


def printable(text: str) -> str:
    """The text without control characters: a file name must not be able to steer the terminal."""
    return text.translate(_HIDDEN)


class ConsoleObserver(Observer):
    """Use as a context; everything goes to standard error, so that --json on standard output stays clean."""

    def __init__(self, name: str = "", *, looks: bool = True) -> None:
        self.console = plain_console(sys.stderr)
        self.live = sys.stderr.isatty() and not self.console.is_dumb_terminal
        self.name = name
        self._done: dict[str, int] = {}
        self._values: dict[str, float] = {}  # of the training at hand
        self._last_time = time.monotonic()
        self._looks = looks
        self._next_look = 0.0
        self._tasks: dict[str, TaskID] = {}
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=_BAR_WIDTH),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=self.console,
            transient=True,
        )

    def __enter__(self) -> ConsoleObserver:
        if self.live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self._bar.stop()

    def say(self, text: str) -> None:
        self.console.print(printable(text))

    def warn(self, text: str) -> None:
        self.console.print(printable(f"warning: {text}"), style="yellow")

    def advance(self, task: str, done: int, total: int) -> None:
        label = f"{self.name} {task}".strip()
        if done < self._done.get(task, 0):
            self._values = {}  # another training begins
        self._done[task] = done
        words = self._words_beside(label) if task == "training" else ""
        if self.live:
            if label not in self._tasks:
                self._tasks[label] = self._bar.add_task(label, total=total, words=words)
            self._bar.update(self._tasks[label], completed=done, total=total, words=words, visible=done < total)
        elif self._due(task == "training" and done == total):
            self.say(f"{label}: {done}/{total}  {words}".rstrip())

    def metrics(self, step: int, steps: int, values: Mapping[str, float]) -> None:
        if any(key.startswith("val_miou") for key in values):
            self.say(f"step {step}/{steps}: " + ", ".join(f"{key} {value:.4f}" for key, value in values.items()))
            return
        self._values |= values  # diagnostics come less often than losses
        if self._looks and is_look(values) and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self.say(f"step {step}/{steps}, " + "\n".join(look_words(values)))

    def _words_beside(self, label: str) -> str:
        """As many numbers as the terminal has room for beside the bar, which must stay."""
        words = _words(self._values)
        room = self.console.width - len(label) - _BAR_WIDTH - _BESIDE_BAR if self.live else _ANY_WIDTH
        while words and len("  ".join(words)) > room:
            words.pop()
        return "  ".join(words)

    def _due(self, last: bool) -> bool:
        now = time.monotonic()
        if not last and now - self._last_time < _PLAIN_SECONDS:
            return False
        self._last_time = now
        return True


def _words(values: Mapping[str, float]) -> list[str]:
    """The few numbers beside the bar, with their names."""
    diagnostics = [key for key in _DIAGNOSTICS if key in values][: _MOST_WORDS - 1]
    plain = [key for key in values if not key.startswith(_DETAILS) and not any(word in key for word in _SMALL_PRINT)]
    plain.sort(key=lambda key: not key.startswith("loss/"))
    shown = {key: key.rpartition("/")[2] for key in plain[: _MOST_WORDS - len(diagnostics)]}
    shown |= {key: _DIAGNOSTICS[key] for key in diagnostics}
    return [f"{name} {values[key]:.3f}" for key, name in shown.items()]

"""What a person sees while a command works: a live bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fewmask.training.observer import Observer

_PLAIN_SECONDS = 15.0


class ConsoleObserver(Observer):
    """Use as a context; everything goes to standard error, so that --json on standard output stays clean."""

    def __init__(self, name: str = "") -> None:
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self.live = self.console.is_terminal
        self.name = name
        self._last_words: dict[str, str] = {}
        self._last_time = time.monotonic()
        self._tasks: dict[str, TaskID] = {}
        self._bar = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}"),
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
        self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", markup=False, style="yellow")

    def advance(self, task: str, done: int, total: int) -> None:
        label = f"{self.name} {task}".strip()
        words = self._last_words.get(task, "")
        if self.live:
            if label not in self._tasks:
                self._tasks[label] = self._bar.add_task(label, total=total, words=words)
            self._bar.update(self._tasks[label], completed=done, total=total, words=words, visible=done < total)
        elif task == "training" and self._due(done == total):
            self.console.print(f"{label}: {done}/{total} {words}", markup=False)

    def metrics(self, step: int, steps: int, values: Mapping[str, float]) -> None:
        shown = {key.rpartition("/")[2]: value for key, value in values.items() if "gradient" not in key}
        self._last_words["training"] = "  ".join(f"{key} {value:.3f}" for key, value in shown.items())
        if any(key.startswith("val_miou") for key in values):
            self.say(f"step {step}/{steps}: " + ", ".join(f"{key} {value:.4f}" for key, value in values.items()))

    def _due(self, last: bool) -> bool:
        now = time.monotonic()
        if not last and now - self._last_time < _PLAIN_SECONDS:
            return False
        self._last_time = now
        return True

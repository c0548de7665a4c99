"""What training tells whoever watches. The silent one here is the default; the command line brings a live one."""

from __future__ import annotations

from collections.abc import Mapping


class Observer:
    def say(self, text: str) -> None:
        """A line for the reader."""

    def warn(self, text: str) -> None:
        """A line that must not be missed."""

    def advance(self, task: str, done: int, total: int) -> None:
        """`done` of `total` units of `task` are finished."""

    def metrics(self, step: int, steps: int, values: Mapping[str, float]) -> None:
        """A line of metrics was written."""

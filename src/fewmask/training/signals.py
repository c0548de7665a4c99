"""SIGINT and SIGTERM ask the loop to stop after the step at hand; nothing is saved inside a handler."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopRequest:
    """Inside the `with`, the first signal sets `signal_number`; a second one kills as usual."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.signal_number = number
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)


class Interrupted(Exception):  # noqa: N818, nothing went wrong
    """The run stopped on request, after leaving a checkpoint."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}")
        self.signal_number, self.step = signal_number, step

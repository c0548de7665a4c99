"""SIGINT and SIGTERM ask the loop to stop after the step at hand; nothing is saved inside a handler."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

_TOGETHER = 2.0  # seconds


class StopRequest:
    """Inside the `with`, the first signal sets `signal_number`; one that comes later kills as usual.

    Signals that come together count as one: under torchrun, Ctrl-C reaches a rank from the terminal and the launcher.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, object] = {}
        self._first = 0.0  # when the first signal came

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
        now = time.monotonic()
        if self.signal_number is None:
            self.signal_number, self._first = number, now
        elif now - self._first > _TOGETHER:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@contextmanager
def breaking_off(step: int) -> Iterator[None]:
    """SIGTERM outside of the loop ends things by an exception, as Ctrl-C does: what is being written gets whole."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise Interrupted(number, step)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interrupted(Exception):  # noqa: N818, nothing went wrong
    """The run stopped on request, after leaving a checkpoint."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}")
        self.signal_number, self.step = signal_number, step

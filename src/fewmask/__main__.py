"""`python -m fewmask` and the `fewmask` script."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from types import FrameType

_interrupts: list[int] = []  # Ctrl-C, as often as it came
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for mallopt


def _keep_freed_memory() -> None:
    """Let malloc reuse the memory of large tensors: handing it back and faulting it in again costs time."""
    with contextlib.suppress(OSError, AttributeError):  # another system, another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    _interrupts.append(number)
    raise KeyboardInterrupt


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background may ignore it
        signal.signal(signal.SIGINT, _interrupt)
    _keep_freed_memory()
    # Threads that spin while they wait for each other can make small networks 20 times slower; this must be set
    # before torch loads OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from fewmask.cli import run

        code = run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:  # before the command had begun
        code = 130
    except BrokenPipeError:  # whoever read our output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing may fail when Python closes it
        code = 141
    except Exception:
        if not _interrupts or "--debug" in sys.argv:
            raise
        code = 130  # modules that are being imported may swallow Ctrl-C and fail later, for want of what they missed
    sys.exit(code)


if __name__ == "__main__":
    main()

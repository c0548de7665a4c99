"""`python -m tests.training.killed STEP DATA OUT DEVICE WORDS...`: an rml run that is killed within a step."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from fewmask.training.observer import Observer
from fewmask.training.run import run_training
from tests.training.runs import tiny_config


class Deadly(Observer):
    """SIGKILL, so that nothing can be saved on the way out; but the last checkpoint is whole by then."""

    def __init__(self, step: int, total: int, saved: Path) -> None:
        self.step, self.total, self.saved = step, total, saved

    def advance(self, task: str, done: int, total: int) -> None:
        if (task, done, total) == ("training", self.step, self.total):
            while not self.saved.exists():  # written beside the training
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def main(step: str, data: str, out: str, device: str, *words: str) -> None:
    config = tiny_config(Path(data), *words, method="rml")
    total = config.training.steps * int(config.settings.get("stages", 2))
    saved = int(step) - int(step) % config.training.checkpoint_every
    deadly = Deadly(int(step), total, Path(out) / "checkpoints" / f"step_{saved:08d}.pt")
    run_training(config, Path(out), device=device, resume=False, init=None, observer=deadly)


if __name__ == "__main__":
    main(*sys.argv[1:])

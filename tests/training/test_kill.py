"""Runs that are killed or asked to stop end like runs that were left alone, bit for bit."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fewmask.training.checkpoint import list_checkpoints, load_checkpoint
from tests.training.runs import NOISY, assert_same_run, start, train_here, words

STEPS = 40
RUN = (
    *NOISY,
    f"training.steps={STEPS}",
    "training.log_every=2",
    "training.checkpoint_every=5",
    "training.diagnose_every=4",
)


def reached(run: Path) -> int:
    """The last step with a whole line of metrics."""
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def writing(run: Path) -> bool:
    """A checkpoint is being written at this moment."""
    return any((run / "checkpoints").glob(".*.tmp"))


def wait_for(process: subprocess.Popen[bytes], condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, f"ended too early:\n{log.read_text()}"
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.001)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupts."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train_here(data, run, *RUN)
    return run


@pytest.mark.slow
def test_five_kills_leave_no_trace(data, whole, tmp_path):
    """SIGKILL before the first save, at random steps, and while a checkpoint is being written."""
    draw = random.Random(3)
    run, log = tmp_path / "run", tmp_path / "log"
    early, middle, late = (first + draw.randrange(5) for first in (6, 20, 29))
    moments: list[tuple[Callable[[], bool], float]] = [
        ((run / "config.yaml").exists, draw.uniform(0.0, 0.05)),
        (lambda: reached(run) >= early, draw.uniform(0.0, 0.05)),
        (lambda: reached(run) >= 13 and writing(run), 0.0),
        (lambda: reached(run) >= middle, draw.uniform(0.0, 0.05)),
        (lambda: reached(run) >= late, draw.uniform(0.0, 0.05)),
    ]
    for moment, later in moments:
        process = start([*words(data, run, *RUN), "--resume"], log)
        wait_for(process, moment, log)
        time.sleep(later)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert reached(run) < STEPS
    train_here(data, run, *RUN, resume=True)
    assert_same_run(whole, run)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == STEPS // 2
    assert not writing(run)


@pytest.mark.slow
def test_a_request_to_stop_leaves_a_checkpoint_and_says_how_to_go_on(data, whole, tmp_path):
    """SIGTERM and SIGINT: exit code 128 + number, the step at hand is saved, the rest follows as if nothing was."""
    asked = {signal.SIGTERM: 143, signal.SIGINT: 130}
    processes = {
        number: start(words(data, tmp_path / number.name, *RUN), tmp_path / f"{number.name}.log") for number in asked
    }
    for number, process in processes.items():
        run, log = tmp_path / number.name, tmp_path / f"{number.name}.log"
        wait_for(process, lambda run=run: reached(run) >= 4, log)
        process.send_signal(number)
    for number, process in processes.items():
        run = tmp_path / number.name
        assert process.wait(timeout=60) == asked[number]
        text = (tmp_path / f"{number.name}.log").read_text()
        newest = load_checkpoint(list_checkpoints(run / "checkpoints")[0])
        assert f"stopped by {number.name} after step {newest['step']};" in text
        assert text.splitlines()[-1] == f"go on with: fewmask train --out {run} --device cpu --resume"
        assert 4 <= newest["step"] < STEPS
        assert "Traceback" not in text
        train_here(data, run, *RUN, resume=True)
        assert_same_run(whole, run)


@pytest.mark.slow
def test_of_two_processes_one_says_how_to_go_on(data, tmp_path):
    """`fewmask train --out RUN --resume` would go on with one process, and without what a resumed run was to change."""
    run = tmp_path / "run"
    command = [*words(data, run, *RUN), "training.check_every=1"]
    asked = [(4, command, "and --resume"), (12, [*command, "--resume"], "")]
    for step, arguments, more in asked:
        log = tmp_path / f"{step}.log"
        process = start(arguments, log, ranks=2)
        wait_for(process, lambda step=step: reached(run) >= step, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) != 0
        said = [line for line in log.read_text().splitlines() if line.startswith(("stopped by", "go on with"))]
        newest = load_checkpoint(list_checkpoints(run / "checkpoints")[0])["step"]
        stopped = f"stopped by SIGTERM after step {newest}; a checkpoint is in {run}"
        assert said == [stopped, f"go on with the same command {more}".rstrip()]

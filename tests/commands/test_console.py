"""What reaches the screen: names as they are, a bar only on a terminal, plain lines in a file."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fewmask.console import ConsoleObserver, plain_console, printable
from fewmask.evaluation.confusion import Scores
from fewmask.report.tables import scores_table
from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY, write_folder

ODD = ("[red]car", "<b>sky</b>", ":smiley:", "[/]", "a very long name " * 8)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def table() -> object:
    def scores(factor: float) -> Scores:
        iou = {name: factor * (index + 1) / 10 for index, name in enumerate(ODD)}
        return Scores(factor * 0.3, iou, 0.5, 0.5, 0.5, 100)

    return scores_table({"[bold]one": scores(1.0), "two": scores(0.5)})


def test_tables_show_names_literally_on_any_console() -> None:
    stream = io.StringIO()
    Console(file=stream, width=400).print(table())  # one that reads markup
    for name in (*ODD[:2], ODD[3], ODD[4].strip(), "[bold]one"):
        assert name in stream.getvalue()
    stream = io.StringIO()
    plain_console(stream).print(table())
    for name in (*ODD[:4], ODD[4].strip()):
        assert name in stream.getvalue()
    row = next(line for line in stream.getvalue().splitlines() if "[red]car" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["[red]car", "10.0", "5.0"]


def test_the_best_of_a_row_is_bold_and_equals_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = io.StringIO()
    Console(file=stream, width=400, force_terminal=True, color_system="standard").print(table())
    row = next(line for line in stream.getvalue().splitlines() if "mean (mIoU)" in line)
    assert re.findall(r"\x1b\[1m *([\d.]+)\x1b\[0m", row) == ["30.0"]
    row = next(line for line in stream.getvalue().splitlines() if "pixel accuracy" in line)
    assert "\x1b[1m" not in row


def test_messages_are_literal_and_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleObserver() as observer:
        observer.say("[red]a :car: 12 [/] \x1b[31m\r\x07\x9b2J" + "long " * 60 + "end")
        observer.warn("[b]b")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "[red]a :car: 12 [/] ?[31m???2J" + "long " * 60 + "end\nwarning: [b]b\n"
    assert printable("tab\tand\nline, ünï 日本") == "tab\tand\nline, ünï 日本"


def test_errors_show_names_literally(fewmask: Fewmask, tmp_path: Path) -> None:
    result = fewmask("evaluate", tmp_path / "[red]run\x1b[0m")
    assert result.code == 2
    assert result.err.splitlines()[1] == f"  where: {tmp_path}/[red]run?[0m"


def test_in_a_file_there_are_only_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewmask.console._PLAIN_SECONDS", 0.0)
    with ConsoleObserver("run") as observer:
        observer.metrics(10, 20, {"student_1/supervised": 0.5, "student_1/gradient_norm": 3.0})
        observer.advance("training", 10, 20)
        observer.metrics(20, 20, {"val_miou/teacher_1": 0.25})
        observer.advance("training", 20, 20)
    assert capsys.readouterr().err.splitlines() == [
        "run training: 10/20  supervised 0.500",
        "step 20/20: val_miou/teacher_1 0.2500",
        "run training: 20/20  supervised 0.500",
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "labeled 0.500  unlabeled 0.250  trusted 0.900"),
        ({"pseudo/accuracy": 0.8, "pseudo/miou": 0.6}, "labeled 0.500  unlabeled 0.250  pseudo accuracy 0.800"),
        (
            {"rectification/flipped": 0.1, "coupling/total_variation": 0.2, "prototypes/drift": 0.3},
            "labeled 0.500  total variation 0.200  flipped 0.100",
        ),
        (
            {"rectification/flipped": 0.1, "coupling/total_variation": 0.2, "pseudo/accuracy": 0.8},
            "labeled 0.500  pseudo accuracy 0.800  total variation 0.200",
        ),
    ],
)
def test_three_numbers_are_shown_and_diagnostics_stay(
    capsys: pytest.CaptureFixture[str], more: dict[str, float], words: str
) -> None:
    losses = {"loss/labeled": 0.5, "loss/labeled_auxiliary_1": 0.7, "loss/unlabeled": 0.25}
    losses |= {"student_1/gradient_norm": 3.0, "trusted": 0.9, "lr": 0.01}
    with ConsoleObserver() as observer:
        observer.metrics(10, 20, {**losses, "loss/labeled": 1.0, **more})
        observer.metrics(20, 20, losses)  # a line without diagnostics
        observer.advance("training", 20, 20)
    assert capsys.readouterr().err == f"training: 20/20  {words}\n"


def test_plain_lines_are_rare_and_the_last_one_is_sure(capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleObserver() as observer:
        for done in range(1, 101):
            observer.advance("reading", done, 100)
            observer.advance("training", done, 100)
    assert capsys.readouterr().err == "training: 100/100\n"


def test_on_a_terminal_there_is_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ConsoleObserver() as observer:
        observer.advance("predicting", 1, 3)
        observer.say("a line above the bar")
    shown = stream.getvalue()
    assert "predicting" in shown
    assert "1/3" in shown
    assert "a line above the bar" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor comes back


def test_odd_class_names_go_through_a_whole_run(fewmask: Fewmask, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", val=1)
    names = ["[red]car", "<b>sky</b>", "<script>alert(1)</script>", *"defgh"]
    (data / "classes.txt").write_text("\n".join(names))
    run = tmp_path / "[bold]run"
    result = fewmask("train", data, "--out", run, *TINY)
    assert result.code == 0
    assert "\x1b" not in result.err
    rows = [line.split("│")[1].strip() for line in result.err.splitlines() if "│" in line]
    assert rows[:3] == names[:3]
    assert f"model: {run / 'model.safetensors'}   report: {run / 'report.html'}" in result.err
    page = (run / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert [line.split("│")[1].strip() for line in fewmask("evaluate", run).out.splitlines() if "│" in line] == rows


def test_numbers_beside_the_bar_are_of_the_training_at_hand(capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleObserver() as observer:
        observer.metrics(20, 20, {"loss/labeled": 1.5})
        observer.advance("training", 20, 20)
        observer.advance("training", 1, 40)  # what comes after a baseline
        observer.advance("training", 40, 40)
    assert capsys.readouterr().err == "training: 20/20  labeled 1.500\ntraining: 40/40\n"


@pytest.mark.parametrize(("width", "shown"), [(120, 3), (100, 2), (80, 1), (60, 0)])
def test_a_narrow_terminal_keeps_bar_and_count(monkeypatch: pytest.MonkeyPatch, width: int, shown: int) -> None:
    values = {"loss/labeled": 1.509, "pseudo/accuracy": 0.34, "coupling/total_variation": 0.1}
    words = ["labeled 1.509", "pseudo accuracy 0.340", "total variation 0.100"]
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    with ConsoleObserver() as observer:
        observer.metrics(400, 4000, values)
        observer.advance("training", 400, 4000)
        lines = observer.console.render_lines(observer._bar.get_renderable())
    (line,) = ("".join(segment.text for segment in each).rstrip() for each in lines)
    assert re.match(r"training \S+ +400/4000 \S+", line), line
    assert [word for word in words if word in line] == words[:shown]

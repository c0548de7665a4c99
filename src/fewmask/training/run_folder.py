"""The run folder: everything a run leaves behind, and all that other commands know of it."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

from fewmask.config import Config
from fewmask.errors import CheckpointError, ConfigError, FewmaskError
from fewmask.settings import read_section, read_settings_file
from fewmask.training.checkpoint import list_checkpoints, not_written, remove_temporaries, step_of, write_atomically

_PACKAGES = ("fewmask", "torch", "torchvision", "timm", "numpy", "pillow", "safetensors")


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def split(self) -> Path:
        return self.path / "split.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def baselines(self) -> list[Path]:
        """Those of the runs that it starts from which are finished."""
        return sorted(path.parent for path in self.path.glob("baseline*/model.safetensors"))

    @property
    def forebears(self) -> list[Path]:
        """The baselines, or the runs elsewhere from which it started."""
        if self.baselines or not self.environment.is_file():
            return self.baselines
        elsewhere = self.read_json(self.environment.name).get("started_from", {}).values()
        return [Path(run) for run in dict.fromkeys(elsewhere)]

    @property
    def saved(self) -> bool:
        """Whether there is a state that the run can go on from."""
        return self.config.exists() and bool(list_checkpoints(self.checkpoints))

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation.json"

    @property
    def timing(self) -> Path:
        """Seconds, part by part, and peak memory, as foreseen and as they came."""
        return self.path / "timing.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder; no other process may train in it meanwhile. One that stayed empty is gone afterwards."""
        new = not self.path.exists()
        descriptor = self._opened()
        try:
            _lock(descriptor, self.path)
            yield
        finally:
            os.close(descriptor)
            if new:
                with suppress(OSError):
                    self.path.rmdir()

    def _opened(self) -> int:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise ConfigError(
                f"the run folder cannot be made: {error.strerror}", where=str(self.path), fix="another --out"
            ) from None

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """If this fails nothing was trained: the folder may be taken by a run with other settings."""
        try:
            yield
        except FewmaskError:
            self.config.unlink(missing_ok=True)
            raise

    def claim(self) -> None:
        """An existing run, or what is left of one, is never overwritten.

        The state and the parts of files of a start that was killed before there was a config.yaml are no run: they go,
        or this one could be resumed from networks that it never had.
        """
        if self.config.exists():
            raise ConfigError(
                "the run folder already holds a run",
                where=str(self.path),
                fix="--resume to go on with it, or another --out",
            )
        if self.metrics.exists() or any(map(step_of, list_checkpoints(self.checkpoints))):
            raise ConfigError(
                "the run folder holds parts of a run but no config.yaml", where=str(self.path), fix="another --out"
            )
        for first in list_checkpoints(self.checkpoints):
            first.unlink()
        self.clear_temporaries()

    def clear_temporaries(self) -> None:
        for place in (self.path, self.checkpoints):
            remove_temporaries(place)

    def start(self, config: Config, split: Mapping[str, Any], starts: Mapping[str, Path]) -> None:
        """Write what the run depends on; `starts` are runs that its learners start from."""
        started = {name: str(run.resolve()) for name, run in starts.items()}
        self.write_json(self.environment.name, describe_environment() | {"started_from": started})
        self.write_json(self.split.name, split)
        self.write_config(config)  # last: a folder with config.yaml is a run

    def write_config(self, config: Config) -> None:
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_atomically(self.config, lambda file: file.write(text.encode()))

    def withdraw(self) -> None:
        """What a shorter run said at its end: were the longer one killed while it says it anew, both would be mixed.

        Without the card there is no model, and without `timing` the resumed run says that nobody knows.
        """
        for path in (self.path / "model.json", self.timing, self.report):
            path.unlink(missing_ok=True)

    def read_config(self) -> Config:
        if not self.config.is_file():
            raise CheckpointError("not a run folder", where=str(self.path), fix="the --out folder of `fewmask train`")
        return read_section(Config, read_settings_file(self.config), where=str(self.config))

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_atomically(self.path / name, lambda file: file.write(text.encode()))
        return self.path / name

    def read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if not path.is_file():
            raise CheckpointError(f"the run folder has no {name}", where=str(self.path), fix="a finished run")
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(_json_line(line))
        except OSError as error:  # a write that fails does not say which file it was
            raise not_written(self.metrics, error) from error

    def read_metrics(self) -> list[dict[str, Any]]:
        if not self.metrics.is_file():
            return []
        lines = []
        for text in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break  # a run that was killed while writing leaves at most one broken last line
        return lines

    def rewind_metrics(self, step: int) -> None:
        """Forget the lines after `step`: the resumed run writes them again."""
        kept = "".join(_json_line(line) for line in self.read_metrics() if line["step"] <= step)
        write_atomically(self.metrics, lambda file: file.write(kept.encode()))


def _lock(descriptor: int, path: Path) -> None:
    """Until the descriptor is closed, which the end of a process does as well; not all network disks know locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            "another process is training in this run folder", where=str(path), fix="wait for its end, or another --out"
        ) from None
    except OSError:
        return


def _json_line(values: Mapping[str, Any]) -> str:
    """JSON knows no nan: it becomes null."""
    known = {key: None if isinstance(each, float) and not math.isfinite(each) else each for key, each in values.items()}
    return json.dumps(known, allow_nan=False) + "\n"


def describe_environment() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "packages": {name: metadata.version(name) for name in _PACKAGES if _installed(name)},
    }


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True

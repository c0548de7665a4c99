"""Checkpoints: one flat state, written to a temporary name, synced, renamed; read with weights_only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch

from fewmask.errors import CheckpointError, TrainingError

FORMAT_VERSION = 1
_NAME = re.compile(r"step_(\d{8})\.pt$")
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Readers see the old file or the whole new one, never a part, even if the machine stops here."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # torch.save hides what the disk said
        if not isinstance(cause, OSError):
            raise
        raise not_written(path, cause) from error
    finally:
        with suppress(OSError):  # on a read-only file system even what is not there cannot be removed
            temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def not_written(path: Path, error: OSError) -> TrainingError:
    what = f"{path.name} cannot be written: {error.strerror}"
    return TrainingError(what, where=str(path.parent), fix="free space and the right to write there")


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step_{step:08d}.pt"


def step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step_"))


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any], keep: int, stage: int | None = None) -> Path:
    """Write the state of `step`, then drop all but the newest `keep` checkpoints up to it.

    Those of later steps are damaged, or the run would have gone on from them: they must not push out good ones. Where
    stages have `stage` steps, what one started from stays as long as its checkpoints do: nothing can go on from these
    without it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(folder, step)
    full = {"format_version": FORMAT_VERSION, "step": step, **state}
    write_atomically(path, lambda file: torch.save(full, file))
    there = list_checkpoints(folder)
    kept = there[there.index(path) :][:keep]
    if stage is not None:
        kept += [checkpoint_path(folder, step_of(each) // stage * stage) for each in kept]
    for other in there:
        if other not in kept:
            other.unlink()
    return path


class CheckpointWriter:
    """Saves while training goes on: the state is copied at once, the disk takes its time.

    One at a time, so the next save waits for the last. An error of the disk is raised there, or by the next `look`.
    Leaving the context waits as well: what was to be saved is saved, however training ends.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending: Future[Path] | None = None
        self.copies = HostCopies()

    def save(self, folder: Path, step: int, state: Mapping[str, Any], keep: int, stage: int | None = None) -> None:
        self.wait()
        self.pending = self.thread.submit(save_checkpoint, folder, step, self.copies(state), keep, stage)

    def look(self) -> None:
        """Raise what went wrong with the last save, if it is over; a disk that is full should not be found out late."""
        if self.pending is not None and self.pending.done():
            self.wait()

    def wait(self) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thread.shutdown(wait=True)
        if error is None:
            self.wait()


class HostCopies:
    """Copies of a state in host memory that is used again for the next one, so only the newest copy is good.

    That of tensors on a GPU is pinned: copies into it need no detour and no new pages, which take longer than the bus.
    """

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def __call__(self, state: Any) -> Any:
        """The same mappings and lists, with tensors of their own in host memory."""
        copy = self._copied(state, "")
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # copies into pinned memory are only begun
        return copy

    def _copied(self, state: Any, path: str) -> Any:
        if isinstance(state, torch.Tensor):
            return self._memory(state, path).copy_(state.detach(), non_blocking=True)
        if isinstance(state, Mapping):
            return {key: self._copied(value, f"{path}/{key}") for key, value in state.items()}
        if isinstance(state, list):
            return [self._copied(value, f"{path}/{place}") for place, value in enumerate(state)]
        return state

    def _memory(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        kept = self.kept.get(path)
        if kept is None or (kept.shape, kept.stride(), kept.dtype) != (tensor.shape, tensor.stride(), tensor.dtype):
            self.kept[path] = kept = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return kept


def list_checkpoints(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in folder.glob("step_*.pt") if _NAME.search(path.name)), reverse=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"the checkpoint cannot be read ({type(error).__name__})",
            where=str(path),
            fix="an intact file; delete this one",
        ) from error
    if not isinstance(state, dict) or state.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"the checkpoint has format {state.get('format_version') if isinstance(state, dict) else '?'}",
            where=str(path),
            fix=f"format {FORMAT_VERSION}, written by this version of fewmask",
        )
    return state


def load_newest(folder: Path, warn: Callable[[str], None] | None = None) -> dict[str, Any] | None:
    """The newest readable checkpoint; damaged ones are passed over with a warning. None where there is none."""
    damaged: CheckpointError | None = None
    for path in list_checkpoints(folder):
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            if warn is not None:
                warn(f"{path.name} is damaged and was passed over")
            damaged = error
    if damaged is not None:
        raise damaged
    return None


def remove_temporaries(folder: Path) -> None:
    """What a process that was killed while writing left behind."""
    for path in folder.glob(".*.tmp"):
        if _TEMPORARY.fullmatch(path.name):  # the folder may hold what is not ours
            path.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

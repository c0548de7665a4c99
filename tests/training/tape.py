"""A captured step without a GPU: a tape of the tensor operations of one step that can be run again.

Like a CUDA graph it knows operations and the memory that they read and write, and nothing of Python: a number of the
host that went into an operation stays what it was. Nothing is allocated a second time, so every result lies where it
lay when the tape was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fewmask.training.lanes import Lanes
from fewmask.training.stepper import _WARM_UP, Stepper


class Note(NamedTuple):
    """One operation, its results, and the lane that asked for it."""

    operation: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    results: Sequence[Any]
    lane: int | None
    turn: int  # joins before it

    def play(self) -> None:
        again = _results(self.operation, self.operation(*self.arguments, **self.options))
        for result, new, place in zip(self.results, again, self.operation._schema.returns, strict=True):
            if place.alias_info is None:  # neither a view nor written in place
                _copy(new, result)


class Tape(TorchDispatchMode):
    """Inside the `with`, operations are carried out and noted; `play` carries them out again."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Note] = []
        self.lane: int | None = None
        self.turn = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        assert func not in _HOST, f"{func} moves a value between host and device"
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.notes.append(Note(func, args, kwargs or {}, _results(func, found), self.lane, self.turn))
        return found

    @torch.no_grad()
    def play(self, order: Callable[[list[Note]], Iterator[Note]] = iter) -> None:
        for note in order(self.notes):
            note.play()


_HOST = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.lift_fresh.default)


class NotedLanes(Lanes):
    """Tells the tape which lane asks."""

    def __init__(self, tape: Tape) -> None:
        super().__init__(0, torch.device("cpu"))
        self.tape = tape

    def enter(self, number: int) -> None:
        self.tape.lane = number

    def join(self) -> None:
        self.tape.lane = None
        self.tape.turn += 1


class TapedStepper(Stepper):
    """Captures like the real one: some steps as usual, then one is noted and played again for each step."""

    order: Callable[[list[Note]], Iterator[Note]] = staticmethod(iter)
    tape: Tape | None = None

    def _compute(self) -> None:
        if self.done < _WARM_UP:
            super()._compute()
            return
        if self.tape is None:
            self.tape = self._noted()
        self.tape.play(self.order)

    def _noted(self) -> Tape:
        """The tape of a step which changes nothing, as a capture does not compute."""
        tape, kept = Tape(), self._state()
        before = {name: tensor.clone() for name, tensor in kept.items()}
        self.engine.lanes = NotedLanes(tape)
        with tape:
            super()._compute()
        for name, tensor in kept.items():
            tensor.copy_(before[name])
        return tape

    def _state(self) -> dict[str, Tensor]:
        """Everything that outlives a step, by the memory it lies in."""
        state = {f"method/{name}": each.detach() for name, each in self.engine.method.named_parameters()}
        state |= {f"buffer/{name}": each for name, each in self.engine.method.named_buffers()}
        state |= {f"batch/{place}": each for place, each in enumerate(self.batch.tensors() if self.batch else [])}
        state |= {f"sums/{name}": each for name, each in self.engine.sums.items()} | {"bad": self.engine.bad_step}
        for optimizer in self.engine.optimizers.values():
            for place, values in enumerate(optimizer.state.values()):
                tensors = {key: each for key, each in values.items() if isinstance(each, Tensor)}
                state |= {f"optimizer/{id(optimizer)}/{place}/{key}": each for key, each in tensors.items()}
        return state


def lanes_turned(notes: list[Note]) -> Iterator[Note]:
    """Between two joins the last lane first."""
    for turn in range(notes[-1].turn + 1):
        part = [note for note in notes if note.turn == turn]
        yield from sorted(part, key=lambda note: (note.lane is not None, -(note.lane or 0)))


def lanes_mixed(notes: list[Note]) -> Iterator[Note]:
    """Between two joins all lanes by turns, operation by operation."""
    for turn in range(notes[-1].turn + 1):
        part = [note for note in notes if note.turn == turn]
        yield from (note for note in part if note.lane is None)
        lanes = [[note for note in part if note.lane == lane] for lane in (0, 1)]
        for place in range(max(map(len, lanes))):
            yield from (lane[place] for lane in lanes if place < len(lane))


def _results(operation: Any, found: Any) -> Sequence[Any]:
    """One for each return of the operation's schema."""
    count = len(operation._schema.returns)
    return () if count == 0 else (found,) if count == 1 else found


def _copy(source: Any, target: Any) -> None:
    if isinstance(source, Tensor):
        target.detach().copy_(source)
    elif isinstance(source, (tuple, list)):
        for one, other in zip(source, target, strict=True):
            _copy(one, other)

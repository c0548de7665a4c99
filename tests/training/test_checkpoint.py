"""Checkpoint files: atomic, kept newest first, damaged ones passed over."""

import os
import resource
from concurrent.futures import wait
from pathlib import Path

import pytest
import torch

from fewmask.errors import CheckpointError, TrainingError
from fewmask.training.checkpoint import (
    CheckpointWriter,
    HostCopies,
    list_checkpoints,
    load_checkpoint,
    load_newest,
    remove_temporaries,
    save_checkpoint,
    write_atomically,
)
from fewmask.training.run_folder import RunFolder


def state(value: float = 0.0, size: int = 4) -> dict[str, object]:
    return {"network.weight": torch.full((size,), value), "checksum.data": "abc"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def test_a_state_comes_back_as_it_was(tmp_path):
    path = save_checkpoint(tmp_path, 7, state(0.1), keep=2)
    back = load_checkpoint(path)
    assert (path.name, back["step"], back["checksum.data"]) == ("step_00000007.pt", 7, "abc")
    assert torch.equal(back["network.weight"], torch.full((4,), 0.1))


@pytest.mark.parametrize(
    ("keep", "there"),
    [
        (1, {4: [0, 4], 5: [5], 6: [5, 6], 10: [10], 11: [10, 11]}),
        (3, {4: [0, 2, 3, 4], 6: [0, 4, 5, 6], 7: [5, 6, 7], 11: [5, 9, 10, 11]}),
    ],
)
def test_what_is_kept_can_be_gone_on_from(tmp_path, keep, there):
    """Of a stage, that needs the checkpoint that it started from."""
    for step in range(12):
        save_checkpoint(tmp_path, step, state(step), keep, stage=5)
        if step in there:
            assert names(tmp_path) == [f"step_{each:08d}.pt" for each in there[step]], step


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_exactly_the_newest_are_kept(tmp_path, keep):
    for step in (0, 5, 10, 15):
        save_checkpoint(tmp_path, step, state(step), keep)
    expected = [f"step_{step:08d}.pt" for step in (15, 10, 5)[:keep]]
    assert [path.name for path in list_checkpoints(tmp_path)] == expected
    assert names(tmp_path) == sorted(expected)


def test_a_truncated_newest_gives_way_to_the_one_before(tmp_path):
    save_checkpoint(tmp_path, 5, state(5.0), keep=2)
    truncate(save_checkpoint(tmp_path, 10, state(10.0), keep=2))
    warnings: list[str] = []
    found = load_newest(tmp_path, warnings.append)
    assert found is not None
    assert found["step"] == 5
    assert warnings == ["step_00000010.pt is damaged and was passed over"]


def test_a_damaged_later_checkpoint_does_not_push_out_a_good_one(tmp_path):
    """Going on from step 5 with keep=1: the damaged step 10 must not outlive the new step 7."""
    save_checkpoint(tmp_path, 5, state(5.0), keep=2)
    truncate(save_checkpoint(tmp_path, 10, state(10.0), keep=2))
    save_checkpoint(tmp_path, 7, state(7.0), keep=1)
    assert names(tmp_path) == ["step_00000007.pt"]
    assert load_newest(tmp_path)["step"] == 7


@pytest.mark.parametrize("damage", [truncate, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"no")])
def test_nothing_intact_is_an_error_that_names_the_file(tmp_path, damage):
    for step in (5, 10):
        damage(save_checkpoint(tmp_path, step, state(), keep=2))
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        load_newest(tmp_path)
    assert "step_00000005.pt" in caught.value.where
    assert load_newest(tmp_path / "empty") is None


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harmed",))

    torch.save({"format_version": 1, "step": 1, "network.weight": Harmful()}, tmp_path / "step_00000001.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(tmp_path / "step_00000001.pt")
    assert not (tmp_path / "harmed").exists()


def test_another_format_says_which_is_valid(tmp_path):
    torch.save({"format_version": 99}, tmp_path / "step_00000001.pt")
    with pytest.raises(CheckpointError, match="format 99") as caught:
        load_checkpoint(tmp_path / "step_00000001.pt")
    assert "format 1" in caught.value.fix


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "model.json"
    write_atomically(path, lambda file: file.write(b"old"))

    def half(file):
        file.write(b"ne")
        raise ValueError("broken off")

    with pytest.raises(ValueError, match="broken off"):
        write_atomically(path, half)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["model.json"]


@pytest.mark.parametrize("as_checkpoint", [True, False])
def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path, as_checkpoint):
    """A limit on the size of files stands for the full disk: the system refuses the write in the middle."""
    old = save_checkpoint(tmp_path, 5, state(5.0), keep=1)
    before = old.read_bytes()

    def write():
        if as_checkpoint:
            save_checkpoint(tmp_path, 10, state(10.0, size=1_000_000), keep=1)
        else:
            write_atomically(old, lambda file: file.write(bytes(1_000_000)))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(TrainingError, match="cannot be written: File too large") as caught:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path) in caught.value.where
    assert "free space" in caught.value.fix
    assert names(tmp_path) == ["step_00000005.pt"]
    assert old.read_bytes() == before


def test_a_line_of_metrics_that_does_not_fit_says_which_file_it_was(tmp_path):
    """Half of it may stand there then; a resumed run drops it."""
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        folder.append_metrics({"step": step})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, hard))
    try:
        with pytest.raises(TrainingError, match=r"metrics\.jsonl cannot be written: File too large") as caught:
            folder.append_metrics({"step": 3})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.where == str(tmp_path)
    assert folder.read_metrics() == [{"step": 1}, {"step": 2}]


def test_what_a_killed_writer_left_is_removed(tmp_path):
    save_checkpoint(tmp_path, 5, state(), keep=1)
    (tmp_path / ".step_00000010.pt.4711.tmp").write_bytes(b"half")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_00000005.pt"]
    remove_temporaries(tmp_path)
    assert names(tmp_path) == ["step_00000005.pt"]


def test_a_writer_keeps_the_state_of_the_moment(tmp_path):
    """Training goes on in place while the file is written; the file holds what was there when it was asked for."""
    weight = torch.zeros(1_000_000)
    with CheckpointWriter() as writer:
        for step in (1, 2, 3):
            weight.fill_(step)
            writer.save(tmp_path, step, {"network.weight": weight, "optimizer.a": {"state": {0: [weight]}}}, keep=2)
            weight.fill_(-1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_00000003.pt", "step_00000002.pt"]
    for step in (2, 3):
        back = load_checkpoint(tmp_path / f"step_{step:08d}.pt")
        assert (back["network.weight"] == step).all()
        assert (back["optimizer.a"]["state"][0][0] == step).all()


def saved_by_a_writer(tmp_path: Path, *folders: Path) -> None:
    with CheckpointWriter() as writer:
        for step, folder in enumerate(folders):
            writer.save(folder, step, state(step, size=1_000_000), keep=1)
        if len(folders) == 1 and folders[0] == tmp_path:
            raise KeyError("broken")


def test_a_writer_saves_even_if_training_breaks_off(tmp_path):
    with pytest.raises(KeyError, match="broken"):
        saved_by_a_writer(tmp_path, tmp_path)
    assert names(tmp_path) == ["step_00000000.pt"]
    assert load_newest(tmp_path)["network.weight"].sum() == 0


def test_a_writer_tells_of_it_as_soon_as_it_is_looked_at(tmp_path):
    (tmp_path / "file").write_text("no folder")
    writer = CheckpointWriter()
    writer.look()  # nothing was saved yet
    writer.save(tmp_path / "file", 1, state(), keep=1)
    wait([writer.pending])
    with pytest.raises(FileExistsError, match="file"):
        writer.look()
    writer.save(tmp_path, 2, state(), keep=1)
    wait([writer.pending])
    writer.look()
    assert names(tmp_path) == ["file", "step_00000002.pt"]


@pytest.mark.parametrize("more", [True, False])
def test_a_writer_tells_of_a_disk_that_refused(tmp_path, more):
    """At the next save, which is then not made, or at the end."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(FileExistsError, match="file"):
        saved_by_a_writer(tmp_path, tmp_path / "file", *([tmp_path] if more else []))
    assert names(tmp_path) == ["file"]


def test_a_copy_shares_nothing_with_what_it_was_made_of():
    found = {"a": torch.arange(3), "b": [torch.ones(2), 5], "c": "text"}
    copy = HostCopies()(found)
    found["a"].zero_()
    found["b"][0].zero_()
    assert (copy["a"].tolist(), copy["b"][0].tolist(), copy["b"][1], copy["c"]) == ([0, 1, 2], [1, 1], 5, "text")


def test_the_next_copy_takes_the_memory_of_the_last_where_forms_are_the_same():
    copies = HostCopies()
    turned = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    first = copies({"same": turned, "other": torch.ones(2)})
    again = copies({"same": turned + 1, "other": torch.ones(3), "new": torch.ones(1)})
    assert torch.equal(again["same"], turned + 1)
    assert again["same"].stride() == turned.stride()
    assert again["same"].data_ptr() == first["same"].data_ptr()
    assert (again["other"].tolist(), again["new"].tolist()) == ([1, 1, 1], [1])

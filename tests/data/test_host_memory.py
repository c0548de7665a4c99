"""Main memory up to a budget, then files that leave nothing behind."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewmask.data.dataset import Sample
from fewmask.data.host_memory import HostMemory, available_memory
from fewmask.data.store import load_images
from fewmask.errors import ConfigError
from tests.resident import resident_kib


def test_what_exceeds_the_budget_is_mapped(tmp_path: Path) -> None:
    memory = HostMemory(100, tmp_path / "cache")
    small = memory.empty("small", (60,), torch.uint8)
    large = memory.empty("large", (7, 3), torch.int16)  # 42 bytes, and 40 are left
    fits = memory.empty("fits", (20,), torch.int16)
    assert [memory.is_mapped(each) for each in (small, large, fits)] == [False, True, False]
    assert (large.shape, large.dtype) == ((7, 3), torch.int16)
    assert not memory.has_room(1)
    assert HostMemory().has_room(2**60)


def test_room_is_free_again_when_the_last_tensor_over_it_is_gone(tmp_path: Path) -> None:
    """As when soft labels are made anew, or images have gone to a GPU; a view is enough to keep the room."""
    memory = HostMemory(100, tmp_path)
    labels = memory.empty("soft labels", (45,), torch.int16).fill_(7)
    part = labels[40:].numpy()
    assert (memory.taken, memory.has_room(10), memory.has_room(11)) == (90, True, False)
    assert memory.is_mapped(memory.empty("soft labels", (90,), torch.uint8))  # the old ones are still in use
    del labels
    assert memory.taken == 90
    assert part.tolist() == [7] * 5
    del part
    assert memory.taken == 0
    assert not memory.is_mapped(memory.empty("soft labels", (100,), torch.uint8))


def test_mapped_values_survive_a_release_and_leave_no_file(tmp_path: Path) -> None:
    memory, generator = HostMemory(0, tmp_path), torch.Generator().manual_seed(0)
    values = memory.empty("pixels", (5000, 3), torch.float16)
    wanted = torch.rand(5000, 3, generator=generator).half()
    values.copy_(wanted)
    memory.release()
    assert torch.equal(values, wanted)
    assert list(tmp_path.iterdir()) == []
    del values
    assert not list(memory.files)


def test_released_pages_do_not_count_as_this_process(tmp_path: Path) -> None:
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("needs /proc")
    memory, size = HostMemory(0, tmp_path), 64 * 2**20
    values = memory.empty("pixels", (size,), torch.uint8)
    values.fill_(3)
    full = int(status.read_text().split()[1])
    memory.release()
    assert full - int(status.read_text().split()[1]) > 0.9 * size / 4096
    assert int(values.sum(dtype=torch.int64)) == 3 * size


def test_a_disk_that_is_too_small_is_said_before_anything_is_decoded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unlabeled images take 1048576\.00 GiB") as caught:
        HostMemory(0, tmp_path).empty("unlabeled images", (2**50,), torch.uint8)
    assert "training.cache" in caught.value.fix
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be kept on disk"):
        HostMemory(0, tmp_path / "file").empty("images", (8,), torch.uint8)


@pytest.mark.parametrize("deep", [False, True])
def test_mapped_images_are_those_in_memory(tmp_path: Path, deep: bool) -> None:
    samples = []
    for number, size in enumerate([(3, 4), (8, 5), (2, 2)]):
        high, dtype = (65536, np.uint16) if deep else (256, np.uint8)
        array = np.random.default_rng(number).integers(0, high, size).astype(dtype)
        samples.append(Sample(str(number), tmp_path / f"{number}.png"))
        Image.fromarray(array).save(samples[-1].image)
    memory = HostMemory(0, tmp_path / "cache")
    resident, mapped = load_images(samples), load_images(samples, memory=memory)
    assert memory.is_mapped(mapped.values)
    assert resident_kib(memory) == 0  # what was written was let go of
    for index in range(len(samples)):
        assert torch.equal(resident.raw(index), mapped.raw(index))
    assert resident_kib(memory) > 0


def test_memory_at_hand() -> None:
    assert 2**20 < available_memory() < 2**50

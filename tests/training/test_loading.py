"""What training reads: every file once, checked as `fewmask check` does and kept as the store would read it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from fewmask.config import Config, DataSettings, TrainingSettings
from fewmask.data.check import check_folder
from fewmask.data.dataset import Sample
from fewmask.data.opening import open_dataset
from fewmask.data.store import load_images, load_masks
from fewmask.errors import DataError
from fewmask.training.loading import load_data
from fewmask.types import FlatImages
from tests.data.broken import BROKEN
from tests.data.healthy import Broken, blocks, healthy, write_image, write_mask
from tests.training.runs import Heard


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return healthy(tmp_path / "data")


def config_of(root: Path, **settings: object) -> Config:
    return Config(data=DataSettings.model_validate({"root": str(root), **settings}))


def require_equal(found: FlatImages | None, expected: FlatImages) -> None:
    assert found is not None
    assert found.channels == expected.channels
    for one, other in ((found.values, expected.values), (found.height, expected.height), (found.width, expected.width)):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_training_refuses_what_the_check_refuses_and_repeats_its_warnings(case: Broken, root: Path) -> None:
    case.build(root)
    chosen = {**case.settings, **({"split": str(root / "split.txt")} if "split" in case.settings else {})}
    config, heard = config_of(root, **chosen), Heard()
    if case.level == "error":
        with pytest.raises(DataError) as caught:
            load_data(config, heard)
        assert f"({case.code})" in caught.value.what
        assert all(part in caught.value.what for part in case.message)
        assert caught.value.where == str(root / case.path)
    else:
        load_data(config, heard)
        (warning,) = heard.warnings
        assert warning.startswith(f"{case.code}: ")
        assert all(part in warning for part in case.message)


def test_every_file_is_decoded_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    prepare = ImageFile.ImageFile.load_prepare  # Pillow calls it whenever it decodes pixels

    def counted(image: ImageFile.ImageFile) -> None:
        decoded.append(Path(image.filename).relative_to(root).as_posix())
        prepare(image)

    (root / "split.txt").write_text("a\nb\n")  # c and d have hidden masks, which are checked
    config = config_of(root, split=str(root / "split.txt"))
    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", counted)
    load_data(config, Heard())
    files = [path.relative_to(root).as_posix() for path in root.rglob("*.png")]
    assert Counter(decoded) == Counter(files)


@pytest.mark.parametrize("resize", [None, (12, 16)])
def test_what_is_kept_is_what_the_store_reads(root: Path, resize: tuple[int, int] | None) -> None:
    write_image(root / "images/c.png", 81, channels=1)  # gray among color
    write_image(root / "unlabeled/odd.png", 82, size=(17, 9))
    deep = np.random.default_rng(83).integers(0, 1 << 16, (24, 32), dtype=np.uint16)
    Image.fromarray(deep).save(root / "unlabeled/deep.png")
    write_mask(root / "masks/b.png", np.flipud(blocks()).copy())
    config = config_of(root, resize=resize)
    dataset, stores = load_data(config, Heard())
    assert dataset == open_dataset(root, config.data)

    def images(samples: tuple[Sample, ...]) -> FlatImages:
        return load_images(samples, channels=3, resize=resize)

    require_equal(stores.labeled, images(dataset.labeled))
    require_equal(stores.unlabeled, images(dataset.unlabeled))
    require_equal(stores.val, images(dataset.val))
    require_equal(stores.labels, load_masks(dataset.labeled, dataset.coding, resize=resize))
    require_equal(stores.val_labels, load_masks(dataset.val, dataset.coding, resize=resize))
    assert stores.unlabeled is not None
    assert stores.unlabeled.values.dtype == torch.int16  # one image has 16 bits


def test_warnings_of_one_kind_are_told_three_times_and_counted(root: Path) -> None:
    for name in "klmno":
        write_mask(root / f"masks/{name}.png", blocks())  # without an image
    load_data(config_of(root), heard := Heard())
    assert [line.partition(": ")[0] for line in heard.warnings] == ["extra-mask"] * 4
    assert [line.partition(": ")[2] for line in heard.warnings][-1] == "… and 2 more"


def test_data_that_are_refused_leave_nothing_where_they_would_have_been_mapped(root: Path, tmp_path: Path) -> None:
    out, mapped = tmp_path / "run", TrainingSettings(host_share=0)
    config = config_of(root).model_copy(update={"training": mapped})
    _, stores = load_data(config, Heard(), cache=out)
    assert stores.host.is_mapped(stores.labeled.values)
    assert not out.exists()
    write_mask(root / "masks/b.png", blocks((10, 10)))
    with pytest.raises(DataError, match="size differs"):
        load_data(config, Heard(), cache=out)
    assert not out.exists()


def test_splits_that_are_not_there_have_no_store(root: Path) -> None:
    for folder in ("unlabeled", "val"):
        (root / folder).rename(root.parent / folder)
    _, stores = load_data(config_of(root), heard := Heard())
    assert (stores.unlabeled, stores.val, stores.val_labels) == (None, None, None)
    assert {warning.partition(":")[0] for warning in heard.warnings} == {"no-unlabeled", "no-val"}


def test_a_folder_that_cannot_be_opened_is_refused_as_the_check_does(root: Path) -> None:
    (root / "classes.txt").write_text("road\nroad\ncar\n")
    (first, *_) = check_folder(root, DataSettings()).errors
    with pytest.raises(DataError) as caught:
        load_data(config_of(root), Heard())
    assert caught.value.what == f"{first.message} ({first.code})"

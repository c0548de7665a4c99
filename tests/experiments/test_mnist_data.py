"""The idx reader: the format's bytes, and everything that can be wrong with a file."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fewmask.errors import DataError
from fewmask.experiments.mnist_data import read_digits, read_idx
from tests.experiments.digits import idx_bytes, write_digits

MNIST = Path(os.environ.get("FEWMASK_MNIST", Path(__file__).parents[3] / "shared" / "data" / "mnist"))
BYTES = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])  # a 2x3 array, written by hand


def test_the_bytes_of_the_format_become_an_array(tmp_path):
    (tmp_path / "array").write_bytes(BYTES)
    (tmp_path / "array.gz").write_bytes(gzip.compress(BYTES, mtime=0))
    expected = torch.tensor([[1, 2, 3], [4, 5, 255]], dtype=torch.uint8)
    assert torch.equal(read_idx(tmp_path / "array"), expected)
    assert torch.equal(read_idx(tmp_path / "array.gz"), expected)
    assert idx_bytes(expected.numpy()) == BYTES


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("truncated", BYTES[:-1], "promises 6 bytes, but 5 follow"),
        ("too_long", BYTES + b"x", "promises 6 bytes, but 7 follow"),
        ("header_only", BYTES[:10], "ends within its header"),
        ("png", b"\x89PNG\r\n\x1a\n", "not an idx file"),
        ("empty", b"", "not an idx file"),
        ("floats", BYTES[:2] + b"\x0d" + BYTES[3:], "elements of type 13"),
        ("cut.gz", gzip.compress(BYTES, mtime=0)[:-9], "cannot be unpacked"),
        ("plain.gz", BYTES, "cannot be unpacked"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_idx(path)
    assert error.value.where == str(path)
    assert error.value.fix


@pytest.mark.parametrize("compressed", [False, True])
def test_digits_are_images_with_one_label_each(tmp_path, compressed):
    folder = write_digits(tmp_path, train=23, test=11, compressed=compressed)
    train, test = read_digits(folder, "train"), read_digits(folder, "t10k")
    assert (train.images.shape, test.images.shape) == ((23, 1, 28, 28), (11, 1, 28, 28))
    assert train.images.dtype == torch.uint8
    assert train.labels.tolist() == [index % 10 for index in range(23)]
    assert len(test) == 11


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-images-idx3-ubyte", np.zeros((5, 28, 20)), "5x28x20"),
        ("train-labels-idx1-ubyte", np.zeros(4), "5 images, but labels 4"),
        ("train-labels-idx1-ubyte", np.full(5, 10), "the label 10 is not a digit"),
    ],
)
def test_files_that_do_not_fit_are_errors(tmp_path, name, array, message):
    (write_digits(tmp_path, train=5) / name).write_bytes(idx_bytes(array))
    with pytest.raises(DataError, match=message) as error:
        read_digits(tmp_path, "train")
    assert error.value.where.endswith(name)


def test_a_missing_file_is_named(tmp_path):
    (write_digits(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is not there"):
        read_digits(tmp_path, "t10k")


@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST is not here; FEWMASK_MNIST names its folder")
def test_mnist_itself():
    """Sizes, the counts of the ten test labels, and the mean of the training pixels, as they are published."""
    train, test = read_digits(MNIST, "train"), read_digits(MNIST, "t10k")
    assert (len(train), len(test)) == (60000, 10000)
    assert test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert train.images.float().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)

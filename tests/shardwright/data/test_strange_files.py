"""Files of data that have no end, or unpack to much: each is refused by a sentence."""

import gzip
import os

import numpy as np
import pytest

from shardwright.batches import _text
from shardwright.dataset import ImageFolderDataset, MnistDataset, TextFileDataset, readers
from shardwright.ir.errors import ExecutionError, ModelError
from shardwright.train.ckpt_files import is_ckpt


def pipe(path):
    os.mkfifo(path)
    return path


def test_a_text_that_is_a_pipe(tmp_path):
    with pytest.raises(ExecutionError, match="the text cannot be read: it is a pipe or a device"):
        _text(pipe(tmp_path / "text"))
    with pytest.raises(ModelError, match="the text cannot be read: it is a pipe or a device"):
        TextFileDataset(str(pipe(tmp_path / "lines")))


def test_a_text_that_is_a_device_or_huge(tmp_path):
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(ExecutionError, match="it is a pipe or a device"):
        _text(tmp_path / "zero")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ExecutionError, match="it has more than"):
        _text(tmp_path / "sparse")


def test_a_picture_that_is_a_pipe(tmp_path):
    (tmp_path / "class").mkdir()
    pipe(tmp_path / "class" / "a.png")
    with pytest.raises(ModelError, match="it is a pipe or a device"):
        ImageFolderDataset(str(tmp_path), decode=False).make(0)


def test_a_packed_file_that_unpacks_to_more_than_any(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_MOST_SMALL", 2**10)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(bytes(2**21)))
    with pytest.raises(ModelError, match=r"it has more than [\d,]+ bytes, unpacked"):
        MnistDataset(str(tmp_path), "train")
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        whole = gzip.compress(np.random.default_rng(0).bytes(1000))
        (tmp_path / f"{name}.gz").write_bytes(whole[:50] + b"\xff" * 50 + whole[100:])
    with pytest.raises(ModelError, match="the file cannot be read"):
        MnistDataset(str(tmp_path), "train")


def test_a_picture_of_more_points_than_any(tmp_path):
    images = pytest.importorskip("PIL.Image")
    (tmp_path / "class").mkdir()
    images.new("1", (20_000, 20_000)).save(tmp_path / "class" / "a.png")
    with pytest.raises(ModelError, match="the picture cannot be decoded"):
        ImageFolderDataset(str(tmp_path), decode=True).make(0)


def test_a_checkpoint_that_is_a_pipe(tmp_path):
    with pytest.raises(OSError, match="it is a pipe or a device"):
        is_ckpt(pipe(tmp_path / "a.ckpt"))

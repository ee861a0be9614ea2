import numpy as np
import pytest

import shardwright.dataset as ds
from shardwright import mindspore
from shardwright.dataset import files, transforms
from shardwright.ir.errors import ModelError, OptionError, PackageError
from shardwright.mindspore.dataset import vision

images = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path):
    for name in ("dogs", "cats"):
        (tmp_path / name).mkdir()
        for i in range(3):
            color = (10 * i, 100, 200 if name == "dogs" else 0)
            images.new("RGB", (4, 5), color).save(tmp_path / name / f"{i}.png")
    (tmp_path / "cats" / "notes.txt").write_text("no picture")
    (tmp_path / "readme.txt").write_text("")
    return tmp_path


def test_pictures_in_folders(folder):
    dataset = ds.ImageFolderDataset(folder, decode=True)
    assert dataset.classes == {"cats": 0, "dogs": 1}
    found = list(dataset.samples(0))
    assert [int(sample["label"]) for sample in found] == [0, 0, 0, 1, 1, 1]
    assert {sample["image"].shape for sample in found} == {(5, 4, 3)}
    assert [sample["image"][0, 0].tolist() for sample in found[3:5]] == [
        [0, 100, 200],
        [10, 100, 200],
    ]
    raw = ds.ImageFolderDataset(folder).map(vision.Decode())
    for a, b in zip(raw.samples(0), found, strict=True):
        np.testing.assert_array_equal(a["image"], b["image"])


def test_each_rank_reads_its_files_only(folder, monkeypatch):
    read, original = [], files.read_bytes
    monkeypatch.setattr(
        files, "read_bytes", lambda path: (read.append(path.name), original(path))[1]
    )
    dataset = ds.ImageFolderDataset(folder, num_shards=3, shard_id=1)
    assert len(list(dataset.samples(0))) == 2
    assert read == ["1.png", "1.png"]


def test_classes_and_endings_that_are_given(folder):
    only = mindspore.dataset.ImageFolderDataset(
        str(folder),
        class_indexing={"dogs": 7},
        shuffle=False,
        num_samples=2,
        num_parallel_workers=2,
    )
    assert [int(sample["label"]) for sample in only.samples(0)] == [7, 7]
    with pytest.raises(ModelError, match="there are no pictures"):
        ds.ImageFolderDataset(folder, extensions=[".jpg"])
    with pytest.raises(ModelError, match="there is no folder of pictures"):
        ds.ImageFolderDataset(folder / "none")


def test_a_damaged_picture_is_named(folder):
    path = folder / "cats" / "1.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ModelError) as caught:
        list(ds.ImageFolderDataset(folder, decode=True).samples(0))
    assert caught.value.where == str(path)
    with pytest.raises(ModelError, match="the picture cannot be decoded"):
        vision.Decode()(np.zeros(4, np.uint8))


def test_decoding_needs_a_package(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(PackageError, match="decoding pictures needs `PIL`"):
        list(ds.ImageFolderDataset(folder, decode=True).samples(0))


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("one\ntwo\n\nfour", ["one", "two", "", "four"]),
        ("one\n", ["one"]),
        ("é\nü\n", ["é", "ü"]),
        ("\n", [""]),
    ],
)
def test_lines_of_texts(content, lines, tmp_path):
    (tmp_path / "a.txt").write_text(content)
    (tmp_path / "b.txt").write_text("last")
    dataset = ds.TextFileDataset([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert [str(sample["text"]) for sample in dataset.samples(0)] == [*lines, "last"]
    half = mindspore.dataset.TextFileDataset(
        str(tmp_path / "a.txt"), shuffle=False, num_shards=1, shard_id=0
    )
    batch = next(half.map(transforms.ToBytes(4)).batch(len(lines)).samples(0))
    expected = [list(line.encode()[:4].ljust(4, b"\0")) for line in lines]
    assert batch["text"].tolist() == expected


def test_texts_that_cannot_be_read(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ModelError, match="the texts have no lines"):
        ds.TextFileDataset(tmp_path / "empty.txt")
    with pytest.raises(ModelError, match="the text cannot be read: no such file"):
        ds.TextFileDataset(tmp_path / "none.txt")
    with pytest.raises(ModelError, match="the line at byte 0 is not UTF-8"):
        list(ds.TextFileDataset(tmp_path / "bytes.txt").samples(0))
    with pytest.raises(OptionError, match="`dataset_files` is "):
        ds.TextFileDataset([3])
    with pytest.raises(OptionError, match="`length` is 0"):
        transforms.ToBytes(0)


@pytest.fixture
def config():
    config = mindspore.dataset.config
    yield config
    config.set_enable_autotune(False)
    config.set_prefetch_size(2)
    config.set_autotune_interval(8)


def test_the_settings_of_all_datasets(config, monkeypatch, tmp_path):
    monkeypatch.setattr("shardwright.dataset.configuration.SETTINGS.workers", 0)
    config.set_num_parallel_workers(2)
    assert config.get_num_parallel_workers() == 2
    config.set_prefetch_size(3)
    assert config.get_prefetch_size() == 3
    config.set_autotune_interval(1)
    assert config.get_autotune_interval() == 1
    config.set_enable_autotune(True, str(tmp_path / "tuned"))
    assert config.get_enable_autotune()
    dataset = mindspore.dataset.NumpySlicesDataset(np.arange(6), "x", shuffle=False).batch(2)
    assert [batch["x"].tolist() for batch in dataset.samples(0)] == [[0, 1], [2, 3], [4, 5]]
    assert (tmp_path / "tuned_0.json").exists()
    for call in (
        lambda: config.set_num_parallel_workers(0),
        lambda: config.set_prefetch_size(0),
        lambda: config.set_autotune_interval(0),
        lambda: config.set_enable_autotune(1),
        lambda: config.set_enable_autotune(True, 3),
    ):
        with pytest.raises(OptionError, match="expected"):
            call()

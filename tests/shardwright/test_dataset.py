import gzip
import struct

import numpy as np
import pytest

from shardwright.communication import get_rank, world
from shardwright.dataset import (
    ArrayDataset,
    Cifar10Dataset,
    GeneratorDataset,
    MnistDataset,
    digits,
    readers,
    transforms,
    vision,
)
from shardwright.ir.errors import ModelError

IMAGES = np.arange(5 * 28 * 28).reshape(5, 28, 28).astype(np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], np.uint8)


def idx(array, magic):
    return struct.pack(f">{1 + array.ndim}i", magic, *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(IMAGES, 2051))
    packed = gzip.compress(idx(LABELS, 2049))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(packed)
    return tmp_path


def test_mnist_is_read_packed_or_not(mnist):
    dataset = MnistDataset(mnist)
    assert (len(dataset), dataset.column_names) == (5, ("image", "label"))
    images, labels = zip(*dataset, strict=True)
    np.testing.assert_array_equal(np.stack(images)[..., 0], IMAGES)
    np.testing.assert_array_equal(labels, LABELS)


def test_the_pipeline_of_the_tutorial(mnist):
    dataset = MnistDataset(mnist)
    dataset = dataset.map(
        [
            vision.Rescale(1.0 / 255.0, 0),
            vision.Normalize(mean=(0.1307,), std=(0.3081,)),
            vision.HWC2CHW(),
        ],
        "image",
    )
    dataset = dataset.map(transforms.TypeCast("int32"), "label").batch(2)
    assert dataset.get_dataset_size() == 2
    image, label = next(iter(dataset))
    assert (image.shape, image.dtype, label.dtype) == ((2, 1, 28, 28), np.float32, np.int32)
    np.testing.assert_allclose(image[:, 0], (IMAGES[:2] / 255 - 0.1307) / 0.3081, rtol=1e-5)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"abc", "the file does not begin with the number 2051"),
        (idx(IMAGES, 2049), "the file does not begin with the number 2051"),
        (
            idx(IMAGES, 2051)[:-1],
            "the file holds 3919 bytes after its header, 3920 expected for the shape (5, 28, 28)",
        ),
    ],
)
def test_broken_files_are_refused(mnist, content, what):
    path = mnist / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        MnistDataset(mnist)
    assert (caught.value.what, caught.value.where) == (what, str(path))


def test_missing_and_unreadable_files_are_refused(mnist):
    with pytest.raises(ModelError, match="there is no file `t10k-images-idx3-ubyte`"):
        MnistDataset(mnist, "test")
    with pytest.raises(ModelError, match="`val` of MNIST: expected train, test or all"):
        MnistDataset(mnist, "val")
    (mnist / "train-labels-idx1-ubyte.gz").write_bytes(b"not packed")
    with pytest.raises(ModelError, match="the file cannot be read"):
        MnistDataset(mnist)


def test_cifar_is_read(tmp_path):
    records = np.arange(4 * 3073, dtype=np.uint64).reshape(4, 3073).astype(np.uint8)
    (tmp_path / "data_batch_1.bin").write_bytes(records[:1].tobytes())
    (tmp_path / "data_batch_2.bin").write_bytes(records[1:].tobytes())
    dataset = Cifar10Dataset(tmp_path)
    image, label = list(dataset)[2]
    assert (len(dataset), image.shape, label) == (4, (32, 32, 3), records[2, 0])
    assert image[5, 7, 1] == records[2, 1 + 1024 + 5 * 32 + 7]


def test_broken_cifar_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"there is no file `data_batch_\*.bin`"):
        Cifar10Dataset(tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(b"12")
    with pytest.raises(ModelError, match="the file holds 2 bytes, no multiple of 3073"):
        Cifar10Dataset(tmp_path)
    with pytest.raises(ModelError, match="`val` of CIFAR-10: expected train, test or all"):
        Cifar10Dataset(tmp_path, "val")


def test_digits_are_enlarged():
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
    dataset = digits()
    image, label = next(iter(dataset))
    assert (len(dataset), image.shape, image.dtype, label.dtype) == (1797, (784,), "f4", "i4")
    assert (image.min(), image.max()) == (0, 15 / 16)
    square = image.reshape(28, 28)
    np.testing.assert_array_equal(square[0], square[3])
    assert square[4].tolist() != square[3].tolist()


def test_digits_are_those_that_scikit_learn_loads(monkeypatch):
    """Also where its file is at another place."""
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
    read = digits().columns
    monkeypatch.setattr(readers, "file_of_package", lambda *_: None)
    for name, column in digits().columns.items():
        np.testing.assert_array_equal(read[name], column)
        assert read[name].dtype == column.dtype


NUMBERS = ArrayDataset({"x": np.arange(12)})


def values(dataset, epoch=0):
    return [sample["x"].tolist() for sample in dataset.create_dict_iterator(epoch)]


def test_batches_drop_what_does_not_fill_one():
    assert values(NUMBERS.batch(5)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert values(NUMBERS.batch(5, drop_remainder=False))[-1] == [10, 11]
    assert len(NUMBERS.batch(5, drop_remainder=False)) == 3
    with pytest.raises(ModelError, match="a batch is to have 13 of 12 samples"):
        NUMBERS.batch(13)


def test_shuffling_is_a_permutation_that_follows_from_seed_and_epoch():
    shuffled = NUMBERS.shuffle(seed=1)
    assert sorted(values(shuffled)) == list(range(12)) != values(shuffled)
    assert values(shuffled) == values(shuffled) != values(shuffled, epoch=1)
    assert values(NUMBERS.shuffle(seed=2)) != values(shuffled)


def test_a_small_buffer_shuffles_nearby_samples():
    order = values(NUMBERS.shuffle(3))
    assert sorted(order) == list(range(12))
    assert all(value < place + 3 for place, value in enumerate(order))


def test_repeating_is_several_epochs():
    repeated = NUMBERS.shuffle().repeat(2)
    assert len(repeated) == 24
    assert values(repeated) == values(NUMBERS.shuffle(), 0) + values(NUMBERS.shuffle(), 1)


def test_every_rank_gets_its_shard():
    x = {"x": np.arange(10)}
    assert values(ArrayDataset(x, 3, 0)) == [0, 3, 6]
    assert values(ArrayDataset(x, 3, 2)) == [2, 5, 8]
    with pytest.raises(ModelError, match="the shard 3 is asked for, there are 3"):
        ArrayDataset(x, 3, 3)


def test_shards_of_all_ranks_make_batches_of_all_ranks():
    with world(3):
        dataset = ArrayDataset({"x": np.arange(12)}, 3, get_rank())
    assert dataset.get_dataset_size() == 4
    batches = dataset.map(lambda x: x * 10).batch(2)
    assert batches.get_dataset_size() == 2
    shards = [
        values(ArrayDataset({"x": np.arange(12) * 10}, 3, rank).batch(2)) for rank in range(3)
    ]
    together = [np.concatenate(parts).tolist() for parts in zip(*shards, strict=True)]
    assert values(batches) == together


def test_in_a_world_of_one_there_is_one_shard():
    assert values(ArrayDataset({"x": np.arange(4)}, 1, get_rank())) == [0, 1, 2, 3]


def test_samples_may_come_from_code():
    source = [(np.ones(2) * i, i) for i in range(3)]
    for given in (source, lambda: iter(source)):
        dataset = GeneratorDataset(given, ["data", "label"])
        assert [(data.sum(), int(label)) for data, label in dataset] == [(0, 0), (2, 1), (4, 2)]
    assert values(GeneratorDataset([1, 2], "x")) == [1, 2]
    with pytest.raises(ModelError, match="samples have 2 columns, 1 are named"):
        GeneratorDataset(source, "data")


class Reset:
    """An iterator that begins again with each `iter`, as MindSpore's manual has one."""

    def __iter__(self):
        self.left = 3
        return self

    def __next__(self):
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return (self.left,)


class Rows:
    """Rows that are augmented when they are read."""

    def __init__(self, read):
        self.read = read

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.read.append(int(index))
        return np.full(2, 10 * index + len(self.read)), index


def test_code_is_read_anew_in_every_epoch():
    calls = []

    def augmented():
        calls.append(len(calls))
        return iter([(i + 10 * len(calls),) for i in range(4)])

    dataset = GeneratorDataset(augmented, "x").batch(2)
    assert [values(dataset, epoch) for epoch in range(3)] == [
        [[10 * k, 10 * k + 1], [10 * k + 2, 10 * k + 3]] for k in (1, 2, 3)
    ]
    assert calls == [0, 1, 2]
    assert values(GeneratorDataset(augmented, "x", 2, 1)) == [41, 43]
    reset = GeneratorDataset(Reset(), "x")
    assert [values(reset, epoch) for epoch in range(2)] == [[2, 1, 0]] * 2


def test_rows_are_read_one_by_one_in_the_order_of_the_epoch():
    read = []
    dataset = GeneratorDataset(Rows(read), ["x", "i"], shuffle=True)
    read.clear()
    samples = [list(dataset.create_dict_iterator(epoch)) for epoch in range(2)]
    orders = [[int(sample["i"]) for sample in each] for each in samples]
    assert read == orders[0] + orders[1]
    assert sorted(orders[0]) == [0, 1, 2, 3]
    assert samples[0][0]["x"].tolist() == [10 * orders[0][0] + 1] * 2
    next(GeneratorDataset(Rows(read), ["x", "i"]).samples(0))
    assert len(read) == 10  # the first row, at first and when it is asked for


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ([], "the source has no samples"),
        (3, "samples are to come from 3"),
        (lambda: 3, "samples are to come from 3"),
        (iter([1, 2]), "the source gives 0 samples in a later epoch, it gave 2 before"),
    ],
)
def test_wrong_sources_are_refused(source, what):
    def read():
        dataset = GeneratorDataset(source, "x")
        return [values(dataset, epoch) for epoch in range(2)]

    with pytest.raises(ModelError) as caught:
        read()
    assert caught.value.what == what


def test_samples_of_several_shapes_are_made_equal_before_they_are_a_batch():
    dataset = GeneratorDataset([np.ones(2), np.ones(3)], "x")
    assert values(dataset.map(lambda x: x[:1]).batch(2)) == [[[1], [1]]]
    with pytest.raises(
        ModelError, match=r"a batch of `x` has samples of the shapes \(2,\), \(3,\)"
    ):
        values(dataset.batch(2))


def test_columns_fit_each_other():
    with pytest.raises(ModelError, match="columns have the lengths"):
        ArrayDataset({"a": np.zeros(2), "b": np.zeros(3)})
    with pytest.raises(ModelError, match="a dataset has no column `y`"):
        NUMBERS.map(abs, "y")


def test_the_sample_of_a_source_is_not_changed_by_a_map():
    mapped = NUMBERS.map([lambda x: x + 1, lambda x: x * 2])
    assert values(mapped)[:3] == [2, 4, 6]
    assert values(NUMBERS)[:3] == [0, 1, 2]

"""Layers, losses, metrics and datasets take MindSpore's arguments, and mean the same by them."""

import numpy as np
import pytest

import shardwright.mindspore as ms
import shardwright.mindspore.dataset as ds
from shardwright.ir.errors import ModelError
from shardwright.mindspore import Tensor, nn, ops, train
from shardwright.mindspore.dataset import vision

X = np.random.RandomState(0).randn(2, 3, 4).astype(np.float32)
ROWS = np.arange(10, dtype=np.int32)


def test_indexing_by_tensors_follows_numpy():
    x, i = Tensor(X), np.array([[1, 0], [-1, 1]], np.int32)
    for index in (
        np.s_[i],
        np.s_[:, i],
        np.s_[i, i],
        np.s_[1, :, i],
        np.s_[:, 1, i],
        np.s_[..., i],
        np.s_[i, None, :, i[0]],
    ):
        items = index if isinstance(index, tuple) else (index,)
        tensors = tuple(Tensor(p) if isinstance(p, np.ndarray) else p for p in items)
        np.testing.assert_array_equal(x[tensors].asnumpy(), X[index])
    np.testing.assert_array_equal(x[[0, 1], [2, 0]].asnumpy(), X[[0, 1], [2, 0]])


def test_the_gradient_of_what_is_indexed_by_a_traced_tensor():
    def total(x, i):
        return (x[:, i] * x[:, i]).sum()

    i = np.array([0, -1, -1], np.int32)
    expected = 2 * X * np.array([1, 0, 2], np.float32)[:, None]
    np.testing.assert_allclose(ms.grad(total)(Tensor(X), Tensor(i)).asnumpy(), expected, 1e-6)


def test_positions_outside_and_truth_values_are_refused():
    with pytest.raises(ModelError) as error:
        Tensor(X)[Tensor([0, 5])]
    assert str(error.value) == "the index 5 is outside a dimension of size 2"
    with pytest.raises(ModelError) as error:
        Tensor(X)[Tensor(X > 0)]
    assert str(error.value).startswith(
        "a tensor is indexed by a tensor of bool, expected whole numbers"
    )


def test_truth_values_and_bits_are_combined():
    x, whole = Tensor(X), Tensor(ROWS)
    np.testing.assert_array_equal(((x > 0) & (x < 1)).asnumpy(), (X > 0) & (X < 1))
    np.testing.assert_array_equal(((x > 0) | (x < -1)).asnumpy(), (X > 0) | (X < -1))
    np.testing.assert_array_equal((~(x > 0) ^ True).asnumpy(), X > 0)
    np.testing.assert_array_equal((~whole & 6 | 1).asnumpy(), ~ROWS & 6 | 1)


def test_negative_positions_of_elements_count_from_the_end():
    found = ops.gather_elements(Tensor(X[0]), 1, Tensor([[-1], [0], [-4]])).asnumpy()
    np.testing.assert_array_equal(found, X[0][np.arange(3), [3, 0, 0]][:, None])


def test_cross_entropy_leaves_out_labels_of_padding():
    scores = Tensor(X[0])
    whole = nn.CrossEntropyLoss()(scores[:2], Tensor([1, 3], ms.int32))
    padded = nn.CrossEntropyLoss()(scores, Tensor([1, 3, -100], ms.int32))
    np.testing.assert_allclose(padded.asnumpy(), whole.asnumpy(), 1e-6)


def test_cross_entropy_has_the_classes_second():
    scores, labels = X[:, :, :3], np.array([[0, 1, 2], [1, 1, 1]], np.int32)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = -np.log(np.take_along_axis(shares, labels[:, None], 1)).mean()
    found = nn.CrossEntropyLoss()(Tensor(scores), Tensor(labels))
    np.testing.assert_allclose(found.asnumpy(), expected, 1e-5)


def test_the_first_argument_of_dropout_is_what_stays():
    assert nn.Dropout(0.9).p == pytest.approx(0.1)
    assert nn.Dropout(p=0.9).p == 0.9


def test_cells_train_once_they_are_told_to():
    drop, norm = nn.Dropout(p=0.5), nn.BatchNorm1d(4)

    def total(x):
        return (norm(drop(x)) * x).sum()

    x = Tensor(X[0])
    expected = 2 * X[0] / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(ms.grad(total)(x).asnumpy(), expected, 1e-5)
    norm.set_train()
    assert np.abs(ms.grad(total)(x).asnumpy() - expected).max() > 0.1


def test_a_row_of_an_embedding_begins_with_zeros():
    table = nn.Embedding(5, 3, padding_idx=1)
    found = table(Tensor([1, 2], ms.int32)).asnumpy()
    assert not found[0].any()
    assert found[1].any()


def test_parameters_that_are_not_drawn_have_values_at_once():
    begins = ms.common.initializer.initializer("ones", (2,), ms.float32)
    np.testing.assert_array_equal(ms.Parameter(begins, name="p").asnumpy(), np.ones(2))


@pytest.mark.parametrize(("metric", "expected"), [(train.MAE(), 3.0), (train.MSE(), 5.0)])
def test_errors_are_those_of_samples(metric, expected):
    labels = np.array([[1.0, 2.0], [2.0, 1.0]])
    metric.clear()
    metric.update(Tensor(np.zeros((2, 2))), Tensor(labels))
    assert metric.eval() == expected


def test_datasets_are_filtered_skipped_and_renamed():
    def found(data):
        return [row["a"].tolist() for row in data.create_dict_iterator(output_numpy=True)]

    data = ds.NumpySlicesDataset(ROWS, "a", shuffle=False)
    even = data.filter(lambda a: a % 2 == 0, ["a"])
    assert even.get_dataset_size() == 5
    assert found(even) == [0, 2, 4, 6, 8]
    assert found(data.skip(3).take(2)) == [3, 4]
    assert found(data.skip(11)) == []
    assert data.rename("a", "b").get_col_names() == ["b"]


def test_ranks_have_as_many_samples_where_they_do_not_divide_them():
    parts = [
        ds.NumpySlicesDataset(ROWS, "a", shuffle=False, num_shards=3, shard_id=i) for i in range(3)
    ]
    rows = [[int(r["a"]) for r in p.create_dict_iterator(output_numpy=True)] for p in parts]
    assert rows == [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]


def test_pictures_are_padded_and_resized_as_by_opencv():
    picture = np.array([[10, 20], [30, 101]], np.uint8)
    assert vision.CenterCrop(3)(picture).tolist() == [[0, 0, 0], [0, 10, 20], [0, 30, 101]]
    assert vision.Resize((1, 3))(picture).tolist() == [[20, 40, 61]]

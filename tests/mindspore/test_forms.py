"""Methods of tensors and cells that are a formula, and metrics by classes, against numpy."""

import numpy as np
import pytest

from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import Tensor, nn

RANDOM = np.random.default_rng(0)
X, ROW = RANDOM.standard_normal((3, 4)), np.sort(RANDOM.standard_normal(5))
WHOLE = RANDOM.integers(1, 9, (3, 4))
FORMS = [
    ("x.float()", X, lambda x: x.astype("float32")),
    ("x.bool()", X, lambda x: x.astype(bool)),
    ("x.long()", X, lambda x: x.astype("int64")),
    ("x.clone()", X, lambda x: x),
    ("x.mT", X, lambda x: x.T),
    ("x.ptp(1)", X, lambda x: np.ptp(x, 1)),
    ("x.repeat(2, 1, 3)", X, lambda x: np.tile(x, (2, 1, 3))),
    ("x.repeat((2, 3))", X, lambda x: np.tile(x, (2, 3))),
    ("x.reverse((1,))", X, lambda x: x[:, ::-1]),
    ("x.select(1, -2)", X, lambda x: x[:, -2]),
    ("x.kthvalue(2)[0]", X, lambda x: np.sort(x, -1)[:, 1]),
    ("x.median(0)[1]", X, lambda x: np.argsort(x, 0)[1]),
    ("x.hsplit(2)[1]", X, lambda x: x[:, 2:]),
    ("x.lcm(x + 1)", WHOLE, lambda x: np.lcm(x, x + 1)),
    ("x.bitwise_not()", WHOLE, lambda x: ~x),
    ("x.new_full((2, 3), 4)", X, lambda x: np.full((2, 3), 4.0)),
    (
        "x.searchsorted(x * 1.01, side='right')",
        ROW,
        lambda x: np.searchsorted(x, x * 1.01, "right"),
    ),
]


@pytest.mark.parametrize(("text", "x", "right"), FORMS, ids=[case[0] for case in FORMS])
def test_methods(text, x, right):
    found = eval(text, {"x": Tensor(x)}).asnumpy()
    np.testing.assert_allclose(found, right(x), rtol=1e-6)


def test_values_of_a_tensor():
    x = Tensor(X)
    assert (x.dim(), x.nelement(), x.nbytes, x.itemsize) == (2, 12, 96, 8)
    assert x.is_floating_point()
    assert not Tensor(WHOLE).is_floating_point()
    assert x.tolist() == X.tolist()
    assert x.to("float16").dtype == x.type_as(Tensor(X.astype("float16"))).dtype == "float16"


def test_cells():
    images = RANDOM.standard_normal((2, 4, 4, 6))
    x = Tensor(images)
    back = nn.PixelShuffle(2)(nn.PixelUnshuffle(2)(x))
    np.testing.assert_array_equal(back.asnumpy(), images)
    shuffled = nn.ChannelShuffle(2)(x).asnumpy()
    np.testing.assert_array_equal(shuffled, images[:, [0, 2, 1, 3]])
    line = nn.MaxPool1d(3, 2, pad_mode="pad", padding=1)(Tensor(X[None])).asnumpy()
    np.testing.assert_allclose(line[0], [[row[:2].max(), row[1:].max()] for row in X])
    with pytest.raises(ShardwrightError, match="`padding` is 1, expected 0 with `pad_mode`"):
        nn.AvgPool1d(3, padding=1)(Tensor(X[None]))


def test_metrics_by_classes():
    scores, labels = np.eye(3)[[0, 1, 1, 2, 0]], np.array([0, 1, 2, 2, 1])
    expected = {
        nn.Precision(): [1 / 2, 1 / 2, 1],
        nn.Recall(): [1, 1 / 2, 1 / 2],
        nn.F1(): [2 / 3, 1 / 2, 2 / 3],
        nn.Fbeta(2.0): [5 / 6, 1 / 2, 5 / 9],
    }
    for metric, right in expected.items():
        with pytest.raises(ShardwrightError, match="has seen no batch"):
            metric.eval()
        metric.update(scores[:2], labels[:2])
        metric.update(scores[2:], labels[2:])
        np.testing.assert_allclose(metric.eval(), right)
        assert metric.eval(average=True) == pytest.approx(np.mean(right))

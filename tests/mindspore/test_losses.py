"""Losses as functions and as cells, and cells that are functions."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import OptionError
from shardwright.mindspore import Tensor, nn, ops
from shardwright.mindspore.nn.functions import CELLS

RANDOM = np.random.RandomState(0)
X, Y = (RANDOM.randn(4, 3).astype(np.float32) for _ in range(2))
CLASSES = np.array([2, 0, -100, 1], np.int32)
SIGNS = np.sign(Y)

CASES = {
    "mse": (lambda: ops.mse_loss(Tensor(X), Tensor(Y)), np.square(X - Y).mean()),
    "l1": (lambda: ops.l1_loss(Tensor(X), Tensor(Y), "none"), np.abs(X - Y)),
    "smooth": (
        lambda: nn.SmoothL1Loss(0.5)(Tensor(X), Tensor(Y)),
        np.where(np.abs(X - Y) < 0.5, np.square(X - Y), np.abs(X - Y) - 0.25),
    ),
    "huber": (
        lambda: nn.HuberLoss("sum", 0.5)(Tensor(X), Tensor(Y)),
        np.where(np.abs(X - Y) <= 0.5, np.square(X - Y) / 2, 0.5 * (np.abs(X - Y) - 0.25)).sum(),
    ),
    "root": (lambda: nn.RMSELoss()(Tensor(X), Tensor(Y)), np.sqrt(np.square(X - Y).mean())),
    "ranking": (
        lambda: nn.MarginRankingLoss(0.1)(Tensor(X), Tensor(Y), Tensor(SIGNS)),
        np.maximum(0, -SIGNS * (X - Y) + 0.1).mean(),
    ),
    "soft margin": (
        lambda: ops.soft_margin_loss(Tensor(X), Tensor(SIGNS)),
        np.log1p(np.exp(-SIGNS * X)).mean(),
    ),
    "hinge": (
        lambda: ops.hinge_embedding_loss(Tensor(X), Tensor(SIGNS)),
        np.where(SIGNS == 1, X, np.maximum(0, 1 - X)).mean(),
    ),
    "cosine": (
        lambda: ops.cosine_similarity(Tensor(X), Tensor(Y)),
        (X * Y).sum(1) / np.linalg.norm(X, axis=1) / np.linalg.norm(Y, axis=1),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_its_formula(case):
    function, expected = CASES[case]
    np.testing.assert_allclose(function().asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_losses_of_classes_are_one_rule():
    logs = ops.log_softmax(Tensor(X))
    weight = Tensor(np.array([1, 2, 0.5], np.float32))
    for how in ({}, {"weight": weight}, {"weight": weight, "label_smoothing": 0.1}):
        by_scores = ops.cross_entropy(Tensor(X), Tensor(CLASSES), **how).asnumpy()
        cell = nn.CrossEntropyLoss(**how)(Tensor(X), Tensor(CLASSES)).asnumpy()
        by_logs = ops.nll_loss(logs, Tensor(CLASSES), **how).asnumpy()
        np.testing.assert_allclose(by_logs, by_scores, rtol=1e-5)
        np.testing.assert_array_equal(cell, by_scores)
    own = np.log(np.exp(X).sum(1)) - X[np.arange(4), CLASSES.clip(0)]
    expected = own[CLASSES >= 0].mean()
    np.testing.assert_allclose(
        ops.cross_entropy(Tensor(X), Tensor(CLASSES)).asnumpy(), expected, rtol=1e-5
    )


def test_gradients_of_losses_outside_of_a_network():
    found = ms.grad(lambda x: ops.cross_entropy(x, Tensor(CLASSES)))(Tensor(X)).asnumpy()
    shares = np.exp(X) / np.exp(X).sum(1, keepdims=True) - np.eye(3)[CLASSES.clip(0)]
    np.testing.assert_allclose(found, shares * (CLASSES >= 0)[:, None] / 3, rtol=1e-5, atol=1e-6)


def test_cells_take_arguments_by_position_and_by_name():
    x = Tensor(X)
    for cell in (nn.Hardtanh(-0.5, 0.5), nn.Hardtanh(max_val=0.5, min_val=-0.5)):
        np.testing.assert_array_equal(cell(x).asnumpy(), X.clip(-0.5, 0.5))
    np.testing.assert_array_equal(
        nn.ZeroPad2d((1, 0, 0, 2))(x).asnumpy(), np.pad(X, ((0, 2), (1, 0)))
    )
    assert nn.Unflatten(1, (3, 1))(x).shape == (4, 3, 1)
    assert set(CELLS) <= set(nn.__all__)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.Hardtanh(0, 1, 2), TypeError, "`Hardtanh` takes"),
        (lambda: nn.Hardtanh(0, min_val=1), TypeError, "`Hardtanh` takes"),
        (lambda: nn.Threshold(1), TypeError, r"`Threshold` needs \['value'\]"),
        (lambda: nn.CELU(beta=1), OptionError, "`CELU` has no argument `beta`"),
        (lambda: nn.HuberLoss("max")(Tensor(X), Tensor(Y)), OptionError, "`reduction` is `max`"),
    ],
)
def test_wrong_arguments_of_cells(make, error, message):
    with pytest.raises(error, match=message):
        make()

"""Branches and loops of PyTorch's operators for them, against autograd."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
import torch_second as second  # noqa: E402
from functorch.experimental import control_flow  # noqa: E402
from torch._higher_order_ops import associative_scan, scan, while_loop  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402

# PyTorch warns of itself where it runs these operators without an export.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _above(net: Any, x: Any, y: Any) -> Any:
    return torch.cond(
        x.sum() > -100, lambda a, b: (net(a) * b).sum(), lambda a, b: F.mse_loss(net(a), b), (x, y)
    )


def _below(net: Any, x: Any, y: Any) -> Any:
    return torch.cond(
        x.sum() > 100, lambda a, b: (net(a) * b).sum(), lambda a, b: F.mse_loss(net(a), b), (x, y)
    )


def _several(net: Any, x: Any, y: Any) -> Any:
    number, table = torch.cond(
        x.sum() > 0,
        lambda a, b: (net(a).sum(), b * 2),
        lambda a, b: (b.sum(), net(a)),
        (x, y),
    )
    return number + table.square().mean() + net(x).mean()


def _not_a_number(net: Any, x: Any, y: Any) -> Any:
    size = net(x).square().sum()
    return torch.cond(size >= 0, torch.sqrt, lambda s: (-s).sqrt() + torch.log(s - s), (size,))


def _nested(net: Any, x: Any, y: Any) -> Any:
    def inner(a: Any) -> Any:
        return torch.cond(a[0, 0] > 0, lambda b: net(b).sum(), lambda b: net(b).exp().sum(), (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: inner(a) * net(a).mean(), (x,))


def _known(net: Any, x: Any, y: Any) -> Any:
    first = torch.cond(torch.tensor(True), lambda a: net(a).sum(), lambda a: a.sum(), (x,))
    return first + torch.cond(x.shape[0] > 9, lambda a: a.sum(), lambda a: net(a).exp().sum(), (x,))


def _counted(net: Any, x: Any, y: Any) -> Any:
    count, found = while_loop(
        lambda i, h: i < 3, lambda i, h: (i + 1, h * 2 + i), (torch.tensor(0), net(x))
    )
    return found.square().mean() + count


def _scanned(net: Any, x: Any, y: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        return torch.tanh(h * 0.5 + row), h * row

    last, rows = scan(step, torch.zeros(2), net(x))
    back, _ = scan(step, torch.ones(2), net(x), reverse=True)
    return last.sum() + rows.square().sum() + back.sum()


def _mapped(net: Any, x: Any, y: Any) -> Any:
    return control_flow.map(lambda row: net(row).square().sum(), x).mean()


@pytest.mark.parametrize(
    "loss",
    [
        _above,
        _below,
        _several,
        _not_a_number,
        _nested,
        _known,
        _counted,
        _scanned,
        _mapped,
    ],
)
def test_branches_and_loops_have_loss_and_gradients_of_autograd(loss: Callable[..., Any]) -> None:
    module, inputs = second.of_loss(loss)
    found = compare.gradients_differ(module, inputs)
    assert max(found.loss, found.gradient) < 1e-12
    assert not found.missing


def _joined(p: Any, q: Any) -> Any:
    return p[0] * q[0], p[1] * q[0] + q[1]


def _combined(net: Any, x: Any, y: Any) -> Any:
    pairs = (torch.sigmoid(net(x)), y)
    return associative_scan(_joined, pairs, dim=0, combine_mode="pointwise")[1].square().mean()


def _combined_by_hand(net: Any, x: Any, y: Any) -> Any:
    rows = list(zip(torch.sigmoid(net(x)), y, strict=True))
    for i in range(1, len(rows)):
        rows[i] = _joined(rows[i - 1], rows[i])
    return torch.stack([row[1] for row in rows]).square().mean()


def test_a_combined_scan_is_that_of_a_loop() -> None:
    """The gradient of PyTorch 2.14 by the first of two tensors is zero without an export."""
    module, inputs = second.of_loss(_combined)
    imported = import_module(module, inputs)
    module.loss = _combined_by_hand
    found = compare.gradients_differ(module, inputs, imported)
    assert max(found.loss, found.gradient) < 1e-12


def test_a_branch_of_a_plan_is_that_of_autograd() -> None:
    module, inputs = second.of_loss(_not_a_number)
    assert max(compare.on_ranks(module, inputs, 4)) < 1e-12


class Counting(torch.nn.Module):
    """A loop whose end depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        return while_loop(lambda h: h.sum() < 9, lambda h: (h.abs() + 1,), (h,))[0].sum()


def test_a_loop_whose_end_depends_on_data_is_refused_with_its_line() -> None:
    with pytest.raises(ModelError) as refused:
        import_module(Counting(), (torch.randn(2, 3),))
    line = Counting.forward.__code__.co_firstlineno + 2
    assert str(refused.value) == (
        "`while_loop`, whose number of steps depends on data, cannot be imported (in "
        f"test_control.py:{line}: return while_loop(lambda h: h.sum() < 9, lambda h: "
        "(h.abs() + 1,), (h,))[0].sum())"
    )

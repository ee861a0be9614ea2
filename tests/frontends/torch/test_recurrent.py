"""Recurrent networks of PyTorch: whole operators, with PyTorch's outputs and gradients."""

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402
from shardwright.operators.recurrent.cells import CELLS  # noqa: E402
from shardwright.operators.recurrent.layers import RecurrentLayerGradient  # noqa: E402

BATCH, STEPS, FEATURES, HIDDEN = 4, 8, 3, 6


class Network(nn.Module):
    """A recurrent network, and a loss of all that it returns."""

    def __init__(self, kind: Any, given: bool, **options: Any) -> None:
        super().__init__()
        self.network = kind(FEATURES, HIDDEN, **options)
        ways = 2 if self.network.bidirectional else 1
        shape = (self.network.num_layers * ways, 1, HIDDEN)
        count = (2 if kind is nn.LSTM else 1) if given else 0
        self.start = nn.ParameterList(torch.randn(shape) for _ in range(count))

    def forward(self, x: Any) -> Any:
        batch = x.shape[0 if self.network.batch_first else 1]
        start = tuple(p.expand(-1, batch, -1).contiguous() for p in self.start)
        given = (start if len(start) > 1 else start[0],) if start else ()
        y, last = self.network(x, *given)
        states = last if isinstance(last, tuple) else (last,)
        loss = y.square().sum() + sum((s * s.cos()).sum() for s in states)
        return loss / batch, y, *states


KINDS = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "rnn": (nn.RNN, {}),
    "rnn-relu": (nn.RNN, {"nonlinearity": "relu"}),
}
OPTIONS = {
    "plain": {},
    "both": {"bidirectional": True, "batch_first": True},
    "layers": {"num_layers": 2, "bias": False, "batch_first": True},
    "given": {"num_layers": 2, "bidirectional": True, "given": True, "batch_first": True},
}


def made(kind: str, options: str) -> tuple[Any, Any]:
    """Return a network in float64, and its inputs."""
    torch.manual_seed(0)
    network, own = KINDS[kind]
    how = {"given": False, **own, **OPTIONS[options]}
    first = (BATCH, STEPS) if how.get("batch_first") else (STEPS, BATCH)
    return Network(network, **how).double(), (torch.randn(*first, FEATURES).double(),)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_loss_and_gradients_are_those_of_autograd(kind: str, options: str) -> None:
    module, inputs = made(kind, options)
    assert compare.outputs_differ(module, inputs) < 1e-12
    found = compare.gradients_differ(module, inputs)
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing
    operators = Counter(node.operator for node in found.imported.graph.nodes)
    ways = 2 if module.network.bidirectional else 1
    assert operators["recurrent_layer"] == module.network.num_layers * ways


@pytest.mark.parametrize(
    ("kind", "options"),
    [("lstm", "given"), ("gru", "both"), ("rnn", "plain"), ("rnn-relu", "layers")],
)
def test_four_ranks_compute_what_autograd_does(kind: str, options: str) -> None:
    module, inputs = made(kind, options)
    found = compare.on_ranks(module, inputs, 4, dataset_strategy="data_parallel")
    assert max(found) < 1e-9


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RecurrentLayerGradient.kernel

    def wrong(self: Any, view: Any, *operands: Any) -> Any:
        dx, *others = right(self, view, *operands)
        return dx, *(1.001 * other for other in others[:1]), *others[1:]

    monkeypatch.setattr(RecurrentLayerGradient, "kernel", wrong)
    assert compare.gradients_differ(*made("gru", "plain")).gradient > 1e-5


def test_as_many_nodes_for_any_number_of_steps() -> None:
    def nodes(steps: int) -> int:
        return len(import_module(nn.LSTM(4, 4, num_layers=2), (torch.randn(steps, 2, 4),)).graph)

    assert nodes(512) == nodes(8) < 40


def test_projections_are_unrolled_up_to_a_limit() -> None:
    torch.manual_seed(0)

    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.LSTM(4, 4, proj_size=2, bidirectional=True)

        def forward(self, x: Any) -> Any:
            y, (h, c) = self.network(x)
            return y.square().mean() + h.mean() + c.square().mean()

    x = torch.randn(3, 2, 4, dtype=torch.float64)
    found = compare.gradients_differ(Projected().double(), (x,))
    assert max(found.loss, found.gradient) < 1e-9
    with pytest.raises(ModelError) as refused:
        import_module(nn.LSTM(2, 2, proj_size=1), (torch.randn(1025, 1, 2),))
    assert "an LSTM with projections of more than 1024 steps" in str(refused.value)


def test_every_cell_is_reached() -> None:
    kinds = {name.removeprefix("rnn-").replace("rnn", "tanh") for name in KINDS}
    assert kinds == set(CELLS)


class Packed(nn.Module):
    """A recurrent network on sequences of several lengths, and a loss of all that it returns."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.before = nn.Linear(FEATURES, FEATURES)
        self.network = kind(FEATURES, HIDDEN, batch_first=True, **options)

    def forward(self, x: Any, lengths: Any) -> Any:
        how = {"batch_first": True, "enforce_sorted": False}
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, **how)
        rows = packed._replace(data=self.before(packed.data))
        y, last = self.network(rows)
        padded, counts = nn.utils.rnn.pad_packed_sequence(y, batch_first=True, padding_value=0.5)
        loss = padded.square().mean() + (y.data.sin() * counts.sum()).mean()
        states = last if isinstance(last, tuple) else (last,)
        return loss + sum((s * s.cos() * lengths[:, None]).sum() for s in states)


@pytest.mark.parametrize("lengths", [[2, 5, 3, 5], [4, 4, 4, 4], [1, 2, 6, 1]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: str, lengths: list[int]) -> None:
    torch.manual_seed(0)
    network, options = KINDS[kind]
    module = Packed(network, num_layers=2, bidirectional=True, **options).double()
    x = torch.randn(BATCH, max(lengths), FEATURES, dtype=torch.float64)
    inputs = {"x": x, "lengths": torch.tensor(lengths)}
    imported = import_module(module, inputs)
    assert "is that of the example's elements" in " ".join(imported.warnings)
    found = compare.gradients_differ(module, inputs, imported)
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing


def test_packed_sequences_on_ranks() -> None:
    torch.manual_seed(0)
    module = Packed(nn.LSTM, proj_size=2).double()
    x = torch.randn(BATCH, 5, FEATURES, dtype=torch.float64)
    inputs = {"x": x, "lengths": torch.tensor([2, 5, 3, 5])}
    assert max(compare.on_ranks(module, inputs, 4, cluster="cpu")) < 1e-9

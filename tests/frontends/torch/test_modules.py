"""Modules of PyTorch: outputs, losses and gradients are PyTorch's, and what is trained is."""

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import shardwright  # noqa: E402
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError, OptionError, ShardwrightWarning  # noqa: E402
from shardwright.passes.canonicalize import Canonicalize  # noqa: E402
from shardwright.tools.main import main  # noqa: E402

Function = Any


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Decoder(nn.Module):
    """A small decoder with what large ones have: tied tables, rotations, shared heads."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(16, 1e-5)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Any, labels: Any) -> Any:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores.view(-1, 32), labels.view(-1)), scores


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.out, self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 24), nn.Linear(24, 16)
        frequency = 100.0 ** -(torch.arange(0, 4, 2) / 4)
        self.register_buffer("frequency", frequency, persistent=False)

    def turned(self, x: Any) -> Any:
        with torch.no_grad():
            angles = torch.arange(x.shape[2])[:, None] * self.frequency
            cos, sin = (torch.cat((t, t), -1) for t in (angles.cos(), angles.sin()))
        half = torch.cat((-x[..., 2:], x[..., :2]), -1)
        return x * cos + half * sin

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        q, k, v = (w(y).view(*y.shape[:2], -1, 4).transpose(1, 2) for w in (self.q, self.k, self.v))
        k, v = (
            t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape) for t in (self.turned(k), v)
        )
        read = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        y = F.scaled_dot_product_attention(self.turned(q), k, v, attn_mask=read)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(x)))


class Images(nn.Module):
    """Convolutions with batch statistics in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.groups = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any, labels: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.adaptive_avg_pool2d(F.silu(self.groups(self.second(x))), 1)
        return F.cross_entropy(self.head(x.flatten(1)), labels, label_smoothing=0.1)


def text(batch: int = 4) -> dict[str, Any]:
    return {"tokens": torch.randint(0, 32, (batch, 6)), "labels": torch.randint(0, 32, (batch, 6))}


def images() -> tuple[Any, Any]:
    return torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.randint(0, 4, (4,))


@pytest.mark.parametrize(
    ("module", "inputs"),
    [(Decoder, text), (Images, images), (lambda: Images().eval(), images)],
    ids=["decoder", "images", "images-eval"],
)
def test_loss_and_gradients_are_those_of_autograd(module: Function, inputs: Function) -> None:
    found = compare.gradients_differ(module().double(), inputs())
    assert found.loss < 1e-9
    assert found.gradient < 1e-9
    assert not found.missing
    assert not found.extra


def test_a_plan_of_four_ranks_computes_what_autograd_does() -> None:
    found = compare.on_ranks(Decoder().double(), text(), 4, dataset_strategy="data_parallel")
    assert max(found) < 1e-9


def test_outputs_are_equal_in_single_precision() -> None:
    assert compare.outputs_differ(Decoder().eval(), text()) < 1e-5


def test_whole_operators_and_patterns_are_found() -> None:
    graph = import_module(Decoder(), text()).graph
    found = {node.operator for node in graph.nodes}
    assert {"scaled_dot_product_attention", "rotary_embedding", "layer_norm", "rms_norm"} <= found
    attention = next(n for n in graph.nodes if n.operator == "scaled_dot_product_attention")
    assert attention.attributes["causal"]
    assert len(attention.operands) == 3
    assert graph.values[attention.operands[1]].type.shape == (4, 2, 6, 4)  # heads are not repeated
    assert attention.scope == "layers/0"


def test_a_tied_parameter_is_one_and_equal_inputs_are_two() -> None:
    tokens = torch.randint(0, 32, (4, 6))
    graph = import_module(Decoder(), {"tokens": tokens, "labels": tokens}).graph
    assert [value.name for value in graph.inputs] == ["tokens", "labels"]
    assert "head.weight" not in {p.name for p in graph.parameters}
    readers = [n.operator for n in graph.nodes if "table.weight" in n.operands]
    assert readers == ["gather", "matmul"]


def test_updated_statistics_are_state() -> None:
    module = Images().double()
    imported = import_module(module, images())
    updates = dict(imported.graph.updates)
    assert set(updates) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    inputs = images()
    found = compare.run(
        imported.graph,
        imported.initial,
        compare.arrays_of(imported, inputs),
        list(updates.values()),
    )
    compare.called(module, inputs)
    for name, following in updates.items():
        assert compare.difference(found[following], module.get_buffer(name).numpy()) < 1e-12


def test_a_frozen_parameter_is_not_trained() -> None:
    module = Decoder()
    module.layers[0].q.weight.requires_grad = False
    nn.init.ones_(module.layers[0].q.bias).requires_grad_(False)
    graph = import_module(module, text()).graph
    frozen = {p.name for p in graph.parameters if not p.trainable}
    assert frozen >= {"layers.0.q.weight", "layers.0.q.bias"}


def test_dropout_is_imported_and_warned_of() -> None:
    module = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.3, batch_first=True)
    imported = import_module(module, (torch.randn(2, 3, 8),), loss="mean")
    rates = [n.attributes["rate"] for n in imported.graph.nodes if n.operator == "dropout"]
    assert len(rates) == 4
    assert set(rates) == {0.3}
    assert any("other random numbers" in said for said in imported.warnings)
    module.eval()
    assert "dropout" not in {
        n.operator for n in import_module(module, (torch.randn(2, 3, 8),)).graph.nodes
    }


class Lambda(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(6, dtype=torch.float64))

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.weight, *inputs)


# A module from the device `meta`


def test_a_module_without_elements_is_imported_for_planning() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    imported = import_module(module, (torch.ones(2, 4, device="meta"),), loss="cross_entropy")
    assert not dict(imported.initial)
    assert any("on the device `meta`" in said for said in imported.warnings)


# What is refused


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda w, x: w * x[x > 0].sum(), "depend"),
        (lambda w, x: torch.linalg.svd(x)[1].sum() * w.sum(), "linalg_svd"),
        (lambda w, x: (w * torch.poisson(x[0].abs())).sum(), "aten.poisson"),
        (lambda w, x: w.sum() if x.sum() > 0 else w.prod(), "a branch or a size depends on the"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_its_line(function: Function, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        import_module(Lambda(function), (torch.randn(3, 6, dtype=torch.float64),))
    assert said in str(caught.value)
    assert "test_modules.py" in str(caught.value)


def test_a_module_without_a_loss_is_refused_with_a_way_out() -> None:
    with pytest.raises(ModelError, match=r"expected a real scalar.*loss="):
        shardwright.compile(nn.Linear(4, 2), 2, example_inputs=(torch.randn(2, 4),))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(OptionError, match=r"`example_inputs` is None"):
        shardwright.compile(nn.Linear(4, 2), 2)
    with pytest.raises(OptionError, match="`loss` is given"):
        shardwright.compile("mlp", 2, loss="mse")
    with pytest.raises(ModelError, match="no loss is called `wrong`"):
        shardwright.compile(nn.Linear(4, 2), 2, example_inputs=(torch.randn(2, 4),), loss="wrong")
    with pytest.raises(ModelError, match="example inputs are int"):
        shardwright.compile(nn.Linear(4, 2), 2, example_inputs=4)


def test_parameters_without_a_reader_are_warned_of() -> None:
    module = Lambda(lambda w, x: (w * x).sum())
    module.other = nn.Parameter(torch.ones(2))
    with pytest.warns(ShardwrightWarning, match="no result depends on: `other`"):
        shardwright.compile(module, 1, example_inputs=(torch.randn(6, dtype=torch.float64),))


# The command line


def test_a_module_in_a_file_is_compiled_and_verified(tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n"
        "def net(batch=8):\n"
        "    torch.manual_seed(0)\n"
        "    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), "
        "torch.nn.Linear(8, 3))\n"
        "    return module, (torch.randn(batch, 6),), 'cross_entropy'\n"
    )
    plan = str(tmp_path / "plan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (
            main(["compile", f"{file}:net", "--devices", "4", "--batch", "4", "--out", plan]) == 0
        )
    assert f"written   {plan}" in capsys.readouterr().out
    assert main(["verify", plan, "--steps", "1"]) == 0


class Masked(nn.Module):
    """Attention with a causal mask that is written out."""

    def forward(self, q: Any) -> Any:
        rows = torch.arange(q.shape[-2], device=q.device)
        mask = (rows[:, None] >= rows[None, :]).expand(q.shape[0], 1, -1, -1)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def test_a_constant_that_takes_too_much_memory_is_refused():
    with torch.device("meta"):
        long, longer = torch.zeros(64, 1, 2**10, 8), torch.zeros(1, 1, 2**16, 8)
    graph = import_module(Masked(), (long,)).graph
    assert graph.nodes[0].operator == "scaled_dot_product_attention"
    with pytest.raises(ModelError, match=r"constant of 4\.00 GiB that the operator aten\.ge"):
        import_module(Masked(), (longer,))


class Rotary(nn.Module):
    """A rotary embedding in complex numbers."""

    def __init__(self, trained: bool = False) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(6.0), 10.0 ** -torch.arange(4.0)).double()
        table = torch.polar(torch.ones_like(angles), angles)
        self.table = nn.Parameter(table) if trained else nn.Buffer(table)
        self.weight = nn.Parameter(torch.randn(8, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        pairs = torch.view_as_complex((x * self.weight).reshape(*x.shape[:-1], -1, 2))
        turned = torch.view_as_real(pairs * self.table[None, : x.shape[1]]).flatten(2)
        return (turned * x).sin().sum()


def test_rotary_embeddings_in_complex_numbers_are_real() -> None:
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    assert compare.outputs_differ(Rotary(), (x,)) < 1e-14
    assert compare.gradients_differ(Rotary(), (x,)).gradient < 1e-14


def test_trained_tables_of_complex_numbers_have_the_gradients_of_autograd() -> None:
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    assert compare.gradients_differ(Rotary(trained=True), (x,)).gradient < 1e-14


def test_results_of_complex_numbers_are_refused() -> None:
    module = Lambda(lambda w, x: torch.view_as_complex(w.view(3, 2)))
    with pytest.raises(ModelError, match=r"result .* of complex numbers"):
        import_module(module, (torch.randn(3, 6, 8, dtype=torch.float64),))


_BOUNDS = [-6.0, -3.0, -2.0, -1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 6.0, 0.5]


class Bounds(nn.Module):
    """A function of weights that lie on the bounds of activations, and are equal in places."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.a = nn.Parameter(torch.tensor(_BOUNDS, dtype=torch.float64).reshape(3, 4))
        self.b = nn.Parameter(self.a.detach().clamp(0, 2))

    def forward(self, x: Any) -> Any:
        return (self.function(self.a, self.b) * x).sum()


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: F.hardtanh(a) + nn.Hardtanh(-2.0, 3.0)(a) + nn.ReLU6()(b),
        lambda a, b: torch.maximum(a, b) + 2 * torch.minimum(a, b) + 3 * torch.fmax(a, b),
        lambda a, b: a.clamp(-1, 1) + torch.clamp(a, min=b) + F.hardswish(a),
        lambda a, b: torch.fmod(a, 3.0) + torch.fmod(a, b + 1),
        lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid(), reduction="none"),
        lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="none"),
        lambda a, b: F.kl_div(a.log_softmax(1), b.detach(), reduction="none"),
    ],
)
def test_gradients_are_those_of_autograd_on_bounds_too(function: Function) -> None:
    x = torch.arange(1, 13, dtype=torch.float64).reshape(3, 4)
    found = compare.gradients_differ(Bounds(function), (x,))
    assert found.gradient < 1e-12
    assert found.loss < 1e-12


class Heads(nn.Module):
    """Attention whose queries, keys and values come from one product; all are moved alike."""

    def __init__(self, moved: bool = True) -> None:
        super().__init__()
        self.whole, self.moved = nn.Linear(12, 36), moved

    def forward(self, x: Any) -> Any:
        parts = [t.view(2, 5, 4, 3) for t in self.whole(x).split(12, 2)]
        q, k, v = (t.transpose(1, 2) for t in parts)
        if not self.moved:
            v = parts[2].permute(0, 2, 1, 3) + parts[2].transpose(1, 2).flip(2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()


@pytest.mark.parametrize(("moved", "count"), [(True, 2), (False, 4)])
def test_parts_that_are_moved_alike_are_moved_as_one(moved: bool, count: int) -> None:
    module, x = Heads(moved).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    found = compare.gradients_differ(module, (x,))
    assert max(found.loss, found.gradient) < 1e-9
    graph = Canonicalize().run(found.imported.graph)
    assert sum(node.operator == "split" for node in graph.nodes) == 1
    transposes = [node for node in graph.nodes if node.operator == "transpose"]
    assert len(transposes) == count - 1


@pytest.mark.parametrize(
    ("function", "is_looked_up"),
    [
        (lambda m, i, j: m[i[:, None, None, None], j], False),  # as masks of transformers are read
        (lambda m, i, j: m[i[:, None], j[None, :] - 4].T, False),
        (lambda m, i, j: m[None].expand(2, 2, 4)[:, i[:, None], j], False),
        (lambda m, i, j: m[i[:, None], None, j], False),
        (lambda m, i, j: m[:, j][i], False),
        (lambda m, i, j: m[i.repeat_interleave(4), j.repeat(2)], False),
        (lambda m, i, j: m.view(4, 2)[j.repeat(2), i.repeat_interleave(4)], True),
        (lambda m, i, j: m[i[:, None], j[:-1]], True),
        (lambda m, i, j: m[i[:, None, None], j[:, None].expand(2, 4, 3)], True),
        (lambda m, i, j: m[i[None], j[:, None]], True),
        (lambda m, i, j: m.view(4, 2)[j, i[:1]], True),
    ],
)
def test_lookups_of_every_position_in_order_are_reshapes(
    function: Function, is_looked_up: bool
) -> None:
    x = torch.randn(2, 4, dtype=torch.float64)
    module = Lambda(lambda w, x: function(w[:4] * x, torch.arange(2), torch.arange(4)))
    assert compare.outputs_differ(module, (x,)) < 1e-12
    graph = import_module(module, (x,), loss="mean").graph
    assert any(node.operator.startswith("gather") for node in graph.nodes) == is_looked_up


class Converted(nn.Module):
    """A part that is converted to the type that it has, and an input that is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 2)

    def forward(self, x: Any, at: Any) -> Any:
        self.router = self.router.to(x.dtype)
        torch._check(at.max().item() >= 0)
        return self.router(x).gather(1, at.clamp_(0, 1)).square().mean()


def test_conversions_assertions_and_overwritten_inputs_do_not_hinder() -> None:
    module, x, at = Converted(), torch.randn(3, 4), torch.tensor([[2], [0], [-1]])
    imported = import_module(module, (x, at.clone()))
    assert imported.warnings == (
        "the module overwrites its input `at`; the program leaves it as it is",
    )
    feed = {"x": x.numpy(), "at": at.numpy()}
    names = list(imported.graph.outputs)
    (found,) = compare.run(imported.graph, imported.initial, feed, names).values()
    assert compare.difference(found, module(x, at).detach().numpy()) < 1e-6


class Padded(nn.Module):
    """Attention whose scores are filled with the least number where a sample has no key."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any, counts: Any) -> Any:
        q, k, v = (layer(x)[:, None] for layer in (self.query, self.key, self.value))
        present = counts[:, None] > torch.arange(torch.tensor(x.shape[1]).item())
        read = (present[:, None, :, None] & present[:, None, None]).bool()
        scores = (q @ k.transpose(-1, -2)).masked_fill(~read, torch.finfo(x.dtype).min)
        return (scores.softmax(-1) @ v).square().mean()


def test_queries_that_read_no_key_have_no_gradient() -> None:
    found = compare.gradients_differ(
        Padded().double(), (torch.randn(2, 4, 8).double(), torch.tensor([2, 4]))
    )
    operators = {node.operator for node in found.imported.graph.nodes}
    assert "scaled_dot_product_attention" in operators
    assert max(found.loss, found.gradient) < 1e-9


class Doubled(torch.autograd.Function):
    """A function with a gradient of its own, which is not that of its forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return cotangents[0] * 2


class Surrogate(nn.Linear):
    """A layer with such a function."""

    def forward(self, x: Any) -> Any:
        return Doubled.apply(super().forward(x)).square().mean()  # type: ignore[no-untyped-call]


def test_a_gradient_of_the_modules_own_is_imported_and_pytorch_is_left_as_it_is() -> None:
    before = torch.autograd.Function.apply
    module, x = Surrogate(4, 2).double(), torch.randn(3, 4, dtype=torch.float64)
    assert import_module(module, x).warnings == ()
    assert compare.gradients_differ(module, (x,)).gradient < 1e-14
    assert torch.autograd.Function.apply == before

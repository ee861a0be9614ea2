"""Modules of PyTorch that differentiate in their forward pass, against autograd."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
import torch_second as second  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.checkpoint import checkpoint  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402

TOLERANCE = 1e-9
_LINE = second.Net.forward.__code__.co_firstlineno + 2
CALLED = f", called in torch_second.py:{_LINE}: return self.loss(self.net, x, y)"
SEVERAL = ["force_field", "hessian_vector"]
SINGLE = [
    "maml",
    "by_features",
    "constant_input",
    "constant_slope",
    "late_requirement",
    "maml_first_order",
    "penalty_attention",
    "penalty_batch_norm",
    "penalty_conv_norm",
    "penalty_layer_norm",
    "pinn",
    "third_order",
    "unused",
]


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _check(module: Any, inputs: Any) -> None:
    found = compare.gradients_differ(module, inputs)
    assert max(found.loss, found.gradient) < TOLERANCE
    assert not found.missing


@pytest.mark.parametrize("name", SINGLE)
def test_second_gradients_are_those_of_autograd(name: str) -> None:
    _check(*second.CASES[name]())


@pytest.mark.parametrize("name", SEVERAL)
def test_second_gradients_of_a_plan_are_those_of_autograd(name: str) -> None:
    module, inputs = second.CASES[name]()
    assert max(compare.on_ranks(module, inputs, 4)) < TOLERANCE


# What a tensor is to autograd


def _slope(found: Any, point: Any) -> Any:
    return torch.autograd.grad(found, point, create_graph=True)[0].square().sum()


def _written(net: Any, x: Any, y: Any) -> Any:
    x = x.detach().requires_grad_()
    h = net[0](x)
    h.tanh_()
    return _slope(net[2](h).square().sum(), x)


def _written_features(net: Any, x: Any, y: Any) -> Any:
    h = net[0](x)
    before = h.sum()
    h = h * 1
    h.mul_(2)
    return _slope(h.square().sum() + before, h) + net(x).sum()


def _equal_views(net: Any, x: Any, y: Any) -> Any:
    x = x.detach().requires_grad_()
    view, shifted = x.reshape(4, 3), x + 0
    return _slope((net(view) * net(x) * net(shifted)).sum(), view)


def _same_tensor(net: Any, x: Any, y: Any) -> Any:
    x = x.detach().requires_grad_()
    before = net(x)
    same = F.dropout(x.contiguous().to(torch.float64), 0.3, training=False)
    return _slope((before * net(same)).sum(), x)


def _checkpointed(net: Any, x: Any, y: Any) -> Any:
    x = x.detach().requires_grad_()
    return _slope(checkpoint(net, x, use_reentrant=False).square().sum(), x)


def _probabilities(net: Any, x: Any, y: Any) -> Any:
    x = x.detach().requires_grad_()
    loss = F.binary_cross_entropy(torch.sigmoid(net(x)), torch.sigmoid(y))
    return _slope(loss, x) + loss


def _descent_of_samples(net: Any, x: Any, y: Any) -> Any:
    z = x.detach()
    for _ in range(2):
        z = z.requires_grad_()
        (slope,) = torch.autograd.grad(net(z).square().sum(), z)
        z = (z - 0.1 * slope).detach()
    return net(x).square().mean() - net(z).square().mean()


def _without_gradients(net: Any, x: Any, y: Any) -> Any:
    with torch.no_grad():
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(net(z).square().sum(), z)
        z = z - 0.1 * slope
    return F.mse_loss(net(z), y)


def _hessian(net: Any, x: Any, y: Any) -> Any:
    def energy(v: Any) -> Any:
        return net(v).square().sum()

    return torch.autograd.functional.hessian(energy, x[0], create_graph=True).square().sum()


def _batched(net: Any, x: Any, y: Any) -> Any:
    x = x.detach().requires_grad_()
    rows = torch.stack([y, y * y])
    (found,) = torch.autograd.grad(net(x), x, rows, is_grads_batched=True, create_graph=True)
    return found.square().sum()


def _pooled(net: Any, x: Any, y: Any) -> Any:
    x = x.detach().requires_grad_()
    return _slope(F.max_pool1d(net(x)[None], 2).tanh().sum(), x)


@pytest.mark.parametrize(
    "loss",
    [
        _written,
        _written_features,
        _equal_views,
        _same_tensor,
        _checkpointed,
        _probabilities,
        _descent_of_samples,
        _without_gradients,
        _hessian,
        _batched,
        _pooled,
    ],
)
def test_gradients_are_by_the_tensor_that_autograd_knows(loss: Callable[..., Any]) -> None:
    _check(*second.of_loss(loss))


# Transforms of functions


def _of_gradient(net: Any, x: Any, y: Any) -> Any:
    def slope(v: Any) -> Any:
        return torch.func.grad(lambda w: (net(w) * net(v)).sum())(v).square().sum()

    return torch.func.grad(slope)(x).square().sum()


def _step(net: Any, x: Any, y: Any) -> Any:
    def loss(weights: Any, wanted: Any) -> Any:
        found = torch.func.functional_call(net, weights, (x,))
        return F.mse_loss(found, wanted), found

    weights = dict(net.named_parameters())
    slopes, (before, found) = torch.func.grad_and_value(loss, has_aux=True)(weights, y)
    moved = {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}
    return loss(moved, y)[0] + before * found.mean()


def _products(net: Any, x: Any, y: Any) -> Any:
    results, pull = torch.func.vjp(net, x)
    rows = torch.func.vmap(pull)(torch.stack([y, y * y]))[0]
    moved = torch.func.jvp(net, (x,), (x.cos(),))[1]
    return (rows.square().sum() + moved.square().sum()) * results.mean()


def _samples(net: Any, x: Any, y: Any) -> Any:
    def loss(weights: Any, v: Any, w: Any) -> Any:
        return F.mse_loss(torch.func.functional_call(net, weights, (v[None],)), w[None])

    of_each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    slopes = of_each(dict(net.named_parameters()), x, y).values()
    return torch.stack([slope.flatten(1).norm(dim=1) for slope in slopes]).square().mean()


def _curvature(net: Any, x: Any, y: Any) -> Any:
    def trace(v: Any) -> Any:
        return torch.func.hessian(lambda w: net(w).square().sum())(v).diagonal().sum()

    return torch.func.vmap(trace)(x).square().mean()


def _jacobians(net: Any, x: Any, y: Any) -> Any:
    kernel = torch.func.vmap(torch.func.jacrev(net))(x).flatten(1)
    other = torch.func.jacfwd(net)(x[0])
    return (kernel @ kernel.T).square().mean() + other.square().sum()


def _mapped(net: Any, x: Any, y: Any) -> Any:
    def pair(a: Any, b: Any) -> Any:
        h = net(a).clone()
        h[0] = 1.0
        return (h * net(b).detach()).sum()

    table = torch.func.vmap(lambda a: torch.func.vmap(lambda b: pair(a, b))(x))(x)
    apart = torch.func.vmap(lambda v, w: net(v) * w, in_dims=(1, None), out_dims=1)
    return table.square().mean() + apart(torch.stack([x, x + 1], 1), y[0]).square().sum()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch itself
@pytest.mark.parametrize(
    "loss", [_of_gradient, _step, _products, _samples, _curvature, _jacobians, _mapped]
)
def test_transforms_of_functions_are_those_of_pytorch(loss: Callable[..., Any]) -> None:
    _check(*second.of_loss(loss))


# Refusals


def _switched_off(net: Any, x: Any, y: Any) -> Any:
    def loss(v: Any) -> Any:
        with torch.no_grad():
            return net(v).sum()

    return torch.func.vmap(loss)(x).sum()


def test_gradients_that_are_off_inside_of_a_map_are_refused() -> None:
    with pytest.raises(ModelError) as refused:
        import_module(*second.of_loss(_switched_off))
    line = _switched_off.__code__.co_firstlineno + 2
    assert str(refused.value) == (
        "gradients are switched off inside of a function that `torch.func.vmap` maps (in "
        f"test_second_order.py:{line}: with torch.no_grad():{CALLED}); use `detach`"
    )


def _backward(net: Any, x: Any, y: Any) -> Any:
    net(x.detach().requires_grad_()).sum().backward()
    return net(x).sum()


def _product(net: Any, x: Any, y: Any) -> Any:
    return _slope(net(x).cumprod(0).sum(), net[0].weight)


def _branching(net: Any, x: Any, y: Any) -> Any:
    x = x.detach().requires_grad_()
    h = torch.cond(x.sum() > 0, torch.sin, torch.tanh, (net(x),))
    return _slope(h.sum(), x)


def test_second_gradients_that_pytorch_has_wrong_are_refused() -> None:
    message = "^the second gradient of `torch.cond`, of which PyTorch leaves parts out silently,"
    with pytest.raises(ModelError, match=message):
        import_module(*second.of_loss(_branching))


def _not_required(net: Any, x: Any, y: Any) -> Any:
    return _slope(net(x).sum(), x)


def test_backward_inside_of_a_module_is_refused() -> None:
    with pytest.raises(ModelError) as refused:
        import_module(*second.of_loss(_backward))
    line = _backward.__code__.co_firstlineno + 1
    assert str(refused.value) == (
        "`backward` inside of the module adds to the `grad` of parameters, which cannot be "
        f"imported (in test_second_order.py:{line}: "
        f"net(x.detach().requires_grad_()).sum().backward(){CALLED}); use `torch.autograd.grad`"
    )


def test_an_operator_without_a_second_gradient_is_named() -> None:
    with pytest.raises(ModelError, match=r"^the second gradient of the operator `cumprod` cannot"):
        import_module(*second.of_loss(_product))


def test_errors_of_autograd_are_told_with_the_line() -> None:
    with pytest.raises(ModelError, match="One of the differentiated Tensors does not require grad"):
        import_module(*second.of_loss(_not_required))


# Gradients that a module gives itself


class Cubed(torch.autograd.Function):
    """A square with the slope of another function, which depends on its argument."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, slope: Any) -> Any:
        return 3 * ctx.saved_tensors[0] * slope


def _of_function(net: Any, x: Any, y: Any) -> Any:
    x = x.detach().requires_grad_()
    return _slope(Cubed.apply(net(x)).sum(), x)


def _hooked(net: Any, x: Any, y: Any) -> Any:
    x = x.detach().requires_grad_()
    x.register_hook(lambda slope: 2 * slope)
    h = net(x)
    h.register_hook(lambda slope: slope.clamp(-1, 1))
    return _slope(h.square().sum(), x) + Cubed.apply(net(x)).sum()


def test_hooks_act_on_gradients_in_the_forward_pass() -> None:
    module, inputs = second.of_loss(_hooked)
    module.net[0].weight.register_hook(lambda slope: 2 * slope)
    _check(module, inputs)


def _hooked_in_transform(net: Any, x: Any, y: Any) -> Any:
    def loss(v: Any) -> Any:
        h = net(v)
        h.register_hook(lambda slope: 2 * slope)
        return h.square().sum()

    return torch.func.grad(loss)(x).square().sum()


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (_of_function, "the second gradient of a function or a hook with a gradient of its own "),
        (_hooked_in_transform, "a hook inside of a function that `torch.func` differentiates"),
    ],
)
def test_given_gradients_that_second_ones_lack_are_refused(
    loss: Callable[..., Any], what: str
) -> None:
    with pytest.raises(ModelError, match=f"^{what}"):
        import_module(*second.of_loss(loss))

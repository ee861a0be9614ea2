"""Refusals name the innermost line of the user's code and what called it, and whose fault it is."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import nn  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402


class Net(nn.Module):
    """A layer, and a function of another place."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: Any) -> Any:
        return self.function(self, x).sum()


def _unknown(net: Any, x: Any) -> Any:
    return torch.special.airy_ai(net.layer(x))


def _decomposed(net: Any, x: Any) -> Any:
    return torch.ops.aten.linalg_lstsq(net.layer(x), x)[0]


def _unfit(net: Any, x: Any) -> Any:
    return net.layer(x) @ torch.ones(3, 3)


def _branching(net: Any, x: Any) -> Any:
    return net.layer(x) if x.sum() > 0 else x


def _telling(net: Any, x: Any) -> Any:
    return net.layer(x[:, :3] if torch.compiler.is_exporting() else x)


class Asserting(torch.autograd.Function):
    """Has a backward pass that fails."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """Return the argument twice."""
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Fail."""
        raise RuntimeError("not in this mode")


def _asserting(net: Any, x: Any) -> Any:
    return Asserting.apply(net.layer(x))


def _stepping(parameter: Any) -> None:
    parameter.data.sub_(parameter.grad)


def _said_of(call: Callable[[], Any]) -> str:
    """Return the sentence of PyTorch, which releases word differently."""
    with pytest.raises(RuntimeError) as raised:
        call()
    return str(raised.value)


VERSION = torch.__version__.split("+")[0]
CASES: dict[str, tuple[Callable[..., Any], str, str]] = {
    "the operator": (_unknown, "the operator aten.special_airy_ai.default cannot be imported", ""),
    "PyTorch": (
        _decomposed,
        f"PyTorch {VERSION} cannot export the module "
        "(DynamicOutputShapeException: aten.linalg_lstsq.default)",
        "; the module runs, and the fault is `torch.export`'s: write the line without it",
    ),
    "the module": (
        _unfit,
        "the module itself fails on the example inputs "
        f"(RuntimeError: {_said_of(lambda: torch.ones(4, 4) @ torch.ones(3, 3))})",
        "; call the module with them: it must run",
    ),
    "the module where it is exported": (
        _telling,
        "the module itself fails where it is told that it is exported "
        f"(RuntimeError: {_said_of(lambda: nn.Linear(4, 4)(torch.ones(4, 3)))})",
        "; let it compute the same where `torch.compiler.is_exporting()` is true",
    ),
    "data": (
        _branching,
        "a branch or a size depends on the elements of tensors",
        "; let neither sizes nor branches depend on the elements of tensors; assertions may, "
        "without `not`, `:=` or `lambda` inside of their conditions; or import with "
        "`as_example=True` if it is as in the example in every batch, which is checked",
    ),
}


def _line(function: Callable[..., Any]) -> str:
    number = function.__code__.co_firstlineno + 1
    with open(__file__, encoding="utf-8") as file:
        return f"test_places.py:{number}: {file.readlines()[number - 1].strip()}"


@pytest.mark.parametrize("name", CASES)
def test_refusals_name_the_line_its_caller_and_the_fault(name: str) -> None:
    function, what, hint = CASES[name]
    with pytest.raises(ModelError) as refused:
        import_module(Net(function), (torch.rand(4, 4),))
    where = f"{_line(function)}, called in {_line(Net.forward)}"
    assert str(refused.value) == f"{what} (in {where}){hint}"


def test_a_backward_pass_that_fails_is_the_modules_fault() -> None:
    number = Asserting.backward.__code__.co_firstlineno + 3
    with pytest.raises(ModelError) as refused:
        import_module(Net(_asserting), (torch.rand(4, 4),))
    assert str(refused.value) == (
        "the module's own backward pass fails on the example inputs (RuntimeError: not in this "
        f'mode) (in test_places.py:{number}: raise RuntimeError("not in this mode")); train it in '
        "PyTorch with them: it must run"
    )


def test_a_failing_export_leaves_buffers_and_random_numbers_as_they_are() -> None:
    class Counting(Net):
        def __init__(self) -> None:
            super().__init__(_decomposed)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return super().forward(x + torch.rand(()))

    module, inputs, state = Counting(), (torch.rand(4, 4),), torch.random.get_rng_state()
    with pytest.raises(ModelError):
        import_module(module, inputs)
    assert module.count == 0
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_hook_is_named_by_where_it_is_defined() -> None:
    module = Net(lambda net, x: net.layer(x))
    module.layer.weight.register_post_accumulate_grad_hook(_stepping)
    number = _stepping.__code__.co_firstlineno
    message = (
        "a hook writes to the parameter `layer.weight` after its gradient is accumulated (in "
        f"test_places.py:{number}: def _stepping(parameter: Any) -> None:); "
        "let the optimizer of the plan write to it, and the hook change the gradient"
    )
    with pytest.raises(ModelError) as refused:
        import_module(module, (torch.rand(4, 4),))
    assert str(refused.value) == message


def _added(weight: Any, gradient: Any) -> Any:
    return gradient + weight


def test_a_parameter_that_a_hook_reads_by_itself_is_refused_with_the_line() -> None:
    module = Net(lambda net, x: net.layer(x))
    weight = module.layer.weight
    weight.register_hook(lambda gradient: _added(weight, gradient))
    with pytest.raises(ModelError) as refused:
        import_module(module, (torch.rand(4, 4),))
    assert str(refused.value) == (
        "a function or a hook reads the parameter `layer.weight` by itself, and not as a part of "
        f"the module, so that it would be a constant (in {_line(_added)}); let it read an "
        "attribute of the module that has the parameter"
    )


def _off(net: Any, x: Any) -> Any:
    with torch.no_grad():
        scale = x * 2
        found = torch.special.airy_ai(net.layer(x))
    return found * net.layer(x) * scale


def test_operators_where_gradients_are_off_have_lines() -> None:
    with pytest.raises(ModelError) as refused:
        import_module(Net(_off), (torch.rand(4, 4),))
    line = _off.__code__.co_firstlineno + 3
    assert str(refused.value) == (
        "the operator aten.special_airy_ai.default cannot be imported (in "
        f"test_places.py:{line}: found = torch.special.airy_ai(net.layer(x)), "
        f"called in {_line(Net.forward)})"
    )

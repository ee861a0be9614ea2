"""Exports that are compared with their module on the example inputs."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402


class Asking(nn.Module):
    """Computes something else while it is traced, and counts in a buffer."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.line = nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        """Return a loss."""
        self.steps += 1
        factor = self.factor if torch.compiler.is_compiling() else 1.0
        return (factor * self.line(x)).square().mean()


def test_an_export_that_is_another_function_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(ModelError) as error:
        import_module(Asking(0.5), (torch.randn(4, 3),))
    assert str(error.value) == (
        "`torch.export` traces another function than the module computes: output 0 differs by "
        "8e-01 of its largest element on the example inputs; let the module compute the same while "
        "it is traced: something in it asks `torch.compiler.is_compiling`, `is_exporting`, or for "
        "the kind of a tensor"
    )


def test_a_comparison_leaves_the_module_as_it_is() -> None:
    module, inputs = Asking(1.0), torch.randn(4, 3)
    drawn = torch.random.get_rng_state()
    imported = import_module(module, (inputs,))
    assert imported.initial["steps"] == module.steps == 0
    assert torch.equal(torch.random.get_rng_state(), drawn)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_what_has_no_elements_or_draws_is_not_compared(device: str) -> None:
    module = nn.Sequential(nn.Linear(3, 3, device=device), nn.Dropout(0.5 * (device == "cpu")))
    inputs = torch.zeros(4, 3, device=device)
    assert import_module(module, (inputs,), loss="mean").graph.outputs == ("loss",)

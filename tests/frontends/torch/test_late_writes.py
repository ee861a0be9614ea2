"""What is written to a module after it was compiled does not enter the plan."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import nn  # noqa: E402

import shardwright  # noqa: E402
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402


def test_a_module_that_changed_since_it_was_compiled_is_not_read():
    module, x = nn.Linear(4, 3), torch.ones(2, 4)
    found = shardwright.compile(module, 2, example_inputs=(x,), loss="mean", cluster="cpu")
    with torch.no_grad():
        module.bias.add_(1)
    with pytest.raises(ModelError, match=r"float32 tensor of shape \(3,\) .* was written to after"):
        list(shardwright.run(found, 1))


def test_running_a_module_does_not_change_the_state_that_a_plan_begins_with():
    module, x = nn.BatchNorm1d(3), torch.randn(8, 3)
    initial = import_module(module, (x,)).initial
    module(x + 5)
    means = [initial[name] for name in initial if "running_mean" in name]
    assert len(means) == 1
    assert not means[0].any()

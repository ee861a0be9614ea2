"""The times of the operators of an exported step."""

import sys
from importlib import import_module

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch.distributed as dist  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright.cost_model.roofline import computing_nodes  # noqa: E402
from shardwright.exports.table import write_export  # noqa: E402
from shardwright.exports.torch import export  # noqa: E402
from shardwright.exports.torch.support import updates  # noqa: E402
from shardwright.tools.calibrate.csv_file import of_csv  # noqa: E402


@pytest.fixture
def alone(tmp_path):
    rendezvous = f"file://{tmp_path / 'rendezvous'}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_calibrate_reads_the_time_of_every_operator(tmp_path, monkeypatch, alone):
    model = "gpt:layers=1,hidden=16,heads=2,batch=4,sequence=8,vocabulary=32"
    plan = sw.compile(model, 1, micro_batches=2, optimizer="adam").plan
    write_export(tmp_path / "timed_package", export(plan))
    monkeypatch.syspath_prepend(tmp_path)
    package = import_module("timed_package")
    weights, inputs = (
        {v.name: torch.zeros(v.type.shape, dtype=getattr(torch, v.type.dtype)) for v in values}
        for values in ([p.value for p in plan.program.parameters], plan.program.inputs)
    )
    trainer = package.Trainer(weights)
    (tmp_path / "times.csv").write_text(trainer.operator_times(steps=2, **inputs))
    assert not any(type(part).__name__ == "_Timed" for part in vars(package.program).values())
    measured = {name: len(samples) for name, samples in of_csv(tmp_path / "times.csv").items()}
    expected: dict[str, int] = {}
    for _, work in computing_nodes(plan.program):
        if work.amount:
            expected[work.operator] = expected.get(work.operator, 0) + 1
    assert measured == expected
    for name in [name for name in sys.modules if name.startswith("timed_package")]:
        del sys.modules[name]


def test_the_kernel_of_adam_takes_tensors_of_one_form_alone():
    p, g, step = torch.ones(2, 3), torch.ones(3, 2).T, torch.tensor(5)
    assert updates._are_alike([p, g, p, p, step])
    assert not updates._are_alike([p.bfloat16(), g, p, p, step])
    assert not updates._are_alike([g, g, p, p, step])
    kernel, settings = torch._fused_adamw_, {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    before = [p.clone(), 2 * g, torch.zeros(2, 3), torch.zeros(2, 3)]
    right = updates.adam_update(*before, step)
    found = updates._in_one_kernel(kernel, [*before, step], lr=1e-3, weight_decay=0.0, **settings)
    for ours, theirs in zip(found, right, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-6


@pytest.mark.parametrize(("decay", "l2"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.05)])
def test_adam_in_one_kernel_is_adam(decay, l2):
    torch.manual_seed(0)
    before = [torch.randn(100), torch.randn(100), torch.randn(100), torch.rand(100)]
    step, settings = torch.tensor(5), {"weight_decay": decay, "l2": l2}
    right = updates.adam_update(*before, step, **settings)
    kernel = torch._fused_adam_ if l2 else torch._fused_adamw_
    found = updates._in_one_kernel(
        *(kernel, [*(tensor.clone() for tensor in before), step]),
        **{"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": decay + l2},
    )
    for ours, theirs in zip(found, right, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-6

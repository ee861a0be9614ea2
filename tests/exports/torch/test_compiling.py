"""Packages whose program is compiled: equal layers once, without breaks, with the same results."""

import os
import subprocess
import sys
from importlib import import_module

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch.distributed as dist  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright.exports.table import write_export  # noqa: E402
from shardwright.exports.torch import export  # noqa: E402
from tests.extent import ANY_PLAN  # noqa: E402

GPT = "gpt:layers={},hidden=16,heads=2,batch=4,sequence=8,vocabulary=32"
MIXTURE = (
    "mixtral:layers=2,hidden=16,heads=4,kv_heads=4,experts=4,inner=16,batch=2,sequence=8,"
    "vocabulary=32,capacity=0"
)
STEPS = 3


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Yield a function that writes a plan as a package of one process, and imports it."""
    root, names = tmp_path_factory.mktemp("packages"), []

    def write(plan):
        name = f"compiled_package_{len(names)}"
        names.append(name)
        write_export(root / name, export(plan))
        return import_module(name)

    sys.path.insert(0, str(root))
    dist.init_process_group("gloo", init_method=f"file://{root}/meeting", rank=0, world_size=1)
    yield write
    dist.destroy_process_group()
    sys.path.remove(str(root))
    for name in [name for name in sys.modules if name.startswith(tuple(names))]:
        del sys.modules[name]


@pytest.fixture
def compiled(monkeypatch):
    """Return the graphs that are compiled: run as they are, which takes no compiler."""
    graphs, compile_ = [], torch.compile

    def run_as_they_are(function, **options):
        assert options["fullgraph"]
        graphs.append(function)
        return compile_(function, **options | {"backend": "eager", "options": None})

    monkeypatch.setattr(torch, "compile", run_as_they_are)
    return graphs


def trained(package, plan, **options):
    """Return the losses and the state after some steps, from the same weights."""
    generator = torch.Generator().manual_seed(0)

    def value(kind, below):
        dtype = getattr(torch, kind.dtype)
        if dtype.is_floating_point:
            return torch.randn(kind.shape, generator=generator, dtype=torch.float64).to(dtype) / 8
        return torch.randint(0, below, kind.shape, generator=generator, dtype=dtype)

    weights = {p.name: value(p.value.type, 2) for p in plan.program.parameters}
    inputs = {v.name: value(v.type, 8) for v in plan.program.inputs}
    trainer = package.Trainer(weights, **options)
    return [float(trainer.step(**inputs)) for _ in range(STEPS)], trainer.state


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (GPT.format(2), {}),
        (GPT.format(2), {"precision": "bfloat16"}),
        (GPT.format(2), {"micro_batches": 2, "recompute": "full"}),
        (MIXTURE, {"precision": "bfloat16"}),
    ],
)
def test_steps_are_those_of_the_program_as_it_is(model, options, written, compiled, recwarn):
    plan = sw.compile(model, 1, optimizer="adam", **ANY_PLAN, **options).plan
    package = written(plan)
    losses, state = trained(package, plan)
    found, after = trained(package, plan, compile=True)
    assert found == losses
    for name, tensor in state.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=0)
    assert not [w for w in recwarn if "is not compiled" in str(w.message)]
    assert len(compiled) > 2


def test_equal_layers_are_compiled_once(written, compiled):
    counts = []
    for layers in (3, 5):
        compiled.clear()
        plan = sw.compile(GPT.format(layers), 1, optimizer="adam", **ANY_PLAN).plan
        trained(written(plan), plan, compile=True)
        counts.append(len(compiled))
    assert counts[0] == counts[1]


def test_attention_runs_once_for_its_gradient(written, monkeypatch):
    plan = sw.compile(GPT.format(2), 1, optimizer="adam", **ANY_PLAN).plan
    functional, calls = torch.nn.functional, []
    attention = functional.scaled_dot_product_attention

    def counted(*operands, **options):
        calls.append(options)
        return attention(*operands, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    trained(written(plan), plan)
    assert len(calls) == 2 * STEPS


def test_a_machine_without_a_compiler_is_refused(written, monkeypatch):
    plan = sw.compile(GPT.format(1), 1, **ANY_PLAN).plan

    def fails(*_, **__):
        raise OSError("no C++ compiler is found\nlook for one")

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(RuntimeError) as caught:
        trained(written(plan), plan, compile=True)
    assert str(caught.value) == (
        "`torch.compile` cannot compile for the device `cpu` on this machine (OSError: no C++ "
        "compiler is found): install a C++ compiler, and Triton for a GPU, or leave out "
        "`compile=True`"
    )


def test_compiled_operators_have_no_times(written, compiled):
    plan = sw.compile(GPT.format(1), 1, **ANY_PLAN).plan
    weights = {
        p.name: torch.zeros(p.value.type.shape, dtype=getattr(torch, p.value.type.dtype))
        for p in plan.program.parameters
    }
    trainer = written(plan).Trainer(weights, compile=True)
    with pytest.raises(ValueError, match="compiled operators have no times of their own"):
        trainer.operator_times()


KERNEL = """
import torch
from shardwright.exports.torch.support import pointwise, updates

torch.manual_seed(0)
for weight_decay, l2 in ((0.0, 0.0), (0.1, 0.0), (0.0, 0.1)):
    p, g, m, v = torch.randn(4, 37, 53).unbind()
    p, g, m, v, step = p.clone(), g.bfloat16(), m.clone(), v.abs(), torch.tensor(3)
    exact = [x.double() for x in (p, g, m, v)]
    wanted = updates.adam_update(*exact, step, weight_decay=weight_decay, l2=l2)
    pointwise._keep_copy(p, None)
    before = pointwise.cast(p, dtype="bfloat16")
    with updates._writing_over([g], []):
        settings = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
        settings |= {"weight_decay": weight_decay, "l2": l2}
        found = updates._in_own_kernel((p, g, m, v, step), **settings)
    for new, right in zip(found, wanted):
        torch.testing.assert_close(new.double(), right, rtol=1e-6, atol=1e-6)
    copy = pointwise.cast(p, dtype="bfloat16")
    assert copy is g and before is not g and pointwise.cast(p, dtype="bfloat16") is not g
    torch.testing.assert_close(copy.float(), p, rtol=2**-7, atol=0)
"""


def test_the_update_in_one_kernel_is_the_update():
    pytest.importorskip("triton", reason="needs Triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KERNEL], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

"""What an exported trainer is given wrongly is refused, before anything is changed."""

import sys
from copy import deepcopy
from importlib import import_module

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, distribute_tensor  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright.exports.table import write_export  # noqa: E402
from shardwright.exports.torch import export  # noqa: E402

MODEL = "gpt:layers=1,hidden=16,heads=2,batch=4,sequence=8,vocabulary=32"
WEIGHT = "blocks.0.layernorm1.gamma"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Yield a function that writes a plan as a package of one process, and imports it."""
    root, names = tmp_path_factory.mktemp("packages"), []

    def write(name, plan):
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


@pytest.fixture(scope="module")
def package(written):
    """Return a package for one process, its weights and its inputs."""
    plan = sw.compile(MODEL, 1, optimizer="adam").plan
    weights, inputs = (
        {v.name: torch.zeros(v.type.shape, dtype=getattr(torch, v.type.dtype)) for v in values}
        for values in ([p.value for p in plan.program.parameters], plan.program.inputs)
    )
    return written("refusing_package", plan), weights, inputs


class Spectral(torch.nn.Module):
    """A complex parameter, and a real one."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 4, dtype=torch.complex128))
        self.scale = torch.nn.Parameter(torch.randn(4, dtype=torch.float64))

    def forward(self, x):
        return ((x.to(torch.complex128) @ self.weight).abs() * self.scale).mean()


def test_complex_parameters_are_trained_and_written_back(written):
    torch.manual_seed(0)
    module, x = Spectral(), torch.randn(8, 6, dtype=torch.float64)
    plan = sw.compile(module, 1, example_inputs={"x": x}, optimizer="sgd").plan
    trainer = written("complex_package", plan).Trainer(module)
    alone = deepcopy(module)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
    for _ in range(2):
        loss = trainer.step(x=x)
        optimizer.zero_grad()
        right = alone(x)
        right.backward()
        optimizer.step()
        assert abs(loss.item() - right.item()) < 1e-12
    trainer.write_back()
    for name, parameter in alone.named_parameters():
        assert torch.allclose(module.get_parameter(name), parameter, rtol=0, atol=1e-12)
    held = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    assert held["weight"].shape == (6, 4, 2)
    trainer.load_state_dict(held)


def test_weights_of_other_names_shapes_and_types_are_refused(package):
    module, weights, _ = package
    for change, message in (
        ({"wpe": None}, "has no parameter or buffer"),
        ({WEIGHT: torch.zeros(15)}, r"`blocks.0.layernorm1.gamma` is torch.float32 \(15,\), the"),
        ({WEIGHT: weights[WEIGHT].double()}, r"is torch.float64 \(16,\), the plan expects float32"),
        ({WEIGHT: weights[WEIGHT].to("meta")}, "is on the device `meta`"),
    ):
        given = {**weights, **change}
        if None in change.values():
            given = {n: t for n, t in weights.items() if n != WEIGHT}
        with pytest.raises(ValueError, match=message):
            module.Trainer(given)


def test_inputs_of_other_names_shapes_and_types_are_refused(package):
    module, weights, inputs = package
    trainer = module.Trainer(weights)
    trainer.step(**inputs)
    first = next(iter(inputs))
    for change, message in (
        ({first: inputs[first][:2]}, "the plan expects int32"),
        ({first: inputs[first].long()}, "is torch.int64"),
        ({"other": inputs[first]}, "the inputs are"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer.step(**{**inputs, **change})


def test_checkpoints_of_another_model_are_refused_whole(package):
    module, weights, _ = package
    trainer = module.Trainer(weights)
    mesh = init_device_mesh("cpu", (1,))
    right = {WEIGHT: torch.ones(16)}
    for change, message in (
        ({"other": torch.zeros(3)}, "the plan has no parameter, buffer or state `other`"),
        ({"position": torch.zeros(15)}, "the plan has no parameter"),
        ({"blocks.0.layernorm1.beta": torch.zeros(15)}, r"is torch.float32 \(15,\), the plan"),
        ({"blocks.0.layernorm1.beta": torch.zeros(16).double()}, "the plan expects float32"),
        (
            {"blocks.0.layernorm1.beta": distribute_tensor(torch.zeros(15), mesh, [Replicate()])},
            r"is torch.float32 \(15,\), the plan",
        ),
        ({"other": distribute_tensor(torch.zeros(15), mesh, [Replicate()])}, "the plan has no"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer.load_state_dict({**right, **change})
        assert not trainer.state[WEIGHT].any()
    trainer.load_state_dict(right)
    assert trainer.state[WEIGHT].all()
    other = distribute_tensor(torch.full((16,), 2.0), mesh, [Replicate()])
    trainer.load_state_dict({WEIGHT: other})
    assert torch.equal(trainer.state[WEIGHT], torch.full((16,), 2.0))
    assert trainer.state_dict().keys() == trainer.state.keys()


def test_a_package_in_tf32_switches_pytorch_and_trains_in_float32(written):
    torch.manual_seed(0)
    module, x = Squares(), torch.randn(16, 8)
    expected = module(x).item()
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    options = {"example_inputs": {"x": x}, "cluster": "a100", "precision": "tf32"}
    try:
        trainer = written("tf32_package", sw.compile(module, 1, **options).plan).Trainer(module)
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
        assert trainer.step(x=x).item() == pytest.approx(expected, rel=1e-2)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
    assert {tensor.dtype for tensor in trainer.state.values()} == {torch.float32}


class Squares(torch.nn.Module):
    """The mean square of what a layer returns."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x).square().mean()

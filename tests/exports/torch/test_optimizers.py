"""Exported packages update parameters as PyTorch's own optimizers and the numpy executor do."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

sys.path.insert(0, str(Path(__file__).parent))

import torch.distributed as dist  # noqa: E402
from exported_optimizers import PLANS, RULES, STEPS, exported, in_pytorch, made  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright.exports.table import export, write_export  # noqa: E402
from shardwright.runtime import LocalCommunicator  # noqa: E402
from shardwright.runtime.executor import Executor  # noqa: E402
from shardwright.runtime.state import assemble, initialize  # noqa: E402

SCRIPT = Path(__file__).with_name("optimizer_processes.py")
CASES = {f"{rule}_on_{ranks}": (rule, ranks) for rule in RULES for ranks in PLANS}


def in_numpy(plan):
    """Return the losses of a plan that the executor runs, and the parameters after them."""
    module, inputs = made()
    program, communicator = plan.program, LocalCommunicator(plan.mesh)
    batch = {name: tensor.numpy() for name, tensor in inputs.items()}
    state = initialize(program, plan.document.seed, communicator, plan.initial)
    executor = Executor(program, communicator)
    (loss,) = program.outputs
    losses = [executor.step(batch, state).outputs[loss][0] for _ in range(STEPS)]
    names = [name for name, _ in module.named_parameters()]
    return losses, {name: assemble(program, name, state[name], plan.mesh) for name in names}


@pytest.fixture(scope="module")
def right():
    """Return what the numpy executor does with every plan, and the plans."""
    module, inputs = made()
    how = {"example_inputs": inputs, "cluster": "cpu"}
    plans = {
        name: sw.compile(module, ranks, plan=PLANS[ranks], optimizer=RULES[rule], **how).plan
        for name, (rule, ranks) in CASES.items()
    }
    return {name: in_numpy(plan) for name, plan in plans.items()}, plans


@pytest.fixture(scope="module")
def found(right, tmp_path_factory):
    """Return what the exported packages do, on one process and on four."""
    folder, (_, plans) = tmp_path_factory.mktemp("packages"), right
    for name, plan in plans.items():
        write_export(folder / name, export(plan, "torch"))
    many = [name for name in CASES if CASES[name][1] > 1]
    command = [sys.executable, str(SCRIPT), str(folder), *many]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    files = {name: dict(np.load(folder / f"{name}.npz")) for name in many}
    results = {name: (file.pop("losses"), file) for name, file in files.items()}
    sys.path.insert(0, str(folder))
    dist.init_process_group("gloo", init_method=f"file://{folder}/one", rank=0, world_size=1)
    results |= {name: exported(name) for name in CASES if name not in many}
    dist.destroy_process_group()
    sys.path.remove(str(folder))
    return results


def close(found, right):
    """Check losses, and parameters relative to the largest element."""
    np.testing.assert_allclose(found[0], right[0], rtol=1e-12)
    assert found[1].keys() == right[1].keys()
    for name, parameter in right[1].items():
        np.testing.assert_allclose(found[1][name], parameter, rtol=0, atol=1e-10)


def test_each_plan_has_the_states_of_its_rule(right):
    own = {"adamw": "hidden.2.weight.v", "clipped": "hidden.2.weight.v"}
    own |= {"muon": "hidden.2.weight.momentum"}
    for name, plan in right[1].items():
        states = {parameter.name for parameter in plan.program.parameters}
        assert own.get(CASES[name][0], "hidden.2.weight.v_scale") in states


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_of_a_package_are_those_of_the_executor(name, found, right):
    close(found[name], right[0][name])


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_are_those_of_pytorch(name, right):
    rule = CASES[name][0]
    # PyTorch has no AdamW of 8 bits: four ranks do what one does.
    close(right[0][name], right[0]["adamw8bit_on_1"] if rule == "adamw8bit" else in_pytorch(rule))

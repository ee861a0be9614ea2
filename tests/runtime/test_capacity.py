"""The least memory of a run is a bound for what it takes."""

import numpy as np
import pytest

import shardwright as sw
from shardwright.ir.errors import ExecutionError
from shardwright.runtime import Executor, LocalCommunicator, capacity, initialize
from shardwright.runtime.capacity import available_bytes, check_capacity, least_bytes

MODELS = (
    "mlp:batch=8,hidden=32",
    "gpt:layers=2,hidden=32,heads=2,batch=4,sequence=8,vocabulary=64",
)


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("model", MODELS)
def test_the_bound_holds_and_is_not_empty(model, devices):
    plan = sw.compile(model, devices, search="data_parallel", cluster="cpu").plan
    program, communicator = plan.program, LocalCommunicator(plan.mesh)
    executor, state = Executor(program, communicator), initialize(program, 0, communicator)
    inputs = {v.name: np.zeros(v.type.shape, v.type.dtype) for v in program.inputs}
    taken = executor.step(inputs, state).peak_bytes  # of one rank, which has copies
    least = least_bytes(program, range(devices))
    parameters = sum(parameter.value.type.nbytes for parameter in program.parameters)
    assert parameters < least <= taken * devices
    if devices == 1:
        assert least > 0.8 * taken


def test_one_process_a_rank_takes_its_slices():
    plan = sw.compile(MODELS[0], 4, search="fully_sharded", mesh="4", cluster="cpu").plan
    assert least_bytes(plan.program, range(1)) < least_bytes(plan.program, range(4))


def test_precision_counts():
    program = sw.compile(MODELS[0], 1).plan.program
    assert least_bytes(program, range(1), "float64") > 1.9 * least_bytes(program, range(1))


def test_this_machine_has_memory_for_a_small_model():
    available = available_bytes()
    assert available is None or available > 2**20
    check_capacity(sw.compile(MODELS[0], 1).plan.program, (0,))


def test_training_and_full_verification_are_refused_before_anything_is_allocated(monkeypatch):
    plan = sw.compile(MODELS[0], 2, cluster="cpu").plan
    monkeypatch.setattr(capacity, "available_bytes", lambda: 100)
    with pytest.raises(ExecutionError, match="this machine has 100 B free"):
        sw.verify(plan, full=True)
    network = sw.nn.Dense(4, 4)
    rows = [(np.ones(4, "f4"), np.ones(4, "f4"))] * 4
    data = sw.dataset.GeneratorDataset(rows, ["x", "y"]).batch(2)
    model = sw.Model(network, sw.nn.MSELoss(), sw.nn.SGD(network.trainable_params()))
    with pytest.raises(ExecutionError, match="this machine has 100 B free"):
        model.train(1, data)


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_a_process_takes_the_values_of_its_stages(schedule):
    plan = f"pipeline=2,tensor=2,micro_batch=1,schedule={schedule}"
    program = sw.compile(MODELS[1], 4, plan=plan, cluster="cpu").plan.program
    communicator = LocalCommunicator(program.mesh)
    executor, state = Executor(program, communicator), initialize(program, 0, communicator)
    inputs = {v.name: np.zeros(v.type.shape, v.type.dtype) for v in program.inputs}
    taken = executor.step(inputs, state).peak_bytes_by_group
    for rank in range(4):
        least = least_bytes(program, (rank,))
        assert 0.3 * taken[rank // 2] < least <= taken[rank // 2]
    assert least_bytes(program, range(4)) <= 2 * sum(taken.values())

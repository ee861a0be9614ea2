"""Pipelines in the form of MindSpore's scripts: `pipeline_stage`, `PipelineCell`, `pipeline`."""

import numpy as np
import pytest

from shardwright import nn
from shardwright.dataset import ArrayDataset
from shardwright.ir.errors import OptionError
from shardwright.parallel import AutoParallel
from shardwright.train import Model
from tests.extent import ANY_PLAN, first, long_after

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, 6)).astype(np.float32)
DATA = ArrayDataset({"x": X, "label": (X[:, 0] > 0).astype(np.int32)}).batch(16)


class Net(nn.Cell):
    def __init__(self, stages: tuple[int, ...] = ()) -> None:
        self.first, self.second, self.third, self.last = (
            nn.Dense(6, 8),
            nn.Dense(8, 8),
            nn.Dense(8, 8),
            nn.Dense(8, 3),
        )
        cells = (self.first, self.second, self.third, self.last)
        for cell, stage in zip(cells, stages, strict=False):
            cell.pipeline_stage = stage
        self.tanh = nn.Tanh()

    def construct(self, x):
        for cell in (self.first, self.second, self.third):
            x = self.tanh(cell(x))
        return self.last(x)


class Normalized(Net):
    def __init__(self, stages: tuple[int, ...] = ()) -> None:
        super().__init__(stages)
        stage = self.last.pipeline_stage
        self.last = nn.SequentialCell([nn.BatchNorm1d(8), nn.Dense(8, 3)])
        if stage is not None:
            self.last.pipeline_stage = stage


def losses(network, mode: str = "stand_alone", devices: int = 1, **pipeline: object):
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    how = ANY_PLAN if mode == "auto" else {}
    parallel = AutoParallel(network, mode, devices=devices, cluster="cpu", **how)
    if pipeline:
        parallel.pipeline(**pipeline)
    model = Model(parallel, nn.CrossEntropyLoss(), optimizer)
    return model.train(2, DATA), model.session.executor.graph


@pytest.fixture(scope="module")
def whole() -> list[float]:
    return losses(Net())[0]


@pytest.mark.parametrize(
    "mode", long_after(1, first(2, ["semi_auto", "auto", "data_parallel", "sharding_propagation"]))
)
def test_cells_in_stages_learn_as_on_one_device(whole, mode) -> None:
    network = nn.PipelineCell(Net((0, 0, 1, 1)), 4)
    found, program = losses(network, mode, 4, stages=2)
    assert found == pytest.approx(whole, rel=1e-5)
    assert (program.stages, program.schedule, program.mesh.passes) == (2, "1f1b", 4)
    assert program.mesh.stages == 2
    homes = {p.name: p.value.layout.stage for p in program.parameters if p.role == "weight"}
    assert (homes["first.weight"], homes["last.weight"]) == (0, 1)


@pytest.mark.parametrize(
    ("kind", "loss"),
    [(Net, nn.CrossEntropyLoss(ignore_index=1)), (Normalized, nn.CrossEntropyLoss())],
)
def test_stages_stay_where_values_are_of_the_whole_batch_or_of_groups(kind, loss) -> None:
    """The number of labels that count, and statistics of a normalization, change the program."""

    def run(network, devices: int):
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        parallel = AutoParallel(network, "semi_auto", devices=devices, cluster="cpu")
        model = Model(parallel, loss, optimizer)
        return model.train(2, DATA), model.session.executor.graph

    whole, _ = run(nn.PipelineCell(kind(), 4), 1)
    found, program = run(nn.PipelineCell(kind((0, 0, 1, 1)), 4), 4)
    assert found == pytest.approx(whole, rel=1e-5)
    assert (program.stages, program.mesh.stages) == (2, 2)


@pytest.mark.parametrize(
    ("pipeline", "schedule"),
    [
        ({}, "1f1b"),
        ({"stages": 4, "scheduler": "gpipe"}, "gpipe"),
        ({"stages": 4, "scheduler": "zero_bubble"}, "zero_bubble"),
        ({"stages": 2, "interleave": True}, "interleaved"),
    ],
    ids=str,
)
def test_schedules(whole, pipeline, schedule) -> None:
    network = nn.PipelineCell(Net((0, 1, 2, 3)), 4)
    found, program = losses(network, "semi_auto", 4, **pipeline)
    assert found == pytest.approx(whole, rel=1e-5)
    assert (program.stages, program.schedule) == (4, schedule)


@pytest.mark.long
def test_the_compiler_cuts_a_network_whose_cells_name_no_stages(whole) -> None:
    found, program = losses(nn.PipelineCell(Net(), 4), "auto", 2, stages=2)
    assert found == pytest.approx(whole, rel=1e-5)
    assert program.stages == 2


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"stages": 0}, "`stages` is 0, expected an integer of at least 1"),
        ({"stages": 2, "scheduler": "seqpipe"}, "`scheduler` is `seqpipe`, expected gpipe, 1f1b"),
        ({"stages": 2, "interleave": 1}, "`interleave` is 1, expected"),
        ({"stages": 2, "output_broadcast": True}, "`output_broadcast` is True, expected False"),
        (
            {"stages": 2, "interleave": True, "scheduler": "gpipe"},
            "expected `1f1b` where `interleave`",
        ),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(arguments, what) -> None:
    with pytest.raises(OptionError) as error:
        AutoParallel(Net(), "semi_auto", devices=2).pipeline(**arguments)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("stages", "mode", "pipeline", "what"),
    [
        (
            (0, 0, 1, 2),
            "semi_auto",
            {"stages": 2},
            "have 3 pipeline stages, and `stages` is 2 with",
        ),
        ((), "semi_auto", {"stages": 2}, "is not supported with `mode` semi_auto_parallel"),
        ((0, 1, 2, 3), "auto", {"stages": 2, "scheduler": "gpipe"}, "`gpipe` has one chunk"),
        ((0, 0, 0, 1), "auto", {"stages": 3}, "have 2 pipeline stages, and `stages` is 3"),
    ],
)
def test_stages_that_contradict_each_other_are_refused(stages, mode, pipeline, what) -> None:
    with pytest.raises(OptionError) as error:
        losses(
            nn.PipelineCell(Net(stages), 4), mode, 6 if pipeline["stages"] == 3 else 4, **pipeline
        )
    assert what in str(error.value)

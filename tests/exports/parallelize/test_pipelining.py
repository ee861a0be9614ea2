"""Stages of plans in PyTorch's pipelines, on gloo, compared with one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

sys.path.insert(0, str(Path(__file__).parent))

from parallel_models import PIPELINES, Scores, scores, tokens  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright.exports.table import export  # noqa: E402
from shardwright.ir.errors import PlanError  # noqa: E402
from tests.extent import first  # noqa: E402

SCRIPT = Path(__file__).with_name("pipelining_processes.py")
OPTIONS = {"cluster": "cpu", "optimizer": "sgd", "loss": "cross_entropy"}


def exported(module, devices, plan, **options):
    inputs = {"ids": tokens()}
    compilation = sw.compile(
        module, devices, example_inputs=inputs, plan=plan, **{**OPTIONS, **options}
    )
    return export(compilation.plan, "pipelining")


def test_stages_compute_what_one_device_computes(tmp_path):
    cases = dict(first(3, [*PIPELINES.items()]))
    for name, (devices, plan) in cases.items():
        text = exported(scores(name)[0], devices, plan).files["pipelining.py"]
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, str(SCRIPT), str(tmp_path), *cases]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for name, (size, _) in cases.items():
        found = [json.loads((tmp_path / f"{size}_{r}.json").read_text())[name] for r in range(size)]
        assert max(item["gradients"] for item in found) < 1e-9, name
        every = {n for n, _ in scores(name)[0].named_parameters(remove_duplicate=False)}
        assert {n for item in found for n in item["names"]} == every
        if name == "recomputed":  # 4 micro-batches of a block, forward and backward
            assert [item["blocks"] for item in found] == [8, 8]
        losses = [item["loss"] for item in found if item["loss"] is not None]
        assert sum(losses) / len(losses) == pytest.approx(found[0]["right"], rel=1e-12)


class Twice(Scores):
    """A weight that every block is scaled by."""

    def __init__(self):
        super().__init__(3)
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x) * self.weight
        return self.head(self.norm(x))


class Masked(Scores):
    """Reads its input in every block."""

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x) * (ids > 0)[..., None]
        return self.head(self.norm(x))


class Scaled(Scores):
    """Computes a table once for all blocks."""

    def forward(self, ids):
        x = self.words(ids)
        scale = torch.arange(x.shape[-1]) + 1.0
        for block in self.blocks:
            x = block(x) * scale
        return self.head(self.norm(x))


@pytest.mark.parametrize(
    ("module", "devices", "plan", "message"),
    [
        (Scores(), 2, "data=2", "the plan has one stage"),
        (Scores(), 4, "pipeline=2,tensor=2", r"divide layers \(over tensor\)"),
        (
            Scores(),
            2,
            "pipeline=2,recompute=full,micro_batch=2,schedule=zero_bubble",
            "is computed again for the gradient, and `zero_bubble` of PyTorch goes back",
        ),
        (
            Scores(4),
            2,
            "pipeline=2,chunks=2,micro_batch=2,schedule=zero_bubble_v",
            "`zero_bubble_v` has two stages in a row on one group of processes",
        ),
        (Twice(), 3, "pipeline=3", "`weight` is read in stages 0, 1, 2"),
        (Masked(3), 3, "pipeline=3", "the input `ids` is read in stages 0, 1, 2"),
        (Scores(3, across=True), 3, "pipeline=3", "`embedding` is made or read in stages 0 to 2"),
        (Scaled(3), 3, "pipeline=3", "`constant_0` is made or read in stages 0 to 2"),
    ],
)
def test_what_stages_do_not_do_is_refused_by_name(module, devices, plan, message):
    with pytest.raises(PlanError, match=message):
        exported(module, devices, plan)


def test_micro_batches_that_the_groups_do_not_divide_are_refused():
    plan = "pipeline=2,micro_batch=1,schedule=zero_bubble"
    module, inputs = Scores(), {"ids": tokens()[:5]}
    plan = sw.compile(module, 2, example_inputs=inputs, plan=plan, **OPTIONS).plan
    with pytest.raises(PlanError, match="runs 5 micro-batches on 2 groups in 2 rounds"):
        export(plan, "pipelining")

"""Modules that are parallelized by PyTorch's own calls, on gloo, compared with one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

sys.path.insert(0, str(Path(__file__).parent))

from parallel_models import CASES, made  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright.exports.table import export  # noqa: E402
from tests.extent import first  # noqa: E402

SCRIPT = Path(__file__).with_name("processes.py")
# By case: collectives that PyTorch counts in a step, and those of the plan.
COUNTS = {
    # Gradients of the list of layers and of the head are reduced together; the loss is not summed.
    "perceptron_copies": ({"all_reduce": 3}, {"all_reduce": 5}),
    # The block and the rest are gathered twice and reduced once.
    "llama_sharded": (
        {"all_gather": 4, "reduce_scatter": 2},
        {"all_gather": 25, "reduce_scatter": 12, "all_reduce": 2},
    ),
    # Six of tensor ranks as in the plan, two of gradients; the scores are gathered.
    "llama_tensor": ({"all_reduce": 8, "all_gather": 1}, {"all_reduce": 23}),
}


def test_parallelized_modules_are_those_of_one_device(tmp_path):
    if any(model == "llama" for model, _ in map(CASES.get, first(5, [*CASES]))):
        pytest.importorskip("transformers", reason="needs transformers")
    planned = {}
    for name in first(5, [*CASES]):
        module, inputs, plan = made(name)
        options = {"plan": plan, "optimizer": "sgd", "cluster": "cpu"}
        compilation = sw.compile(module, 4, example_inputs=inputs, **options)
        exported = export(compilation.plan, "parallelize")
        assert ("not the plan itself" in exported.notes[0]) == (plan is None)
        (tmp_path / f"{name}.py").write_text(exported.files["parallelize.py"])
        volumes = compilation.plan.document.communication
        planned[name] = {kind: v.count for kind, v in volumes.items() if v.count}
    command = [sys.executable, str(SCRIPT), str(tmp_path), *planned]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for rank in range(4):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert "before `out` the code of the module computes something else" in found.pop("counted")
        for name, item in found.items():
            assert item["loss"] < 1e-9, (name, item)
            assert item["gradients"] < 1e-9, (name, item)
            assert item["said"] < 1e-9, (name, item)
        for name in COUNTS.keys() & found.keys():
            assert (found[name]["counts"], planned[name]) == COUNTS[name]

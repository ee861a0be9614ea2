"""Exported packages with pipeline stages, run on gloo by processes, compared with autograd."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

sys.path.insert(0, str(Path(__file__).parent))

from staged_models import CASES, made  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright.dataflow.stages import pipeline_of  # noqa: E402
from shardwright.exports.table import export, write_export  # noqa: E402
from shardwright.operators.communication.collectives import Communication  # noqa: E402
from shardwright.operators.communication.rings import RingOperator  # noqa: E402
from shardwright.operators.info import operator_class  # noqa: E402

LOCAL = ("local_slice", "to_partial", "mirror")
SCRIPT = Path(__file__).with_name("staged_processes.py")


def communication(program, group):
    """Return how often a device group communicates in a step; see `_moves`."""
    counts: Counter[str] = Counter()
    parts = [(runs, program.mesh.passes) for runs in group.segments.values()]
    for runs, times in (*parts, (group.before, 1), (group.after, 1)):
        for run in runs:
            node = program.nodes[run.position]
            if _moves(node, run.kind, group.group, program.mesh):
                counts[node.operator] += times
    return {kind: n for kind, n in counts.items() if kind not in LOCAL}


def _moves(node, kind, group, mesh):
    """Return whether a device group sends something when it runs a node.

    What a stage hands to another of its own group does not move.
    """
    if node.operator == "transfer":
        stage = node.results[0].layout.stage
        stays = stage is not None and mesh.stage_map.group(stage) == group
        return kind == "send" and not stays
    moves = issubclass(operator_class(node.operator), Communication | RingOperator)
    return moves and not set(node.attributes.get("axes") or [""]) <= set(mesh.in_time)


def test_packages_with_stages_train_as_the_module_does(tmp_path):
    for name, plan in CASES.items():
        module, inputs = made()
        more = {"optimizer": "sgd", "cluster": "cpu", "plan": plan}
        compiled = sw.compile(module, 4, example_inputs=inputs, **more).plan
        write_export(tmp_path / f"package_{name}", export(compiled, "torch"))
        groups = pipeline_of(compiled.program).groups
        counts = [communication(compiled.program, group) for group in groups]
        volumes = {kind: v.count for kind, v in compiled.document.communication.items() if v.count}
        assert volumes in counts
        (tmp_path / f"package_{name}" / "counts.txt").write_text(repr(counts))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(tmp_path), *CASES]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == list(CASES)

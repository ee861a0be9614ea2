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


def communication(program, moving=True):
    """Return how often each device group of a program communicates in a step.

    What a stage hands to another of its own group does not move; `moving` leaves it out.
    """
    found = []
    for group in pipeline_of(program).groups:
        counts: Counter[str] = Counter()
        for runs, times in (
            (group.before, 1),
            *((runs, program.mesh.passes) for runs in group.segments.values()),
            (group.after, 1),
        ):
            for run in runs:
                node = program.nodes[run.position]
                axes = node.attributes.get("axes", ())
                in_time = set(program.mesh.in_time).issuperset(axes or ("",))
                moves = issubclass(operator_class(node.operator), Communication | RingOperator)
                if run.kind == "send":
                    target = node.results[0].layout.stage
                    stays = target is not None and target % program.mesh.stages == group.group
                    counts["transfer"] += 0 if stays and moving else times
                elif run.kind == "run" and moves and not in_time:
                    counts[node.operator] += times
        found.append({k: n for k, n in counts.items() if n and k not in LOCAL})
    return found


def test_packages_with_stages_train_as_the_module_does(tmp_path):
    for name, plan in CASES.items():
        module, inputs = made()
        more = {"optimizer": "sgd", "cluster": "cpu", "plan": plan}
        compiled = sw.compile(module, 4, example_inputs=inputs, **more).plan
        write_export(tmp_path / f"package_{name}", export(compiled, "torch"))
        counts = communication(compiled.program)
        volumes = {kind: v.count for kind, v in compiled.document.communication.items() if v.count}
        assert volumes in communication(compiled.program, moving=False)
        (tmp_path / f"package_{name}" / "counts.txt").write_text(repr(counts))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(tmp_path), *CASES]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == list(CASES)

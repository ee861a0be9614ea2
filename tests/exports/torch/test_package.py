"""Exported packages, run on gloo by processes: losses, gradients and parameters are autograd's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

sys.path.insert(0, str(Path(__file__).parent))

from exported_models import CASES, made  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright.exports.table import export, write_export  # noqa: E402

SCRIPT = Path(__file__).with_name("processes.py")


def test_exported_packages_train_as_the_module_does(tmp_path):
    for name in CASES:
        module, inputs, options = made(name)
        more = {"optimizer": "sgd", "effort": 1 / 6}
        compilation = sw.compile(module, 4, example_inputs=inputs, **more, **options)
        write_export(tmp_path / f"package_{name}", export(compilation.plan, "torch"))
        volumes = compilation.plan.document.communication
        counts = {kind: volume.count for kind, volume in volumes.items()}
        (tmp_path / f"package_{name}" / "counts.txt").write_text(repr(counts))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == list(CASES)

import re
import subprocess
import sys

import numpy as np
import pytest

from tests.shardwright.scripts.launching import ROOT, losses, needs_digits, needs_mpi

EXAMPLES = ROOT / "examples" / "mindspore"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if "def main(" in path.read_text())
OTHERS = ("parameter_server", "resnet50_cifar")  # not four equal ranks, or larger


def printed(name, ranks, tmp_path, samples=512):
    needs_digits()
    logs = tmp_path / "logs"
    command = [sys.executable, "-m", "shardwright", "launch", "-n", str(ranks)]
    command += [f"--log_dir={logs}", str(EXAMPLES / f"{name}.py")]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "SAMPLES": str(samples)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    several = [(logs / f"worker_{rank}.log").read_text() for rank in range(ranks)]
    assert losses(several[-1]) == losses(done.stdout)
    assert (logs / "1" / "rank.1" / "stdout").read_text() == several[1]
    return done.stdout


def test_there_is_an_example_of_every_task():
    assert SCRIPTS == [
        "auto_parallel",
        "data_parallel",
        "lenet",
        "manual_parallel",
        "optimizer_parallel",
        "parameter_server",
        "resnet50_cifar",
        "semi_auto_parallel",
    ]


@needs_mpi
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in OTHERS])
def test_examples_learn_on_four_processes(name, tmp_path):
    text = printed(name, 4, tmp_path)
    found = losses(text)
    assert found[-1] < 1.5  # scores of chance have the loss 2.3
    if name == "data_parallel":
        assert float(re.findall(r"accuracy: ([\d.]+)", text)[0]) > 0.5
    if name == "lenet":
        assert "the checkpoint gives the same scores: True" in text


@needs_mpi
def test_the_residual_network_learns_on_two_processes(tmp_path):
    found = losses(printed("resnet50_cifar", 2, tmp_path, 256))
    assert len(found) == 2
    assert np.isfinite(found).all()

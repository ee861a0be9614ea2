"""Exported packages, run by a process with 4 devices: losses, gradients, parameters are JAX's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="needs JAX")

SCRIPT = Path(__file__).with_name("devices.py")


def test_exported_packages_train_as_the_function_does(tmp_path):
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == "done"

"""An exported mixture, run by a process with 8 devices: its losses and gradients are JAX's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="needs JAX")
if not hasattr(jax.lax, "ragged_dot"):
    pytest.skip("a release without products of groups", allow_module_level=True)

from shardwright.exports.jax.support import rows  # noqa: E402

SCRIPT = Path(__file__).with_name("mixture_devices.py")


def test_exported_mixtures_train_as_the_function_does(tmp_path):
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == "done"


@pytest.mark.parametrize("transposed", [False, True])
def test_products_without_groups_of_jax_are_the_same(transposed, monkeypatch):
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    mask = (jax.random.uniform(keys[0], (4, 3, 8)) < 0.4).at[2].set(False)
    dense = jax.random.normal(keys[1], (4, 3, 8, 6))
    x, y = rows.taken(dense, mask, 4), rows.taken(dense[..., :5] ** 2, mask, 4)
    matrices = jax.random.normal(keys[2], (4, 5, 6) if transposed else (4, 6, 5))

    def products():
        made = rows.dense_of(rows.grouped_matmul(x, matrices, transposed=transposed))
        return made, rows.grouped_outer(x, y)

    grouped = products()
    monkeypatch.setattr(rows, "_has_groups", False)
    for found, right in zip(products(), grouped, strict=True):
        assert abs(found - right).max() < 1e-5
    assert not grouped[1][2].any()

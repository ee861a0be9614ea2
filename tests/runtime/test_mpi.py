import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardwright.ir.errors import ExecutionError, PackageError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.runtime import MpiCommunicator

PROGRAM = Path(__file__).with_name("mpi_program.py")
ROOT = Path(__file__).parents[2]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or MPIEXEC is None,
    reason="mpi4py or mpiexec is not installed (the extra `mpi` has both)",
)


def mpiexec(task: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    assert MPIEXEC is not None
    command = [MPIEXEC, "-n", "4", sys.executable, str(PROGRAM), task, str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@needs_mpi
@pytest.mark.parametrize(
    "task", ["exchanges", "micro_batches", "native", "rings", "rows", "training"]
)
def test_four_processes_compute_what_one_does(task: str, tmp_path: Path):
    done = mpiexec(task, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    if task == "training":
        logs = [(tmp_path / f"rank.{rank}" / "stdout").read_text() for rank in range(4)]
        assert logs[0].startswith("epoch: 1 step: 1, loss is ")
        assert logs == [logs[0]] * 4


@needs_mpi
def test_a_failing_process_ends_the_others(tmp_path: Path):
    done = mpiexec("fail", tmp_path)
    assert done.returncode != 0
    assert "rank 2: planted" in done.stderr


def test_without_mpi_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(PackageError, match=r"run `pip install 'shardwright\[mpi\]'`"):
        MpiCommunicator(Mesh((MeshAxis("x", 2),)))


def test_a_wrong_number_of_processes_is_told_once(monkeypatch: pytest.MonkeyPatch):
    mesh = Mesh((MeshAxis("x", 2),))
    for rank in range(3):
        world = SimpleNamespace(size=3, rank=rank)
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(COMM_WORLD=world))
        with pytest.raises((ExecutionError, SystemExit)) as caught:
            MpiCommunicator(mesh)
        if rank:
            assert isinstance(caught.value, SystemExit)
            assert caught.value.code == 0  # the first rank's code is that of `mpiexec`
        else:
            assert "has 2 ranks, MPI runs 3 processes; start it with `mpiexec -n 2`" in str(
                caught.value
            )


def test_importing_the_runtime_starts_no_mpi():
    program = "import sys, shardwright.runtime; sys.exit('mpi4py' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)

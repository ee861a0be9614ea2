"""``verify --backend mpi``: every process runs its own rank, and all say the same of the plan."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shardwright as sw

PROGRAM = Path(__file__).with_name("mpi_verify.py")
ROOT = Path(__file__).parents[3]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or MPIEXEC is None,
    reason="mpi4py or mpiexec is not installed (the extra `mpi` has both)",
)
GPT = "gpt:layers=4,hidden=8,heads=2,batch=8,sequence=4,vocabulary=12,dtype=float32"
# Names of plans, with their options: schedules of pipelines, and plans of one stage.
KINDS = {
    2: {
        "gpipe": {"plan": "pipeline=2,micro_batch=2,schedule=gpipe"},
        "zero_bubble": {"plan": "pipeline=2,micro_batch=2,schedule=zero_bubble"},
        "zero_bubble_v": {"plan": "pipeline=2,chunks=2,micro_batch=2,schedule=zero_bubble_v"},
        "dualpipe_v": {"plan": "pipeline=2,chunks=2,micro_batch=1,schedule=dualpipe_v"},
        "interleaved": {"plan": "pipeline=2,chunks=2,micro_batch=2,schedule=interleaved"},
        "recomputed": {"plan": "data=2,zero=3,recompute=full,micro_batch=2"},
    },
    4: {
        "gpipe": {"plan": "pipeline=2,tensor=2,micro_batch=2,schedule=gpipe"},
        "1f1b": {"plan": "pipeline=4,micro_batch=2,recompute=full"},
        "bfloat16": {"plan": "data=2,tensor=2,zero=2", "precision": "bfloat16"},
    },
}


def mpiexec(processes: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    assert MPIEXEC is not None
    command = [MPIEXEC, "-n", str(processes), sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def write(processes: int, name: str, directory: Path) -> None:
    options = {"optimizer": "adam", **KINDS[processes][name]}
    sw.compile(GPT, processes, cluster="cpu", **options).write(directory)


def edit(directory: Path, pattern: str, replacement: str) -> None:
    path = directory / "program.ir"
    text, count = re.subn(pattern, replacement, path.read_text(), count=1)
    assert count
    path.write_text(text)


@pytest.mark.parametrize("processes", [2, 4])
def test_all_processes_say_the_same(processes: int, tmp_path: Path) -> None:
    for name in KINDS[processes]:
        write(processes, name, tmp_path / name)
    shutil.copytree(tmp_path / "gpipe", tmp_path / "scaled")
    edit(tmp_path / "scaled", r"factor=0\.\d+", "factor=0.7")
    shutil.copytree(tmp_path / "gpipe", tmp_path / "lost")
    edit(tmp_path / "lost", r"transfer\((add_\d+)\)", r"relu(\1)")
    done = mpiexec(processes, str(PROGRAM), str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for name in KINDS[processes]:
        assert said[name] == [[True, True, None, None]] * processes
    for name in ("scaled", "lost"):
        proven, equal, tensor, reason = said[name][0]
        assert (proven, equal) == (False, False)
        assert tensor
        assert reason
        assert said[name] == [said[name][0]] * processes


def test_the_command_and_its_errors_speak_once(tmp_path: Path) -> None:
    write(2, "gpipe", tmp_path / "plan")
    write(2, "zero_bubble", tmp_path / "other")

    def verify(processes: int, plan: str) -> tuple[int, str, str]:
        done = mpiexec(processes, "-m", "shardwright", "verify", plan, "--backend", "mpi")
        return done.returncode, done.stdout, done.stderr

    code, out, err = verify(2, str(tmp_path / "plan"))
    assert (code, err) == (0, "")
    assert out.count("on 2 ranks in as many processes agree") == 1
    code, out, err = verify(2, str(tmp_path / "nowhere"))
    assert (code, out) == (2, "")
    assert err.startswith("shardwright: there is no such plan")
    assert err.count("\n") == 1
    (tmp_path / "script").write_text(
        f'd=plan; [ $PMI_RANK = 1 ] && d=other; exec "$1" -m shardwright verify "{tmp_path}/$d" '
        "--backend mpi"
    )
    assert MPIEXEC is not None
    command = [MPIEXEC, "-n", "2", "bash", str(tmp_path / "script"), sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "shardwright: process 1 has read another plan than process 0; give all processes the same "
        "folder, or copies of it\n",
    )


def test_a_step_that_fails_is_told_once_and_ends_all_processes(tmp_path: Path) -> None:
    write(2, "gpipe", tmp_path / "plan")
    done = mpiexec(2, str(PROGRAM), str(tmp_path), "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "shardwright: rank 1: planted\n" in done.stderr
    assert done.stderr.count("planted") == 1
    done = mpiexec(2, str(PROGRAM), str(tmp_path), "0,1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "shardwright: planted\n"

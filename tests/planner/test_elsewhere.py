"""Searches whose tasks run in an MPI run, and on a Dask cluster of this machine."""

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardwright.ir.errors import OptionError, PackageError
from shardwright.ir.optional import is_installed, optional
from shardwright.passes.base import PASSES
from shardwright.planner.executors import elsewhere

ROOT = Path(__file__).parents[2]
MODEL = "gpt:layers=2,hidden=32,heads=4,batch=8,sequence=8,vocabulary=64"
RUN = (MODEL, "--devices", "4")
OPTIONS = ("--mesh", "search", "--micro-batches", "search", "--effort", "0.02")
has_dask = pytest.mark.skipif(not is_installed("distributed"), reason="Dask is not installed")
has_mpi = pytest.mark.skipif(not is_installed("mpi4py"), reason="mpi4py is not installed")


def compiled(tmp_path, *options, launcher=()):
    """Return the bytes of the plan of a command, and what it writes to standard error."""
    place = tmp_path / f"plan {len(list(tmp_path.iterdir()))}"
    words = ["-m", "shardwright", "compile", *RUN, *OPTIONS, *options, "--out", str(place)]
    command = [*launcher[:-2], sys.executable, *launcher[-2:], *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return (place / "plan.json").read_bytes(), ended.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("alone"), "--workers", "1")[0]


@contextmanager
def cluster(workers=2):
    """Begin a Dask cluster whose workers are processes; yield its address and its workers."""
    distributed = optional("distributed", extra="dask", need="the test")
    with distributed.LocalCluster(
        workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as one:
        yield one.scheduler_address.replace("tcp://", elsewhere.DASK), one


@has_dask
def test_a_dask_cluster_finds_the_same_plan(alone, tmp_path):
    with cluster() as (address, _):
        plan, told = compiled(tmp_path, "--executor", address)
    assert plan == alone
    assert "done again" not in told


@has_mpi
def test_an_mpi_run_finds_the_same_plan(alone, tmp_path):
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    launcher = (mpiexec, "-n", "3", "-m", "mpi4py.futures")
    plan, told = compiled(tmp_path, "--executor", "mpi", launcher=launcher)
    assert plan == alone
    assert "done again" not in told


@has_dask
def test_what_the_workers_of_a_cluster_leave_is_done_here(alone, tmp_path):
    with cluster() as (address, one), ThreadPoolExecutor(1) as thread:
        running = thread.submit(compiled, tmp_path, "--executor", address)
        while not one.scheduler.tasks and not running.done():
            time.sleep(0.05)
        one.scale(0)
        plan, told = running.result()
    assert plan == alone
    assert re.search(r"the worker tcp://\S+ has gone; its tasks are done again", told)
    assert re.search(r"the process of the search of .* has gone; it is done again", told)


class Plugin:
    """Stands for a pass that a plugin registers."""


@has_dask
def test_a_cluster_that_cannot_run_tasks_is_refused(monkeypatch):
    with cluster(1) as (address, one):
        monkeypatch.setitem(PASSES._items, "of_a_plugin", Plugin)
        with pytest.raises(OptionError) as other:
            elsewhere.dask_workers(address, abs)
        one.scale(0)
        one.sync(one.scheduler.retire_workers)
        with pytest.raises(OptionError) as empty:
            elsewhere.dask_workers(address, abs)
    assert "has another shardwright, or none; install the same version of" in str(other.value)
    assert str(empty.value) == (
        f"`executor` is {address}, which has no worker; start some with `dask worker "
        f"{address.replace('dask', 'tcp')}`"
    )


@has_dask
def test_an_address_without_a_scheduler_is_refused(monkeypatch):
    monkeypatch.setattr(elsewhere, "ANSWER", 0.5)
    with pytest.raises(OptionError) as error:
        elsewhere.dask_workers("dask://127.0.0.1:9", abs)
    assert str(error.value) == (
        "`executor` is dask://127.0.0.1:9, where no Dask scheduler answers; start one with "
        "`dask scheduler`, and workers with `dask worker`"
    )


@pytest.mark.skipif(is_installed("distributed"), reason="Dask is installed")
def test_without_dask_its_executor_is_refused():
    with pytest.raises(PackageError) as error:
        elsewhere.dask_workers("dask://127.0.0.1:9", abs)
    assert str(error.value) == (
        "`executor` dask needs `distributed`, which is not installed; "
        "run `pip install 'shardwright[dask]'`"
    )


@has_mpi
def test_outside_of_an_mpi_run_its_executor_is_refused():
    with pytest.raises(OptionError) as error:
        elsewhere.mpi_workers(abs)
    assert str(error.value) == (
        "`executor` is mpi, and this is no MPI run with workers; begin it with "
        "`mpiexec -n 4 python -m mpi4py.futures -m shardwright ...`"
    )

"""What a launcher that is killed or asked to end leaves: nothing, and what its ranks have saved."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import processes_in

from shardwright.tools.launch import terminated_as_interrupted
from shardwright.tools.launch.supervision import Supervisor
from tests.shardwright.scripts.launching import needs_mpi
from tests.shardwright.server.runs import free_port, needs_grpc

ROOT = Path(__file__).parents[3]
RANK = """
import signal
import sys
import time
from pathlib import Path
from shardwright.communication import get_rank, init

def save(number, frame):
    (here / "saved").write_text("")
    sys.exit(0)

here = Path(__file__).parent
signal.signal(signal.SIGTERM, save)
init()
(here / f"started-{get_rank()}").write_text("")
time.sleep(999)
"""
PROCESSES = {"ranks": ["-n", "2"], "servers": ["-n", "2", "--server_num", "1"]}


def wait_until(holds):
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@needs_mpi
@needs_grpc
@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_all_that_a_launcher_has_started_ends_with_it(processes, number, tmp_path):
    script = RANK
    if processes == "servers":
        context = "import shardwright.mindspore as ms\nms.set_ps_context(enable_ps=True)\n"
        script = context + script.replace("shardwright.comm", "shardwright.mindspore.comm")
    (tmp_path / "train.py").write_text(script)
    note = tmp_path / "logs" / ".ranks" / "rank.0.segments"
    shared = []
    options = [*PROCESSES[processes], "--master_port", str(free_port()), "--log_dir", "logs"]
    process = subprocess.Popen(
        [sys.executable, "-m", "shardwright", "launch", *options, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: len(list(tmp_path.glob("started-*"))) == 2)
        if processes == "ranks":
            wait_until(lambda: note.exists() and note.read_text())
            shared = note.read_text().split()
            assert set(shared) <= set(os.listdir("/dev/shm"))
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        wait_until(lambda: not processes_in(tmp_path))
    finally:
        process.kill()
    if number == signal.SIGKILL:
        Supervisor(note.parent, range(2), 1.0).begin()  # as the next start does
    else:
        assert (tmp_path / "saved").exists()
        assert process.returncode == 130
        assert said == "shardwright: interrupted\n"
    assert set(shared).isdisjoint(os.listdir("/dev/shm"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_launcher_are_interrupts_unless_they_are_ignored(number):
    before = signal.getsignal(number)
    try:
        with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
            signal.raise_signal(number)
        signal.signal(number, signal.SIG_IGN)  # as `nohup` does
        if number == signal.SIGHUP:
            with terminated_as_interrupted():
                signal.raise_signal(number)
    finally:
        signal.signal(number, before)

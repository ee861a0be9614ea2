import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import Run, processes_in

from shardwright.tools.main import main
from tests.shardwright.scripts.launching import needs_mpi

pytest.importorskip("safetensors")
ROOT = Path(__file__).parents[3]


@needs_mpi
def test_a_killed_rank_is_named_and_the_run_goes_on_to_the_bit(tmp_path):
    found = {}
    for name, kills in (("unbroken", False), ("killed", True)):
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name, ranks=2, timeout=60, epochs=1)
        while kills and not run.is_at(0, 11) and run.process.poll() is None:
            time.sleep(0.002)
        if kills:
            os.kill(run.pids()[1], signal.SIGKILL)
        code, said = run.end(300)
        assert code == 0, said
        found[name] = run.losses()
        assert processes_in(tmp_path / name) == []
    assert re.match(
        r"shardwright: rank 1 died by signal 9 \(SIGKILL\) (in|after) step 1\d.*; the newest "
        r"checkpoint is .*/checkpoints/step-7; the logs are in logs\n"
        r"shardwright: start 2 of 2\n$",
        said,
    )
    assert found["killed"] == found["unbroken"]
    assert len(found["unbroken"]) == 20


STUCK = """
import time
from shardwright.communication import get_rank, init
from shardwright.runtime.agreement import gathered
init()
if int(get_rank()) == 0:
    WHAT
gathered("group", 1)
"""


@needs_mpi
@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "time.sleep(99)",
            "no rank went on for 8 s: rank 0 stands before its first step, where it runs after "
            "`MPI_Init` with all ranks; rank 1 stands before its first step, where it waits in "
            "`group` with all ranks; there is no checkpoint; the logs are in logs\n",
        ),
        ("raise ValueError('mine')", "rank 0 failed before its first step: ValueError: mine; "),
        ("raise SystemExit(0)", "no rank went on for 8 s: rank 0 stands after the end of its "),
    ],
)
def test_ranks_that_wait_for_ever_are_ended(what, said, tmp_path):
    (tmp_path / "train.py").write_text(STUCK.replace("WHAT", what))
    options = ["--log_dir", "logs", "--timeout", "8", "train.py"]
    found = subprocess.run(
        [sys.executable, "-m", "shardwright", "launch", "-n", "2", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 1
    assert found.stderr.startswith(f"shardwright: {said}")
    assert found.stderr.count("\n") == 1
    assert processes_in(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--restarts", "-1"], "`--restarts` is -1, expected an integer of at least 0"),
        (["--master_port", "65536"], "expected an integer of at least 1 and below 65536"),
        (["--timeout", "0"], "`--timeout` is 0, expected a number above 0"),
        (["--restarts", "1", "--join", "False"], "`--restarts` has no effect with `--join False`"),
        (["--fast", "--server_num", "1"], "`--fast` has no effect with parameter servers"),
    ],
)
def test_wrong_options(options, what, tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("")
    assert main(["launch", "-n", "2", *options, str(script)]) == 2
    assert what in capsys.readouterr().err

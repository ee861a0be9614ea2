"""Starting a benchmark's own script as several processes of MPI."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def launched(script: str, processes: int, *arguments: object) -> Any:
    """Run a script with ``--worker`` as so many processes; return the JSON of its last line.

    One thread of BLAS each.
    """
    command = ["mpiexec", "-n", str(processes), sys.executable, script, "--worker"]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment = {**os.environ, **threads, "PYTHONPATH": str(Path(__file__).parents[1])}
    command += map(str, arguments)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])

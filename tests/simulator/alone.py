"""Seeds that run alone: each in a process of its own, with other hashes of texts."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]


def digests_alone(protocol: str, count: int) -> list[str]:
    """Return the sums of the first seeds of a protocol, none of which ran after another one."""
    found = subprocess.run(
        [sys.executable, "-m", __name__, protocol, str(count)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.split()


def _main(protocol: str, count: int) -> None:
    run = getattr(import_module(f"tests.simulator.{protocol}"), protocol)
    for seed in range(count):
        child = os.fork()
        if not child:
            print(run(seed).digest, flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))

"""How often the sentence of a process that ends all processes reaches the terminal.

    python benchmarks/endings.py --runs 200

Both of two processes fail at once, or one while the other waits for it. MPI's launcher hears of the
end and reads what the processes wrote at about the same time.
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

PROGRAM = """
from shardwright.ir.errors import ModelError
from shardwright.runtime.agreement import end_together
from shardwright.runtime.encrypted import messaging

end_together()
world = messaging().COMM_WORLD
world.Barrier()
if {everyone} or world.rank == 0:
    raise ModelError("the processes have different options", hint="give all the same")
world.Barrier()
"""
SENTENCES = [
    f"rank {rank}: the processes have different options; give all the same\n" for rank in (0, 1)
]


def outcome(everyone: bool) -> str:
    """Run the program once; return whether a sentence was told."""
    command = ["mpiexec", "-n", "2", sys.executable, "-c", PROGRAM.format(everyone=everyone)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    told = any(sentence in done.stderr for sentence in SENTENCES)
    return f"{'told' if told else 'not told'}, exit code {done.returncode}"


def main() -> None:
    """Run the program as often as asked, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="of each kind")
    runs = parser.parse_args().runs
    for everyone in (True, False):
        found = Counter(outcome(everyone) for _ in range(runs))
        print("both fail:" if everyone else "one fails:", dict(found), flush=True)


if __name__ == "__main__":
    main()

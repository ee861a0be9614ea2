"""Runs on every rank under mpiexec: verifies the plans of a directory over MPI.

Prints, from rank 0, what each process says of each plan, as JSON. With `fail`, some ranks fail.
"""

import json
import sys
from pathlib import Path

from shardwright.compiler.plans.files import read_plan
from shardwright.ir.errors import ExecutionError
from shardwright.runtime import Executor, MpiCommunicator
from shardwright.runtime.agreement import gathered
from shardwright.verification.verdict import judge


def main(directory: Path, failing: str) -> None:
    said = {}
    for path in sorted(directory.iterdir()):
        plan = read_plan(path, allow_edited=True)
        with MpiCommunicator(plan.mesh) as mpi:
            if failing:
                plant(mpi.ranks[0], [int(rank) for rank in failing.split(",")])
            verdict = judge(plan, 2, communicator=mpi)
            own = (verdict.proof.proven, verdict.equal, verdict.first_difference, verdict.reason)
            said[path.name] = gathered("verdict of a test", own)
    if mpi.ranks[0] == 0:
        print(json.dumps(said))


def plant(rank: int, failing: list[int]) -> None:
    """Let a step fail on some ranks."""
    step = Executor.step

    def broken(*arguments, **named):
        if rank in failing:
            raise ExecutionError("planted")
        return step(*arguments, **named)

    Executor.step = broken


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
    except ExecutionError as error:
        sys.exit(2 * bool(sys.stderr.write(f"shardwright: {error}\n")))

"""``shardwright verify``: a plan against the program of one device."""

import argparse
import sys
from pathlib import Path

from shardwright.passes.plan_files import is_edited, read_plan
from shardwright.tools.documents import print_document, verify_document
from shardwright.tools.options import add_operators, positive
from shardwright.tools.progress import counting
from shardwright.tools.tables import styled
from shardwright.verification import TOLERANCE, verify_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="directory of a plan")
    parser.add_argument(
        "--steps", type=positive, default=3, metavar="N", help="steps to train and compare (3)"
    )
    add_operators(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Verify; a plan that differs gives exit code 1."""
    plan = read_plan(arguments.plan, allow_edited=True)
    if is_edited(arguments.plan, plan):
        sys.stderr.write("shardwright: `program.ir` was edited after the plan was written\n")
    with counting("verifying", arguments.steps) as advance:
        result = verify_plan(plan, arguments.steps, progress=advance)
    if arguments.json:
        print_document(verify_document(result))
    elif result.equal:
        print(
            styled("equal", "bold green")
            + f": {result.tensors} tensors on {plan.mesh.size} ranks agree with the program of "
            f"one device over {arguments.steps} steps\n"
            f"largest relative error {result.max_relative_error:.2g}, allowed {TOLERANCE:g}"
        )
    else:
        print(styled("different", "bold red") + f": `{result.first_difference}`: {result.reason}")
    return 0 if result.equal else 1

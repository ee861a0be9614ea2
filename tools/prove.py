"""``shardwright prove``: a plan computes the training step of its model, at full size."""

import argparse
import textwrap
from pathlib import Path

from shardwright.compiler.plans.files import is_edited, read_plan
from shardwright.compiler.plans.plan import Plan
from shardwright.proof import Proof, prove
from shardwright.tools.console.arguments import width
from shardwright.tools.console.endings import ExitCode, say
from shardwright.tools.console.tables import styled
from shardwright.tools.reports.documents import print_document, prove_document


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="directory of a plan")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Prove; exit code 1 for a plan that is refused, 4 where no proof can be tried."""
    plan = read_plan(arguments.plan, allow_edited=True)
    tell_of_edits(arguments.plan, plan)
    proof = prove(plan)
    if arguments.json:
        print_document(prove_document(proof))
    else:
        print_proof(proof)
        print_trusted(proof)
    return exit_code(proof.proven)


def tell_of_edits(directory: Path, plan: Plan) -> None:
    """Write a line on standard error if the program of a plan was edited."""
    if is_edited(directory, plan):
        say("`program.ir` was edited after the plan was written")


def exit_code(is_right: bool | None) -> int:
    """Return the exit code of an outcome."""
    if is_right is None:
        return ExitCode.UNDECIDED
    return ExitCode.RIGHT if is_right else ExitCode.DIFFERENT


def print_proof(proof: Proof) -> None:
    """Print the theorem, or the node at which the proof fails."""
    if proof.proven:
        head, style = "proven", "bold green"
        text = (
            f"the {proof.nodes:,} nodes of the program compute the training step of the model, at "
            f"full size ({proof.seconds:.2f} s)"
        )
    elif proof.proven is None:
        head, style, text = "no proof", "bold yellow", str(proof.reason)
    else:
        head, style = "not proven", "bold red"
        text = f"`{proof.first_failure}`: {proof.reason}"
    print(styled(head, style) + f": {text}")


def print_trusted(proof: Proof) -> None:
    """Print the assumptions of a proof."""
    print("assumptions:")
    for sentence in proof.trusted:
        lines = textwrap.wrap(sentence, width() - 4)
        print("\n".join([f"  - {lines[0]}", *(f"    {line}" for line in lines[1:])]))

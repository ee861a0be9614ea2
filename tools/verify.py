"""``shardwright verify``: a proof of a plan, and a comparison of numbers with one device."""

import argparse
import math
from pathlib import Path

from shardwright.compiler.plans.files import read_plan
from shardwright.compiler.plans.plan import Plan
from shardwright.ir.rounding import EQUAL
from shardwright.ir.values import POSITIVE_INTEGER
from shardwright.tools.console.arguments import add_number
from shardwright.tools.console.progress import counting
from shardwright.tools.console.tables import styled
from shardwright.tools.prove import exit_code, print_proof, tell_of_edits
from shardwright.tools.reports.documents import print_document, verify_document
from shardwright.tools.run import add_backend, agreed_plan, communicator_of
from shardwright.verification.rounding import Rounding
from shardwright.verification.verdict import Verdict, judge


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="directory of a plan")
    add_backend(parser)
    text = "steps to train and compare (default 3)"
    add_number(parser, "--steps", POSITIVE_INTEGER, text, "N", 3)
    parser.add_argument(
        "--full", action="store_true", help="run the plan itself, however large it is"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Verify; exit code 1 for a plan that differs, 4 where nothing is known."""
    backend, directory = arguments.backend, arguments.plan
    plan = agreed_plan(backend, lambda: read_plan(directory, allow_edited=True))
    with communicator_of(backend, plan.mesh) as communicator:
        speaks = communicator.ranks[0] == 0
        if speaks:
            tell_of_edits(directory, plan)
        with counting("verifying", arguments.steps if speaks else 0) as advance:
            verdict = judge(
                plan,
                arguments.steps,
                full=arguments.full,
                progress=advance,
                communicator=communicator,
            )
    if speaks:
        _tell(arguments, plan, verdict)
    return exit_code(verdict.is_right)


def _tell(arguments: argparse.Namespace, plan: Plan, verdict: Verdict) -> None:
    if arguments.json:
        print_document(verify_document(verdict))
        return
    print_proof(verdict.proof)
    ranks = f"on {plan.mesh.size} ranks"
    if arguments.backend == "mpi":
        ranks += " in as many processes"
    _print_numbers(verdict, ranks, arguments.steps)
    print(
        "trusted: rules, kernels and gradients of operators, collectives, the runtime, real "
        "arithmetic\n(`shardwright prove` lists the assumptions)"
    )


def _print_numbers(verdict: Verdict, ranks: str, steps: int) -> None:
    if verdict.equal is None:
        print("not run: the plan is too large to run here; `--full` runs it")
        return
    if not verdict.equal:
        print(styled("different", "bold red") + f": `{verdict.first_difference}`: {verdict.reason}")
        return
    if verdict.samples is None:
        print(
            styled("equal", "bold green")
            + f": {verdict.tensors} tensors {ranks} agree with the program of one device over "
            f"{steps} steps"
        )
    else:
        print(
            styled("equal", "bold green")
            + f": {verdict.tensors} operators in their layouts, on small shapes and mesh axes of "
            "size 2, agree with\nthe whole (a shrunken run: the plan itself is too large to run "
            "here; `--full` runs it)"
        )
        if verdict.samples.skipped:
            print(f"not run: {', '.join(f'`{name}`' for name in verdict.samples.skipped)}")
    print(f"largest relative error {verdict.max_relative_error:.2g}, allowed {EQUAL:g}")
    if verdict.rounding is not None:
        _print_rounding(verdict.rounding)


def _print_rounding(rounding: Rounding) -> None:
    if not math.isfinite(rounding.error):
        print(styled("rounding", "bold yellow") + f": gradients overflow in {rounding.dtype}")
        return
    how = f"by {rounding.recipe}" if rounding.recipe else f"in {rounding.dtype}"
    why = "the recipe on one device" if rounding.recipe else "rounding every number"
    within = "within" if rounding.is_within else styled("beyond", "bold yellow")
    print(
        f"rounding: {how} the gradients are {rounding.error:.2g} of their norm from "
        f"float64, {within} the {rounding.bound:.2g}\nthat {why} explains"
    )

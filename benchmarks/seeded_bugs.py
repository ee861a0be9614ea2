"""Wrong compilers, and what finds them: the compiler itself, the proof, the numbers, the tests.

Each bug of `seeded_bugs_table` is put into the running compiler, in a process of its own, by giving
one function the code of an edited source. The models below are compiled and verified with it. With
`--tests`, the tests of what a bug is in run with the bug in place until one fails. The page that
is written is `seeded_bugs.md`.

Usage: python benchmarks/seeded_bugs.py [--quick | --bugs NAME... --tests --out FILE]
"""

import argparse
import hashlib
import importlib
import inspect
import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from seeded_bugs_table import BREAKS, BUGS, Bug, tests

import shardwright as sw
from shardwright.compiler.plans.binding import rank_text
from shardwright.compiler.plans.plan import Plan
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.text import to_text
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes import manager
from shardwright.planner.whole import problem
from shardwright.proof import prove
from shardwright.runtime import LocalCommunicator, initialize
from shardwright.verification.comparison import verify_plan

HERE = Path(__file__).parent
_MODELS = f"{HERE / 'seeded_models.py'}:"
_GPT = "gpt:layers=2,hidden=16,heads=2,batch=8,sequence=4,vocabulary=32,dropout=0.2,dtype=float32"
_SHALLOW = "gpt:layers=1,hidden=16,heads=2,batch=8,sequence=4,vocabulary=32,dtype=float32"
_MLP = "mlp:batch=16,inputs=16,hidden=8,classes=4"
_HAND: dict[str, Any] = {"devices": 4, "mode": "hybrid_parallel"}
_ADAM: dict[str, Any] = {"optimizer": ("adam", {"learning_rate": 0.01}), "loss_scale": 128.0}
CASES: dict[str, dict[str, Any]] = {
    "twins": {"model": _MODELS + "twins", "search": "data_parallel"},
    "stopped": {"model": _MODELS + "stopped", "search": "data_parallel"},
    "normalized": {"model": _MODELS + "normalized", "search": "data_parallel"},
    "greatest": {"model": _MODELS + "greatest", "search": "tensor_parallel"},
    "greatest_sharded": {"model": _MODELS + "greatest", "search": "fully_sharded"},
    "summed": {"model": _MODELS + "summed", "search": "data_parallel"},
    "pinned": {
        "model": _MODELS + "columns",
        "fusion": 64.0,
        "mesh": "2x2",
        "strategies": {"matmul_0": ((4, 1), (1, 1)), "matmul_1": ((2, 1), (2, 1))},
    },
    # The gap ends the search: one that its time limit ends may differ on a busy machine.
    "tight": {"model": _SHALLOW, "memory_limit": 30000.0, "gap": 0.5, **_ADAM},
    "columns": {"model": _MODELS + "columns", "search": "tensor_parallel", "fusion": 64.0},
    "mlp_adam": {"model": _MLP, "search": "data_parallel", "fusion": 64.0, **_ADAM},
    "mlp_sharded": {"model": _MLP, "search": "fully_sharded", **_ADAM},
    "gpt_tensor": {"model": _GPT, "search": "tensor_parallel", "fusion": 64.0, "devices": 8},
    "gpt_sharded": {"model": _GPT, "search": "fully_sharded", "devices": 8, **_ADAM},
    "gpt_pod": {
        "model": _GPT,
        "cluster": "h100-pod:figures=datasheet",
        "devices": 8,
        "fusion": 64.0,
    },
    "unet": {"model": "unet:batch=2,side=16,width=4,depth=1", "devices": 8, "mesh": "2x4"},
    "batch_by_hand": {"model": _MODELS + "batch_by_hand", **_HAND},
    "split_by_hand": {"model": _MODELS + "split_by_hand", **_HAND},
}
Said = dict[str, str | None]
JUDGES = ("compiler", "proof", "numbers")
_DEFAULTS: dict[str, Any] = {"devices": 4, "cluster": "cpu"}

# Putting a bug in


def seed(bug: Bug) -> None:
    """Give the function of a bug its wrong code, in this process.

    Raises
    ------
    ValueError
        If a piece of source is not there exactly once.
    """
    name, _, path = bug.function.partition(":")
    module = importlib.import_module(name)
    function: Any = module
    for part in path.split("."):
        function = getattr(function, part)
    assert isinstance(function, FunctionType)
    before = inspect.getsource(function)
    after = before
    for old, new in bug.edits:
        if before.count(old) != 1:
            raise ValueError(f"`{old}` is {before.count(old)} times in `{bug.function}`, not once")
        after = after.replace(old, new)
    whole = inspect.getsource(module).replace(before, after)
    code = compile(whole, inspect.getsourcefile(module) or name, "exec")
    function.__code__ = next(c for c in _codes(code) if c.co_qualname == path)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def pytest_configure(config: object) -> None:
    """Put the bug that the environment names into the compiler that is tested."""
    name = os.environ.get("SEEDED_BUG")
    if name:
        seed(BUGS[name])


# What finds it


def judged(case: str, name: str | None = None, right: Said | None = None) -> Said:
    """Return the program of a case, and what says that it is wrong.

    Parameters
    ----------
    case : str
        One of `CASES`.
    name : str, optional
        The bug to put in first; a process can have one.
    right : mapping, optional
        What is said without a bug, so that an equal program of a pass is not judged again.
    """
    if name is not None:
        seed(BUGS[name])
    options = {**_DEFAULTS, **CASES[case]}
    if "optimizer" in options:
        options["optimizer"] = Optimizer(*options["optimizer"])
    said: Said = dict.fromkeys(("program", "compiler", "proof", "numbers"))
    model, devices = options.pop("model"), options.pop("devices")
    for checked in (True, False):
        try:
            plan = sw.compile(model, devices, **options).plan
            break
        except Exception as error:  # a compiler with a bug may fail anywhere
            said["compiler"] = said["compiler"] or _told(error)
            # What the referee says of a program that the compiler would have refused.
            problem.check_cost = _unchecked
            manager._check_result = _unchecked
            if not checked:
                return said
    said["program"] = _all_of(plan)
    if right and name and "passes" in BUGS[name].place and said["program"] == right["program"]:
        return said
    proof = prove(plan)
    if proof.proven is False:
        said["proof"] = f"`{proof.first_failure}`: {proof.reason}"
    result = verify_plan(plan, 2)
    if not result.equal:
        said["numbers"] = f"`{result.first_difference}`: {result.reason}"
    return said


def _told(error: Exception) -> str:
    known = isinstance(error, ShardwrightError)
    return str(error).splitlines()[0] if known else f"{type(error).__name__}: {error}"


def _unchecked(*_: object) -> None:
    """Check nothing."""


def _all_of(plan: Plan) -> str:
    """Return a digest of the program, of a listing, and of what the ranks begin with."""
    state = initialize(plan.program, 0, LocalCommunicator(plan.mesh), plan.initial)
    held = repr(
        [(name, rank, a.sum()) for name, parts in state.items() for rank, a in parts.items()]
    )
    text = to_text(plan.program) + rank_text(plan.program, plan.mesh.size - 1) + held
    return hashlib.sha256(text.encode()).hexdigest()


def in_a_process(case: str, name: str | None = None, right: Said | None = None) -> Said:
    """Return what `judged` does in a process of its own, which nothing else sees."""
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    process = fork.Process(target=lambda: queue.put(judged(case, name, right)))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"`{name}` on `{case}` ended with exit code {process.exitcode}")
    said: Said = queue.get()
    return said


def _judges(said: Said) -> list[str]:
    """Return who says that a program is wrong."""
    return [judge for judge in JUDGES if said[judge]]


def failing_test(name: str) -> str | None:
    """Return the first test that fails with a bug and passes without, of those for its module."""
    for file in tests(BUGS[name].place):
        broken: list[str] = []  # tests that fail whatever the compiler: they find nothing
        while test := _first_failure(file, name, broken):
            if _first_failure(test) is None:
                return test
            broken.append(test)
    return None


def _first_failure(target: str, name: str = "", without: Sequence[str] = ()) -> str | None:
    """Run a file or a test, with a bug if one is named; return the first test that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "seeded_bugs", target]
    command += [f"--deselect={test}" for test in without]
    environment = {**os.environ, "SEEDED_BUG": name}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=HERE.parent)
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.partition(" ")[2].partition(" - ")[0]
    return None


# The page


def main() -> None:
    """Write the page, or tell who finds each bug in the case that it breaks first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="print what finds each bug, as JSON")
    parser.add_argument("--bugs", nargs="+", default=list(BUGS), choices=list(BUGS))
    parser.add_argument("--tests", action="store_true", help="also run the tests")
    parser.add_argument("--out", type=Path, default=HERE / "seeded_bugs.md")
    arguments = parser.parse_args()
    if arguments.quick:
        print(json.dumps({name: _first_judges(name) for name in arguments.bugs}))
        return
    right = {case: in_a_process(case) for case in CASES}
    wrong = [case for case, said in right.items() if _judges(said)]
    assert not wrong, wrong
    rows = [_row(name, right, arguments.tests) for name in arguments.bugs]
    again = {case: in_a_process(case) for case in CASES}
    unsteady = [case for case in CASES if again[case] != right[case]]
    assert not unsteady, f"the right programs differ from run to run: {unsteady}"
    arguments.out.write_text(_page(rows))


def _first_judges(name: str) -> list[str]:
    case = BREAKS.get(name)
    return _judges(in_a_process(case, name)) if case else []


def _row(name: str, right: dict[str, Said], testing: bool) -> tuple[str, ...]:
    seen: dict[str, list[str]] = {judge: [] for judge in ("changed", *JUDGES)}
    for case in CASES:
        said = in_a_process(case, name, right[case])
        if said["compiler"] or said["program"] != right[case]["program"]:
            seen["changed"].append(case)
        for judge in _judges(said):
            seen[judge].append(case)
    test = failing_test(name) if testing else None
    print(name, seen, test, file=sys.stderr, flush=True)
    counts = [str(len(cases)) for cases in seen.values()]
    bug = BUGS[name]
    return (f"`{bug.place}`", bug.what, *counts, f"`{test}`" if test else "")


def _page(rows: list[tuple[str, ...]]) -> str:
    verified = sum(row[4] != "0" or row[5] != "0" for row in rows)
    refused = sum(row[3] != "0" and row[4] == row[5] == "0" for row in rows)
    tested = sum(bool(row[6]) for row in rows)
    head = f"""\
    # Bugs put into the compiler

    Each of {len(rows)} bugs is put into the compiler, {len(CASES)} small models are compiled with
    it (`python benchmarks/seeded_bugs.py --tests`), and each program that comes out is proven and
    run against the program of one device. The columns count models: whose program or slices change;
    that the compiler refuses (a wrong graph after a pass, or a program that does not cost what the
    search said); and, with those two checks of the compiler off, that the proof refuses, and that
    `verify` calls different by its rules and numbers.
    Bugs that changed none of these programs, or only made them refused by their types, were
    replaced while the list was made; so the counts say what is found of this list, and no more.

    `verify` (proof and numbers) finds {verified}; {refused} more are refused while compiling. The
    tests that are not `long` find {tested}; the last column names the first that fails with the bug
    and passes without.

    | where | what goes wrong | changed | refused | proof | numbers | test |
    |---|---|---|---|---|---|---|
    """
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return textwrap.dedent(head) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

"""Mutants of the compiler's own source, made by rule, and the tests that kill them.

    python benchmarks/code_mutants.py draw             # choose mutants anew
    python benchmarks/code_mutants.py run [TEST ...]   # run tests on them, write the page

A mutant negates a condition, swaps the operands of an operator, returns nothing, or is off by one.
All of them are put into one copy of the source, each behind a switch. The tests run once with every
switch off, which tells who reaches which mutant; then each mutant gets a process, forked where all
tests are collected, that runs the tests that reach it, the one that killed it last time and quick
ones first, until one fails. What is found is kept in `code_mutants.jsonl`.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = Path(__file__).with_suffix(".jsonl")
FOLDERS = ("ir", "operators", "passes", "dataflow", "cost_model", "search", "solver", "runtime")
COUNT, LEAST = 320, 20  # mutants in all, and in each folder
_ORDERED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_OFF = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_SWAPPED = {ast.Sub: "-", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.MatMult: "@"}
_COMPILED = ("jit", "compiled")  # decorators
_COMPILED_FILES = "_loops"  # what compiled functions call is compiled, too
_SWITCH = '''"""Which mutant is on, and which were reached."""

import mmap
import os

ON = int(os.environ.get("MUTANT", "-1"))
_place = os.open(os.environ["MUTANTS_REACHED"], os.O_RDWR)
REACHED = mmap.mmap(_place, 0)


def mutant(number: int) -> bool:
    REACHED[number] = 1
    return number == ON
'''


@dataclass(frozen=True)
class Mutant:
    """One wrong piece of source.

    Parameters
    ----------
    file : str
        From the root of the repository.
    function : str
        The function or method that it is in.
    rule : str
        What was done.
    before, after : str
        The expression, and what is there instead.
    place : int
        Which of equal expressions of the function it is.
    killed_by : str
        The test that fails; empty where none does.
    """

    file: str
    function: str
    rule: str
    before: str
    after: str
    place: int = 0
    killed_by: str = ""

    @property
    def folder(self) -> str:
        """The part of the compiler that it is in."""
        return self.file.partition("/")[0]

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What finds it in a later source."""
        return self.file, self.function, self.rule, self.before, self.place


@dataclass(frozen=True)
class Site:
    """Where a mutant is in the bytes of its file."""

    mutant: Mutant
    start: int
    end: int


# Mutants of a file


class _Sites(ast.NodeVisitor):
    """Collect every place of a file that a rule changes."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.found = file, source, list[Site]()
        self._within: list[str] = []
        self._depth = 0  # of functions
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.visit(ast.parse(source))

    def _visit_named(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        function = isinstance(node, ast.FunctionDef)
        if any(word in ast.unparse(mark) for mark in node.decorator_list for word in _COMPILED):
            return  # machine code has no switches
        self._within.append(node.name)
        self._depth += function
        for statement in node.body:
            self.visit(statement)
        self._depth -= function
        self._within.pop()

    visit_FunctionDef = visit_ClassDef = _visit_named  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip what has no place of its own in the source."""

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        """Skip patterns: they hold no expressions."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Skip the words of errors."""

    def visit_If(self, node: ast.If | ast.IfExp | ast.While) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._negated(condition)
        self.generic_visit(node)

    def _negated(self, test: ast.expr) -> None:
        self._add(test, "negated condition", f"not ({self._text(test)})")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._add(node.value, "dropped return", "None")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        sign = _SWAPPED.get(type(node.op))
        if sign and ast.unparse(node.left) != ast.unparse(node.right):
            left, right = self._text(node.left), self._text(node.right)
            self._add(node, "swapped operands", f"({right}) {sign} ({left})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sign = type(node.ops[0])
        if len(node.ops) == 1 and sign in _ORDERED:
            left, right = self._text(node.left), self._text(node.comparators[0])
            self._add(node, "swapped operands", f"({right}) {_ORDERED[sign]} ({left})")
            self._add(node, "off by one", f"({left}) {_OFF[sign]} ({right})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._add(node, "off by one", str(node.value + 1))

    def _text(self, node: ast.expr) -> str:
        return self.source[slice(*self._span(node))].decode()

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _add(self, node: ast.expr, rule: str, after: str) -> None:
        kept = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)
        if not self._depth or any(isinstance(part, kept) for part in ast.walk(node)):
            return
        name, before = ".".join(self._within), self._text(node)
        made = Mutant(self.file, name, rule, before, after)
        place = sum(site.mutant.key[:4] == made.key[:4] for site in self.found)
        self.found.append(Site(replace(made, place=place), *self._span(node)))


def sites(file: str) -> list[Site]:
    """Return every mutant of a file of the repository."""
    return _Sites(file, (ROOT / file).read_bytes()).found


def draw() -> list[Mutant]:
    """Choose mutants, by folders in proportion, that do not overlap in the source."""
    drawn = random.Random(0)
    by_folder = {
        folder: [
            site
            for path in sorted((ROOT / folder).rglob("*.py"))
            if not path.stem.endswith(_COMPILED_FILES)
            for site in sites(str(path.relative_to(ROOT)))
        ]
        for folder in FOLDERS
    }
    total = sum(map(len, by_folder.values()))
    return [
        mutant
        for folder, found in by_folder.items()
        for mutant in _apart(found, max(LEAST, round(COUNT * len(found) / total)), drawn)
    ]


def _apart(found: list[Site], count: int, drawn: random.Random) -> list[Mutant]:
    """Choose sites of which none is within another; rules take turns."""
    waiting = {rule: drawn.sample(own, len(own)) for rule, own in _by_rule(found).items()}
    chosen: list[Site] = []
    while len(chosen) < count:
        for own in waiting.values():
            site = own.pop()
            while any(_overlap(site, other) for other in chosen):
                site = own.pop()
            chosen.append(site)
    return sorted((site.mutant for site in chosen[:count]), key=lambda mutant: mutant.key)


def _by_rule(found: list[Site]) -> dict[str, list[Site]]:
    rules = sorted({site.mutant.rule for site in found})
    return {rule: [site for site in found if site.mutant.rule == rule] for rule in rules}


def _overlap(one: Site, other: Site) -> bool:
    same = one.mutant.file == other.mutant.file
    return same and one.start < other.end and other.start < one.end


# The copy with switches


def instrument(mutants: Sequence[Mutant], copy: Path) -> list[int]:
    """Put mutants behind switches into a copy of the source; return those that are there no more.

    Parameters
    ----------
    mutants : sequence of Mutant
        The place in it is a mutant's number.
    copy : Path
        A copy of the repository, that is changed.
    """
    lost: list[int] = []
    for file in sorted({mutant.file for mutant in mutants}):
        path = copy / file
        source = path.read_bytes() if path.exists() else b""
        there = {site.mutant.key: site for site in _Sites(file, source).found}
        numbers = [n for n, mutant in enumerate(mutants) if mutant.file == file]
        lost += [n for n in numbers if mutants[n].key not in there]
        edits = [(there[mutants[n].key], n) for n in numbers if mutants[n].key in there]
        for site, number in sorted(edits, key=lambda edit: -edit[0].start):
            before = source[site.start : site.end].decode()
            new = f"(({site.mutant.after}) if _mutant({number}) else ({before}))"
            source = source[: site.start] + new.encode() + source[site.end :]
        if edits:
            path.write_bytes(_with_import(source))
    (copy / "ir" / "mutant_switch.py").write_text(_SWITCH)
    return lost


def _with_import(source: bytes) -> bytes:
    """Import the switch before the first import, on its line, so that lines keep their numbers."""
    lines = source.split(b"\n")
    first = next(
        node.lineno
        for node in ast.parse(source).body
        if not isinstance(node, ast.Expr)
        and not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    )
    switch = b"from shardwright.ir.mutant_switch import mutant as _mutant; "
    lines[first - 1] = switch + lines[first - 1]
    return b"\n".join(lines)


# Running


def run(mutants: Sequence[Mutant], tests: Sequence[str], jobs: int, work: Path) -> list[Mutant]:
    """Return mutants with the tests that kill them now; those that are no more are left out.

    Parameters
    ----------
    mutants : sequence of Mutant
        Which to run.
    tests : sequence of str
        Files and folders.
    jobs : int
        How many processes run at a time.
    work : Path
        A folder for the copy of the source and what is found: a run that was ended goes on there.
    """
    copy = work / "shardwright"
    if not copy.exists():
        command = ("git", "ls-files", "-z")
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        for file in listed.stdout.rstrip("\0").split("\0"):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, copy / file, follow_symlinks=False)
        lost = instrument(mutants, copy)
        (work / "lost.json").write_text(json.dumps(lost))
        (work / "mutants.json").write_text(json.dumps([asdict(mutant) for mutant in mutants]))
    lost = json.loads((work / "lost.json").read_text())
    _pytest(copy, work, "reach", jobs, ["-n", str(jobs), "--dist", "worksteal", *tests])
    _pytest(copy, work, "kill", jobs, tests)
    lines = (work / "killed.jsonl").read_text().splitlines()
    killed = {record["number"]: record["test"] for record in map(json.loads, lines)}
    return [
        replace(mutant, killed_by=killed.get(number, ""))
        for number, mutant in enumerate(mutants)
        if number not in lost
    ]


def _pytest(copy: Path, work: Path, step: str, jobs: int, options: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "code_mutants_killing", *options]
    environment = {"MUTANTS": str(work), "MUTANTS_STEP": step, "MUTANTS_JOBS": str(jobs)}
    environment |= {"PYTHONPATH": str(copy / "benchmarks")}
    subprocess.run(command, cwd=copy, env={**os.environ, **environment})


# The page


def page(mutants: Sequence[Mutant]) -> str:
    """Return a table by folders, and the mutants that live."""
    made, killed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for mutant in mutants:
        for row in (mutant.folder, "all"):
            for column in (mutant.rule, "all"):
                made[row, column] += 1
                killed[row, column] += bool(mutant.killed_by)
    rules = sorted({mutant.rule for mutant in mutants})
    lines = [
        *_HEAD.format(count=len(mutants)).splitlines(),
        "",
        f"| in | {' | '.join(rules)} | all | share killed |",
        "|---|" + "---:|" * (len(rules) + 2),
    ]
    for row in (*FOLDERS, "all"):
        cells = [f"{killed[row, rule]} of {made[row, rule]}" for rule in (*rules, "all")]
        share = f"{killed[row, 'all'] / max(made[row, 'all'], 1):.0%}"
        lines.append(f"| {row} | {' | '.join(cells)} | {share} |")
    lines += ["", "What lives:", "", "| function | rule | before | after |", "|---|---|---|---|"]
    lines += [
        f"| `{mutant.file}:{mutant.function}` | {mutant.rule} | {_cell(mutant.before)} "
        f"| {_cell(mutant.after)} |"
        for mutant in mutants
        if not mutant.killed_by
    ]
    return "\n".join(lines) + "\n"


_HEAD = """\
# Mutants of the source

{count} wrong pieces of source, made by rule and chosen at random by `python
benchmarks/code_mutants.py draw`, are put into the compiler one at a time; `run` says which of them
a test kills. A mutant gets the tests that reach it, the quickest first, for 8 seconds of the
processor by their times without a mutant. Those that live may be equal to what they replace, change
a speed or a word only, or be what no test sees.
"""


def _cell(source: str) -> str:
    return "`" + " ".join(source.split()).replace("|", "\\|") + "`"


def read() -> list[Mutant]:
    """Return the mutants that are kept, as they were last time."""
    return [Mutant(**json.loads(line)) for line in KEPT.read_text().splitlines()]


def write(mutants: Sequence[Mutant], kept: Path = KEPT) -> None:
    """Keep mutants, and write the page beside them."""
    kept.write_text("".join(json.dumps(asdict(mutant)) + "\n" for mutant in mutants))
    kept.with_suffix(".md").write_text(page(mutants))


def main() -> None:
    """Choose mutants, or run the tests on them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("draw", "run"))
    parser.add_argument("tests", nargs="*", default=["tests"], help="files or folders (all)")
    parser.add_argument("--work", type=Path, help="a folder to keep, where an ended run goes on")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="at a time (all CPUs)"
    )
    arguments = parser.parse_args()
    if arguments.do == "draw":
        write(draw())
        return
    with tempfile.TemporaryDirectory() as place:
        work = arguments.work or Path(place)
        write(run(read(), arguments.tests, arguments.jobs, work))


if __name__ == "__main__":
    main()

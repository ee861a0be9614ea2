"""Run MindSpore's own unit tests of its parallel module, and write a page of what passes.

    python benchmarks/mindspore_tests.py CHECKOUT [--out mindspore_tests.md] [--seconds 60]

CHECKOUT is a copy of MindSpore's repository, with ``tests/ut/python/parallel``. The tests are
copied with ``shardwright.`` before ``mindspore`` in their imports, and run as they are otherwise;
files that they import from other tests are reduced to what they need of them. With
``MS_SIMULATION_LEVEL=0`` models are compiled and no step is computed: a test that wants kernels of
a device, or their values, fails here.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What a test checks, by its own source: the first of these that it has.
_KINDS = {
    "an exception": r"raises|except",
    "a node, its inputs, or a layout": r"check_",
    "a strategy": r"strateg[\s\S]*assert",
    "something else": r"assert",
}
# Why a mutant is not refused, by its name: MindSpore does not refuse these either.
_UNREAD = {
    r"test_layer_norm_\w+5": "the operator of this strategy is not called",
    r"test_transformer_model_int64_\w+": "the TypeError that is expected comes first",
    "test_transformer_model_head_stand_alone": "no strategy is read in this mode",
}
_SHOWN = 110  # characters of a reason: half hide what is wrong, twice as many fill two lines
_PARTS = 24  # of the files, each run by a process of its own
PARALLEL = Path("tests/ut/python/parallel")
LOSS = """
from shardwright.mindspore import nn, ops

class VirtualLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.total = ops.ReduceSum()

    def construct(self, x):
        return self.total(x)
"""
SECURITY = """
def security_off_wrap(test):
    return test  # the package is not built with MindSpore's security features
"""
CONFTEST = """
import inspect
import re
import signal
import sys
from contextlib import contextmanager
import pytest
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import context
from shardwright.mindspore.parallel._cost_model_context import reset_cost_model_context
from shardwright.mindspore.parallel.algo_parameters import reset_algo_parameters
from shardwright.ops import primitive

PASSED = set()
RAISED = []
OWN = primitive.counts_of
OWN_RAISES = pytest.raises

@contextmanager
def noted(*expected, **how):
    with OWN_RAISES(*expected, **how) as found:
        yield found
    RAISED.append(found.value)

pytest.raises = noted

def is_refusal(error):
    lacks = "not supported(?! currently)|no operator is called|has no"  # MindSpore's own say so
    return isinstance(error, ShardwrightError) and not re.search(lacks, str(error))

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if call.when == "call" and report.passed and "plain" in item.name:
        PASSED.add(item.nodeid.replace("plain", ""))

@pytest.fixture(autouse=True, params=["plain", "mutant"])
def reset(request, monkeypatch, record_property):
    def end(number, frame):
        raise TimeoutError("the test takes longer than it may")
    changed = []
    def illegal(strategy):
        counts = OWN(strategy)
        if not changed and counts and counts[0]:
            changed.append(counts)
            counts = ((counts[0][0] * 7919, *counts[0][1:]), *counts[1:])
        return counts
    if request.param == "mutant":
        if request.node.nodeid.replace("mutant", "") not in PASSED:
            pytest.skip("the test itself does not pass")
        if re.search("assert|raises|except|check_", inspect.getsource(request.function)):
            pytest.skip("the test asserts something")
        for name, module in list(sys.modules.items()):
            if name.startswith("shardwright.") and vars(module).get("counts_of") is OWN:
                monkeypatch.setattr(module, "counts_of", illegal)
    RAISED.clear()
    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    context.reset_auto_parallel_context()
    context.set_context(mode=context.GRAPH_MODE, device_target="Ascend")
    reset_cost_model_context()
    reset_algo_parameters()
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    record_property("strategies", len(changed))
    record_property("lacking", sum(not is_refusal(error) for error in RAISED))
"""


@dataclass
class File:
    """The tests of a file: how many passed, why the others did not, what became of mutants.

    `checks` has what each test checks that checks something, and `held` how many of a kind pass. A
    mutant is a test that asserts nothing, with its first strategy made illegal; `accepted` has the
    names of those that are not refused.
    """

    passed: int = 0
    checks: dict[str, str] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    mutants: Counter[str] = field(default_factory=Counter)
    accepted: list[str] = field(default_factory=list)


def ported(text: str) -> str:
    """Return a script whose imports of MindSpore are those of this package."""
    lines = []
    for line in text.split("\n"):
        whole = re.match(r"^(\s*)import mindspore\s*(#.*)?$", line)
        inner = re.match(r"^(\s*)import (mindspore\.[\w.]+)\s*(#.*)?$", line)
        if whole:
            line = f"{whole[1]}import shardwright.mindspore as mindspore"
        elif inner:
            package = "import shardwright.mindspore as mindspore"
            line = f"{inner[1]}import shardwright.{inner[2]}; {package}"
        else:
            line = re.sub(r"^(\s*)(import|from) mindspore\b", r"\1\2 shardwright.mindspore", line)
        lines.append(line)
    return "\n".join(lines)


def copy(source: Path, work: Path, seconds: int) -> None:
    """Copy the tests, ported."""
    folders = (PARALLEL, PARALLEL.parent / "hccl_test")
    tests = [path for folder in folders for path in sorted((source / folder).rglob("*.py"))]
    for path in (*tests, *(source / "tests").glob("*.py")):
        target = work / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(ported(path.read_text()))
    others = work / "tests/ut/python/ops"
    others.mkdir(parents=True)
    (others / "test_math_ops.py").write_text(LOSS)
    (work / "tests/security_utils.py").write_text(SECURITY)
    conftest = CONFTEST.replace("SECONDS", str(seconds)).replace(
        "ASSERTS", "|".join(_KINDS.values())
    )
    (work / PARALLEL / "conftest.py").write_text(conftest)
    for folder in [work / "tests", *(p for p in (work / "tests").rglob("*") if p.is_dir())]:
        (folder / "__init__.py").write_text("")


def checks(path: Path) -> dict[str, str]:
    """Return what the tests of a file check, of those that check something, by their names."""
    text = path.read_text()
    tests = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    ]
    found = {}
    for test in tests:
        source = ast.get_source_segment(text, test) or ""
        kinds = (kind for kind, words in _KINDS.items() if re.search(words, source))
        if kind := next(kinds, None):
            found[test.name] = kind
    return found


def results(work: Path, jobs: int) -> dict[str, File]:
    """Run the tests in some processes, and return the results by file."""
    paths = os.pathsep.join(map(str, (ROOT, work, work / "tests/ut/python")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment["MS_SIMULATION_LEVEL"] = "0"  # compiled for ranks that are not started
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"]
    command += ["-c", os.devnull, "--rootdir", str(work), "--continue-on-collection-errors"]
    files = sorted(str(path.relative_to(work)) for path in (work / PARALLEL).rglob("test_*.py"))

    def run(part: int) -> None:
        own = [*command, f"--junitxml={work}/results{part}.xml", *files[part::parts]]
        subprocess.run(own, cwd=work, env=environment, stdout=subprocess.DEVNULL, check=False)

    parts = min(len(files), _PARTS)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, range(parts)))
    found = {Path(file).stem: File(checks=checks(work / file)) for file in files}
    for part in range(parts):
        for case in ET.parse(work / f"results{part}.xml").iter("testcase"):
            _count(case, found)
    return found


def _count(case: ET.Element, found: dict[str, File]) -> None:
    """Add the result of a test to those of its file."""
    place = f"{case.get('classname')}.{case.get('name')}"
    name = next(part for part in place.split(".") if part.startswith("test_"))
    file = found[name]
    bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
    message = (bad[0].get("message") or "") if bad else ""
    if "mutant" in (case.get("name") or ""):
        changed = _property(case, "strategies") == 1
        if not bad or bad[0].tag != "skipped":
            kind = ("refused" if bad else "accepted") if changed else "without a strategy"
            file.mutants[kind] += 1
            file.accepted += [case.get("name") or ""] * (kind == "accepted")
        return
    if not bad and _property(case, "lacking"):
        file.reasons["what it expects to be refused is refused for another reason"] += 1
    elif not bad:
        file.passed += 1
        kind = file.checks.get((case.get("name") or "").partition("[")[0])
        file.held.update([kind] if kind else [])
    else:
        if message == "collection failure":
            message = next(iter(re.findall(r"^E +(.*)$", bad[0].text or "", re.M)), message)
        file.reasons[reason(message)] += 1


def _property(case: ET.Element, name: str) -> int:
    """Return a number that the conftest recorded of a test; 0 where there is none."""
    return sum(int(p.get("value") or 0) for p in case.iter("property") if p.get("name") == name)


def reason(message: str) -> str:
    """Return a message in one line, without the numbers and names that differ between tests."""
    line = message.replace("\n", " ").replace("shardwright.mindspore.common.api.", "")
    line = re.sub(r"\(in .*$|\(/.*$|0x\w+", "", line.replace("shardwright.ir.errors.", ""))
    line = re.sub(r"`\w+_\d+`", "`...`", line)
    line = re.sub(r"\d+", "N", line).replace("|", "\\|").strip()
    return line if len(line) < _SHOWN else line[:_SHOWN].rpartition(" ")[0].strip()


def page(found: dict[str, File], files: int) -> str:
    """Return the page."""
    reasons: Counter[str] = sum((file.reasons for file in found.values()), Counter())
    passed, failed = sum(file.passed for file in found.values()), reasons.total()
    mutants: Counter[str] = sum((file.mutants for file in found.values()), Counter())
    told = mutants["refused"] + mutants["accepted"]
    lines = [
        "# MindSpore's own tests of its parallel module",
        "",
        "Written by `benchmarks/mindspore_tests.py` from a copy of MindSpore's repository: its "
        "tests in `tests/ut/python/parallel`, with `shardwright.` before `mindspore` in their "
        f"imports. Of {files} files {sum(not f.reasons for f in found.values())} pass whole.",
        f"**{passed} tests pass, {failed} do not** (a file that cannot be imported counts once). "
        "Nothing is run: models are compiled for the ranks that a test names. A test that does not "
        "pass because something is refused for lack of support has not passed, nor one that "
        "expects a refusal of what is legal here (`DID NOT RAISE`).",
        "",
        f"Of the tests that pass, {mutants.total()} assert nothing. **With the first strategy made "
        f"illegal {mutants['refused']} of {told} are refused**; {mutants['without a strategy']} "
        "others say no strategy: nothing can be made illegal in them. " + _accepted(found),
        "",
        *_checked(list(found.values())),
        "| tests | why they do not pass (most frequent) |",
        "| --- | --- |",
        *(f"| {count} | {why} |" for why, count in reasons.most_common(40)),
        "",
        "| file | passed | not |",
        "| --- | --- | --- |",
        *(f"| `{name}` | {f.passed} | {f.reasons.total()} |" for name, f in sorted(found.items())),
        "",
    ]
    return "\n".join(lines)


def _accepted(found: dict[str, File]) -> str:
    """Return the sentence that names the mutants that are not refused."""
    names = [
        f"`{name}::{test.partition('[')[0]}` ({_unread(test)})"
        for name, file in sorted(found.items())
        for test in file.accepted
    ]
    return f"Not refused: {', '.join(names)}." if names else ""


def _unread(test: str) -> str:
    """Return why a mutant of a test need not be refused, or that this is not known."""
    own = test.partition("[")[0]
    return next((why for name, why in _UNREAD.items() if re.fullmatch(name, own)), "open")


def _checked(files: list[File]) -> list[str]:
    """Return the lines about tests that check something, by what their own source says."""
    told = Counter(kind for file in files for kind in file.checks.values())
    held: Counter[str] = sum((file.held for file in files), Counter())
    share = 100 * held.total() / max(told.total(), 1)
    return [
        f"Of the {told.total()} tests whose own source checks something, in files that cannot be "
        f"imported too, **{held.total()} pass, {share:.0f} %**.",
        "",
        "| what a test checks | tests | pass |",
        "| --- | --- | --- |",
        *(f"| {kind} | {told[kind]} | {held[kind]} |" for kind in _KINDS),
        "",
    ]


def main() -> None:
    """Run the tests, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--jobs", type=int, default=1, help="processes that run them")
    parser.add_argument(
        "--seconds", type=int, default=60, help="of the processor that a test may take"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy(arguments.checkout, Path(folder), arguments.seconds)
        found = results(Path(folder), arguments.jobs)
    files = len(list((arguments.checkout / PARALLEL).rglob("test_*.py")))
    arguments.out.write_text(page(found, files))
    print(sum(file.passed for file in found.values()), "tests pass")


if __name__ == "__main__":
    main()

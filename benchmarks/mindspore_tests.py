"""Run MindSpore's own unit tests of its parallel module, and write a page of what passes.

    python benchmarks/mindspore_tests.py CHECKOUT [--out mindspore_tests.md] [--seconds 60]

CHECKOUT is a copy of MindSpore's repository, with ``tests/ut/python/parallel``. The tests are
copied with ``shardwright.`` before ``mindspore`` in their imports, and run as they are otherwise; a
file that two of them import from other tests is reduced to what they need of it. Nothing is
simulated: a test that trains on a mocked device, or wants kernels of a device, fails here.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
CONFTEST = """
import signal
import pytest
from shardwright.mindspore import context
from shardwright.mindspore.parallel._cost_model_context import reset_cost_model_context
from shardwright.mindspore.parallel.algo_parameters import reset_algo_parameters

@pytest.fixture(autouse=True)
def reset():
    def end(number, frame):
        raise TimeoutError("the test takes longer than it may")
    signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    context.reset_auto_parallel_context()
    context.set_context(mode=context.GRAPH_MODE, device_target="Ascend")
    reset_cost_model_context()
    reset_algo_parameters()
    yield
    signal.alarm(0)
"""


@dataclass
class File:
    """The tests of a file: how many passed, and why the others did not."""

    passed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


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
    (work / PARALLEL / "conftest.py").write_text(CONFTEST.replace("SECONDS", str(seconds)))
    for folder in [work / "tests", *(p for p in (work / "tests").rglob("*") if p.is_dir())]:
        (folder / "__init__.py").write_text("")


def results(work: Path) -> dict[str, File]:
    """Run the tests, and return the results by file."""
    paths = os.pathsep.join(map(str, (ROOT, work, work / "tests/ut/python")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment["MS_SIMULATION_LEVEL"] = "0"  # compiled for ranks that are not started
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"]
    command += ["-c", os.devnull, "--rootdir", str(work), "--continue-on-collection-errors"]
    command += [f"--junitxml={work}/results.xml", str(PARALLEL)]
    subprocess.run(command, cwd=work, env=environment, stdout=subprocess.DEVNULL, check=False)
    found: dict[str, File] = {}
    for case in ET.parse(work / "results.xml").iter("testcase"):
        place = f"{case.get('classname')}.{case.get('name')}"
        name = next(part for part in place.split(".") if part.startswith("test_"))
        file = found.setdefault(name, File())
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        if not bad:
            file.passed += 1
            continue
        message = bad[0].get("message") or ""
        if message == "collection failure":
            message = next(iter(re.findall(r"^E +(.*)$", bad[0].text or "", re.M)), message)
        file.reasons[reason(message)] += 1
    return found


def reason(message: str) -> str:
    """Return a message in one line, without the numbers and names that differ between tests."""
    line = message.replace("\n", " ").replace("shardwright.mindspore.common.api.", "")
    line = re.sub(r"\(in .*$|0x\w+", "", line.replace("shardwright.ir.errors.", ""))
    line = re.sub(r"`\w+_\d+`", "`...`", line)
    return re.sub(r"\d+", "N", line).replace("|", "\\|").strip()[:110]


def page(found: dict[str, File], files: int) -> str:
    """Return the page."""
    reasons: Counter[str] = sum((file.reasons for file in found.values()), Counter())
    passed, failed = sum(file.passed for file in found.values()), reasons.total()
    lines = [
        "# MindSpore's own tests of its parallel module",
        "",
        "Written by `benchmarks/mindspore_tests.py` from a copy of MindSpore's repository: its "
        "tests in `tests/ut/python/parallel`, with `shardwright.` before `mindspore` in their "
        f"imports. Of {files} files {sum(not f.reasons for f in found.values())} pass whole.",
        f"**{passed} tests pass, {failed} do not** (a file that cannot be imported counts once). "
        "Many assert nothing but that a network compiles; a test that does not pass because "
        "something is refused for lack of support has not passed. One that looks for an operator "
        "which is not here (the 6 of `test_virtual_output`) asserts nothing, and passes.",
        "",
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


def main() -> None:
    """Run the tests, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--seconds", type=int, default=60, help="that a test may take")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy(arguments.checkout, Path(folder), arguments.seconds)
        found = results(Path(folder))
    files = len(list((arguments.checkout / PARALLEL).rglob("test_*.py")))
    arguments.out.write_text(page(found, files))
    print(sum(file.passed for file in found.values()), "tests pass")


if __name__ == "__main__":
    main()

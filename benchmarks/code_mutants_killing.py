"""Plugin of pytest for `code_mutants`: which tests reach a mutant, and which kill it.

The environment says what to do: `MUTANTS` is the folder of the work, `MUTANTS_STEP` is `reach` or
`kill`, `MUTANTS_JOBS` is how many mutants run at a time.
"""

import importlib
import json
import os
import resource
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

WORK = Path(os.environ["MUTANTS"])
MUTANTS = json.loads((WORK / "mutants.json").read_text())
KILLING = os.environ["MUTANTS_STEP"] == "kill"
_SECONDS = 8.0  # of the processor that the tests of a mutant take without it, together
_TIMES = 3  # how many times as long they may take with it: a loop may never end
_WAITING = 300.0  # seconds until a mutant ends that waits for nothing
_FAR = (
    5  # a test of another folder comes as late as one of its own that takes so many times as long
)

# The switches are read when the compiler is imported, after this.
_flags, _path = tempfile.mkstemp(dir=WORK)
os.truncate(_flags, len(MUTANTS))
os.environ["MUTANTS_REACHED"] = _path
os.environ["MUTANT"] = "-1"


def _switch() -> Any:
    return importlib.import_module("shardwright.ir.mutant_switch")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _records() -> list[dict[str, Any]]:
    return [record for path in sorted(WORK.glob("reached.*.jsonl")) for record in _lines(path)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests whose reach is known."""
    if not KILLING:
        items[:] = [item for item in items if item.nodeid not in _KNOWN]


_KNOWN = set() if KILLING else {record["test"] for record in _records()}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write down which mutants a test reaches, and how long it takes."""
    if KILLING:
        yield
        return
    reached = _switch().REACHED
    reached[:] = bytes(len(MUTANTS))
    before = _seconds()
    item.stash[_FAILED] = False
    yield
    record = {
        "test": item.nodeid,
        "seconds": round(_seconds() - before, 4),
        "passed": not item.stash[_FAILED],
        "reached": [number for number, flag in enumerate(reached[:]) if flag],
    }
    with (WORK / f"reached.{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note a test that fails without any mutant: it kills none."""
    outcome: Any = yield
    if outcome.get_result().failed and not KILLING:
        item.stash[_FAILED] = True


def _seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


# Killing


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Fork a process for each mutant, instead of running the tests."""
    if not KILLING:
        return None
    items = {item.nodeid: item for item in session.items}
    over = {record["number"] for record in _lines(WORK / "killed.jsonl")}
    running: dict[int, tuple[int, Path, float]] = {}
    right: dict[str, bool] = {}
    waiting = [plan for plan in _plans(items) if plan[0] not in over]
    while waiting or running:
        while waiting and len(running) < int(os.environ["MUTANTS_JOBS"]):
            number, tests, seconds = waiting.pop(0)
            said = WORK / f"killer.{number}"
            child = _fork(number, [items[test] for test in tests], said, seconds)
            running[child] = (number, said, time.monotonic() + _WAITING)
        for child, status in _ended(running):
            number, said, _ = running.pop(child)
            killer = said.read_text() if status and said.exists() else ""
            if killer and killer not in right:
                right[killer] = _passes(items[killer])
            record = {"number": number, "test": killer if right.get(killer) else ""}
            with (WORK / "killed.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
    return True


def _plans(items: dict[str, pytest.Item]) -> Iterator[tuple[int, list[str], float]]:
    """Yield mutants with the tests to run, in order, and their seconds without a mutant."""
    reaching = defaultdict[int, list[tuple[float, str, float]]](list)
    for record in _records():
        for number in record["reached"] if record["passed"] else ():
            near = MUTANTS[number]["file"].partition("/")[0] == record["test"].split("/")[1]
            late = record["seconds"] * (1 if near else _FAR)
            order = -1.0 if record["test"] == MUTANTS[number]["killed_by"] else late
            reaching[number].append((order, record["test"], record["seconds"]))
    for number in sorted(reaching):
        tests, total = list[str](), 0.0
        for _, test, seconds in sorted(reaching[number]):
            if test in items and total + seconds <= _SECONDS:
                tests.append(test)
                total += seconds
        yield number, tests, total


def _ended(running: dict[int, tuple[int, Path, float]]) -> list[tuple[int, int]]:
    """Wait for a moment; return the processes that ended, with their statuses."""
    time.sleep(0.02)
    over = []
    for child, (_, _, deadline) in running.items():
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            over.append((child, status))
    return over


def _passes(item: pytest.Item) -> bool:
    """Say whether a test passes by itself without a mutant."""
    child = _fork(-1, [item], WORK / "killer.none", 100.0)
    return os.waitpid(child, 0)[1] == 0


def _fork(number: int, items: Sequence[pytest.Item], said: Path, seconds: float) -> int:
    """Run tests with a mutant until one fails, which is written, in a process of its own."""
    child = os.fork()
    if child:
        return child
    code = 0
    try:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        limit = int(_TIMES * seconds) + 20
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        _switch().ON = number
        os.environ["MUTANT"] = str(number)
        for at, item in enumerate(items):
            said.write_text(item.nodeid)
            item.config._tmp_path_factory._given_basetemp = WORK / f"temporary.{os.getpid()}"  # type: ignore[attr-defined]
            following = items[at + 1] if at + 1 < len(items) else None
            reports = runtestprotocol(item, nextitem=following, log=False)
            if any(report.failed for report in reports):
                code = 1
                break
    except BaseException:
        code = 1
    finally:
        os._exit(code)

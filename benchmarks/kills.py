"""Stop every writer of files at its system calls: ``python benchmarks/kills.py``.

Plans, pages, cluster files, checkpoints and snapshots are written over old ones, exports into a new
or an empty folder. Each trial is a process of
its own, in which `strace` kills at one system call that changes a file, or lets the call fail as on
a full (ENOSPC) or broken (EIO) disk. Then the next command must read what was there before or what
was to be there, whole; and when it has written in its turn, nothing but its files may be there.
"""

import argparse
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from machine import machine
from writers import Writer, all_writers, names_in

from shardwright.ir.errors import ShardwrightError

# System calls that change a file, or what is on the disk of it; `?`: if this machine has it.
_CHANGES = (
    "write,pwrite64,writev,ftruncate,?fallocate,rename,renameat,?renameat2,link,linkat,symlink,"
    "symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,chmod,fchmod,fchmodat,fsync,fdatasync"
)
_FAILING = f"openat,flock,{_CHANGES}"
_STOPS = {
    "killed": (_CHANGES, "signal=KILL"),
    "ENOSPC": (_FAILING, "error=ENOSPC"),
    "EIO": (_FAILING, "error=EIO"),
}
_ERROR, _TRACEBACK = 2, 3  # how a trial ends


def in_child(act: Callable[[], Any]) -> tuple[int, str]:
    """Do something in a process of its own; return how it ends, and what it returns or says."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code, text = 0, ""
        try:
            text = str(act())
        except ShardwrightError as error:
            code, text = _ERROR, f"{error}"
        except BaseException as error:
            code, text = _TRACEBACK, f"{type(error).__name__}: {error}"
        os.write(writer, text.encode()[:60_000])
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def stopped(
    act: Callable[[], int], calls: str, log: Path, inject: str = "", options: Sequence[str] = ()
) -> tuple[int, str]:
    """Do something in a process that `strace` stops; return how it ends, and what it says."""
    ready, go = os.pipe()
    said = log.with_suffix(".said")
    child = os.fork()
    if not child:
        os.close(go)
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = _TRACEBACK
        os.read(ready, 1)
        try:
            code = act()
        except ShardwrightError:
            code = _ERROR
        except BaseException as error:
            os.write(2, f"Traceback {type(error).__name__}: {error}".encode())
        finally:
            os._exit(code)
    os.close(ready)
    added = ["-e", f"inject={inject}"] if inject else []
    line = [
        "strace",
        "-f",
        "-p",
        str(child),
        "-o",
        str(log),
        "-e",
        f"trace={calls}",
        *added,
        *options,
    ]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        time.sleep(0.02)
        os.write(go, b"x")
        os.close(go)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        tracer.stderr.read()
    return code, said.read_text(errors="replace")


# Trials


@dataclass
class Series:
    """What came of the trials of a writer: how many calls it has, and how many were tried."""

    calls: int
    tried: int
    outcomes: Counter[str]
    wrong: list[str]


def series(writer: Writer, stop: str, most: int, folder: Path) -> Series:
    """Stop a writer at its calls, evenly sampled if they are more than a number."""
    calls, how = _STOPS[stop]
    states = {}
    old = folder / "old"
    old.mkdir()
    writer.begin(old)
    states[in_child(lambda: writer.found(old))[1]] = "old"
    log = folder / "calls"
    done = folder / "done"
    shutil.copytree(old, done)
    code, said = stopped(lambda: writer.write(done), calls, log)
    assert code == 0, said
    states[in_child(lambda: writer.found(done))[1]] = "new"
    assert len(states) == 2, states
    expected = names_in(done)
    places = _places(log.read_text())
    found = Series(len(places), 0, Counter(), [])
    for call, number in places[:: max(1, -(-len(places) // most))]:
        found.tried += 1
        trial = folder / "trial"
        shutil.copytree(old, trial)
        code, said = stopped(
            partial(writer.write, trial), calls, log, f"{call}:{how}:when={number}"
        )
        line = (
            next((x for x in log.read_text().splitlines() if "INJECTED" in x), "")
            or (log.read_text().splitlines() or [""])[-1]
        )
        wrong = judged(writer, trial, states, expected, (code, said, stop), found.outcomes)
        if wrong:
            found.wrong.append(f"{call} {number}: {wrong} (at {line[:160]})")
            print(f"   {found.wrong[-1]}", flush=True)
        shutil.rmtree(trial)
    shutil.rmtree(old)
    shutil.rmtree(done)
    return found


def _places(log: str) -> list[tuple[str, int]]:
    """Return the calls of a process: each its name, and the how many-th of that name it is."""
    found: list[tuple[str, int]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for process, call in re.findall(r"^(\d+) +(\w+)\(", log, re.M):
        seen[process, call] += 1
        found.append((call, seen[process, call]))
    return found


def judged(
    writer: Writer,
    trial: Path,
    states: Mapping[str, str],
    expected: frozenset[str],
    end: tuple[int, str, str],
    outcomes: Counter[str],
) -> str:
    """Return what is wrong after a trial; empty if nothing is."""
    code, said, stop = end
    read, found = in_child(lambda: writer.found(trial))
    if read or found not in states:
        outcomes["unreadable"] += 1
        return f"the next command reads: {found[:300]}"
    outcomes[states[found]] += 1
    if stop != "killed" and ("Traceback" in said or code not in (0, _ERROR)):
        outcomes["traceback"] += 1
        return f"it ends with {code}: {said[-300:]}"
    again, said = in_child(lambda: _again(writer, trial))
    if again:
        outcomes["next refused"] += 1
        return f"the next writer says: {said[:300]}"
    left = names_in(trial)
    if left != expected:
        outcomes["litter"] += 1
        return f"left: {sorted(left ^ expected)[:5]}"
    return ""


def _again(writer: Writer, trial: Path) -> int:
    """Write once more."""
    code = (writer.again or writer.write)(trial)
    if code:
        raise OSError(errno.EIO, f"exit code {code}")
    return code


def main() -> None:
    """Run all series, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=200, help="trials of a series, evenly sampled")
    parser.add_argument("--only", default="", help="writers with this name; writes no page")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    rows, wrong = [], []
    for writer in all_writers():
        if arguments.only not in writer.name:
            continue
        for stop in _STOPS:
            with tempfile.TemporaryDirectory() as parent:
                found = series(writer, stop, arguments.most, Path(parent))
            numbers = (found.calls, found.tried, *(found.outcomes[o] for o in _OUTCOMES))
            rows.append(f"| {writer.name} | {stop} | {' | '.join(map(str, numbers))} |")
            print(rows[-1], flush=True)
            wrong += [f"- {writer.name}, {stop}, {text}" for text in found.wrong]
    if not arguments.only:
        arguments.out.write_text(_page(rows, wrong))
    sys.exit(bool(wrong))


def _page(rows: Sequence[str], wrong: Sequence[str]) -> str:
    text = f"# Writers that are stopped\n\n{(__doc__ or '').split(chr(10), 2)[2].strip()}\n\n"
    text += "A series of more calls than trials is sampled evenly, from its first on. A trial\n"
    text += f"whose call is not reached ends well. On {machine()}.\n\n"
    text += f"| written | stop | calls | tried | {' | '.join(_OUTCOMES)} |\n"
    text += f"|{'---|' * (4 + len(_OUTCOMES))}\n" + "\n".join(rows) + "\n"
    return text + "".join(f"\n{line}" for line in wrong)


_OUTCOMES = ("old", "new", "unreadable", "traceback", "next refused", "litter")

if __name__ == "__main__":
    main()

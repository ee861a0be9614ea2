"""Run the fault simulator: ``python benchmarks/simulator.py``.

The protocols of the runtime run in a world of its own time, disk and network (`tests/simulator`).
It is the code of the product that runs, not a model of it: what it takes from the system for files,
clocks, threads, secrets and gRPC stands for the world's. A seed decides about the order in which
processes go on, what fails and when, and replays exactly.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from machine import machine

from tests.simulator import planted
from tests.simulator.launching import launching
from tests.simulator.ownership import ownership
from tests.simulator.planted import Planted, first_seed
from tests.simulator.servers import servers
from tests.simulator.storage import Outcome, storage

_MOST = 1000  # seeds for a planted bug


@dataclass(frozen=True)
class Protocol:
    """What is simulated.

    Parameters
    ----------
    name : str
        Its name.
    what : str
        What its seeds draw, and what must hold.
    run : callable
        Runs a seed.
    planted : tuple of Planted
        Bugs that are put into it.
    found : tuple of str
        Bugs that its seeds have found in the product.
    """

    name: str
    what: str
    run: Callable[[int], Outcome]
    planted: tuple[Planted, ...]
    found: tuple[str, ...]


PROTOCOLS = (
    Protocol(
        "Storage",
        """Plans, exports, pages, snapshots of servers and checkpoints are written over old ones in
one to three turns, by one process or two at once, while another one reads. At any call that changes
files a process dies, the power goes (of what was not synced any names, bytes and sectors are left),
or the disk is full or broken, once or from then on. A reader sees one generation, whole; what a
writer has ended stays there without power; errors are sentences; two writers never mix; and the
next writer leaves nothing but its files.""",
        storage,
        planted.STORAGE,
        (
            "A reader that listed a folder while its last checkpoint was rotated away found none, "
            "and a training that resumes would have begun anew. The folder is listed again.",
        ),
    ),
    Protocol(
        "Parameter servers",
        """A scheduler, one or two servers and one to three workers train four steps, synchronously
or not. Calls are lost before or after they are answered, doubled, cut, held up and reordered;
servers die at some time or at a call that changes a file, and are started again; a worker dies.
Losses and tables are those of a run without faults to the bit, every push is applied once, also
those of workers that have ended before a server dies, and all processes end.""",
        servers,
        planted.SERVERS,
        (
            "A push of a worker overwrote the one before it that waited for those of other "
            "workers: where several are sent again to a server that came back.",
            "A call that was lost while pushes were sent again left the connection in use without "
            "them, and all workers waited for ever.",
            "A worker that waited for one server did not notice that another one was lost and had "
            "come back without its pushes; a second worker waited for these, and both for ever.",
            "A server that died after a worker had ended lost what this worker had pushed since "
            "the last snapshot. A worker now ends when its pushes are in one.",
            "Where the worker that sends the initial values ended before it had, the others "
            "waited for ever.",
        ),
    ),
    Protocol(
        "Ownership of checkpoints",
        """A launcher starts two ranks up to four times. At any call that changes files a rank dies,
or stands still for some seconds; the launcher ends a start whose ranks do not go on, or cannot
reach it, so that orphans go on beside the next start. Only the start that took the lease last
completes and removes checkpoints; each checkpoint is whole, and of one start; the last start ends,
and nothing but its checkpoint and the lease is left. The launcher is a model here; what ranks do
with checkpoints is the product's code.""",
        ownership,
        planted.OWNERSHIP,
        (),
    ),
    Protocol(
        "Launcher",
        """`shardwright launch` starts two or three ranks, by MPI or as one of two hosts, and starts
them again up to twice. In a start a rank dies by a signal (another one may die of it), fails, is
stopped, stands still or is slow; the launcher is interrupted once or twice, terminated or killed,
and another one follows in its folder. Nothing is alive 10 s after a launcher, nor at the next
start; runs end well where nothing happens, and are started again as often as was asked; what is
said names the rank, the signal and the step that are the cause; ranks that are asked to end have
their time; of the memory that ranks share nothing is left that the launcher had the time to see.
The launcher, the parents of ranks and their boards are the product's code; the system, MPI's own
launcher (as MPICH's: it names any of the ranks that died) and the steps of ranks are models.""",
        launching,
        planted.LAUNCHING,
        (
            "Where a rank died before it had a board, another one that died of it, or that was "
            "ended, was named as the one that died. Its parent makes the board now.",
            "Ranks that the launcher had not seen when it was interrupted were not asked to end, "
            "and were killed after the grace period without having saved.",
        ),
    ),
)


def _row(planted: Planted, run: Callable[[int], Outcome]) -> str:
    found = first_seed(planted, run, _MOST)
    row = f"| {planted.what} | {'none' if found is None else found[0]} |"
    print(row, flush=True)
    return row


def _section(protocol: Protocol, seeds: int) -> tuple[str, list[str]]:
    """Run all seeds of a protocol; return its section of the page, and what is wrong."""
    kinds, wrong, begin = Counter[str](), list[str](), time.process_time()
    for seed in range(seeds):
        outcome = protocol.run(seed)
        kinds[outcome.what] += 1
        wrong += [f"seed {seed}, {outcome.what}: {text}" for text in outcome.wrong]
        if outcome.wrong or not (seed + 1) % 1000:
            print(protocol.name, seed, outcome.wrong, flush=True)
    each = (time.process_time() - begin) / max(1, seeds)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    text = f"## {protocol.name}\n\n{protocol.what}\n\n{seeds:,} seeds ({counts}), {each * 1e3:.0f} "
    text += f"ms of processor time each: {len(wrong)} find anything wrong.\n\n"
    text += "".join(f"- {line}\n" for line in wrong)
    if protocol.found:
        text += "Bugs of the product that seeds have found, which are mended:\n\n"
        text += "".join(f"- {line}\n" for line in protocol.found) + "\n"
    rows = [_row(planted, protocol.run) for planted in protocol.planted]
    return text + "| planted bug | first seed that finds it |\n|---|---|\n" + "\n".join(rows), wrong


def main() -> None:
    """Run all seeds and planted bugs, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="seeds of each protocol")
    names = [protocol.name for protocol in PROTOCOLS]
    parser.add_argument("--only", choices=names, help="a protocol; the others stay as they are")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    before = arguments.out.read_text().split("\n## ")[1:] if arguments.out.exists() else []
    sections = {text.partition("\n")[0]: f"## {text.strip()}" for text in before}
    failed = False
    for protocol in PROTOCOLS:
        if arguments.only in (None, protocol.name):
            sections[protocol.name], wrong = _section(protocol, arguments.seeds)
            failed |= bool(wrong)
    text = f"# Fault simulator\n\n{(__doc__ or '').split(chr(10), 2)[2].strip()}\n\n"
    text += "The tests run 200 seeds of each, and 10,000 with `SHARDWRIGHT_ALL_CASES=1`. A planted "
    text += "bug is\na change of a line of the product, tried on seeds from 0 on.\n\n"
    text += f"On {machine()}.\n\n"
    text += "\n\n".join(sections[name] for name in names if name in sections)
    arguments.out.write_text(f"{text}\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()

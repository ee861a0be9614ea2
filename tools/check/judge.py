"""Run a program's ranks, and judge them by what one device computes."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from shardwright.ir.errors import ModelError
from shardwright.tools.check import alone, rank
from shardwright.tools.check.alone import Reference, Whole
from shardwright.tools.check.comparison import Fault, faults, not_waited_for
from shardwright.tools.check.mends import Wrong, search
from shardwright.tools.check.rank import Answer
from shardwright.tools.check.ranks import Processes
from shardwright.tools.check.watch import Mend

_SECONDS = 120.0  # for a run of the file to end; one that hangs is told after so many


@dataclass(frozen=True)
class Verdict:
    """What a check found; `compared` counts gradients of parameters, over all ranks."""

    faults: tuple[Fault, ...]
    ranks: int
    compared: int
    mends: tuple[str, ...]
    searched: bool


def check(path: Path, search_seconds: float = 60.0) -> Verdict:
    """Check the program of a file; of a wrong one, search for so long for what mends it.

    Raises
    ------
    ModelError
        If the file does not offer what is needed, fails, or cannot be decided.
    """
    with Processes(path, alone.start, {"one device": (path,)}) as process:
        (reference,) = process.ask(None, _SECONDS)
    assert isinstance(reference, Reference)
    program = _Program(path, reference)
    try:
        return program.verdict(search_seconds)
    finally:
        program.stop()


class _Program:
    """The ranks of a program. Their processes serve several runs, until one fails."""

    def __init__(self, path: Path, reference: Reference) -> None:
        self.path, self.reference = path, reference
        self.size = prod(reference.mesh.values())
        self._processes: Processes | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def verdict(self, search_seconds: float) -> Verdict:
        found: dict[tuple[str, str], Fault] = {}
        answers: Sequence[Answer] = ()
        for whole in self.reference.wholes:
            answers, differing = self.judged(whole, frozenset(found))
            for fault in differing:
                found.setdefault((fault.what, fault.value), fault)
        if found and any(answer.rounds for answer in answers):
            raise ModelError(
                "it differs from one device, and computes below float64, which differs by rounding",
                str(self.path),
                "leave out lower types that libraries compute in, such as those of `fully_shard`",
            )
        searched = True
        mends: tuple[str, ...] = ()
        if found:
            searched, mends = search(
                frozenset(found), answers, self.reference.mesh, self.wrong, search_seconds
            )
        trained = self.reference.wholes[0].gradients
        names = (name for answer in answers for name in answer.gradients)
        compared = sum(self.reference.names.get(name, name) in trained for name in names)
        return Verdict(
            (*found.values(), *not_waited_for(answers)), self.size, compared, mends, searched
        )

    def judged(self, whole: Whole, known: Wrong) -> tuple[list[Answer], list[Fault]]:
        """Run the program as it is, and return what the ranks have and what of it is wrong.

        What an earlier step left in a process is never called a fault: a failure or a fault that
        is not known yet is decided by new processes.
        """
        if self._processes is not None:
            try:
                answers = self.run(whole, None, _SECONDS)
                differing = faults(self.path, self.reference, whole, answers)
                if {(fault.what, fault.value) for fault in differing} <= known:
                    return answers, differing
            except ModelError:
                pass
            self.stop()
        answers = self.run(whole, None, _SECONDS)
        return answers, faults(self.path, self.reference, whole, answers)

    def wrong(self, mend: Mend, starts: int, seconds: float) -> Wrong:
        """Return what is wrong with a change in place, from so many starts."""
        return frozenset(
            (fault.what, fault.value)
            for whole in self.reference.wholes[:starts]
            for fault in faults(
                self.path, self.reference, whole, self.run(whole, mend, min(seconds, _SECONDS))
            )
        )

    def run(self, whole: Whole, mend: Mend | None, seconds: float) -> list[Answer]:
        """Return what every rank has after a step, with a change in place if one is given."""
        if self._processes is None:
            # The ranks meet by a file, for every group that they make.
            self._folder = tempfile.TemporaryDirectory()
            meeting = f"{self._folder.name}/ranks"
            each = {f"rank {r}": (self.path, r, self.size, meeting) for r in range(self.size)}
            self._processes = Processes(self.path, rank.start, each)
        try:
            return self._processes.ask((whole, mend), seconds)
        except ModelError:
            self.stop()
            raise

    def stop(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.stop()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes = self._folder = None

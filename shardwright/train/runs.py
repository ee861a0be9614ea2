"""Runs that are continued: checkpoints of slices in training, at intervals and at an interrupt.

A run that is continued computes the bits of one that was never broken: a checkpoint has the
parameters and the states of the optimizer, the number of the step, the position in the data, and
the state of Python's and numpy's global generators.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from shardwright.communication import processes
from shardwright.dataset.dataset import Dataset, Sample
from shardwright.eager import get_seed
from shardwright.ir.errors import ModelError, PlanError
from shardwright.ir.values import NOT_NEGATIVE, NOT_NEGATIVE_INTEGER, wrong_value
from shardwright.runtime.agreement import Vote, from_first
from shardwright.runtime.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    Progress,
    Start,
    Writing,
    begin_writing,
    check_keeping,
    checked_newest,
    is_within,
    load_slices,
    newest,
    open_checkpoint,
    take_folder,
)
from shardwright.runtime.checkpoints.reading import EPOCH, NOW, random_state, set_random_state
from shardwright.runtime.faults import RESTART_VARIABLE, STANDING
from shardwright.session import Session
from shardwright.train.callbacks import Callback, RunContext

_SIGNALS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


class Checkpoints(Callback):
    """Writes checkpoints of a training run, each rank its slices, and continues from them.

    They are written after some steps, at the end, and where the user interrupts the run or a
    launcher terminates it: the step is ended and saved first. A second interrupt ends it at once.

    Parameters
    ----------
    directory : path
        Their folder, which all processes see; a checkpoint is ``step-N`` in it.
    every : int
        Steps from one to the next; 0: not by steps.
    seconds : float
        Seconds from one to the next; 0: not by time.
    keep : int
        How many stay, the newest; 0: all. Only checkpoints of this run are removed.
    asynchronous : bool
        Whether the training goes on while a checkpoint is written. An error is raised at the end
        of a later step.
    resume : bool or path, optional
        True: continue from the newest checkpoint in the folder, if there is one. A path: from that
        checkpoint. False: begin anew. By default where `shardwright launch --restarts` has started
        the run again.

    Raises
    ------
    OptionError
        If an argument has a value that is not allowed.
    """

    def __init__(
        self,
        directory: str | Path,
        every: int = 100,
        seconds: float = 0,
        keep: int = Writing.keep,
        asynchronous: bool = True,
        resume: bool | str | Path | None = None,
    ) -> None:
        if not isinstance(directory, str | Path):
            raise wrong_value("directory", directory, "the path of a folder")
        NOT_NEGATIVE_INTEGER.check("every", every)
        NOT_NEGATIVE.check("seconds", seconds)
        check_keeping(keep, asynchronous)
        if resume is not None and not isinstance(resume, bool | str | Path):
            raise wrong_value("resume", resume, "True, False, or the path of a checkpoint")
        self.directory = Path(directory)
        self.every, self.seconds, self.keep = every, seconds, keep
        self.asynchronous, self.resume = asynchronous, resume
        self.latest: Path | None = None
        self._begun: Checkpoint | None = None
        self._start: Start | None = None
        self._begin()

    def _begin(self) -> None:
        self._writer: CheckpointWriter | None = None
        self._session: Session | None = None
        self._saved = 0
        self._time = time.monotonic()
        self._interrupts = Interrupts()
        self._at_epoch: dict[str, Any] = {}

    def __exit__(self, *error: object) -> None:
        """Give the signals back, and wait for a checkpoint that is being written."""
        self._interrupts.restore()
        if self._writer is not None:
            self._writer.wait()

    # Continuing

    def open(self) -> Checkpoint | None:
        """Return the checkpoint from which the run goes on; None if it begins anew.

        Raises
        ------
        PlanError
            If it is missing or damaged.
        """
        self._begun = self._opened(take=False)
        return self._begun

    def take(self) -> Checkpoint | None:
        """Take the folder, if the run goes on there; return what `open` does, as it is then.

        Raises
        ------
        OutputError
            If the folder cannot be written to, or a later start of the run writes there.
        PlanError
            If the checkpoint is missing or damaged.
        """
        self._begun = self._opened(take=True)
        return self._begun

    def _opened(self, *, take: bool) -> Checkpoint | None:
        self._start = None
        resume = self.resume
        if resume is None:
            resume = os.environ.get(RESTART_VARIABLE, "") not in ("", "0")
        if resume is False:
            return None
        path = self.directory if resume is True else Path(resume)
        own = is_within(path, self.directory)

        def look() -> tuple[Start | None, Path | None]:
            start = take_folder(self.directory) if take and own else None
            return start, newest(path) or (None if resume is True else path)

        self._start, found = look() if processes() is None else from_first(look, Start)
        begun = None if found is None else open_checkpoint(found)
        return checked_newest(self.directory, path, begun)

    # Writing

    def begin(self, run_context: RunContext) -> None:
        """Listen to interrupts."""
        if run_context.arguments.mode == "train":
            begun = self._begun
            self._begin()
            self._begun = begun
            self._saved = run_context.total_steps
            self._interrupts.listen()

    def epoch_begin(self, run_context: RunContext) -> None:
        """Note the state of the generators, from which the samples of the epoch are drawn."""
        if run_context.arguments.mode != "train":
            return
        begun = self._begun if run_context.step else None
        states = begun.random_state(own_rank()) if begun is not None else None
        self._at_epoch = states[EPOCH] if states else random_state()

    def step_end(self, run_context: RunContext) -> None:
        """Write a checkpoint, if it is time or the user interrupts."""
        if run_context.arguments.mode != "train":
            return
        interrupted = self._interrupts.heard()
        if self._writer is not None:
            self._writer.raise_error()
        if interrupted or self._is_due(run_context.total_steps):
            self._save(run_context)
        if interrupted:
            run_context.request_stop()

    def _is_due(self, step: int) -> bool:
        if self.every and step % self.every == 0:
            return True
        if not self.seconds:
            return False
        late = time.monotonic() - self._time >= self.seconds
        return late if processes() is None else from_first(lambda: late)

    def end(self, run_context: RunContext) -> None:
        """Write the last checkpoint, and end as the interrupt asks.

        Raises
        ------
        KeyboardInterrupt, SystemExit
            If the run was interrupted.
        """
        if run_context.arguments.mode != "train":
            return
        if self._saved < run_context.total_steps:
            self._save(run_context)
        self._settle()
        self._interrupts.leave()

    def _save(self, run_context: RunContext) -> None:
        session = run_context.arguments.session
        if session is not self._session or self._writer is None:
            self._settle()
            self._session, self._writer = session, self._writer_of(session)
        progress = Progress(
            step=run_context.total_steps,
            epoch=run_context.epoch,
            batch=run_context.step,
            seed=get_seed(),
            data=_data(run_context.arguments.train_dataset),
        )
        self._writer.save(session.state, progress, self._at_epoch)
        self._saved, self._time = run_context.total_steps, time.monotonic()

    def _writer_of(self, session: Session) -> CheckpointWriter:
        return begin_writing(
            self.directory,
            session.executor.graph,
            session.executor.communicator,
            keep=self.keep,
            asynchronous=self.asynchronous,
            resumed=self._begun,
            run=None if self._writer is None else self._writer.how.run,
            start=self._start if self._writer is None else self._writer.how.start,
        )

    def _settle(self) -> None:
        if self._writer is not None:
            self._writer.settle()
            self.latest = self._writer.latest


def _data(dataset: Dataset) -> str:
    """Return what tells the data of a run from others: its columns and its batches."""
    return f"{len(dataset)} batches of {', '.join(dataset.column_names)}"


class Interrupts:
    """Interrupts of the user or a launcher, which wait for the end of a step.

    All processes stop after the same step: that after the one in which the first of them heard.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._taken: dict[signal.Signals, Any] = {}
        self._vote = None if processes() is None else Vote()
        self._stops = False

    def listen(self) -> None:
        """Take over the signals that nobody else handles."""
        for number, before in _SIGNALS.items():
            if signal.getsignal(number) is before:
                signal.signal(number, self._hear)
                self._taken[number] = before

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            self.restore()
            signal.raise_signal(number)
        self._signal = number

    def heard(self) -> bool:
        """Return whether to stop; all processes call it at the end of every step."""
        own = self._signal is not None
        self._stops = own if self._vote is None else self._vote.cast(own)
        return self._stops

    def leave(self) -> None:
        """Give the signals back, and end as the one that was heard asks.

        Raises
        ------
        KeyboardInterrupt, SystemExit
            If there was one.
        """
        self.restore()
        if self._vote is not None:
            self._vote.settle()
        if not self._stops and self._signal is None:
            return
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + (self._signal or signal.SIGTERM))

    def restore(self) -> None:
        """Give the signals back."""
        for number, before in self._taken.items():
            signal.signal(number, before)
        self._taken.clear()


def own_rank() -> int:
    """Return the rank of this process; the first of all where one process has them."""
    started = processes()
    return 0 if started is None else started.rank


def resumption(callbacks: Sequence[Callback], dataset: Dataset) -> Checkpoint | None:
    """Return the checkpoint that a run continues; None if it begins anew.

    Raises
    ------
    PlanError
        If it is damaged, or of a run on other data.
    """
    found = [callback for callback in callbacks if isinstance(callback, Checkpoints)]
    if len(found) > 1:
        raise ModelError(
            f"{len(found)} callbacks `Checkpoints` are given, expected one",
            hint="use `ModelCheckpoint` for files of whole tensors beside it",
        )
    if not found:
        return None
    checkpoint = found[0].open()
    if checkpoint is not None:
        check_data(checkpoint, dataset)  # a mistake takes the folder from nobody
    return found[0].take()


def restore(checkpoint: Checkpoint, session: Session) -> None:
    """Give a session the state of a checkpoint.

    Raises
    ------
    PlanError
        If it is damaged, or of another program.
    """
    executor = session.executor
    STANDING.count_steps(checkpoint.manifest.progress.step)
    session.state.update(load_slices(checkpoint, executor.graph, executor.communicator))


def rest_of_epoch(
    dataset: Dataset, epoch: int, begin: int, checkpoint: Checkpoint | None
) -> Iterator[Sample]:
    """Return the batches of an epoch from number `begin` on.

    Those of a run that is continued are drawn as before: where batches cannot be skipped unread,
    they are read again with the state that the generators had at the begin of the epoch.
    """
    if checkpoint is None:
        return dataset.resumed(epoch, begin)
    states = checkpoint.random_state(own_rank()) or {}
    if states.get(EPOCH):
        set_random_state(states[EPOCH])
    batches = dataset.resumed(epoch, begin)
    if states.get(NOW):
        set_random_state(states[NOW])
    return batches


def check_data(checkpoint: Checkpoint, dataset: Dataset) -> None:
    """Refuse to continue a run on other data, or with another seed.

    Raises
    ------
    PlanError
        If the number of batches, the columns or the seed differ.
    """
    progress = checkpoint.manifest.progress
    found = {"data": _data(dataset), "seed": get_seed()}
    for name, value in found.items():
        before = getattr(progress, name)
        if value != before:
            raise PlanError(
                f"the run had the {name} `{before}`, and is to be continued with `{value}`",
                str(checkpoint.path),
                "continue it as it began, or give `Checkpoints` another folder",
            )

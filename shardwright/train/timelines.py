"""The timeline of a training run, as a callback."""

from pathlib import Path

from shardwright.ir.errors import ModelError
from shardwright.runtime.flat.rank_timeline import RunTimeline, check_timeline_file, write_timeline
from shardwright.session import Session
from shardwright.train.callbacks import Callback, RunContext


class TimelineMonitor(Callback):
    """Writes what every rank did when in the last steps, for ``chrome://tracing`` or Perfetto.

    Parameters
    ----------
    file : str or Path
        The file, which the first process writes at the end of training.

    Raises
    ------
    OutputError
        If it cannot be written.
    """

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        check_timeline_file(self.file)
        self._timeline = RunTimeline()

    def step_end(self, run_context: RunContext) -> None:
        """Watch the steps after the first one of each shape of a batch."""
        if run_context.arguments.mode == "train":
            self._session(run_context).executor.watch(self._timeline)

    def end(self, run_context: RunContext) -> None:
        """Write the file, if anything was trained."""
        if run_context.arguments.mode == "train" and run_context.arguments.session is not None:
            communicator = self._session(run_context).executor.communicator
            write_timeline(self.file, self._timeline, communicator)

    def _session(self, run_context: RunContext) -> Session:
        session = run_context.arguments.session
        if not isinstance(session, Session):
            raise ModelError(
                "a run with parameter servers has no timeline", hint="leave out `TimelineMonitor`"
            )
        return session

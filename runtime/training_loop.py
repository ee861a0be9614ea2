"""The training loop: steps, losses and the logs of every rank."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from shardwright.ir.errors import ExecutionError
from shardwright.ir.files.writing import begins, check_file, failing_as
from shardwright.operators.info import Array
from shardwright.runtime.executor import Executor
from shardwright.runtime.faults import STANDING
from shardwright.runtime.state import State

_LOG = "the log"


@dataclass(frozen=True)
class StepRecord:
    """One step of training.

    Parameters
    ----------
    step : int
        Number of the step from the beginning; the first is 1.
    loss : float
        The loss before the update, on the first hosted rank.
    seconds : float
        Time of the step.
    peak_bytes : int
        Most bytes of live values on one rank.
    host_peak_bytes : int
        Most bytes of live values of one rank in host memory.
    """

    step: int
    loss: float
    seconds: float
    peak_bytes: int
    host_peak_bytes: int = 0


def train(
    executor: Executor,
    state: State,
    batches: Iterable[Mapping[str, Array]],
    *,
    log_directory: Path | None = None,
    steps_per_epoch: int | None = None,
    log_every: int = 1,
    callbacks: Sequence[Callable[[StepRecord], None]] = (),
    steps_before: int = 0,
) -> Iterator[StepRecord]:
    """Run a training program on each batch, and yield a record of each step.

    Parameters
    ----------
    executor : Executor
        The training program; its first output is the loss.
    state : State
        Parameters and buffers, which every step updates.
    batches : iterable of mapping
        Whole inputs of each step.
    log_directory : Path, optional
        Where each hosted rank writes ``rank.N/stdout``, a line for every `log_every` steps.
    steps_per_epoch : int, optional
        Steps after which the log begins a new epoch.
    log_every : int
        Steps between lines of the log.
    callbacks : sequence of callable
        Called with the record of each step.
    steps_before : int
        Steps of the run before it was resumed; logs are continued then.

    Raises
    ------
    ExecutionError
        If the program has no scalar loss with a replicated layout, or a step fails.
    """
    name = _loss_name(executor)
    resumed = steps_before > 0
    STANDING.count_steps(steps_before)
    logs = {} if log_directory is None else _open_logs(log_directory, executor, resumed)
    for step, batch in enumerate(batches, steps_before + 1):
        begin = perf_counter()
        with STANDING.step():
            result = executor.step(batch, state)
            seconds = perf_counter() - begin
            losses = losses_of(executor, result.outputs[name])
        if step % log_every == 0:
            for rank, log in logs.items():
                _write_line(log, step, losses[rank], steps_per_epoch)
        loss = losses[executor.communicator.ranks[0]]
        peaks = result.peak_bytes, result.host_peak_bytes
        record = StepRecord(step, loss, seconds, *peaks)
        for callback in callbacks:
            callback(record)
        yield record


def saving(
    records: Iterable[StepRecord],
    save: Callable[[StepRecord], None],
    every: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[StepRecord]:
    """Train, and save the state at intervals and at the end.

    Parameters
    ----------
    records : iterable of StepRecord
        The records of `train`.
    save : callable
        Saves the state after a step.
    every : int, optional
        Steps between saves; by default only at the end.
    stop : callable
        Called after every step; returns whether to stop early, with the state saved.
    """
    saved, last = True, None
    for record in records:
        last = record
        stopped = stop()
        saved = stopped or (every is not None and record.step % every == 0)
        if saved:
            save(record)
        yield record
        if stopped:
            return
    if not saved and last is not None:
        save(last)


def _loss_name(executor: Executor) -> str:
    graph = executor.graph
    if not graph.outputs:
        raise ExecutionError(f"graph `{graph.name}` has no outputs, expected the loss as the first")
    value = graph.value(graph.outputs[0])
    if value.type.elements != 1:
        raise ExecutionError(f"the loss `{value.name}` is {value.type}, expected a scalar")
    if value.layout is not None and value.layout.partial:
        raise ExecutionError(
            f"the loss `{value.name}` has the layout {value.layout}, expected a replicated one"
        )
    return value.name


def losses_of(executor: Executor, parts: Mapping[int, Array]) -> dict[int, float]:
    """Return the loss of each hosted rank, from the slices of its holders.

    That of a pipeline stage is sent to every rank.
    """
    graph, communicator = executor.graph, executor.communicator
    layout = graph.value(graph.outputs[0]).layout
    if layout is None or layout.stage is None:
        return {rank: float(part) for rank, part in parts.items()}
    everywhere = communicator.collect(parts)
    first = float(everywhere[min(everywhere)])
    return dict.fromkeys(communicator.ranks, first)


def _open_logs(directory: Path, executor: Executor, resumed: bool) -> dict[int, Path]:
    """Return a log for each hosted rank; an empty one unless the run is resumed."""
    logs = {}
    for rank in executor.communicator.ranks:
        log = directory / f"rank.{rank}" / "stdout"
        with failing_as(_LOG, log):
            log.parent.mkdir(parents=True, exist_ok=True)
            check_file(log, _LOG, begins(b"epoch: "))
            if not resumed:
                log.write_bytes(b"")
        logs[rank] = log
    return logs


def _write_line(log: Path, step: int, loss: float, steps_per_epoch: int | None) -> None:
    """Append one line; files are not kept open, since there may be a thousand ranks."""
    epoch, within = divmod(step - 1, steps_per_epoch) if steps_per_epoch else (0, step - 1)
    with failing_as(_LOG, log), log.open("a") as file:
        file.write(f"epoch: {epoch + 1} step: {within + 1}, loss is {loss}\n")

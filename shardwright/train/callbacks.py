"""Callbacks: observers of a training run."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, wrong_value


@dataclass
class RunArguments:
    """What MindSpore's callbacks read of a run: see `RunContext.original_args`.

    Parameters
    ----------
    mode : str
        ``train``, ``eval`` or ``predict``.
    network, loss_fn, optimizer, metrics : optional
        Those of the model.
    train_network : object
        The model's network with its loss.
    train_dataset : Dataset, optional
        The data.
    epoch_num, batch_num : int
        Number of epochs, and of batches in one.
    cur_epoch_num, cur_step_num : int
        Number of the epoch, and of all steps so far; the first are 1.
    net_outputs : object
        The loss of the step, or the outputs of the network.
    device_number : int
        Number of ranks.
    parallel_mode : str
        The mode.
    dataset_sink_mode : bool
        As `Model.train` was asked.
    list_callback : sequence of Callback
        The callbacks.
    """

    mode: str = "train"
    network: Any = None
    loss_fn: Any = None
    optimizer: Any = None
    metrics: Any = None
    train_network: Any = None
    train_dataset: Any = None
    epoch_num: int = 1
    batch_num: int = 0
    cur_epoch_num: int = 0
    cur_step_num: int = 0
    net_outputs: Any = None
    device_number: int = 1
    parallel_mode: str = "stand_alone"
    dataset_sink_mode: bool = False
    list_callback: Sequence["Callback"] = ()
    session: Any = None


@dataclass
class RunContext:
    """The state of a training run.

    Parameters
    ----------
    epoch, step : int
        Number of the epoch, and of the step in it; the first are 1.
    total_steps : int
        Steps since the beginning.
    loss : float
        The loss before the step's update.
    arguments : RunArguments
        The run in MindSpore's words.
    """

    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    loss: float = float("nan")
    arguments: RunArguments = field(default_factory=RunArguments)
    _stops: bool = False

    def original_args(self) -> RunArguments:
        """Return the run in MindSpore's words."""
        return self.arguments

    def request_stop(self) -> None:
        """Ask to end the run after this step."""
        self._stops = True

    def get_stop_requested(self) -> bool:
        """Return whether the run is to end."""
        return self._stops


class Callback:
    """An observer of a run; a subclass overrides what it observes.

    The hooks of one kind of run, such as `on_train_step_end`, call those of all kinds unless they
    are overridden, such as `step_end`.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def begin(self, run_context: RunContext) -> None:
        """Observe the begin of a run."""

    def epoch_begin(self, run_context: RunContext) -> None:
        """Observe the begin of an epoch."""

    def step_begin(self, run_context: RunContext) -> None:
        """Observe the begin of a step."""

    def step_end(self, run_context: RunContext) -> None:
        """Observe a step."""

    def epoch_end(self, run_context: RunContext) -> None:
        """Observe the end of an epoch."""

    def end(self, run_context: RunContext) -> None:
        """Observe the end of a run."""

    def on_train_begin(self, run_context: RunContext) -> None:
        """Observe the begin of training."""
        self.begin(run_context)

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Observe the begin of an epoch of training."""
        self.epoch_begin(run_context)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Observe the begin of a step of training."""
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Observe a step of training."""
        self.step_end(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Observe the end of an epoch of training."""
        self.epoch_end(run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """Observe the end of training."""
        self.end(run_context)

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Observe the begin of an evaluation."""
        self.begin(run_context)

    def on_eval_epoch_begin(self, run_context: RunContext) -> None:
        """Observe the begin of the one epoch of an evaluation."""
        self.epoch_begin(run_context)

    def on_eval_step_begin(self, run_context: RunContext) -> None:
        """Observe the begin of a batch of an evaluation."""
        self.step_begin(run_context)

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """Observe a batch of an evaluation."""
        self.step_end(run_context)

    def on_eval_epoch_end(self, run_context: RunContext) -> None:
        """Observe the end of the one epoch of an evaluation."""
        self.epoch_end(run_context)

    def on_eval_end(self, run_context: RunContext) -> None:
        """Observe the end of an evaluation."""
        self.end(run_context)


def as_callbacks(callbacks: object) -> tuple[Callback, ...]:
    """Return callbacks as a tuple: one, several, or none.

    Raises
    ------
    OptionError
        If something else stands among them.
    """
    if callbacks is None:
        return ()
    several = tuple(callbacks) if isinstance(callbacks, list | tuple) else (callbacks,)
    for callback in several:
        if not isinstance(callback, Callback):
            raise wrong_value("callbacks", callback, "a `Callback`, or several")
    return several


def tell(callbacks: Sequence[Callback], hook: str, run_context: RunContext) -> None:
    """Call a hook of all callbacks: ``on_train_step_end``."""
    for callback in callbacks:
        getattr(callback, hook)(run_context)


class LossMonitor(Callback):
    """Prints the loss.

    Parameters
    ----------
    per_print_times : int
        Steps from one line to the next.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        POSITIVE_INTEGER.check("per_print_times", per_print_times)
        self.per_print_times = per_print_times

    def step_end(self, run_context: RunContext) -> None:
        """Print a line every `per_print_times` steps of training."""
        run = run_context
        if run.arguments.mode == "train" and run.total_steps % self.per_print_times == 0:
            print(f"epoch: {run.epoch} step: {run.step}, loss is {run.loss}", flush=True)


class TimeMonitor(Callback):
    """Prints the time of every epoch, and of a step in it.

    Parameters
    ----------
    data_size : int, optional
        Number of steps in an epoch; that of the run unless given.
    data_time : bool
        Must be False: the time of fetching data is not measured apart.
    """

    def __init__(self, data_size: int | None = None, data_time: bool = False) -> None:
        if data_size is not None:
            POSITIVE_INTEGER.check("data_size", data_size)
        if data_time is not False:
            raise wrong_value("data_time", data_time, "False")
        self.data_size = data_size
        self._begin = 0.0

    def epoch_begin(self, run_context: RunContext) -> None:
        """Take the time."""
        self._begin = time.perf_counter()

    def epoch_end(self, run_context: RunContext) -> None:
        """Print the time of the epoch in milliseconds."""
        seconds = time.perf_counter() - self._begin
        steps = self.data_size or run_context.step
        if not steps:
            raise ModelError("an epoch has no steps", hint="check the size of the dataset")
        mode = run_context.arguments.mode.capitalize()
        each = 1e3 * seconds / steps
        print(f"{mode} epoch time: {1e3 * seconds:5.3f} ms, per step time: {each:5.3f} ms")

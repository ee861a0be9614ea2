"""Callbacks: observers of a training run."""

from dataclasses import dataclass

from shardwright.ir.values import POSITIVE_INTEGER


@dataclass(frozen=True)
class RunContext:
    """The state of a training run after a step.

    Parameters
    ----------
    epoch, step : int
        Number of the epoch, and of the step in it; the first are 1.
    total_steps : int
        Steps since the beginning.
    loss : float
        The loss before the step's update.
    """

    epoch: int
    step: int
    total_steps: int
    loss: float


class Callback:
    """An observer of a training run; a subclass overrides `step_end`."""

    def step_end(self, run_context: RunContext) -> None:
        """Observe a step."""


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
        """Print a line every `per_print_times` steps."""
        run = run_context
        if run.total_steps % self.per_print_times == 0:
            print(f"epoch: {run.epoch} step: {run.step}, loss is {run.loss}", flush=True)

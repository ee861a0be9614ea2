"""Execution of per-rank programs on numpy."""

from shardwright.runtime.capacity import check_capacity
from shardwright.runtime.checkpoint import check_checkpoint, load_checkpoint, save_checkpoint
from shardwright.runtime.communicator import Communicator, LocalCommunicator, any_process
from shardwright.runtime.compare import Comparison, compare, magnitude
from shardwright.runtime.executor import Executor, StepResult
from shardwright.runtime.mpi import MpiCommunicator
from shardwright.runtime.reference import Expected, Reference
from shardwright.runtime.state import State, assemble, initialize, scatter
from shardwright.runtime.training_loop import StepRecord, losses_of, saving, train

__all__ = [
    "Communicator",
    "Comparison",
    "Executor",
    "Expected",
    "LocalCommunicator",
    "MpiCommunicator",
    "Reference",
    "State",
    "StepRecord",
    "StepResult",
    "any_process",
    "assemble",
    "check_capacity",
    "check_checkpoint",
    "compare",
    "initialize",
    "load_checkpoint",
    "losses_of",
    "magnitude",
    "save_checkpoint",
    "saving",
    "scatter",
    "train",
]

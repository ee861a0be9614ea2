"""Where a rank stands: noted by the rank while it runs, read by the launcher when it has died."""

from shardwright.runtime.faults.board import (
    BOARD_VARIABLE,
    RESTART_VARIABLE,
    RUN_VARIABLE,
    Board,
    Phase,
    board_path,
    new_run,
    note_signal,
)
from shardwright.runtime.faults.standing import STANDING

__all__ = [
    "BOARD_VARIABLE",
    "RESTART_VARIABLE",
    "RUN_VARIABLE",
    "STANDING",
    "Board",
    "Phase",
    "board_path",
    "new_run",
    "note_signal",
]

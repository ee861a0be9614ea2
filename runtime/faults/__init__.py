"""Where a rank stands: noted by the rank while it runs, read by the launcher when it has died."""

from shardwright.runtime.faults.board import BOARD_VARIABLE, Board, Phase, board_path, note_signal
from shardwright.runtime.faults.standing import STANDING

__all__ = ["BOARD_VARIABLE", "STANDING", "Board", "Phase", "board_path", "note_signal"]

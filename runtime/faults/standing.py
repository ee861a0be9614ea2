"""What this process notes on its board; nothing where no launcher watches it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from shardwright.runtime.faults.board import BOARD_VARIABLE, Board, Phase, board_path

_NOTHING = nullcontext()  # where nobody watches, a step has no time for more


def _told(error: BaseException | str) -> str:
    """Return what is said of an error: its kind and what it says, if anything."""
    if isinstance(error, KeyboardInterrupt):
        return "it was interrupted"
    text = str(error)
    return text if isinstance(error, str) else ": ".join(filter(None, (type(error).__name__, text)))


class Standing:
    """Where this process stands.

    Attributes
    ----------
    value : str
        The value that the node under way makes, for the text of the place.
    """

    def __init__(self) -> None:
        self._board: Board | None = None
        self.value = ""

    def open(self, rank: int) -> None:
        """Open the board of this process, if a launcher asks for one."""
        folder = os.environ.get(BOARD_VARIABLE)
        if folder and self._board is None:
            self._board = Board(board_path(Path(folder), rank), writes=True)
            self._board.beat()

    def set_phase(self, phase: Phase) -> None:
        """Note what the rank does."""
        if self._board is not None:
            self._board.set_phase(phase)

    def fail(self, error: BaseException | str) -> None:
        """Note the error with which the process ends."""
        if self._board is not None:
            self._board.fail(" ".join(_told(error).split()))

    def note_checkpoint(self, path: Path) -> None:
        """Note the newest checkpoint."""
        if self._board is not None:
            self._board.note_checkpoint(path.absolute())

    def count_steps(self, steps: int) -> None:
        """Set the number of steps that have ended."""
        if self._board is not None:
            self._board.count_steps(steps)

    def step(self) -> AbstractContextManager[None]:
        """Note a step, from its begin to its end."""
        return _NOTHING if self._board is None else self._step(self._board)

    @contextmanager
    def _step(self, board: Board) -> Iterator[None]:
        board.begin_step()
        yield
        self.value = ""
        board.end_step()

    @property
    def is_watched(self) -> bool:
        """Whether a launcher watches this process."""
        return self._board is not None

    def wait(self, operator: str, members: Sequence[int] = ()) -> None:
        """Note that the rank waits in an operator for others of a group.

        Parameters
        ----------
        operator : str
            The operator.
        members : sequence of int
            The ranks of the group; all, if it is not told.
        """
        if self._board is None:
            return
        value = f" of `{self.value}`" if self.value else ""
        group = f"the ranks {in_ranks(members)}" if members else "all ranks"
        self._board.wait(f"`{operator}`{value} with {group}")

    def waiting(self, operator: str, members: Sequence[int] = ()) -> AbstractContextManager[None]:
        """Note that the rank waits for others of a group, until the block ends well."""
        return _NOTHING if self._board is None else self._waiting(operator, members)

    @contextmanager
    def _waiting(self, operator: str, members: Sequence[int]) -> Iterator[None]:
        self.wait(operator, members)
        yield
        self.go_on()

    def go_on(self) -> None:
        """Note that the rank waits no longer."""
        if self._board is not None:
            self._board.go_on()


STANDING = Standing()


def in_ranks(members: Sequence[int]) -> str:
    """Return ranks in words; long rows are shortened.

    Examples
    --------
    >>> in_ranks([0, 1, 2, 5])
    '0, 1, 2, 5'
    >>> in_ranks(range(100))
    '0, 1, 2, 3, 4, 5, 6, 7, ..., 99'
    """
    texts = [str(rank) for rank in members]
    return ", ".join(texts if len(texts) <= 10 else [*texts[:8], "...", texts[-1]])

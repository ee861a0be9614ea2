"""Shared memory of the ranks of one host, which MPI leaves where they are killed."""

import os
import re
from contextlib import suppress
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PROCESSES = Path("/proc")
_NAME = r"mpich_shm_\w+"  # as MPICH names what its ranks share


class Segments:
    """Notes which segments the ranks have mapped, and removes them when they have ended.

    Parameters
    ----------
    note : Path
        A file with their names: where the launcher is killed, the next one removes them by it.
    """

    def __init__(self, note: Path) -> None:
        self._note = note
        self._names: set[str] = set()

    def look(self, pid: int) -> bool:
        """Note what a process has mapped; return whether it has mapped any segment."""
        try:
            mapped = (_PROCESSES / str(pid) / "maps").read_text()
        except OSError:  # it has ended, or the system is not Linux
            return False
        found = set(re.findall(rf"{_MEMORY}/({_NAME})", mapped))
        if not found <= self._names:
            self._names |= found
            self._note.write_text("\n".join(sorted(self._names)))
        return bool(found)

    def remove(self) -> None:
        """Remove the segments of this run, or of an earlier one in the same folder."""
        noted = self._note.read_text().split() if self._note.is_file() else []
        for name in {name for name in noted if re.fullmatch(_NAME, name)}:
            with suppress(OSError):  # MPI has removed it
                os.unlink(_MEMORY / name)
        self._note.unlink(missing_ok=True)
        self._names.clear()

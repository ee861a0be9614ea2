"""What the launcher of a run tells its scheduler: which processes have died, and how.

The scheduler reads lines from a pipe, whose number stands in a variable of its environment.
"""

import os
import threading
from typing import Final

from shardwright.server.scheduler import Members

DEATHS_VARIABLE: Final = "SHARDWRIGHT_DEATHS"


def death(role: str, number: int, why: str) -> bytes:
    """Return the line that tells how a process has died."""
    return f"{role} {number} {why}\n".encode()


def note_deaths(members: Members) -> None:
    """Read of deaths from now on, where a launcher tells of them."""
    pipe = os.environ.get(DEATHS_VARIABLE)
    if pipe is not None:
        threading.Thread(target=_note, args=(int(pipe), members), daemon=True).start()


def _note(pipe: int, members: Members) -> None:
    with open(pipe) as lines:
        for line in lines:
            role, number, why = line.rstrip("\n").split(" ", 2)
            members.lose(role, int(number), why)

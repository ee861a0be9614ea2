"""Memory that a step frees stays with the process, for the next step.

The C library gives large blocks back to the system when they are freed, and gets them anew, page by
page, when they are asked for again: in a step that costs more than to fill them. It stops doing so
by itself, but not where a library such as MPI's allocates in between.
"""

import ctypes
import os
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_KEPT = 2**28  # bytes at the end of the heap that stay when they are free
_BLOCKS = (2**28, 2**25)  # bytes; larger blocks are the system's; not every version takes the first


@cache
def keep_freed_memory() -> bool:
    """Let the process keep what it frees; return whether the C library was told so.

    It is not where the user has told it something else by its variables, or where it is another one
    than GNU's.
    """
    if any(name in os.environ for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    kept = bool(mallopt(_TRIM_THRESHOLD, _KEPT))
    return any(mallopt(_MMAP_THRESHOLD, size) for size in _BLOCKS) and kept

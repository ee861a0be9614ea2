"""Garbage collection during a compilation."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from operator import ge

_COLLECTIONS = (2_000_000, 20, 100)  # thresholds of garbage collection during a compilation


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let garbage collection run seldom, and skip the objects that exist already.

    A compilation makes many objects and no cycles of any size: nearly all go when they are needed
    no more, and each collection that they meet before costs a visit. By a quarter of the threshold
    of new objects, of which 2 million take 0.3 GB, the collections of a large model take 8 % of its
    time; by twice as many as little as by these.
    """
    before = gc.get_threshold()
    if not before[0] or all(map(ge, before, _COLLECTIONS)):  # off, or rare already
        yield
        return
    is_frozen = bool(gc.get_freeze_count())
    gc.set_threshold(*map(max, before, _COLLECTIONS))
    if not is_frozen:  # the user's own freeze is kept
        gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not is_frozen:
            gc.unfreeze()

"""What a compilation makes goes when nothing needs it any more, without garbage collection."""

import gc
from collections import Counter

import pytest

import shardwright
from tests.extent import ANY_PLAN


def garbage_of_ours() -> Counter[str]:
    """Return the kinds of our objects that only garbage collection frees."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        kinds = (type(one) for one in gc.garbage)
        return Counter(kind.__name__ for kind in kinds if kind.__module__.startswith("shardwright"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"mesh": "search"}, {"stages": 2, "micro_batches": 2}])
def test_nothing_large_is_in_a_cycle(options: dict[str, object]) -> None:
    """The prices of a planner have one of their own: a cycle of as many objects as axes."""
    text = "gpt2:layers=2,hidden=64,heads=4,vocabulary=128,sequence=32"
    options = {**options, **ANY_PLAN}
    shardwright.compile(text, 2, batch=8, **options)
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        found = shardwright.compile(text, 2, batch=8, **options)
        nodes = len(found.plan.program.nodes)
        del found
        assert garbage_of_ours().total() < nodes / 2
    finally:
        if was_on:
            gc.enable()

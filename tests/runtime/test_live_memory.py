import numpy as np

from shardwright.runtime.live_memory import LiveBytes


def test_views_of_one_buffer_count_once():
    memory = LiveBytes()
    a = np.zeros((4, 2))
    views = [a, a.reshape(8), a.T, a.T.reshape(8)]  # the last one cannot but copy
    for view in views:
        memory.hold(view)
    assert memory.now == memory.peak == 2 * a.nbytes
    for view in views[:3]:
        memory.release(view)
    assert memory.now == a.nbytes
    for view in views[3:]:
        memory.release(view)
    assert memory.now == 0
    assert memory.peak == 2 * a.nbytes


def test_a_repeated_element_counts_as_if_written_out():
    memory = LiveBytes()
    memory.hold(np.broadcast_to(np.zeros(1), (5,)))
    assert memory.now == 40

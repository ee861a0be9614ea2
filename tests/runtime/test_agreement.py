import numpy as np
import pytest

from shardwright.runtime.agreement import checksum


@pytest.mark.parametrize("shape", [(), (3,), (64, 28, 28), (32, 1024)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_a_checksum_tells_one_element_and_the_order_of_rows(shape, dtype):
    random = np.random.default_rng(0)
    array = np.asarray(random.integers(0, 250, shape), dtype)
    labels = random.integers(0, 10, 5)
    right = checksum([array, labels])
    assert checksum([array.copy(), labels]) == right
    other = array.copy()
    other[...] = other + (np.arange(other.size).reshape(shape) == other.size // 2)
    assert checksum([other, labels]) != right
    assert checksum([array, labels[::-1]]) != right
    if array.ndim:
        assert checksum([np.roll(array, 1, 0), labels]) != right

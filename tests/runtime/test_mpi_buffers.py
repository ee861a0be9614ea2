"""Where the results of calls of MPI lie."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from shardwright.operators.info import Array
from shardwright.runtime.mpi.buffers import joined, new_results, stacked, stacked_shape
from shardwright.runtime.mpi.rows import filled_rows

MPI = SimpleNamespace(Get_address=lambda array: array.ctypes.data)


@pytest.mark.parametrize("element", [np.float32, np.float64, np.int64])
def test_a_large_result_lies_apart_from_the_part(element: type[np.generic]) -> None:
    """It does not begin where a copy would wait for itself, wherever the part begins."""
    room = np.zeros(2**18 + 4096, np.uint8)
    for start in range(0, 4096, 16):
        part: Array = room[start : start + 2**18].view(element)
        result = new_results(MPI, (2, *part.shape))(part)
        assert result.shape == (2, *part.shape)
        assert result.dtype == element
        assert result.flags.c_contiguous
        assert (result.ctypes.data - part.ctypes.data) % 4096 >= 256


@pytest.mark.parametrize(
    ("mpi", "element", "size"),
    [
        (SimpleNamespace(), np.float32, 2**18),
        (MPI, ml_dtypes.bfloat16, 2**18),
        (MPI, np.float32, 0),
        (MPI, np.float32, 7),
    ],
    ids=["no addresses", "unknown to MPI", "empty", "small"],
)
def test_other_results_are_plain_arrays(mpi: object, element: type, size: int) -> None:
    """Nothing asks for addresses where the library has none, or where it does not pay."""
    result = new_results(mpi, (size,))(np.zeros(size, element))
    assert result.base is None
    assert (result.shape, result.dtype) == ((size,), np.dtype(element))


@pytest.mark.parametrize("element", [np.float64, ml_dtypes.bfloat16])
def test_rows_of_zeros_are_not_sent(element: type) -> None:
    pieces = np.zeros((2, 4, 3), element)
    pieces[0, 1, 2], pieces[1, 3] = np.nan, 1.0
    filled, sent = filled_rows(pieces)
    assert filled.tolist() == [[False, True, False, False], [False, False, False, True]]
    np.testing.assert_array_equal(sent.astype(float), pieces[filled].astype(float))


@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.parametrize("shape", [(6, 3, 12), (3, 9, 3), (3, 0, 3)])
def test_pieces_are_stacked_and_joined_along_any_dimension(
    shape: tuple[int, ...], dimension: int
) -> None:
    part: Array = np.arange(np.prod(shape)).reshape(shape)
    pieces = stacked(part, 3, dimension)
    assert pieces.shape == stacked_shape(shape, 3, dimension)
    np.testing.assert_array_equal(pieces, np.stack(np.split(part, 3, axis=dimension)))
    np.testing.assert_array_equal(joined(pieces, dimension), part)

"""Lists read as text are what Python's reader says, or are left to it."""

import json

import numpy as np
import pytest

from shardwright.solver.formats.ragged import Ragged, loads


def plain(value):
    """Return a document with the arrays as lists."""
    if isinstance(value, Ragged):
        ends = np.cumsum(value.sizes)[:-1]
        return [part.tolist() for part in np.split(value.values, ends)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def compact(document):
    return json.dumps(document, separators=(",", ":")).encode()


def test_lists_of_integers_become_arrays():
    document = {"a": [[1, -2, 10**18], [3]], "b": {"c": [[0]], "d": [4, 5]}, "e": None}
    found = loads(compact(document))
    assert isinstance(found["a"], Ragged)
    assert found["a"].sizes.tolist() == [3, 1]
    assert isinstance(found["b"]["c"], Ragged)
    assert plain(found) == document


@pytest.mark.parametrize(
    "lists",
    [
        [[1.5], [2]],
        [[1], []],
        [[]],
        [[[1]], [[2]]],
        [[1], 2],
        [["1"], [2]],
        [[True], [None]],
        [[2**63], [1]],
        [[-(2**63)], [2**63 - 1]],
        [[10**30]],
    ],
)
def test_other_lists_stay_lists(lists):
    found = loads(compact({"a": lists, "b": [[7, 8]]}))
    assert found["a"] == lists
    assert isinstance(found["b"], Ragged)


def test_lists_within_a_text_are_text():
    document = {"name": "x:[[1,2]]", "a": [[1]]}
    assert loads(compact(document)) == document


@pytest.mark.parametrize("text", ['{"a":[[1,,2]]}', '{"a":[[1-2]]}', '{"a":[[1]', '{"a":[[-]]}'])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(json.JSONDecodeError):
        loads(text.encode())

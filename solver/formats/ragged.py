"""JSON whose lists of lists of integers are read at once, into one array each.

An instance of the contest holds some ten million integers in four such lists. As Python's objects
they would take seconds; numpy reads them as text in a moment. What looks odd in any way is left to
Python's own reader, which knows what to say of it.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.solver.problem import Array

_MARK = "\0"
"""The key of an object that stands for a list taken out; no instance has such a key."""

_ODD_SIGN = re.compile(rb"-(?![0-9])|[0-9]-")

_LIMITS = np.iinfo(np.int64)


@dataclass(frozen=True, eq=False)
class Ragged:
    """A list of lists of integers: all of them in one array, and how many are in each."""

    values: Array
    sizes: Array


def loads(content: bytes) -> Any:
    """Return what a JSON document holds; long lists of lists as `Ragged` where they allow it.

    Raises
    ------
    ValueError
        If it is not JSON.
    """
    found: list[Ragged] = []
    pieces, begin = [], 0
    while (start := content.find(b":[[", begin)) >= 0:
        end = content.find(b"]]", start)
        ragged = _read(content[start + 3 : end]) if end >= 0 else None
        stop = start + 3 if ragged is None else end + 2
        pieces.append(content[begin:stop] if ragged is None else content[begin : start + 1])
        if ragged is not None:
            pieces.append(json.dumps({_MARK: len(found)}).encode())
            found.append(ragged)
        begin = stop
    pieces.append(content[begin:])
    if not found:
        return json.loads(content)
    try:
        return json.loads(
            b"".join(pieces),
            object_hook=lambda item: found[item[_MARK]] if set(item) == {_MARK} else item,
        )
    except (ValueError, TypeError, IndexError):
        return json.loads(content)  # such a list stood within a text, or the rest is no JSON


def _read(inner: bytes) -> Ragged | None:
    """Return the lists between the outer brackets, or nothing if they hold more than integers."""
    if inner.translate(None, b"0123456789-,[]"):
        return None
    lists = inner.split(b"],[")
    if not all(lists) or inner.count(b"[") != len(lists) - 1 or inner.count(b"]") != len(lists) - 1:
        return None
    if b"-" in inner and _ODD_SIGN.search(inner):
        return None
    sizes = np.array([part.count(b",") + 1 for part in lists])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            values = np.fromstring(inner.replace(b"],[", b","), dtype=np.int64, sep=",")
        except (ValueError, DeprecationWarning):
            return None
    cut_off = (values == _LIMITS.max) | (values == _LIMITS.min)  # may have been beyond 64 bits
    return None if len(values) != sizes.sum() or cut_off.any() else Ragged(values, sizes)

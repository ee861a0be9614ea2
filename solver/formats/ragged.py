"""JSON documents whose lists of lists of integers are read into one array each.

An instance of the contest holds some ten million integers in four such lists: seconds as Python
objects, milliseconds as text for numpy. Python's own reader reads everything unusual, and reports
its errors.
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
"""The key of the placeholder for an extracted list; no instance has such a key."""

_ODD_SIGN = re.compile(rb"-(?![0-9])|[0-9]-")

_LIMITS = np.iinfo(np.int64)


@dataclass(frozen=True, eq=False)
class Ragged:
    """A list of lists of integers: the values in one array, and the size of each list."""

    values: Array
    sizes: Array


def loads(content: bytes) -> Any:
    """Return the content of a JSON document; lists of lists of integers become `Ragged`.

    Raises
    ------
    ValueError
        If the document is not JSON.
    """
    lists: list[Ragged] = []
    pieces, begin = [], 0
    while (start := content.find(b":[[", begin)) >= 0:
        end = content.find(b"]]", start)
        ragged = _read(content[start + 3 : end]) if end >= 0 else None
        stop = start + 3 if ragged is None else end + 2
        pieces.append(content[begin:stop] if ragged is None else content[begin : start + 1])
        if ragged is not None:
            pieces.append(json.dumps({_MARK: len(lists)}).encode())
            lists.append(ragged)
        begin = stop
    pieces.append(content[begin:])
    if not lists:
        return json.loads(content)
    try:
        return json.loads(
            b"".join(pieces),
            object_hook=lambda item: lists[item[_MARK]] if set(item) == {_MARK} else item,
        )
    except (ValueError, TypeError, IndexError):
        return json.loads(content)  # such a list was inside a string, or the rest is not JSON


def _read(inner: bytes) -> Ragged | None:
    """Return the lists between the outer brackets, or None if they hold more than integers."""
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
    clipped = (values == _LIMITS.max) | (values == _LIMITS.min)  # perhaps beyond 64 bits
    return None if len(values) != sizes.sum() or clipped.any() else Ragged(values, sizes)

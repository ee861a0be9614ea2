"""Instances of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism, as JSON.

    {"problem": {"name": "...",
                 "nodes": {"intervals": [[start, end], ...],  half open; [t, t] holds no memory
                           "costs":  [[...], ...],            an entry a strategy
                           "usages": [[...], ...]},
                 "edges": {"nodes": [[i, j], ...],
                           "costs": [[...], ...]},            row i slow, column j fast
                 "usage_limit": 123}}                         null for none

Every number is an integer of 64 bits. Files whose name ends in `.gz` are compressed.
"""

from __future__ import annotations

import gzip
import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.ir.errors import SolverError
from shardwright.ir.files.reading import read_bytes
from shardwright.solver.formats import ragged
from shardwright.solver.problem import Array, MemoryUse, Pair, Problem, Variable

_KINDS: dict[str, tuple[type, ...]] = {"an object": (dict,), "a list": (list, ragged.Ragged)}


def read_contest(path: str | Path) -> Problem:
    """Read an instance.

    Raises
    ------
    SolverError
        If the file is not an instance; the message says why.
    """
    path = Path(path)
    return parse_contest(_read_json(path), str(path))


def contest_name(path: str | Path) -> str:
    """Return the name of an instance: its file name without the suffixes."""
    return Path(path).name.removesuffix(".gz").removesuffix(".json")


def write_contest(problem: Problem, path: str | Path, name: str = "") -> None:
    """Write an instance, compressed if the name ends in `.gz`.

    Raises
    ------
    SolverError
        If some number is not an integer or a variable has several memory uses: the format has no
        place for these.
    """
    path = Path(path)
    document = {"problem": {"name": name or contest_name(path), **_document(problem)}}
    text = json.dumps(document, separators=(",", ":"))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text)


def _document(problem: Problem) -> dict[str, Any]:
    intervals, costs, usages = [], [], []
    for variable in problem.variables:
        if len(variable.memory) > 1:
            raise SolverError(
                f"the variable has {len(variable.memory)} memory uses, the format holds one",
                f"variable `{variable.name}`",
            )
        empty = MemoryUse(np.zeros(len(variable.cost), np.int64), 0, 0)
        use = variable.memory[0] if variable.memory else empty
        intervals.append([use.start, use.end])
        costs.append(_integers(variable.cost, variable.name))
        usages.append(_integers(use.usage, variable.name))
    limit = problem.memory_limit
    return {
        "nodes": {"intervals": intervals, "costs": costs, "usages": usages},
        "edges": {
            "nodes": [[pair.first, pair.second] for pair in problem.pairs],
            "costs": [
                _integers(pair.table.ravel(), f"pair {i}") for i, pair in enumerate(problem.pairs)
            ],
        },
        "usage_limit": None if limit is None else int(limit),
    }


def _integers(array: Array, where: str) -> list[int]:
    if array.dtype.kind != "i":
        raise SolverError(f"`{where}` holds {array.dtype}, the format holds integers")
    return array.tolist()


def _read_json(path: Path) -> Any:
    try:
        content = read_bytes(path)
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return ragged.loads(content)
    except (gzip.BadGzipFile, EOFError) as error:
        raise SolverError("the file is not compressed by gzip, or cut off", str(path)) from error
    except (ValueError, RecursionError) as error:
        raise SolverError(f"the file is not JSON: {error}", str(path)) from error


def parse_contest(document: Any, where: str) -> Problem:
    """Return the problem of a JSON document; ``where`` names it in errors."""
    reader = _Reader(where)
    problem = reader.member(document, "problem", "", "an object")
    nodes = reader.member(problem, "nodes", "problem", "an object")
    edges = reader.member(problem, "edges", "problem", "an object")
    variables = reader.variables(nodes)
    pairs = reader.pairs(edges, variables)
    limit = reader.limit(problem)
    try:
        return Problem(tuple(variables), tuple(pairs), limit)
    except SolverError as error:
        raise SolverError(error.what, f"{error.where}, {where}", error.hint) from error


class _Reader:
    """Checks every part of the document before it is used."""

    def __init__(self, where: str) -> None:
        self.where = where

    def error(self, what: str) -> SolverError:
        """Return an error that names the file."""
        return SolverError(what, self.where)

    def member(self, value: Any, key: str, path: str, kind: str) -> Any:
        """Return the value of a key, which must be of a kind."""
        place = f"`{path}`" if path else "the document"
        if not isinstance(value, dict):
            raise self.error(f"{place} is {_kind(value)}, expected an object")
        if key not in value:
            raise self.error(f"{place} has no `{key}`")
        member = value[key]
        if not isinstance(member, _KINDS[kind]):
            raise self.error(
                f"`{path}.{key}` is {_kind(member)}, expected {kind}".replace("`.", "`")
            )
        return member

    def variables(self, nodes: Any) -> list[Variable]:
        """Read `nodes`."""
        costs, cost_sizes = self.ragged(nodes, "costs", "problem.nodes")
        usages, usage_sizes = self.ragged(nodes, "usages", "problem.nodes")
        intervals = self.pairs_of(nodes, "intervals", "problem.nodes")
        count = len(cost_sizes)
        for key, entries in (("usages", len(usage_sizes)), ("intervals", len(intervals))):
            if entries != count:
                raise self.error(
                    f"`problem.nodes.{key}` has {entries} entries, expected {count} as in `costs`"
                )
        self._check_nodes(cost_sizes, usage_sizes, intervals)
        return [
            Variable(f"node {index}", cost, (MemoryUse(usage, start, end),))
            for index, (cost, usage, (start, end)) in enumerate(
                zip(
                    _split(costs, cost_sizes),
                    _split(usages, cost_sizes),
                    intervals.tolist(),
                    strict=True,
                )
            )
        ]

    def _check_nodes(self, costs: Array, usages: Array, intervals: Array) -> None:
        for index in np.flatnonzero(costs != usages)[:1]:
            raise self.error(
                f"`problem.nodes.usages[{index}]` has {usages[index]} entries, "
                f"expected {costs[index]} as in `costs`"
            )
        start, end = intervals[:, 0], intervals[:, 1]
        for index in np.flatnonzero((start < 0) | (end < start))[:1]:
            raise self.error(
                f"`problem.nodes.intervals[{index}]` is [{start[index]}, {end[index]}], "
                "expected 0 <= start <= end"
            )

    def pairs(self, edges: Any, variables: list[Variable]) -> list[Pair]:
        """Read `edges`."""
        ends = self.pairs_of(edges, "nodes", "problem.edges")
        costs, sizes = self.ragged(edges, "costs", "problem.edges")
        if len(sizes) != len(ends):
            raise self.error(
                f"`problem.edges.costs` has {len(sizes)} entries, "
                f"expected {len(ends)} as in `nodes`"
            )
        for index in np.flatnonzero((ends < 0).any(1) | (ends >= len(variables)).any(1))[:1]:
            raise self.error(
                f"`problem.edges.nodes[{index}]` is {ends[index].tolist()}, "
                f"expected numbers from 0 to {len(variables) - 1}"
            )
        strategies = np.array([len(variable.cost) for variable in variables], dtype=np.int64)
        expected = strategies[ends].prod(axis=1) if len(ends) else sizes
        for index in np.flatnonzero(sizes != expected)[:1]:
            rows, columns = strategies[ends[index]]
            raise self.error(
                f"`problem.edges.costs[{index}]` has {sizes[index]} entries, "
                f"expected {rows} x {columns} = {expected[index]}"
            )
        return [
            Pair(first, second, part.reshape(len(variables[first].cost), -1))
            for (first, second), part in zip(ends.tolist(), _split(costs, sizes), strict=True)
        ]

    def limit(self, problem: Any) -> int | None:
        """Read `usage_limit`."""
        if "usage_limit" not in problem:
            raise self.error("`problem` has no `usage_limit`; null stands for none")
        limit = problem["usage_limit"]
        if limit is not None and (type(limit) is not int or not 0 <= limit < 2**63):
            raise self.error(f"`problem.usage_limit` is {limit}, expected 0 to 2^63 - 1")
        return limit

    def ragged(self, value: Any, key: str, path: str) -> tuple[Array, Array]:
        """Read a list of lists of integers: the values in one array, and the size of each list."""
        lists = self.member(value, key, path, "a list")
        if isinstance(lists, ragged.Ragged):
            return lists.values, lists.sizes
        for index, item in enumerate(lists):
            if type(item) is not list:
                raise self.error(f"`{path}.{key}[{index}]` is {_kind(item)}, expected a list")
        sizes = np.fromiter(map(len, lists), np.int64, len(lists))
        flat = list(chain.from_iterable(lists))
        try:
            if set(map(type, flat)) <= {int}:
                return np.array(flat, dtype=np.int64), sizes
        except OverflowError:
            pass
        index, number = next(
            (index, number)
            for index, item in enumerate(lists)
            for number in item
            if type(number) is not int or not -(2**63) <= number < 2**63
        )
        raise self.error(
            f"`{path}.{key}[{index}]` holds {_shown(number)}, expected integers of 64 bits"
        )

    def pairs_of(self, value: Any, key: str, path: str) -> Array:
        """Read a list of pairs of integers."""
        flat, sizes = self.ragged(value, key, path)
        for index in np.flatnonzero(sizes != 2)[:1]:
            raise self.error(f"`{path}.{key}[{index}]` has {sizes[index]} entries, expected 2")
        return flat.reshape(-1, 2)


def _split(flat: Array, sizes: Array) -> list[Array]:
    ends = np.cumsum(sizes).tolist()
    return [flat[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value"}
    return "null" if value is None else names.get(type(value), "a number")


def _shown(value: Any) -> str:
    if type(value) is float:
        return "NaN" if value != value else repr(value)
    return _kind(value) if not isinstance(value, int) or type(value) is bool else str(value)

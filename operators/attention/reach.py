"""Which keys a query of attention reads."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.operators.halo import deal
from shardwright.operators.info import Array, OperatorInfo
from shardwright.operators.rule import ShardView

_POSITIONS = ("int32", "int64")

# What an attention may be besides causal and scaled. The defaults are left out of the text.
RESTRICTIONS: dict[str, Any] = {
    "window": 0,
    "chunk": 0,
    "documents": 0,
    "soft_cap": 0.0,
    "sinks": False,
}


def visible_pairs(
    queries: int, keys: int, causal: bool, window: int = 0, chunk: int = 0, documents: int = 0
) -> int:
    """Return the number of pairs of a key and one of the first queries that reads it.

    Documents count as if each had the given length, up to the end of the queries.

    >>> visible_pairs(3, 2, True), visible_pairs(5, 5, True, 2), visible_pairs(5, 5, True, 0, 2)
    (5, 9, 7)
    >>> visible_pairs(5, 5, True, documents=3)
    9
    """
    if documents and documents < queries:
        starts = range(0, queries, documents)
        lengths = Counter(min(documents, queries - start) for start in starts)
        return sum(n * visible_pairs(m, m, causal, window, chunk) for m, n in lengths.items())
    if not causal:
        return queries * keys
    growing = min(queries, keys)
    pairs = growing * (growing + 1) // 2 + (queries - growing) * keys
    if window:  # the query at i does not read what that at i - window does
        pairs -= visible_pairs(max(0, queries - window), keys, True)
    if chunk:
        starts = range(0, queries, chunk)
        pairs -= sum(min(chunk, queries - start) * min(start, keys) for start in starts)
    return pairs


@lru_cache(maxsize=4096)
def causal_imbalance(
    queries: int, keys: int, extents: tuple[int, ...], reach: tuple[bool, int, int, int]
) -> float:
    """Return the pairs of the last slice of queries over its share; searches ask many times.

    Parameters
    ----------
    queries, keys : int
        Numbers of them.
    extents : tuple of int
        Sizes of the mesh axes over which queries are divided.
    reach : tuple
        Which keys a query reads (`Reach.reach`).
    """
    slices = deal(queries, extents)
    pairs = [
        visible_pairs(start + count, keys, *reach) - visible_pairs(start, keys, *reach)
        for start, count in slices
    ]
    longest = max(count for _, count in slices)
    return max(pairs) * queries / (visible_pairs(queries, keys, *reach) * longest)


class Reach(OperatorInfo):
    """The base of attention in which a query reads some of the keys.

    The attributes, and the operands after the values, are those of `Attention`.
    """

    defaults: ClassVar = {"causal": False, "scale": None, **RESTRICTIONS}
    first: ClassVar[int]  # the operand with the queries
    keys: ClassVar[str] = "t"  # the factor of the keys

    @property
    def has_sinks(self) -> bool:
        """Whether the last operand has the scores of sinks."""
        return bool(self.attributes["sinks"])

    @property
    def has_mask(self) -> bool:
        """Whether there is a mask."""
        no_mask = self.has_sinks or self.has_documents
        return len(self.operand_types) > self.first + 3 and not no_mask

    @property
    def has_documents(self) -> bool:
        """Whether the operand after the values has the positions of queries in documents."""
        return bool(self.attributes["documents"])

    @property
    def span(self) -> int:
        """The number of keys that a query reads at most."""
        keys: int = self.rule.sizes[self.keys]
        bounds = (self.attributes[name] for name in ("window", "chunk", "documents"))
        return min([keys, *(bound for bound in bounds if bound)])

    def check_restrictions(self) -> None:
        """Refuse restrictions that contradict each other or the operands.

        Raises
        ------
        IRError
            If they do.
        """
        window, chunk = self.attributes["window"], self.attributes["chunk"]
        documents = self.attributes["documents"]
        if min(window, chunk, documents, self.attributes["soft_cap"]) < 0:
            raise IRError("a window, chunk, document or soft cap is negative, expected 0 or more")
        if (window or chunk or documents) and not self.attributes["causal"]:
            what = "a window or chunk needs" if not documents else "documents need"
            raise IRError(f"{what} `causal`, which is False")
        if window and chunk:
            raise IRError(f"it has a window ({window}) and a chunk ({chunk}), not one")
        more = ["positions of queries"] * self.has_documents
        more += ["scores of heads"] * self.has_sinks
        if more and len(self.operand_types) != self.first + 3 + len(more):
            count = len(self.operand_types)
            raise IRError(
                f"with {'documents' if documents else 'sinks'} there are "
                f"{self.first + 3 + len(more)} operands, the last of them "
                f"{' and '.join(more)}, and no mask; found {count}"
            )
        if documents:
            positions = self.operand_types[self.first + 3]
            if positions.dtype not in _POSITIONS:
                raise IRError(f"positions in documents are {positions}, expected int32 or int64")

    @property
    def adds_mask(self) -> bool:
        """Whether the mask is added to the scores, and so may have a gradient."""
        return self.has_mask and self.operand_types[-1].is_float

    @property
    def last_notation(self) -> str:
        """The dimensions of the operands after the values; a mask may be one in a dimension."""
        if not self.has_mask:
            more = ["b s"] * self.has_documents + ["H"] * self.has_sinks
            return ", ".join(more)
        sides = zip(self.operand_types[-1].shape, ("b", "H", "s"), strict=False)
        return " ".join(["1" if n == 1 else name for n, name in sides] + ["t^"])

    def visible(self, start: int, stop: int) -> int:
        """Return the number of pairs of a query of an interval and a key that it reads."""
        keys, reach = self.rule.sizes[self.keys], self.reach
        return visible_pairs(stop, keys, *reach) - visible_pairs(start, keys, *reach)

    @property
    def reach(self) -> tuple[bool, int, int, int]:
        """What decides which keys a query reads, but for masks; see `visible_pairs`."""
        causal, *sizes = (self.attributes[n] for n in ("causal", "window", "chunk", "documents"))
        window, chunk, documents = sizes
        return causal, window, chunk, documents

    def first_keys(self, positions: Array) -> Array:
        """Return the first key that each query reads, by the positions of queries."""
        window, chunk = self.attributes["window"], self.attributes["chunk"]
        if window:
            return np.maximum(positions - window + 1, 0)
        return positions // chunk * chunk if chunk else np.zeros_like(positions)

    def first_in_documents(self, operands: Sequence[Array], view: ShardView) -> Array | None:
        """Return the first key that each query reads, ``[b, 1, 1, s, 1]``, if there are documents.

        Windows and chunks begin with each document.
        """
        if not self.has_documents:
            return None
        positions = operands[self.first + 3]
        queries = np.arange(positions.shape[1]) + view.starts["s"]
        found = queries - positions + self.first_keys(positions)
        return np.asarray(np.maximum(found, 0)[:, None, None, :, None])

    def masked(
        self,
        scores: Array,
        first: int,
        seen: slice,
        mask: Array | None,
        own: Array | None = None,
    ) -> Array:
        """Return the scores of a block as they are read.

        Its first query, its keys, its part of a mask and the first key of each query in documents
        are given.
        """
        if self.attributes["causal"]:
            queries = np.arange(first, first + scores.shape[3])[:, None]
            keys = np.arange(seen.start, seen.stop)
            begins = self.first_keys(queries) if own is None else own
            read = (keys <= queries) & (keys >= begins)
            scores = np.where(read, scores, -np.inf)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        return scores

    def sinks_by_head(self, operands: Sequence[Array], view: ShardView) -> Array | None:
        """Return the scores of the sinks as ``[1, h, g, 1, 1]``, if there are any."""
        if not self.has_sinks:
            return None
        return operands[-1].reshape(1, view.sizes["h"], view.sizes.get("g", 1), 1, 1)

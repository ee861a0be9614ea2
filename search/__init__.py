"""The strategy search: from a program and a cost profile to decisions; knows no pass."""

from shardwright.search.driver import SEARCHES, register_search, search
from shardwright.search.heuristics.completion import complete
from shardwright.search.method import Heuristic, SearchMethod, SearchResult
from shardwright.search.options import SearchOptions

__all__ = [
    "SEARCHES",
    "Heuristic",
    "SearchMethod",
    "SearchOptions",
    "SearchResult",
    "complete",
    "register_search",
    "search",
]

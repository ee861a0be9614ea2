"""The bound goes on rising in a thread of its own, while the parts of a problem are searched.

The compiled loops leave the interpreter free, so both run at once. Now and then the search takes
over the best prices and messages, and the assignments that were decoded on the way.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright.solver.anytime.dual_ascent import Ascent
from shardwright.solver.anytime.local_search import LocalSearch
from shardwright.solver.problem import Array

if TYPE_CHECKING:
    from shardwright.solver.anytime.search import Search

DECODED = 10
"""Steps from one assignment that is improved to the next."""

KEPT = 4
"""Assignments that wait for the search."""


class Beside:
    """Raises the bound of a search until it is stopped; owns all that it changes."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.ascent = Ascent(search.graph, search.rows)
        self.ascent.stand = replace(search.ascent.stand)
        self.ascent.go_back()
        self.local = LocalSearch(search.graph, search.rows)
        self.found: deque[Array] = deque(maxlen=KEPT)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Step until there is nothing more to gain."""
        steps = 0
        while not (self.stopped.is_set() or self.ascent.settled):
            self.ascent.step(self.search.incumbent.target)
            steps += 1
            if steps % DECODED == 0:
                state = self.local.improve(self.ascent.messages.choice)
                if state is not None:
                    self.found.append(state.choice)

    def hand_over(self) -> None:
        """Give the search what was reached since the last time."""
        search, stand = self.search, self.ascent.stand
        if stand.bound > search.ascent.best:
            search.ascent.stand = replace(stand)
            search.incumbent.raise_bound(stand.bound)
        while self.found:
            search.keep(self.found.popleft())

    def stop(self) -> None:
        """Hand over what is left, and end after the step under way."""
        self.stopped.set()
        self.hand_over()

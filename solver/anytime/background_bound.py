"""The background bound: dual ascent in a thread of its own while neighbourhoods are searched.

The compiled loops release the interpreter, so both run at once. From time to time the search takes
over the best prices and messages, and the assignments decoded meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

from shardwright.solver.anytime.bounded_search import LOCAL_PERIOD, POOL, BoundedSearch
from shardwright.solver.anytime.dual_ascent import DualAscent
from shardwright.solver.anytime.local_search import LocalSearch
from shardwright.solver.problem import Array


class BackgroundBound:
    """Raises the bound of a search until it is stopped; shares no mutable array with it."""

    def __init__(self, search: BoundedSearch) -> None:
        self.search = search
        self.ascent = DualAscent(search.graph, search.rows)
        self.ascent.checkpoint = replace(search.ascent.checkpoint)
        self.ascent.restore()
        self.local = LocalSearch(search.graph, search.rows)
        self.assignments: deque[Array] = deque(maxlen=POOL)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Step until the ascent has converged."""
        steps = 0
        while not (self.stopped.is_set() or self.ascent.converged):
            self.ascent.step(self.search.incumbent.target)
            steps += 1
            if steps % LOCAL_PERIOD == 0:
                state = self.local.improve(self.ascent.messages.choice)
                if state is not None:
                    self.assignments.append(state.choice)

    def hand_over(self) -> None:
        """Give the search the progress since the last time."""
        search, checkpoint = self.search, self.ascent.checkpoint
        if checkpoint.bound > search.ascent.best:
            search.ascent.checkpoint = replace(checkpoint)
            search.incumbent.raise_bound(checkpoint.bound)
        while self.assignments:
            search.add_to_pool(self.assignments.popleft())

    def stop(self) -> None:
        """Hand over the rest; the thread ends after its current step."""
        self.stopped.set()
        self.hand_over()

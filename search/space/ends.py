"""The ends of a program: its inputs and outputs, and what a stage receives and sends."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.cost_model.profile import EdgeLayout
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout
from shardwright.search.space.context import BuildContext
from shardwright.search.space.draft import EdgeEnd
from shardwright.search.space.space import Choice


@dataclass(frozen=True)
class Ends:
    """Adds the ends of a program to a search space.

    Parameters
    ----------
    context : BuildContext
        The space.
    layouts : mapping of str to Layout
        The layouts of inputs that the user gives.
    moment : mapping of str to int
        When each operator runs forward.
    """

    context: BuildContext
    layouts: Mapping[str, Layout]
    moment: Mapping[str, int]

    def add_output(self, value: Value, *, is_loss: bool) -> None:
        """Add a value that leaves the program, whole on every rank."""
        whole = Layout.replicated(value.type.rank)
        edge = EdgeLayout(
            whole, whole if is_loss and self.context.has_gradient(value.name) else None
        )
        passes = self.context.split_passes(value.name)
        cost = np.zeros(1)
        if passes > 1 and self.context.accumulates:  # every pass writes its slice
            cost += passes * self.context.profile.copy(value.type, whole)
        variable = self.context.draft.add(Choice("output", value.name, (whole,)), cost)
        key, last = self.context.number(("output", edge, passes)), self.context.memory.operators
        end = EdgeEnd(variable, key, (edge,), last, is_output=True, passes=passes)
        self.context.readers[value.name].append(end)

    def add_inputs(self) -> Iterator[tuple[Value, EdgeEnd]]:
        """Add what the program is fed, and what it receives from other stages and sends.

        Yields what is to be connected with its readers.
        """
        free = self.context.has_free_ends
        for name in () if free else self.context.sent:
            self._add_sent(self.context.graph.values[name])
        for value in self.context.graph.inputs:
            if not self.context.is_received(value.name):
                yield value, self._add_input(value)
            elif not free:
                yield value, self._add_received(value)

    def _add_received(self, value: Value) -> EdgeEnd:
        """Add a value that another stage makes; its gradient goes back in the same layout."""
        variable, layouts, passes, key = self._at_end_of_stage("input", value)
        return EdgeEnd(variable, key, layouts, 0, passes=passes, gradient_passes=passes)

    def _add_sent(self, value: Value) -> None:
        """Add a value that other stages read, as one more reader."""
        variable, layouts, passes, key = self._at_end_of_stage("sent", value)
        producer = self.context.graph.producers.get(value.name)
        moment = 0 if producer is None else self.moment[producer.name]
        end = EdgeEnd(variable, key, layouts, moment, passes=passes, gradient_passes=passes)
        self.context.readers[value.name].append(end)

    def _at_end_of_stage(
        self, kind: str, value: Value
    ) -> tuple[int, tuple[EdgeLayout, ...], float, object]:
        """Return the variable, layouts, passes and key of a value between two stages.

        What is sent once, before the loop over micro-batches, is made of parameters. The stage that
        receives it accumulates its gradient (`edges.times_edges`). Which of the two stages reduces
        the sum is not known, so that is priced from below, as nothing.
        """
        context, fixed = self.context, self.layouts.get(value.name)
        options = context.all_layouts(value.type) if fixed is None else [fixed]
        passes = context.split_passes(value.name)
        once = context.micro is not None and not context.micro.is_split(value.name)
        wanted = context.has_gradient(value.name) and not once
        layouts = context.intern(
            ("between stages", value.type, wanted, fixed),
            lambda: tuple(EdgeLayout(o, o if wanted else None) for o in options),
        )
        variable = self.context.draft.add(
            Choice(kind, value.name, tuple(options)), np.zeros(len(options))
        )
        return variable, layouts, passes, (kind, value.type, wanted, fixed, passes)

    def _add_input(self, value: Value) -> EdgeEnd:
        layout = self.layouts.get(value.name)
        options = (layout,) if layout is not None else tuple(self.context.all_layouts(value.type))
        variable = self.context.draft.add(
            Choice("input", value.name, options), np.zeros(len(options))
        )
        edge_layouts = tuple(EdgeLayout(option, None) for option in options)
        passes = self.context.split_passes(value.name)
        key = self.context.number(("input", value.type, layout, passes))
        return EdgeEnd(variable, key, edge_layouts, 0, passes=passes)

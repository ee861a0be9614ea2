"""The training step of one device, and the rounding error that another program may have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from shardwright.ir.graph import Graph, renamed
from shardwright.ir.reachability import live
from shardwright.operators.info import Array
from shardwright.runtime.communicator import LocalCommunicator
from shardwright.runtime.executor import Executor
from shardwright.runtime.rounding import RoundedExecutor, largest_change
from shardwright.runtime.state import State

# Bits of the fraction that numbers are rounded to: a relative error of at most 2^-39 = 1.8e-12 in
# every number, some ten thousand times that of a double. Two runs, since one may hit by chance.
_BITS = (38, 39)
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Expected:
    """The expected tensors of a program.

    Parameters
    ----------
    values : mapping of str to array
        Whole tensors.
    rounding : mapping of str to float
        The change of each under relative errors of about 1e-12 in all numbers.
    """

    values: Arrays
    rounding: Mapping[str, float]


@dataclass
class Reference:
    """The training step of one device, whose gradients can be replaced.

    Parameters
    ----------
    graph : Graph
        The training step, without layouts.
    gradients : tuple of str
        The gradients in it.
    """

    graph: Graph
    gradients: tuple[str, ...]
    _executors: dict[str, list[Executor]] = field(default_factory=dict)

    def step(self, batch: Mapping[str, Array], state: Mapping[str, Array]) -> Expected:
        """Return outputs, gradients, and the next values of all parameters."""
        return self._run(self.graph, batch, state, self.gradients)

    def updated(
        self, batch: Mapping[str, Array], state: Mapping[str, Array], gradients: Arrays
    ) -> Expected:
        """Return the next values of the parameters, from these gradients."""
        graph = self._updates
        known = {**batch, **{given_name(name): array for name, array in gradients.items()}}
        inputs = {value.name: known[value.name] for value in graph.inputs}
        found = self._run(graph, inputs, state, ())
        changed = dict(graph.updates)
        return Expected(
            {name: found.values[name] for name in changed},
            {name: found.rounding[name] for name in changed},
        )

    @cached_property
    def _updates(self) -> Graph:
        return updates_from(self.graph, self.gradients)

    def _run(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        state: Mapping[str, Array],
        fetch: Sequence[str],
    ) -> Expected:
        runs = [_whole_step(executor, inputs, state, fetch) for executor in self._made(graph)]
        exact, others = runs[0], runs[1:]
        rounding = {
            name: largest_change(array, [other[name] for other in others])
            for name, array in exact.items()
        }
        return Expected(exact, rounding)

    def _made(self, graph: Graph) -> list[Executor]:
        key = "step" if graph is self.graph else "updates"
        if key not in self._executors:
            local = LocalCommunicator()
            exact = Executor(graph, local, float_dtype="float64")
            short = [RoundedExecutor(graph, local, bits) for bits in _BITS]
            self._executors[key] = [exact, *short]
        return self._executors[key]


def updates_from(graph: Graph, gradients: Sequence[str]) -> Graph:
    """Return the part of a training step that turns gradients into updates.

    The gradients become inputs, and only updates that depend on them are left.

    Before::

        w.grad: f32[4] = mul(x, x)
        w.next: f32[4] = sgd_update(w, w.grad)
        update w = w.next

    After::

        input given w.grad: f32[4]
        w.next: f32[4] = sgd_update(w, given w.grad)
        update w = w.next
    """
    names = {name: given_name(name) for name in gradients}
    following = set(names.values())
    nodes = []
    for node in graph.nodes:
        nodes.append(renamed(node, names))
        if following.intersection(nodes[-1].operands):
            following.update(result.name for result in node.results)
    updates = tuple((name, names.get(new, new)) for name, new in graph.updates)
    updates = tuple((name, new) for name, new in updates if new in following)
    needed = live(nodes, [new for _, new in updates])
    given = (replace(graph.values[name], name=new) for name, new in names.items())
    inputs = tuple(value for value in (*graph.inputs, *given) if value.name in needed.values)
    return replace(graph, inputs=inputs, nodes=needed.nodes, outputs=(), updates=updates)


def given_name(gradient: str) -> str:
    """Return the name of the input that replaces a gradient; unused in any program."""
    return f"given {gradient}"


def _whole_step(
    executor: Executor,
    inputs: Mapping[str, Array],
    state: Mapping[str, Array],
    fetch: Sequence[str],
) -> Arrays:
    """Run one step of a single-device program; return outputs, fetched values and state by name."""
    held: State = {name: {0: np.asarray(array)} for name, array in state.items()}
    result = executor.step(inputs, held, fetch)
    found = {**result.outputs, **result.fetched, **held}
    return {name: parts[0] for name, parts in found.items()}

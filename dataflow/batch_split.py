"""The split of the batch over the passes of a loop, as it follows through a program.

From the inputs it follows by the rules of the operators, like data parallelism, over a mesh axis
that is run in time.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from shardwright.dataflow.samples import own_samples, samples_of
from shardwright.ir.errors import OptionError, StrategyError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import node_text
from shardwright.operators.info import OperatorInfo, info_of
from shardwright.operators.rule import base

AXIS = "micro"
"""The name of the mesh axis that is run in time."""

_Layouts = tuple[Layout | None, ...]


class _Step(NamedTuple):
    """How an operator runs in the passes: its strategy, and the layouts that it takes and leaves.

    It takes none where it runs once.
    """

    strategy: Strategy
    taken: tuple[Layout, ...]
    left: tuple[Layout, ...]


@dataclass
class BatchSplit:
    """The split of the batch of a program.

    Parameters
    ----------
    graph : Graph
        The program of the whole batch, in canonical form.
    passes : int
        Number of micro-batches.
    allows_statistics : bool
        Whether the split may end at a value that is computed of all samples.
    layouts : dict of str to Layout
        The layout of every value over the axis alone, once the split was followed.
    strategies : dict of str to Strategy
        The strategy of every node.
    wanted : dict of str to Layout
        The layouts that readers require.
    """

    graph: Graph
    passes: int
    allows_statistics: bool = False
    layouts: dict[str, Layout] = field(default_factory=dict)
    strategies: dict[str, Strategy] = field(default_factory=dict)
    wanted: dict[str, Layout] = field(default_factory=dict)
    _steps: dict[tuple[OperatorInfo, _Layouts, _Layouts], _Step] = field(default_factory=dict)

    @cached_property
    def mesh(self) -> Mesh:
        """The axis alone."""
        return Mesh((MeshAxis(AXIS, self.passes, in_time=True),))

    def follow(self) -> None:
        """Follow the batch until nothing changes: a reader may want a constant to be split.

        Raises
        ------
        OptionError
            If the batch cannot be divided, or an operator in the loop needs the whole batch.
        """
        self._split_inputs()
        before = -1
        while len(self.wanted) != before:
            before = len(self.wanted)
            for node in self.graph.nodes:
                self._visit(node)

    def _split_inputs(self) -> None:
        batch = samples_of(self.graph)
        if batch is None:
            raise _refusal("the model has no input with a batch dimension", self.passes)
        if batch % self.passes:
            what = f"the batch of {batch} samples cannot be divided into equal parts"
            raise _refusal(what, self.passes, "give a number that divides the batch")
        for value in (*self.graph.inputs, *(p.value for p in self.graph.parameters)):
            self.layouts[value.name] = Layout.replicated(value.type.rank)
        whole = own_samples(self.graph)
        for value in self.graph.inputs:
            if value.type.rank and value.type.shape[0] == batch and value.name not in whole:
                self.layouts[value.name] = _split(value.type.rank, 0)
        for node in whole.values():
            self.wanted[node.name] = _split(node.results[0].type.rank, 0)

    def _visit(self, node: Node) -> None:
        info = info_of(self.graph, node)
        held = tuple(self.layouts[name] for name in node.operands)
        wanted = tuple(self.wanted.get(result.name) for result in node.results)
        step = self._steps.get((info, held, wanted))  # repeated layers are alike
        if step is None:
            step = self._steps[info, held, wanted] = self._step(node, info, held, wanted)
        self.strategies[node.name] = step.strategy
        for name, layout in zip(node.operands, step.taken, strict=False):
            self._want(node, name, layout)
        for result, layout in zip(node.results, step.left, strict=True):
            self.layouts[result.name] = layout

    def _step(self, node: Node, info: OperatorInfo, held: _Layouts, wanted: _Layouts) -> _Step:
        factor = self._factor(node, info, held, wanted)
        strategy = Strategy.of({factor: (AXIS,)} if factor else {})
        taken: tuple[Layout, ...] = ()
        if factor:
            self._check(node, info, factor)
            taken = info.rule.operand_layouts(strategy)
        return _Step(strategy, taken, info.rule.result_layouts(strategy, self.mesh))

    def _factor(
        self, node: Node, info: OperatorInfo, held: _Layouts, wanted: _Layouts
    ) -> str | None:
        """Return the factor that the batch is; None of an operator that runs once."""
        rule, found = info.rule, None
        tensors = [*zip(rule.operands, held, strict=True), *zip(rule.results, wanted, strict=True)]
        for dims, layout in tensors:
            for factors, axes in zip(dims, layout.splits if layout else (), strict=False):
                if not axes:
                    continue
                factor = next((base(f) for f in factors if rule.sizes[f] > 1), None)
                if factor is None or found not in (None, factor):
                    raise _refusal(
                        f"`{node.operator}` combines samples with each other", self.passes, at=node
                    )
                found = factor
        return found

    def _check(self, node: Node, info: OperatorInfo, factor: str) -> None:
        rule = info.rule
        if rule.kinds[factor] == "whole" or f"{factor}~" in rule.sizes:
            raise _refusal(f"`{node.operator}` needs the whole batch", self.passes, at=node)
        if rule.sizes[factor] % self.passes:
            what = f"`{node.operator}` has {rule.sizes[factor]} groups of samples"
            raise _refusal(f"{what}, which cannot be divided", self.passes, at=node)
        try:
            info.check_strategy(Strategy.of({factor: (AXIS,)}), self.mesh)
        except StrategyError as error:
            raise _refusal(error.what, self.passes, at=node) from None

    def _want(self, node: Node, name: str, layout: Layout) -> None:
        """Require a split of an operand; an operator that makes it of parameters follows."""
        held = self.layouts[name]
        if held.partial and self.allows_statistics:
            return
        if held.partial:
            raise _refusal(
                f"`{node.operator}` reads `{name}`, which is computed of all samples",
                self.passes,
                at=node,
            )
        if held == layout or not layout.split_axes:
            return
        if name in self.graph.producers:
            self.wanted[name] = layout
        elif name in {value.name for value in self.graph.inputs}:
            self.wanted[name] = self.layouts[name] = layout
        else:
            raise _refusal(
                f"the parameter `{name}` has a part for each sample", self.passes, at=node
            )


def _split(rank: int, dimension: int) -> Layout:
    return Layout(tuple((AXIS,) if i == dimension else () for i in range(rank)))


def _refusal(
    what: str, passes: int, hint: str = "train with one micro-batch", at: Node | None = None
) -> OptionError:
    return OptionError(
        f"{what}: the program cannot run in {passes} micro-batch{'es' * (passes > 1)}",
        node_text(at) if at is not None else None,
        hint,
    )

"""Hand-made plans: data parallel, tensor parallel (Megatron's), fully sharded.

Each is a walk through the program in order: an operator follows the layouts of the activations that
reach it, and at a weight the plan says what to do. The answers are points of the search space, so
that a search that is exact can never be worse.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import OperatorInfo, operator_info
from shardwright.operators.rule import Rule
from shardwright.search.space.space import Choice, SearchSpace, Storage
from shardwright.solver.problem import FORBIDDEN, Problem, Variable
from shardwright.solver.solve import solve

Floats = NDArray[np.float64]
AtWeight = Callable[[OperatorInfo, Node, dict[str, tuple[str, ...]]], None]


def data_parallel(space: SearchSpace) -> tuple[int, ...]:
    """Split the batch over all axes and keep every parameter whole."""
    strategies = follow_batch(space.graph, space.mesh, space.mesh.names)
    return complete(space, strategies, _whole)


def fully_sharded(space: SearchSpace) -> tuple[int, ...]:
    """Split the batch over all axes; store parameters split, and gather them when they are read."""
    strategies = follow_batch(space.graph, space.mesh, space.mesh.names)
    return complete(space, strategies, _scattered)


def tensor_parallel(space: SearchSpace) -> tuple[int, ...]:
    """Split weights inside a node, alternately by columns and rows, and the batch across nodes.

    References
    ----------
    Shoeybi et al., "Megatron-LM", 2019.
    """
    inner = tuple(axis.name for axis in space.mesh.axes if axis.level == 0)
    outer = tuple(name for name in space.mesh.names if name not in inner)
    parameters = {parameter.name for parameter in space.graph.parameters}

    def at_weight(info: OperatorInfo, node: Node, found: dict[str, tuple[str, ...]]) -> None:
        weights = [i for i, name in enumerate(node.operands) if name in parameters]
        if any(set(axes) & set(inner) for axes in found.values()):
            return
        for i in weights:
            if info.operand_types[i].rank == 2:
                factor = _column_factor(info.rule, i)
                if factor and _fits(info.rule, factor, inner, space.mesh):
                    found[factor] = found.get(factor, ()) + inner
                    return

    strategies = follow_batch(space.graph, space.mesh, outer, at_weight)
    return complete(space, strategies, _whole)


def _column_factor(rule: Rule, weight: int) -> str | None:
    """Return the factor of a weight that no other operand has: columns, or rows of an embedding."""
    others = {
        f
        for i, dims in enumerate(rule.operands)
        if i != weight
        for factors in dims
        for f in factors
    }
    own = [f for factors in rule.operands[weight] for f in factors if f not in others]
    contracted = [f for f in own if rule.kinds[f] == "sum"]
    return next(iter(contracted or own), None)


def _fits(rule: Rule, factor: str, axes: Sequence[str], mesh: Mesh) -> bool:
    return (
        rule.kinds[factor] not in ("whole", "halo") and rule.sizes[factor] % mesh.extent(axes) == 0
    )


def follow_batch(
    graph: Graph, mesh: Mesh, axes: Sequence[str], at_weight: AtWeight | None = None
) -> dict[str, Strategy]:
    """Return strategies that split the first dimension of the inputs and follow it everywhere.

    Parameters
    ----------
    graph : Graph
        The whole program.
    mesh : Mesh
        The mesh.
    axes : sequence of str
        Axes that split the batch, as many of them as divide it.
    at_weight : callable, optional
        May split further factors of an operator that reads a parameter.
    """
    found: dict[str, Layout] = {}
    for value in graph.inputs:
        taken: tuple[str, ...] = ()
        for axis in axes if value.type.rank else ():
            if value.type.shape[0] % mesh.extent((*taken, axis)) == 0:
                taken = (*taken, axis)
        found[value.name] = Layout((taken, *((),) * (value.type.rank - 1))[: value.type.rank])
    parameters = {parameter.name for parameter in graph.parameters}
    strategies = {}
    for node in graph.nodes:
        types = [value.type for value in graph.operand_values(node)]
        info = operator_info(node.operator, types, node.attributes)
        arriving = [found.get(name) for name in node.operands]
        factors = _followed(info, arriving, mesh)
        if at_weight is not None and parameters.intersection(node.operands):
            at_weight(info, node, factors)
        strategy = _legal(info, factors, mesh)
        strategies[node.name] = strategy
        left = info.rule.result_layouts(strategy, mesh)
        for result, layout in zip(node.results, left, strict=True):
            found[result.name] = layout.reduced()
    return strategies


def _followed(
    info: OperatorInfo, arriving: Sequence[Layout | None], mesh: Mesh
) -> dict[str, tuple[str, ...]]:
    """Give each factor the axes that split it in the first operand that has it."""
    found: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for dims, layout in zip(info.rule.operands, arriving, strict=True):
        if layout is None:
            continue
        for factors, axes in zip(dims, layout.splits, strict=True):
            free = tuple(axis for axis in axes if axis not in used)
            for factor in factors:
                part: tuple[str, ...] = ()
                while free and _fits(info.rule, factor, (*part, free[0]), mesh):
                    part, free = (*part, free[0]), free[1:]
                if part and factor not in found:
                    found[factor] = part
                    used.update(part)
                if mesh.extent(part) != info.rule.sizes[factor]:
                    break
    return found


def _legal(info: OperatorInfo, factors: Mapping[str, tuple[str, ...]], mesh: Mesh) -> Strategy:
    """Return the strategy, axes in mesh order, that the operator lists among its own."""
    ordered = {f: mesh.ordered(factors[f]) for f in info.rule.sizes if f in factors}
    strategy = Strategy.of(ordered)
    while strategy not in _strategies(info, mesh):
        ordered.popitem()
        strategy = Strategy.of(ordered)
    return strategy


def _strategies(info: OperatorInfo, mesh: Mesh) -> frozenset[Strategy]:
    return frozenset(info.generate_strategies(mesh))


# Completing a plan for operators to a plan for everything


Preference = Callable[[Choice], Sequence[bool]]


def _whole(choice: Choice) -> Sequence[bool]:
    """Store parameters as they are read, or whole where several read them."""
    return [
        isinstance(option, Storage)
        and (option.layout == option.used or (option.used is None and not option.layout.split_axes))
        for option in choice.options
    ]


def _scattered(choice: Choice) -> Sequence[bool]:
    """Store parameters as finely split as they can be, gathered again for the gradient."""
    storages = [option for option in choice.options if isinstance(option, Storage)]
    most = max(len(option.layout.split_axes) for option in storages)
    kept_again = any(option.again for option in storages)
    return [
        len(option.layout.split_axes) == most and (option.again or not kept_again or not most)
        for option in storages
    ]


def complete(
    space: SearchSpace, strategies: Mapping[str, Strategy], preference: Preference | None = None
) -> tuple[int, ...]:
    """Return the best assignment in which the operators have the given strategies.

    With operators fixed, what is left (storage, inputs, shared layouts) falls apart into
    small stars, each solved by itself. A pinned operator keeps its pin.

    Parameters
    ----------
    space : SearchSpace
        The search space.
    strategies : mapping of str to Strategy
        For every operator.
    preference : callable, optional
        Says which options of a parameter may be taken; all where none of them can be.
    """
    costs: list[Floats] = [variable.cost for variable in space.problem.variables]
    chosen: dict[int, int] = {}
    for i, choice in enumerate(space.choices):
        if choice.kind == "operator":
            options = {option: k for k, option in enumerate(choice.options)}
            chosen[i] = options.get(strategies[choice.name], 0)
            costs[i] = np.full(len(options), np.inf)
            costs[i][chosen[i]] = space.problem.variables[i].cost[chosen[i]]
    for i, choice in enumerate(space.choices):
        if choice.kind == "parameter" and preference is not None:
            costs[i] = _preferred(space, i, preference(choice), chosen)
    variables = tuple(
        Variable(variable.name, cost)
        for variable, cost in zip(space.problem.variables, costs, strict=True)
    )
    solution = solve(Problem(variables, space.problem.pairs))
    if solution.assignment is None:
        raise PassError("a hand-made plan leaves some tensor without a way to its reader")
    return solution.assignment


def _preferred(
    space: SearchSpace, variable: int, allowed: Sequence[bool], chosen: Mapping[int, int]
) -> Floats:
    """Forbid what is not preferred, unless nothing of it fits the reader."""
    cost = space.problem.variables[variable].cost
    limited = np.where(np.array(allowed), cost, np.inf)
    reachable = limited.copy()
    for pair in space.problem.pairs:
        if pair.first == variable and pair.second in chosen:
            reachable = reachable + pair.table[:, chosen[pair.second]]
    return limited if (reachable < FORBIDDEN).any() else cost

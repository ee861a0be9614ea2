"""One operator and its gradient, emitted under one strategy: what a profile prices.

Which nodes are emitted does not depend on the strategy, and their layouts follow from the axes that
split each factor of the operator's rule. So it is emitted once, on a mesh with an axis for each
factor, as a pattern of all strategies: under each, the axes of a factor take the place of its own.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from shardwright.cost_model.backward_memory import GradientWork, Moment, Turn, Work, work_of
from shardwright.cost_model.profile import EdgeLayout
from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.graph import Node, Value
from shardwright.ir.layout import Layout, Strategy, local_bytes
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.reachability import live
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.elementwise.conversion import Cast
from shardwright.operators.info import OperatorInfo, operator_info
from shardwright.operators.windows.halo_exchange import SplitOperator, emit_split, split_gradient

Axes = Mapping[str, tuple[str, ...]]
Assignment = tuple[tuple[str, tuple[str, ...]], ...]


class Placed(NamedTuple):
    """An emitted operator, with the layouts of its operands and results.

    Parameters
    ----------
    info : OperatorInfo
        The operator.
    operands, results : tuple of Layout
        The layouts.
    exchanged : int or None
        The operand of the operator of the model whose halo it exchanges.
    """

    info: OperatorInfo
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    exchanged: int | None = None


@dataclass(frozen=True)
class Emission:
    """An operator and its gradient under one strategy.

    Parameters
    ----------
    forward, backward : list of Placed
        The emitted operators.
    operands : tuple of EdgeLayout
        The layout of each operand, and of its gradient.
    results : tuple of Layout
        The layout of each result.
    saved_operands, saved_results : tuple of float
        Bytes of each that are saved for backward; 0 where it is not.
    work : Work
        Memory of the gradient while it runs.
    kept : tuple of (float, float)
        Bytes that only the gradient of a form saves: of the results of the operator, and of the
        further results of the form.
    """

    forward: list[Placed]
    backward: list[Placed]
    operands: tuple[EdgeLayout, ...]
    results: tuple[Layout, ...]
    saved_operands: tuple[float, ...]
    saved_results: tuple[float, ...]
    work: Work
    kept: tuple[float, float] = (0.0, 0.0)

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "Emission":
        """Return the layouts under a permutation of axes; the nodes stay, they cost the same."""
        return replace(
            self,
            operands=tuple(layout.renamed(names, mesh) for layout in self.operands),
            results=tuple(layout.renamed(names, mesh) for layout in self.results),
        )


def emit(info: OperatorInfo, strategy: Strategy, wanted: tuple[bool, ...], mesh: Mesh) -> Emission:
    """Emit an operator and its gradient under one strategy.

    Parameters
    ----------
    info : OperatorInfo
        The operator.
    strategy : Strategy
        How it is split.
    wanted : tuple of bool
        Which operands need a gradient.
    mesh : Mesh
        The mesh.
    """
    return _Pattern(info, strategy, wanted, mesh).under({a: (a,) for a in mesh.names}, mesh)


class OperatorEmitter:
    """Emits an operator and its gradient under several strategies.

    Parameters
    ----------
    info, wanted, mesh
        As in `emit`.
    """

    def __init__(self, info: OperatorInfo, wanted: tuple[bool, ...], mesh: Mesh) -> None:
        self.info, self.wanted, self.mesh = info, wanted, mesh
        self._patterns: dict[Assignment, _Pattern | None] = {}

    def emit(self, strategy: Strategy) -> Emission:
        """Emit them under one strategy."""
        rule, halos = self.info.rule, self.info.halos
        if rule.forms and rule.form_of(strategy) is not None:  # few strategies have a form
            return emit(self.info, strategy, self.wanted, self.mesh)
        # What is emitted depends on the exchanges of halos.
        fixed = tuple([item for item in strategy.assignment if item[0] in halos])
        if fixed not in self._patterns:
            self._patterns[fixed] = self._pattern(fixed)
        pattern = self._patterns[fixed]
        if pattern is None:
            return emit(self.info, strategy, self.wanted, self.mesh)
        axes = {_own_axis(factor): strategy.axes.get(factor, ()) for factor in self._free}
        return pattern.under({a: (a,) for _, own in fixed for a in own} | axes, self.mesh)

    @cached_property
    def _free(self) -> list[str]:
        """The factors that have an axis of their own in a pattern."""
        rule, halos = self.info.rule, self.info.halos
        splittable = [f for f, kind in rule.kinds.items() if kind not in ("whole", "halo")]
        return [f for f in splittable if f not in halos and rule.sizes[f] > 1]

    def _pattern(self, fixed: Assignment) -> "_Pattern | None":
        """Return the pattern of the strategies with a part, for the mesh; None if there is none."""
        used = {axis for _, axes in fixed for axis in axes}
        axes = tuple([axis for axis in self.mesh.axes if axis.name in used])
        pattern = _pattern_of(self.info, self.wanted, tuple(self._free), fixed, axes)
        return None if pattern is None else pattern.for_another_mesh()


@lru_cache(maxsize=4096)
def _pattern_of(
    info: OperatorInfo,
    wanted: tuple[bool, ...],
    free: tuple[str, ...],
    fixed: Assignment,
    axes: tuple[MeshAxis, ...],
) -> "_Pattern | None":
    """Return the pattern of the strategies with a part, on all meshes that have its axes.

    None where there is none: no strategy may split all factors, as where one contracts to a sum and
    another to a maximum.
    """
    sizes = info.rule.sizes
    mesh = Mesh((*[MeshAxis(_own_axis(factor), sizes[factor]) for factor in free], *axes))
    split = dict(fixed) | {factor: (_own_axis(factor),) for factor in free}
    strategy = Strategy.of({factor: split[factor] for factor in sizes if factor in split})
    try:
        return _Pattern(info, strategy, wanted, mesh)
    except (IRError, StrategyError):
        return None


def _own_axis(factor: str) -> str:
    return f"<{factor}>"


class _Tensor:
    """The tensors of one type and layout in a pattern."""

    def __init__(self, tensor: TensorType, layout: Layout) -> None:
        self.type, self.layout = tensor, layout
        self.axes = (*layout.split_axes, *layout.partial)
        self._known: dict[tuple[tuple[str, ...], ...], tuple[Layout, float]] = {}

    def under(self, axes: Axes, mesh: Mesh) -> tuple[Layout, float]:
        """Return the layout with other axes in the place of its own, and the bytes of a rank."""
        key = tuple([axes[own] for own in self.axes])
        found = self._known.get(key)
        if found is None:
            layout = self.layout.replacing(axes, mesh)
            found = self._known[key] = layout, local_bytes(self.type, layout, mesh)
        return found


class _Step(NamedTuple):
    """An emitted operator of a pattern; tensors by their numbers."""

    info: OperatorInfo
    operands: tuple[int, ...]
    results: tuple[int, ...]
    exchanged: int | None


@dataclass(frozen=True)
class _Gradient:
    """The gradient of a pattern; tensors by their numbers, None for such as are not there.

    Parameters
    ----------
    steps : list of _Step
        The emitted operators.
    turns : list of (Turn of int or None)
        The memory while each of them runs; None for halo exchanges.
    cotangents : tuple of int
        What is held when the first begins.
    returned : list of (int or None)
        The gradient by each operand.
    saved_operands, saved_results : list of (int or None)
        What is saved for backward.
    separate : tuple of bool
        As in `Work`.
    """

    steps: list[_Step]
    turns: list[Turn[int] | None]
    cotangents: tuple[int, ...]
    returned: list[int | None]
    saved_operands: list[int | None]
    saved_results: list[int | None]
    separate: tuple[bool, ...]


class _Pattern:
    """An operator and its gradient, as emitted under one strategy on one mesh."""

    def __init__(
        self, info: OperatorInfo, strategy: Strategy, wanted: tuple[bool, ...], mesh: Mesh
    ) -> None:
        self._numbers: dict[tuple[TensorType, Layout | None], int] = {}
        self._tensors: list[_Tensor] = []
        taken, left = info.infer_tensor_layouts(strategy, mesh)
        operands = _values("operand", info.operand_types, taken)
        results = _values("result", info.result_types, left)
        build = Builder(mesh)
        names = tuple(value.name for value in operands)
        node = Node(info.name, names, results, info.stated)
        split = emit_split(build, node, operands, strategy)
        self.forward = self._steps(build.nodes, operands)
        self.operands, self.results = self._all(operands), self._all(results)
        self.is_form = len(split.made) > len(left)
        self.gradient = self._gradient(split, left, wanted, mesh) if any(wanted) else None

    def for_another_mesh(self) -> "_Pattern":
        """Return the pattern with tensors of which nothing is known under the axes of a mesh."""
        other = copy(self)
        other._tensors = [_Tensor(tensor.type, tensor.layout) for tensor in self._tensors]
        return other

    def _gradient(
        self,
        split: SplitOperator,
        left: Sequence[Layout],
        wanted: Sequence[bool],
        mesh: Mesh,
    ) -> _Gradient:
        build = Builder(mesh)
        types = [value.type for value in split.results]
        if isinstance(split.info, Cast):
            types = [split.info.cotangent_type]
        cotangents = _values("cotangent", types, [layout.reduced() for layout in left])
        gradient = split_gradient(build, split, cotangents)
        gradients = [
            value if want else None for value, want in zip(gradient.gradients, wanted, strict=True)
        ]
        nodes, read = live(build.nodes, [v.name for v in gradients if v is not None])
        work: GradientWork = work_of(split, gradient, wanted)
        turns = {
            name: Turn(self._all(turn.made), self._all(turn.freed), turn.saved)
            for name, turn in work.turns.items()
        }
        return _Gradient(
            self._steps(nodes, [*split.read, *split.made, *cotangents]),
            [turns.get(node.name) for node in nodes],
            self._all(work.cotangents),
            [None if value is None else self._number(value) for value in gradients],
            [self._number(v) if v.name in read else None for v in split.read],
            [self._number(v) if v.name in read else None for v in split.made],
            work.separate,
        )

    def _number(self, value: Value) -> int:
        key = value.type, value.layout
        if key not in self._numbers:
            assert value.layout is not None
            self._numbers[key] = len(self._tensors)
            self._tensors.append(_Tensor(value.type, value.layout))
        return self._numbers[key]

    def _all(self, values: Sequence[Value]) -> tuple[int, ...]:
        return tuple([self._number(value) for value in values])

    def _steps(self, nodes: Sequence[Node], known: Sequence[Value]) -> list[_Step]:
        values = {value.name: value for value in known}
        values |= {result.name: result for node in nodes for result in node.results}
        steps = []
        for node in nodes:
            read = [values[name] for name in node.operands]
            info = operator_info(node.operator, [value.type for value in read], node.attributes)
            exchanged = None
            if node.operator == "halo_exchange" and node.provenance.tensor:
                exchanged = int(node.provenance.tensor.removeprefix("operand."))
            steps.append(_Step(info, self._all(read), self._all(node.results), exchanged))
        return steps

    def under(self, axes: Axes, mesh: Mesh) -> Emission:
        """Return the emission on a mesh, where axes take the place of those of the pattern."""
        found = [tensor.under(axes, mesh) for tensor in self._tensors]
        layouts, sizes = [layout for layout, _ in found], [size for _, size in found]
        forward, gradient = _placed(self.forward, layouts), self.gradient
        taken = [layouts[i] for i in self.operands]
        left = tuple([layouts[i] for i in self.results])
        if gradient is None:
            none = Work((), (False,) * len(taken))
            edges = tuple([EdgeLayout(layout, None) for layout in taken])
            return Emission(forward, [], edges, left, (0.0,) * len(taken), (0.0,) * len(left), none)
        backward = _placed(gradient.steps, layouts)
        saved = tuple([0.0 if i is None else sizes[i] for i in gradient.saved_results])
        count = len(left)
        return Emission(
            forward,
            backward,
            tuple(
                [
                    EdgeLayout(layout, None if i is None else layouts[i])
                    for layout, i in zip(taken, gradient.returned, strict=True)
                ]
            ),
            left,
            tuple([0.0 if i is None else sizes[i] for i in gradient.saved_operands]),
            (0.0,) * count if self.is_form else saved,
            Work(_moments(gradient, backward, sizes, mesh), gradient.separate),
            (sum(saved[:count]), sum(saved[count:])) if self.is_form else (0.0, 0.0),
        )


def _placed(steps: Sequence[_Step], layouts: Sequence[Layout]) -> list[Placed]:
    return [
        Placed(
            info,
            tuple([layouts[i] for i in operands]),
            tuple([layouts[i] for i in results]),
            exchanged,
        )
        for info, operands, results, exchanged in steps
    ]


def _moments(
    gradient: _Gradient, placed: Sequence[Placed], sizes: Sequence[float], mesh: Mesh
) -> tuple[Moment, ...]:
    """Return the live tensors at each operator of a gradient, but exchanges; see `Moment`."""
    now, found = sum([sizes[i] for i in gradient.cotangents]), []
    for turn, (info, operands, *_) in zip(gradient.turns, placed, strict=True):
        if turn is None:
            continue
        now += sum([sizes[i] for i in turn.made])
        ring = info.workspace_bytes(operands, mesh) if isinstance(info, RingOperator) else 0.0
        found.append(Moment(now + ring, turn.saved))
        now -= sum([sizes[i] for i in turn.freed])
    return tuple(found)


def _values(kind: str, types: Sequence[TensorType], layouts: Sequence[Layout]) -> tuple[Value, ...]:
    pairs = zip(types, layouts, strict=True)
    return tuple(Value(f"{kind}.{i}", tensor, layout) for i, (tensor, layout) in enumerate(pairs))

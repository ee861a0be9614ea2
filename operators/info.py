"""Operators: the base class, and the registry.

An operator is one class with its rule, kernel, gradient and flop count; the rest derives from the
rule. An instance is the operator applied to operands of given types with given attributes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from shardwright.ir.attributes import Attribute, Attributes, ordered
from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout, Strategy, stage_of_results
from shardwright.ir.mesh import Mesh
from shardwright.ir.registry import Registry
from shardwright.ir.types import Ragged, TensorType
from shardwright.operators.halo import Halo
from shardwright.operators.notation import resolve
from shardwright.operators.operands import check_operands, check_windows, ragged_results
from shardwright.operators.rule import Rule, ShardView

Array = NDArray[Any]
SplitCounts = tuple[tuple[int, ...], ...]
Gradients = Sequence[Value | None]
# Errors of an operator whose attributes have unexpected types.
MALFORMED = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


@dataclass(frozen=True)
class Example:
    """A small use of an operator, on which its rule, kernel and gradient are tested.

    Parameters
    ----------
    operands : tuple of str
        Types of the operands: ``f64[4, 6]``.
    attributes : mapping
        Attributes of the operator.
    ranges : mapping of int to (float, float)
        Half-open interval that the elements of an operand are drawn from.
    constants : tuple of int
        Floating-point operands that have no gradient by design.
    """

    operands: tuple[str, ...]
    attributes: Attributes = field(default_factory=dict)
    ranges: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    constants: tuple[int, ...] = ()


class Emitter(Protocol):
    """Emits operators; a gradient is written with it. `Builder` is one."""

    def emit(
        self,
        operator: str,
        *operands: Value,
        name: str | None = None,
        like: Value | None = None,
        **attributes: Attribute,
    ) -> Value:
        """Emit an operator with one result and return the result."""

    def emit_all(
        self,
        operator: str,
        *operands: Value,
        name: str | None = None,
        like: Value | None = None,
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        """Emit an operator and return its results."""


@dataclass(frozen=True)
class Linearization:
    """The point at which an operator is differentiated.

    Parameters
    ----------
    operands, results : sequence of Value
        The operands and results of the operator.
    cotangents : sequence of Value
        The gradient of the loss by each result: in its layout, without partial axes.
    """

    operands: Sequence[Value]
    results: Sequence[Value]
    cotangents: Sequence[Value]


class OperatorInfo:
    """An operator applied to operands of known types.

    A subclass sets `name`, `notation` and `kernel`, and where they apply `defaults`, `linear`,
    `gradient` and `flops_per_point`. Other methods are overridden only by unusual operators.

    Attributes
    ----------
    name : str
        The operator's name in text.
    notation : str
        Its sharding rule; override `make_rule` where it depends on attributes.
    defaults : mapping
        Attributes with their default values; other attributes are errors.
    linear : tuple of tuple of int
        Sets of operands in which the operator is jointly linear: if exactly the operands of one set
        are partial sums, so are the results, over the same axes.
    result_dtype : int or str
        What the results have the element type of: an operand, by its place; all operands, which
        share it (``common``); or the attribute ``dtype`` (``attribute``); else it is the type.
    positions : tuple of int
        Operands that are positions in others: of integers.
    flops_per_point : float
        Floating-point operations for each point of the iteration space.
    examples : tuple of Example
        Small uses for tests; every operator that computes has some.

    Notes
    -----
    The compiler asks for traits, never for names. Each is False unless an operator sets it:

    - `is_view`: the result shares the elements of the operand: no time, no memory.
    - `is_identity`: the result equals the operand.
    - `is_scaling`: the result is the operand times a constant, up to the element type.
    - `is_commutative`: the two operands can change places.
    - `stops_gradient`: no cotangent passes.
    - `has_own_gradient`: its gradient is not the derivative of its result.
    - `passes_cotangent`: the compiler passes the cotangent on unchanged and adds the
      communication itself.
    - `is_collective`: the ranks of a group send to each other.
    - `is_free`: it takes no time: nothing is computed, copied or sent, or another operator pays
      for it.
    - `keeps_tensor`: it changes the layout of a tensor and keeps the tensor.
    - `reduces`: it reduces partial values.
    - `equalizes`: every rank of a group holds the same result.
    - `reads_host`: it reads a tensor in host memory.
    - `of_reals`: its first operand is of floating-point numbers.
    - `forwards_parts`: the result of a rank is the unchanged part of one rank of its group, or
      zeros.
    """

    name: ClassVar[str]
    notation: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, Attribute]] = {}
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ()
    result_dtype: ClassVar[int | str] = 0
    positions: ClassVar[tuple[int, ...]] = ()
    flops_per_point: ClassVar[float] = 1.0
    examples: ClassVar[tuple[Example, ...]] = ()

    is_view: ClassVar[bool] = False
    is_identity: ClassVar[bool] = False
    is_scaling: ClassVar[bool] = False
    is_commutative: ClassVar[bool] = False
    stops_gradient: ClassVar[bool] = False
    has_own_gradient: ClassVar[bool] = False
    passes_cotangent: ClassVar[bool] = False
    is_collective: ClassVar[bool] = False
    is_free: ClassVar[bool] = False
    keeps_tensor: ClassVar[bool] = False
    reduces: ClassVar[bool] = False
    equalizes: ClassVar[bool] = False
    forwards_parts: ClassVar[bool] = False
    reads_host: ClassVar[bool] = False
    of_reals: ClassVar[bool] = False

    def __init__(self, operand_types: Sequence[TensorType], attributes: Attributes) -> None:
        unknown = [key for key in attributes if key not in self.defaults]
        if unknown:
            raise IRError(
                f"`{self.name}` has no attribute `{unknown[0]}`",
                hint=f"its attributes are {tuple(self.defaults) or 'none'}",
            )
        self.operand_types = tuple(operand_types)
        allowed = {"of_reals": self.of_reals, "reads_host": self.reads_host}
        check_operands(self.name, self.operand_types, positions=self.positions, **allowed)
        self.attributes: dict[str, Any] = {**self.defaults, **attributes}
        self.stated = {key: attributes[key] for key in self.attributes if key in attributes}
        self._inferred: dict[object, tuple[Strategy, tuple[Layout, ...]]] = {}
        try:
            self.rule = self.make_rule()
        except IRError as error:
            raise IRError(f"{self.name}: {error.what}", error.where, error.hint) from None
        except MALFORMED as error:
            raise self._malformed() from error
        self._check_windows()

    def _check_windows(self) -> None:
        check_windows(self.name, self.rule, {*self.halos, *self.runs})

    def _malformed(self) -> IRError:
        """Return the error for operands and attributes that do not fit the operator."""
        types = ", ".join(map(str, self.operand_types)) or "none"
        attributes = ", ".join(f"{key}={value!r}" for key, value in self.stated.items())
        types += f" with {attributes}" if attributes else ""
        return IRError(f"`{self.name}` cannot take the operands: {types}")

    # Defined by subclasses

    def make_rule(self) -> Rule:
        """Return the sharding rule for these operands."""
        return resolve(self.notation, [operand.shape for operand in self.operand_types])

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the element types of the results, as `result_dtype` says."""
        kind = self.result_dtype
        if isinstance(kind, int):
            kind = self.operand_types[kind].dtype
        elif kind == "attribute":
            kind = self.attributes["dtype"]
        return (self.common_dtype() if kind == "common" else kind,) * len(self.rule.results)

    def make_ragged(self) -> tuple[Ragged | None, ...]:
        """Return which entries of the results are filled: by default as the rule carries it."""
        if self.keeps_tensor:
            return (self.operand_types[0].ragged,)
        return ragged_results(self.rule, self.operand_types)

    def kernel(self, view: ShardView, *operands: Array) -> Array | tuple[Array, ...]:
        """Compute the part of the results that one rank holds; `view` locates it."""
        raise IRError(f"`{self.name}` has no kernel: it only exists while a program is compiled")

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Emit the gradient by each operand; None for an operand without a gradient.

        The cotangents have the layouts of the results without partial axes. A gradient has the
        split of its operand, and is partial over the axes that split factors the operand lacks.
        What is emitted must not depend on layouts: a search emits it once for all strategies.
        """
        return (None,) * len(at.operands)

    def common_dtype(self, first: int = 0) -> str:
        """Return the element type that the operands from `first` on share.

        Raises
        ------
        IRError
            If two differ; names both.
        """
        dtypes = [operand.dtype for operand in self.operand_types[first:]]
        other = next((dtype for dtype in dtypes if dtype != dtypes[0]), None)
        if other:
            raise IRError(
                f"{self.name}: the operands are {dtypes[0]} and {other}, they must agree",
                hint="cast one of them",
            )
        return dtypes[0]

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """The sets of `linear`; an operator on any number of operands overrides this."""
        return self.linear

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole operator."""
        if not self.flops_per_point:  # the points of many operands may exceed any float
            return 0.0
        return self.flops_per_point * self.rule.points

    def imbalance(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the work of the busiest rank over the share that its slices are of the whole."""
        return 1.0

    @property
    def product_flops(self) -> float:
        """The operations that belong to matrix products; model flops count these alone."""
        return 0.0

    @property
    def halos(self) -> Mapping[str, Halo]:
        """The windows of each factor that the rule writes ``h~``."""
        return {}

    @property
    def runs(self) -> Mapping[str, int]:
        """The number of slices of each factor whose halo has been exchanged."""
        return {}

    def on_runs(self, slices: Mapping[str, int]) -> Attributes:
        """Return the attributes of the operator after halos of factors have been exchanged."""
        raise IRError(f"`{self.name}` has no halo")

    # Derived from the rule

    @cached_property
    def result_types(self) -> tuple[TensorType, ...]:
        """Types of the results."""
        try:
            each = zip(self.make_dtypes(), self.rule.result_shapes, self.make_ragged(), strict=True)
            return tuple(TensorType(dtype, shape, ragged=ragged) for dtype, shape, ragged in each)
        except MALFORMED as error:
            raise self._malformed() from error

    def check_strategy(self, strategy: Strategy, mesh: Mesh) -> None:
        """Check that a strategy is legal for the operator.

        Raises
        ------
        StrategyError
            With the reason, if it is not.
        """
        try:
            self.rule.check(strategy, mesh)
        except StrategyError as error:
            raise StrategyError(f"{self.name}: {error.what}", error.where, error.hint) from None
        for factor in self._too_narrow(strategy, mesh):
            raise StrategyError(
                f"{self.name}: the windows of factor `{factor}` reach beyond the neighbours of a "
                f"slice",
                hint="split it fewer ways",
            )

    def _too_narrow(self, strategy: Strategy, mesh: Mesh) -> Iterator[str]:
        """Yield the factors whose slices are narrower than their halos."""
        for factor, halo in self.halos.items():
            axes = strategy.axes.get(factor, ())
            if axes and halo.margins([mesh.sizes[axis] for axis in axes]) is None:
                yield factor

    def generate_strategies(
        self, mesh: Mesh, kinds: Mapping[str, int] | None = None
    ) -> tuple[Strategy, ...]:
        """Return every legal strategy on the mesh.

        With `kinds`, one strategy of each class that differs only by permuting axes of one kind.
        """
        found = self.rule.strategies(mesh, kinds)
        return tuple(s for s in found if not self.halos or not any(self._too_narrow(s, mesh)))

    def infer_device_matrix(self, strategy: Strategy, mesh: Mesh) -> tuple[int, ...]:
        """Return the number of slices of each factor; MindSpore's private mesh of the operator."""
        return tuple(mesh.extent(strategy.axes.get(factor, ())) for factor in self.rule.sizes)

    def infer_tensor_layouts(
        self, strategy: Strategy, mesh: Mesh
    ) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Return the layouts of the operands and of the results."""
        return self.rule.operand_layouts(strategy), self.rule.result_layouts(strategy, mesh)

    def infer_tensor_map(
        self, strategy: Strategy, mesh: Mesh
    ) -> tuple[tuple[int | tuple[int, ...], ...], ...]:
        """Return MindSpore's tensor maps of the operands, then of the results."""
        operands, results = self.infer_tensor_layouts(strategy, mesh)
        return tuple(layout.tensor_map(mesh) for layout in operands + results)

    def infer_forward_communication(
        self, strategy: Strategy, mesh: Mesh
    ) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return for each result its reduction and the axes that it is partial over."""
        layouts = self.rule.result_layouts(strategy, mesh)
        return tuple((layout.reduction, layout.partial) for layout in layouts)

    def infer_mirror_ops(self, strategy: Strategy, mesh: Mesh) -> tuple[tuple[str, ...], ...]:
        """Return for each operand the axes over which its gradient is partial."""
        count = len(self.operand_types)
        return tuple(self.rule.mirror_axes(i, strategy, mesh) for i in range(count))

    def split_counts(self, strategy: Strategy, mesh: Mesh) -> SplitCounts:
        """Return the slices of each dimension of each operand: MindSpore's form of a strategy."""
        return tuple(layout.counts(mesh) for layout in self.rule.operand_layouts(strategy))

    def infer_layouts(
        self, operands: Sequence[Layout], mesh: Mesh, results: Sequence[Layout | None] = ()
    ) -> tuple[Strategy, tuple[Layout, ...]]:
        """Return the strategy that the layouts of the operands imply, and the result layouts.

        Partial sums pass through where the operator is linear in the partial operands.

        Raises
        ------
        StrategyError
            With the reason, if no strategy has these layouts.
        """
        key = tuple(operands), mesh, tuple(results)
        found = self._inferred.get(key)
        if found is None:  # equal layers repeat the question after every pass
            try:
                found = self._inferred[key] = self._infer_layouts(operands, mesh, results)
            except StrategyError as error:
                what = f"{self.name}: {error.what}"
                raise StrategyError(what, error.where, error.hint) from None
            except MALFORMED as error:
                raise self._malformed() from error
        return found

    def _infer_layouts(
        self, operands: Sequence[Layout], mesh: Mesh, results: Sequence[Layout | None]
    ) -> tuple[Strategy, tuple[Layout, ...]]:
        strategy = self.rule.strategy_from(operands, mesh, results)
        self.rule.check(strategy, mesh)
        self.rule.refuse_forms(strategy)
        self._check_runs(strategy, mesh)
        carried = self._carried(operands)
        if set(carried) & set(strategy.of_factors(self.rule.sizes)):
            raise StrategyError(f"axes {list(carried)} both split the work and are partial")
        stage = stage_of_results(operands, results)
        left = tuple([x.at(stage) for x in self.rule.result_layouts(strategy, mesh)])
        if not carried:
            return strategy, left
        for layout in left:
            if layout.partial and layout.reduction != "sum":
                raise StrategyError(
                    f"a result would be partial in two ways at once: ['sum', '{layout.reduction}']"
                )
        return strategy, tuple(
            layout.with_partial(mesh.ordered(layout.partial + carried)) for layout in left
        )

    def _check_runs(self, strategy: Strategy, mesh: Mesh) -> None:
        """Refuse split windows without a halo, or with a halo of another split."""
        for factor in self.halos:
            if strategy.axes.get(factor):
                raise StrategyError(
                    f"factor `{factor}` is split, and its windows reach into other slices",
                    hint="exchange the halo first",
                )
        for factor, slices in self.runs.items():
            if mesh.extent(strategy.axes.get(factor, ())) != slices:
                raise StrategyError(f"the halo of `{factor}` was exchanged in {slices} slices")

    def _carried(self, operands: Sequence[Layout]) -> tuple[str, ...]:
        partial = tuple(i for i, layout in enumerate(operands) if layout.partial)
        if not partial:
            return ()
        kinds = {(operands[i].partial, operands[i].reduction) for i in partial}
        axes, reduction = operands[partial[0]].partial, operands[partial[0]].reduction
        if partial not in self.linear_sets or len(kinds) > 1 or reduction != "sum":
            raise StrategyError(
                f"operands {list(partial)} are partial over {sorted(set(axes))}, they must be "
                f"reduced first"
            )
        return axes


_OPERATORS: Registry[type[OperatorInfo]] = Registry("operator", IRError, listed=False)


def register(operator: type[OperatorInfo]) -> type[OperatorInfo]:
    """Add an operator class to the registry; a class decorator.

    A file that is loaded again replaces the operators that it registered.

    Raises
    ------
    IRError
        If the name is taken.
    """
    if _OPERATORS.register(operator):
        _cached.cache_clear()
    return operator


def operator_class(name: str) -> type[OperatorInfo]:
    """Return the operator called `name`.

    Raises
    ------
    IRError
        If there is none; suggests the nearest.
    """
    return _OPERATORS[name]


def operator_names() -> tuple[str, ...]:
    """Return the names of all operators, sorted."""
    return tuple(sorted(_OPERATORS))


@lru_cache(maxsize=65536)
def _cached(
    name: str, types: tuple[TensorType, ...], attributes: tuple[tuple[str, Attribute], ...]
) -> OperatorInfo:
    return operator_class(name)(types, dict(attributes))


def operator_info(
    name: str, operand_types: Sequence[TensorType], attributes: Attributes
) -> OperatorInfo:
    """Return the operator applied to operands of these types; equal uses share one instance."""
    return _cached(name, tuple(operand_types), ordered(attributes))


def info_of(graph: Graph, node: Node) -> OperatorInfo:
    """Return the operator of a node."""
    types = [value.type for value in graph.operand_values(node)]
    return operator_info(node.operator, types, node.attributes)


def whole_kernel(info: OperatorInfo, *operands: Array) -> tuple[Array, ...]:
    """Run the kernel on whole tensors."""
    results = info.kernel(info.rule.view(), *operands)
    return results if isinstance(results, tuple) else (results,)

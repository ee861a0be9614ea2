"""Erasure: the values of a program without layouts and communication.

Every node is typed first: by its operator's rule, the layouts of the operands imply the layouts of
the results. Then the slices of a value represent a whole tensor, collectives keep that tensor, and
the other operators compute whole tensors from whole tensors, which are numbered as terms.
"""

from collections.abc import Mapping, Sequence

from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import OperatorInfo, operator_class, operator_info
from shardwright.operators.windows.halo_exchange import OverHalo
from shardwright.operators.windows.windowed import Windowed
from shardwright.proof.rings import RingError, passed_round
from shardwright.proof.step import attributes_text
from shardwright.proof.terms import (
    ZERO,
    Term,
    applied,
    broadcast,
    combination,
    converted,
    is_constant,
)
from shardwright.proof.values import Bundle, Held, Runs
from shardwright.proof.windows import RunsError, exchanged, windowed

# Errors of operators whose attributes have unexpected types.
_MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
_REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max")
_SIGNS: Mapping[str, tuple[float, ...]] = {"add": (1, 1), "sub": (1, -1), "neg": (-1,)}


class ProofError(Exception):
    """The proof of a program fails.

    Parameters
    ----------
    place : str
        The node, parameter or output at which it fails.
    reason : str
        One sentence.
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = place, reason


def erase(graph: Graph) -> dict[str, Held]:
    """Return the term of every value of a program.

    Parameters
    ----------
    graph : Graph
        A structurally valid program, of one device or with layouts.

    Raises
    ------
    ProofError
        At the first node with wrong types, layouts or communication.
    """
    mesh = graph.mesh if has_layouts(graph) else None
    held: dict[str, Held] = {v.name: _leaf("input", v) for v in graph.inputs}
    held.update((p.name, _leaf("parameter", p.value)) for p in graph.parameters)
    for node in graph.nodes:
        operands = graph.operand_values(node)
        try:
            if mesh is None and graph.mesh is not None:
                _refuse_communication(node)
            terms = _Erased(node, operands, [held[v.name] for v in operands], mesh).results()
        except ShardwrightError as error:
            raise ProofError(node.name, error.what) from None
        except _MALFORMED as error:
            reason = f"`{node.operator}` cannot be typed: {error!r}"
            raise ProofError(node.name, reason) from None
        held.update((r.name, term) for r, term in zip(node.results, terms, strict=True))
    return held


def has_layouts(graph: Graph) -> bool:
    """Return whether some value of a program has a layout."""
    return any(value.layout is not None for value in graph.values.values())


def _refuse_communication(node: Node) -> None:
    """Refuse communication between ranks whose values have no layouts."""
    if issubclass(operator_class(node.operator), Communication):
        raise ProofError(node.name, f"`{node.operator}` moves a value that has no layout")


def _leaf(kind: str, value: Value) -> Term:
    return applied(kind, value.name, [(value.type, ZERO)], 1)[0]


class _Erased:
    """One node, typed and erased.

    Parameters
    ----------
    node : Node
        The node.
    operands : sequence of Value
        What it reads.
    held : sequence of Held
        The terms of the operands.
    mesh : Mesh, optional
        The mesh; None on one device.
    """

    def __init__(
        self, node: Node, operands: Sequence[Value], held: Sequence[Held], mesh: Mesh | None
    ) -> None:
        self.node, self.operands, self.held, self.mesh = node, operands, held, mesh
        types = [value.type for value in operands]
        self.info: OperatorInfo = operator_info(node.operator, types, node.attributes)
        self._check_types()
        self.strategy = self._typed() if mesh is not None else Strategy()

    def _refuse(self, reason: str) -> ProofError:
        return ProofError(self.node.name, reason)

    # Types and layouts

    def _check_types(self) -> None:
        found = tuple(result.type for result in self.node.results)
        if found != self.info.result_types:
            expected = ", ".join(map(str, self.info.result_types))
            raise self._refuse(f"the results are {', '.join(map(str, found))}, expected {expected}")

    def _typed(self) -> Strategy:
        """Return the strategy under which the operator runs, as the executor infers it."""
        assert self.mesh is not None
        taken = self._layouts(self.operands)
        left = self._layouts(self.node.results)
        wanted = [layout.reduced() for layout in left]
        strategy, expected = self.info.infer_layouts(taken, self.mesh, wanted)
        for layout, other in zip(left, expected, strict=True):
            if layout != other:
                raise self._refuse(f"the layout is {layout}, `{self.info.name}` leaves {other}")
        return strategy

    def _layouts(self, values: Sequence[Value]) -> list[Layout]:
        layouts = []
        for value in values:
            if value.layout is None:
                raise self._refuse(f"`{value.name}` has no layout")
            layouts.append(value.layout)
        return layouts

    # Values

    def results(self) -> list[Held]:
        """Return the terms of the results."""
        name = self.node.operator
        if isinstance(self.info, Communication):
            return [self._moved()]
        if name in ("pack", "pack_dealt"):
            return [self._packed()]
        if name in ("unpack", "unpack_gathered"):
            return list(self._unpacked())
        try:
            if isinstance(self.info, RingOperator):
                return list(passed_round(self.info, self.operands, self._terms(), self.mesh))
            if isinstance(self.info, Windowed):
                return list(windowed(self.node, self.info, self.held, self.strategy, self.mesh))
            if name == "add" and (sum_of_runs := self._sum_of_runs()):
                return [sum_of_runs]
        except (RunsError, RingError) as error:
            raise self._refuse(str(error)) from None
        return list(self._computed(self._terms()))

    def _moved(self) -> Held:
        """Return the result of a collective: the same tensor."""
        (held,), name = self.held, self.node.operator
        if self.mesh is not None and isinstance(self.info, OverHalo):
            try:
                return exchanged(self.info, held, self.operands[0].type)
            except RunsError as error:
                raise self._refuse(str(error)) from None
        if not self.info.keeps_tensor:
            raise self._refuse(f"`{name}` does not keep the whole tensor")
        before, after = (value.type for value in (self.operands[0], self.node.results[0]))
        if (before.dtype, before.shape) != (after.dtype, after.shape):
            raise self._refuse(f"`{name}` changes the type of the whole tensor")
        return held

    def _terms(self) -> list[Term]:
        """Return the operands as whole tensors."""
        for value, held in zip(self.operands, self.held, strict=True):
            if not isinstance(held, int):
                what = "a flat buffer" if isinstance(held, Bundle) else "runs of windows"
                raise self._refuse(f"`{self.node.operator}` reads `{value.name}`, which is {what}")
        return [held for held in self.held if isinstance(held, int)]

    def _packed(self) -> Bundle:
        shapes = tuple(value.type.shape for value in self.operands)
        splits = tuple(
            value.layout.splits if self.mesh and value.layout else ((),) * value.type.rank
            for value in self.operands
        )
        if self.mesh and self.info.attributes.get("splits"):  # of the slices that are dealt out
            dealt = self.info.attributes["splits"]
            splits = tuple(tuple(tuple(axes) for axes in part) for part in dealt)
        return Bundle(tuple(self._terms()), shapes, splits)

    def _unpacked(self) -> tuple[Term, ...]:
        (held,), attributes = self.held, self.info.attributes
        if not isinstance(held, Bundle):
            raise self._refuse("`unpack` reads a value that is no flat buffer")
        shapes = tuple(tuple(shape) for shape in attributes["shapes"])
        splits = tuple(tuple(tuple(axes) for axes in part) for part in attributes["splits"])
        splits = splits or tuple(((),) * len(shape) for shape in shapes)
        if (shapes, splits) != (held.shapes, held.splits):
            raise self._refuse("`unpack` names other slices than `pack`")
        return held.terms

    def _sum_of_runs(self) -> Runs | None:
        a, b = self.held
        if not (isinstance(a, Runs) and isinstance(b, Runs)):
            return None
        if not (a.made and b.made) or (a.moves, a.kind) != (b.moves, b.kind):
            raise RunsError("`add` reads runs of different windows")
        return Runs(combination([(1, a.term), (1, b.term)]), a.kind, a.moves, True)

    def _changes_nothing(self) -> bool:
        """Return whether an operator moves no element, and combines none with another.

        It converts a tensor to its own type, or reduces a scalar.
        """
        name, before = self.node.operator, self.operands[0].type if self.operands else None
        if name == "transpose":
            order = tuple(self.info.attributes["permutation"])
            return order == tuple(range(len(order)))
        if before != self.node.results[0].type:
            return False
        is_scalar = before is not None and not before.rank
        return name in ("cast", "reshape") or (is_scalar and name in _REDUCTIONS)

    def _computed(self, terms: Sequence[Term]) -> Sequence[Term]:
        """Return the terms of an operator on whole tensors."""
        name, result = self.node.operator, self.node.results[0].type
        if self.info.is_identity or self._changes_nothing():
            return terms  # in a differentiated program `stop_gradient` is an identity, too
        same_type = all(value.type.dtype == result.dtype for value in self.operands)
        if name in _SIGNS and same_type and result.dtype != "bool":
            pairs = zip(_SIGNS[name], self.operands, terms, strict=True)
            parts = [(sign, broadcast(t, v.type.shape, result.shape)) for sign, v, t in pairs]
            return [combination(parts)]
        factor = self.info.attributes.get("factor") if name == "scale" else None
        if result.is_float and is_constant(factor):
            return [combination([(factor, terms[0])])]  # type: ignore[list-item]
        if name == "convert":
            return [converted(terms[0], self.operands[0].type.dtype, result.dtype)]
        if name == "fill" and self.info.attributes.get("value") == 0:
            return [ZERO]
        operands = list(zip([v.type for v in self.operands], terms, strict=True))
        text = attributes_text(self.node, self.info.defaults)
        return applied(name, text, operands, len(self.node.results), self.info.is_commutative)

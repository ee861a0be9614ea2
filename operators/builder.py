"""The builder: emits nodes one by one, inferring their types and, on a mesh, their layouts."""

from collections.abc import Iterable

from shardwright.ir.attributes import Attribute, Attributes
from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.graph import Graph, Node, Parameter, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.provenance import ParameterRole, Provenance
from shardwright.operators.info import (
    Gradients,
    Linearization,
    OperatorInfo,
    operator_class,
    operator_info,
)
from shardwright.operators.products import Product


class Builder:
    """Grows a graph node by node.

    Nodes get the `scope` and the `provenance` that are set when they are emitted.

    Parameters
    ----------
    mesh : Mesh, optional
        With a mesh, every operand has a layout, and results get theirs from the operator's rule.
    graph : Graph, optional
        The graph to extend.
    """

    def __init__(self, mesh: Mesh | None = None, graph: Graph | None = None) -> None:
        self.mesh = mesh
        self.inputs: list[Value] = list(graph.inputs) if graph is not None else []
        self.parameters: list[Parameter] = list(graph.parameters) if graph is not None else []
        self.nodes: list[Node] = list(graph.nodes) if graph is not None else []
        self.updates: list[tuple[str, str]] = list(graph.updates) if graph is not None else []
        self.schedule = graph.schedule if graph is not None else ""
        self.scope = ""
        self.provenance = Provenance()
        self._products = ""
        self._names: set[str] = set(graph.values) if graph is not None else set()
        self._reserved: frozenset[str] = frozenset()
        self._counts: dict[str, int] = {}

    @classmethod
    def rewriting(cls, graph: Graph) -> "Builder":
        """Return a builder of other nodes for a graph, whose names are taken."""
        build = cls(graph.mesh, graph)
        build.nodes, build.updates = [], []
        return build

    def input(self, value: Value) -> Value:
        """Add an input."""
        self._names.add(value.name)
        self.inputs.append(value)
        return value

    def parameter(
        self,
        value: Value,
        attributes: Attributes | None = None,
        role: ParameterRole = "weight",
        weight: str = "",
    ) -> Value:
        """Add a parameter; see `Parameter`."""
        self._names.add(value.name)
        self.parameters.append(Parameter(value, dict(attributes or {}), role, weight))
        return value

    def unique_name(self, base: str, numbered: bool = False) -> str:
        """Return `base`, or `base` with the least number that makes it new."""
        if not numbered and base not in self._names:
            self._names.add(base)
            return base
        while True:
            name = f"{base}_{self._counts.setdefault(base, 0)}"
            self._counts[base] += 1
            if name not in self._names and name not in self._reserved:
                self._names.add(name)
                return name

    def reserve(self, names: Iterable[str]) -> None:
        """Keep numbered names apart from names that are still to be defined."""
        self._reserved = frozenset(names)

    def emit(
        self,
        operator: str,
        *operands: Value,
        name: str | None = None,
        like: Value | None = None,
        **attributes: Attribute,
    ) -> Value:
        """Emit an operator with one result and return it; see `emit_all`."""
        return self.emit_all(operator, *operands, name=name, like=like, **attributes)[0]

    def emit_all(
        self,
        operator: str,
        *operands: Value,
        name: str | None = None,
        like: Value | None = None,
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        """Emit an operator and return its results.

        Parameters
        ----------
        operator : str
            Name of the operator.
        *operands : Value
            Its operands.
        name : str, optional
            Name of the (first) result; else the operator's name with a number.
        like : Value, optional
            A value whose split the result gets, where the operands do not determine one.
        **attributes
            Attributes of the operator.

        Raises
        ------
        IRError
            If the operands do not fit the operator or each other.
        StrategyError
            If their layouts do not.
        """
        try:
            types = [value.type for value in operands]
        except AttributeError as error:
            hint = "pass values, such as `graph.values[name]`"
            raise IRError(f"`{operator}` is emitted with {operands}", hint=hint) from error
        if self._products and issubclass(operator_class(operator), Product):
            attributes["products"] = self._products
        info = operator_info(operator, types, attributes)
        count = len(info.result_types)
        first = self.unique_name(name) if name else self.unique_name(operator, numbered=True)
        names = [first] + [self.unique_name(f"{first}.{i}") for i in range(1, count)]
        layouts: tuple[Layout | None, ...] = (None,) * count
        if self.mesh is not None:
            layouts = self._layouts(info, operands, like)
        results = tuple(map(Value, names, info.result_types, layouts))
        operand_names = tuple(value.name for value in operands)
        origin = self.provenance
        self.nodes.append(
            Node(operator, operand_names, results, attributes, self.scope, None, origin)
        )
        return results

    def gradients(self, info: OperatorInfo, at: Linearization) -> Gradients:
        """Emit the gradient of an operator by each operand; its products have the type of its own.

        See `OperatorInfo.gradient`.
        """
        self._products = info.products if isinstance(info, Product) else ""
        try:
            return info.gradient(self, at)
        finally:
            self._products = ""

    def _layouts(
        self,
        info: OperatorInfo,
        operands: tuple[Value, ...],
        like: Value | None,
    ) -> tuple[Layout, ...]:
        assert self.mesh is not None
        missing = [value.name for value in operands if value.layout is None]
        if missing:
            raise IRError(f"`{missing[0]}` has no layout, `{info.name}` is emitted on a mesh")
        taken = [value.layout for value in operands if value.layout is not None]
        wanted = [like.layout.reduced()] if like is not None and like.layout is not None else []
        try:
            return info.infer_layouts(taken, self.mesh, wanted)[1]
        except StrategyError as error:
            names = ", ".join(value.name for value in operands)
            raise StrategyError(error.what, f"{info.name}({names})", error.hint) from None

    def redistribute(
        self, value: Value, layout: Layout, recompute: bool = False, in_passes: bool = False
    ) -> Value:
        """Emit the change of a value to another layout, still to be lowered to collectives.

        Parameters
        ----------
        value : Value
            The value.
        layout : Layout
            The layout of the result.
        recompute : bool
            Whether the result is not saved for backward, but made again there.
        in_passes : bool
            Whether every pass over micro-batches makes it, where it could be made once before.
        """
        name = self.unique_name(f"{value.name}.to", numbered=True)
        result = Value(name, value.type, layout)
        marks: Attributes = {"recompute": recompute, "in_passes": in_passes}
        attributes = {name: mark for name, mark in marks.items() if mark}
        origin = self.provenance
        self.append(
            Node("redistribute", (value.name,), (result,), attributes, self.scope, None, origin)
        )
        return result

    def append(self, node: Node) -> None:
        """Append a ready node."""
        self._names.update(result.name for result in node.results)
        self.nodes.append(node)

    def graph(self, name: str, outputs: tuple[str, ...]) -> Graph:
        """Return the graph built so far."""
        return Graph(
            name,
            tuple(self.inputs),
            tuple(self.parameters),
            tuple(self.nodes),
            outputs,
            tuple(self.updates),
            self.mesh,
            schedule=self.schedule,
        )

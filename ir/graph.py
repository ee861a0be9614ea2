"""The graph: an immutable SSA program over named tensors.

Values are referred to by name, so a graph can be printed, compared and rewritten without following
pointers. A graph says nothing about what its operators mean.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TypeVar, cast

from shardwright.ir.attributes import Attributes, FrozenAttributes
from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout, SharedLayout, Strategy, local_bytes
from shardwright.ir.mesh import Mesh
from shardwright.ir.provenance import COPIES, ParameterRole, Provenance
from shardwright.ir.types import TensorType
from shardwright.ir.units import ROWS, html_table

T = TypeVar("T")
_OWN = Provenance()
_NONE = FrozenAttributes()


@dataclass(frozen=True, slots=True)
class Value:
    """A named tensor: the type of the whole, and its layout once that is decided."""

    name: str
    type: TensorType
    layout: Layout | None = None

    @property
    def known_layout(self) -> Layout:
        """The layout; of a value without one, that of a tensor which every rank has whole."""
        return self.layout or Layout.replicated(self.type.rank)

    @property
    def text(self) -> str:
        """Name, type and layout: ``x: f32[64, 128] [d@x, *]``."""
        return f"{self.name}: {self.type}" + (f" {self.layout}" if self.layout else "")

    def __repr__(self) -> str:
        return f"<Value {self.text}>"


def value_bytes(value: Value, mesh: Mesh) -> float:
    """Return the bytes of a value on one rank."""
    return local_bytes(value.type, value.known_layout, mesh)


@dataclass(frozen=True, slots=True, init=False)
class Node:
    """One application of an operator.

    Parameters
    ----------
    operator : str
        Name of the operator.
    operands : tuple of str
        Names of the values it reads.
    results : tuple of Value
        Values it defines; the first one names the node.
    attributes : mapping
        Constants of the operator.
    scope : str
        Its place in the user's model: ``layer1/attention/query``.
    strategy : Strategy, optional
        How it is split, once that is decided.
    provenance : Provenance, optional
        The operator it belongs to and its role; by default it is an operator of the model itself.

    Attributes
    ----------
    name : str
        The name of the first result.
    """

    operator: str
    operands: tuple[str, ...]
    results: tuple[Value, ...]
    attributes: Attributes = field(default_factory=dict)
    scope: str = ""
    strategy: Strategy | None = None
    provenance: Provenance = _OWN
    name: str = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        operator: str,
        operands: tuple[str, ...],
        results: tuple[Value, ...],
        attributes: Attributes = _NONE,
        scope: str = "",
        strategy: Strategy | None = None,
        provenance: Provenance = _OWN,
    ) -> None:
        # Programs make many nodes: the generated method takes two and a half times as long. Names
        # are read often: a property would be slower.
        name = results[0].name if results else ""
        if type(attributes) is not FrozenAttributes:
            attributes = FrozenAttributes(attributes)
        if name and not provenance.operator and provenance == _OWN:
            provenance = Provenance(name)
        put = object.__setattr__
        put(self, "operator", operator)
        put(self, "operands", operands)
        put(self, "results", results)
        put(self, "attributes", attributes)
        put(self, "scope", scope)
        put(self, "strategy", strategy)
        put(self, "provenance", provenance)
        put(self, "name", name)

    def __repr__(self) -> str:
        results = ", ".join(result.name for result in self.results)
        return f"<Node {results} = {self.operator}({', '.join(self.operands)})>"


DIVIDED = "parallel_optimizer"
"""The attribute that is False of a parameter that ranks do not divide further than its reader."""


@dataclass(frozen=True)
class Parameter:
    """A tensor that lives from step to step.

    Parameters
    ----------
    value : Value
        Its name, type and layout.
    attributes : mapping
        How it begins (``initializer``), whether its gradient is wanted (``trainable``), and what
        the user asked for it (``fusion``, ``layerwise_parallel``, ``parallel_optimizer``).
    role : str
        ``weight``; ``buffer``, which the model keeps without a gradient: statistics, constants;
        or ``state`` of the optimizer.
    weight : str
        The weight that a state belongs to; empty for the number of the step.
    """

    value: Value
    attributes: Attributes = field(default_factory=dict)
    role: ParameterRole = "weight"
    weight: str = ""

    def __post_init__(self) -> None:
        if type(self.attributes) is not FrozenAttributes:
            object.__setattr__(self, "attributes", FrozenAttributes(self.attributes))

    def __repr__(self) -> str:
        return f"<Parameter {self.value.text} {self.role}>"

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self.value.name

    @property
    def trainable(self) -> bool:
        """Whether a gradient is wanted."""
        return bool(self.attributes.get("trainable", True))


@dataclass(frozen=True)
class Graph:
    """A program.

    Parameters
    ----------
    name : str
        Name of the program.
    inputs : tuple of Value
        Tensors that each call receives.
    parameters : tuple of Parameter
        Tensors that are kept between calls.
    nodes : tuple of Node
        The operations, in an order in which they can run.
    outputs : tuple of str
        Values returned.
    updates : tuple of (str, str)
        Parameters, with their values for the next call.
    mesh : Mesh, optional
        The mesh of all layouts.
    shared_layouts : tuple of (str, SharedLayout)
        Tensors with several readers, and the layout that their readers share: decided, and not yet
        carried out by the passes.
    recomputed : tuple of str
        Operators whose results are not saved for backward but computed again there: decided, and
        not yet carried out.
    regathered : tuple of str
        Operators whose result is saved for backward as they leave it, in fewer bytes than its
        readers take, and redistributed to them again there: decided, and not yet carried out.
    offloaded : tuple of str
        Operators whose result is saved for backward in host memory, as they leave it: decided, and
        not yet carried out.
    cuts : tuple of str
        The first operators of the pipeline stages 1, 2, ...: decided, and not yet carried out.
    schedule : str
        The name of the schedule of a pipeline; empty for the order of the program.
    """

    name: str
    inputs: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()
    mesh: Mesh | None = None
    shared_layouts: tuple[tuple[str, SharedLayout], ...] = ()
    recomputed: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()
    schedule: str = ""
    regathered: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()

    def __repr__(self) -> str:
        place = f", mesh {self.mesh}" if self.mesh else ""
        return (
            f"<Graph {self.name}: {len(self.inputs)} inputs, {len(self.parameters)} parameters, "
            f"{len(self.nodes)} nodes{place}>"
        )

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: the first nodes with their operators."""
        rows = [
            (node.name, node.operator, str(node.results[0].type), str(node.strategy or ""))
            for node in self.nodes[:ROWS]
        ]
        if len(self.nodes) > ROWS:
            rows.append((f"{len(self.nodes) - ROWS} more", "", "", ""))
        return html_table(repr(self)[1:-1], rows, ("node", "operator", "type", "strategy"))

    @cached_property
    def values(self) -> dict[str, Value]:
        """Every value by name."""
        table = {value.name: value for value in self.inputs}
        table.update((parameter.name, parameter.value) for parameter in self.parameters)
        for node in self.nodes:
            table.update((result.name, result) for result in node.results)
        return table

    @cached_property
    def _parameters(self) -> dict[str, Parameter]:
        """Every parameter by name."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def producers(self) -> dict[str, Node]:
        """The node that defines each value; inputs and parameters do not appear."""
        return {result.name: node for node in self.nodes for result in node.results}

    @cached_property
    def uses(self) -> dict[str, tuple[tuple[Node, int], ...]]:
        """For each value the (node, operand position) pairs that read it."""
        table: dict[str, list[tuple[Node, int]]] = {name: [] for name in self.values}
        for node in self.nodes:
            for position, operand in enumerate(node.operands):
                table[operand].append((node, position))
        return {name: tuple(readers) for name, readers in table.items()}

    @cached_property
    def _analyses(self) -> dict[object, object]:
        """What was found out about the program: it never changes, so that stays true."""
        return {}

    def analysed(self, key: object, analyse: Callable[[], T]) -> T:
        """Return the result of an analysis of the program, made once for each key.

        Parameters
        ----------
        key : object
            The analysis with its arguments.
        analyse : callable
            Makes it; nobody changes what it returns.
        """
        if key not in self._analyses:
            self._analyses[key] = analyse()
        return cast(T, self._analyses[key])

    def forget(self) -> None:
        """Forget what was found out about the program, which takes more memory than itself."""
        for name in vars(self).keys() - self.__dataclass_fields__.keys():
            del vars(self)[name]

    def __getstate__(self) -> dict[str, object]:
        """Return the fields alone: what follows from them is not sent to other processes."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def stages(self) -> int:
        """Number of pipeline stages: those of the cuts, or of the layouts; 0 without any."""
        if self.cuts:
            return len(self.cuts) + 1
        placed = (v.layout.stage for v in self.values.values() if v.layout is not None)
        return max((stage + 1 for stage in placed if stage is not None), default=0)

    def stage_of(self, node: Node) -> int | None:
        """Return the stage that runs a node: that of its results; None for every stage."""
        layout = node.results[0].layout
        return None if layout is None else layout.stage

    def changes_stage(self, node: Node) -> bool:
        """Return whether a node brings a tensor from one stage to another, or to every stage."""
        if not node.operands:
            return False
        layout = self.values[node.operands[0]].layout
        before = None if layout is None else layout.stage
        return before is not None and self.stage_of(node) != before

    def value(self, name: str) -> Value:
        """Return the value called `name`.

        Raises
        ------
        IRError
            If there is none.
        """
        if name not in self.values:
            raise IRError(f"graph `{self.name}` has no value `{name}`")
        return self.values[name]

    def parameter(self, name: str) -> Parameter:
        """Return the parameter called `name`.

        Raises
        ------
        IRError
            If there is none.
        """
        if name not in self._parameters:
            raise IRError(f"graph `{self.name}` has no parameter `{name}`")
        return self._parameters[name]

    def operand_values(self, node: Node) -> tuple[Value, ...]:
        """Return the values that `node` reads."""
        values = self.values
        return tuple([values[name] for name in node.operands])

    def copied_tensor(self, name: str) -> str:
        """Return the tensor of the model that a forward value is, in whatever layout."""
        producer = self.producers.get(name)
        if producer is None or producer.provenance.role not in COPIES:
            return name
        return producer.provenance.tensor

    def kept(self) -> frozenset[str]:
        """Return the names of the values that outlive the program: outputs and updates."""
        return frozenset(self.outputs) | {new for _, new in self.updates}

    def with_nodes(self, nodes: tuple[Node, ...]) -> "Graph":
        """Return the graph with other nodes."""
        return replace(self, nodes=nodes)

    def replacing(self, names: Mapping[str, str]) -> "Graph":
        """Return the graph with values replaced by others.

        Nodes, outputs and updates that read a value of `names` read the value that it maps to,
        through several steps if that one is replaced too. A node whose results are all replaced is
        removed, and nodes that come from it come from the producer of its replacement.

        Examples
        --------
        ``graph.replacing({"copy": "x"})`` removes ``copy: f32[4] = identity(x)``, and what read
        ``copy`` reads ``x``.

        Raises
        ------
        IRError
            If a name is not that of a value, or values replace each other in a circle.
        """
        final = {name: self._last(name, names) for name in names}
        nodes = (n for n in self.nodes if not all(value.name in final for value in n.results))
        return replace(
            self,
            nodes=tuple(self._inheriting(renamed(node, final), final) for node in nodes),
            outputs=tuple(final.get(name, name) for name in self.outputs),
            updates=tuple((name, final.get(new, new)) for name, new in self.updates),
            recomputed=tuple(name for name in self.recomputed if name not in final),
            regathered=tuple(name for name in self.regathered if name not in final),
            offloaded=tuple(name for name in self.offloaded if name not in final),
            cuts=self.cuts_without(final),
        )

    def cuts_without(self, removed: Collection[str]) -> tuple[str, ...]:
        """Return the cuts where values are removed: the next node that stays begins the stage."""
        if not any(cut in removed for cut in self.cuts):
            return self.cuts
        names = [node.name for node in self.nodes]
        found: dict[str, None] = {}
        for cut in self.cuts:
            following = self.nodes[names.index(cut) :]
            kept = (n.name for n in following if any(r.name not in removed for r in n.results))
            found.update(dict.fromkeys(islice(kept, 1)))
        return tuple(found)

    def _last(self, name: str, names: Mapping[str, str]) -> str:
        """Return the value that replaces another in the end."""
        last = self.value(name).name
        for _ in names:
            if last not in names:
                break
            last = self.value(names[last]).name
        if last in names:
            raise IRError(
                f"`{name}` is replaced by itself, through `{last}`",
                f"graph {self.name}",
                "map every value to one that stays",
            )
        return last

    def _inheriting(self, node: Node, names: Mapping[str, str]) -> Node:
        """Return a node whose provenance speaks of the values that `names` maps to."""
        origin = node.provenance
        if names.keys().isdisjoint((origin.operator, origin.tensor, origin.target)):
            return node
        operator = origin.operator
        if operator in names:
            producer = self.producers.get(names[operator])
            operator = producer.name if producer is not None else ""
        tensor, target = (names.get(name, name) for name in (origin.tensor, origin.target))
        return replace(node, provenance=Provenance(operator, origin.role, tensor, target))

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Return `node` with operands replaced by the names they map to."""
    if not any(operand in names for operand in node.operands):
        return node
    return replace(node, operands=tuple(names.get(operand, operand) for operand in node.operands))


def renamed_result(node: Node, old: str, new: str) -> Node:
    """Return a node with one of its operands or results renamed."""
    operands = tuple(new if name == old else name for name in node.operands)
    results = tuple(replace(r, name=new) if r.name == old else r for r in node.results)
    return replace(node, operands=operands, results=results, provenance=Provenance())

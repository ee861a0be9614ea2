"""Mixed precision: casts of master parameters and activations, and quantized products."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

from shardwright.cost_model.efficiency.unread import PRODUCTS
from shardwright.dataflow.properties import WHOLE
from shardwright.dataflow.segments import block_of
from shardwright.ir.errors import IRError, PassError
from shardwright.ir.graph import Graph, Node, Parameter, Value
from shardwright.ir.provenance import Provenance
from shardwright.ir.types import TensorType, is_low, numpy_dtype, short_dtype
from shardwright.ir.values import check_choice
from shardwright.operators.builder import Builder
from shardwright.operators.info import operator_class, operator_info
from shardwright.operators.linear.quantized import QUANTIZED
from shardwright.operators.models.precision import (
    MASTER,
    PRECISIONS,
    GradientType,
    Precision,
    precision_named,
)
from shardwright.operators.models.recipes import RECIPES, Recipe
from shardwright.operators.products import with_products
from shardwright.passes.base import Pass, Spelled, register_pass

_CASTS = tuple(name for name, policy in PRECISIONS.items() if policy.recipe is None)


def _policy_named(name: object) -> Precision:
    check_choice("policy", name, _CASTS)  # a recipe is a pass of its own: `quantize_products`
    return precision_named(name)


_POLICY = Spelled(f"one of {', '.join(_CASTS)}", _policy_named, lambda own: own.name, (str,))


@register_pass
@dataclass(frozen=True)
class ApplyPrecision(Pass):
    """Insert the casts of a precision policy: parameters stay in float32, operators compute lower.

    Products, convolutions and attention read the low precision; losses and softmax read float32;
    other operators compute in the widest type of the activations that they read. A value is cast
    once to each type. A frozen parameter that is read in one other type alone is stored in it,
    if it is not given as data.
    Integers, statistics of the model and outputs keep their types. The policy `tf32` casts nothing:
    products of float32 alone get the attribute `products`.

    Before::

        parameter w: f32[16, 4]
        h: f32[8, 4] = matmul(x, w)
        l: f32[8, 4] = log_softmax(h)

    After::

        parameter w: f32[16, 4]
        x.bf16: bf16[8, 16] = cast(x) {dtype='bfloat16'}
        w.bf16: bf16[16, 4] = cast(w) {dtype='bfloat16'}
        h: bf16[8, 4] = matmul(x.bf16, w.bf16)
        h.f32: f32[8, 4] = cast(h) {dtype='float32'}
        l: f32[8, 4] = log_softmax(h.f32)

    Parameters
    ----------
    policy : Precision
        The policy; in text its name.
    reduce_type : str
        The element type in which gradients of parameters are reduced over ranks, and accumulated:
        ``lower``, that of the copies of the parameters, or ``float32``.
    accumulate_type : str
        The element type in which passes over micro-batches accumulate them.
    """

    name = "apply_precision"
    requires = (WHOLE,)
    ensures = (WHOLE,)

    policy: Annotated[Precision, _POLICY] = PRECISIONS[MASTER]
    reduce_type: GradientType = "lower"
    accumulate_type: GradientType = "lower"

    def run(self, graph: Graph) -> Graph:
        """Return the program with its casts; the graph itself under a policy of float32.

        Raises
        ------
        PassError
            If a parameter that is trained is not float32, or no product is of float32 for `tf32`.
        """
        if self.policy.products:
            found = with_products(graph, self.policy.products)
            if found == graph:
                raise PassError(
                    f"the precision `{self.policy}` is of products of float32, and the model has "
                    "none",
                    hint="leave out the element type of the model, or the precision",
                )
            return found
        if not self.policy.is_mixed:
            return graph
        for parameter in graph.parameters:
            _check_master(parameter, self.policy)
        gradients = (self.reduce_type, self.accumulate_type)
        return _Casting(graph, self.policy, *gradients).graph()


def _check_master(parameter: Parameter, policy: Precision) -> None:
    """Refuse a trained parameter that is no master weight."""
    dtype = parameter.value.type.dtype
    if parameter.trainable and dtype != MASTER and parameter.value.type.is_float:
        raise PassError(
            f"the precision `{policy}` needs float32 parameters, `{parameter.name}` is {dtype}",
            hint="leave out the element type of the model, or the precision",
        )


@dataclass
class _Casting:
    """A walk over a program that inserts the casts of a policy.

    Parameters
    ----------
    whole : Graph
        The program.
    policy : Precision
        The policy.
    reduce_type, accumulate_type : str
        The types in which gradients of parameters are added up.
    """

    whole: Graph
    policy: Precision
    reduce_type: GradientType = "lower"
    accumulate_type: GradientType = "lower"
    _at: dict[str, Value] = field(default_factory=dict)  # the values of the model as they are now
    _cast: dict[tuple[str, str], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.build = Builder.rewriting(self.whole)
        updated = {name for name, _ in self.whole.updates}  # statistics, which stay in float32
        self.trained = {p.name for p in self.whole.parameters if p.trainable}
        self.weights = {p.name for p in self.whole.parameters} - updated
        self._at.update((value.name, value) for value in self.whole.inputs)
        self._at.update((p.name, p.value) for p in self.whole.parameters)
        self._nodes: dict[str, Node] = {}

    def graph(self) -> Graph:
        """Return the program with its casts."""
        for node in self.whole.nodes:
            self._visit(node)
        self.build.scope, self.build.provenance = "", Provenance()
        outputs = tuple(self._restored(name) for name in self.whole.outputs)
        self.build.updates = [(old, self._restored(new)) for old, new in self.whole.updates]
        graph = _frozen_as_read(self.build.graph(self.whole.name, outputs))
        return replace(
            graph,
            recomputed=self._marked(graph, self.whole.recomputed),
            offloaded=self._marked(graph, self.whole.offloaded),
            cuts=self.whole.cuts,
        )

    def _marked(self, graph: Graph, names: Iterable[str]) -> tuple[str, ...]:
        """Return the marked operators, and the casts of what they compute."""
        marked = set(names)
        for node in graph.nodes if marked else ():
            inserted = node.name not in self.whole.values
            producers = (graph.producers[name] for name in node.operands if name in graph.producers)
            if inserted and any(producer.name in marked for producer in producers):
                marked.add(node.name)
        return tuple(node.name for node in graph.nodes if node.name in marked)

    def _restored(self, name: str) -> str:
        """Return a value in the type that it has in the model."""
        return self._in_type(self._at[name], self.whole.values[name].type.dtype).name

    def _visit(self, node: Node) -> None:
        self.build.scope = node.scope
        operands = [self._at[name] for name in node.operands]
        wanted = self._wanted(node, operands)
        if wanted is not None:
            operands = self._operands(node, operands, wanted)
        emitted = self._emitted(node, operands)
        for result, value in zip(node.results, emitted.results, strict=True):
            self._at[result.name] = value
            if node.operator in self.policy.inner and value.type.dtype == MASTER:
                self._at[result.name] = self._in_type(value, self.policy.compute)

    def _wanted(self, node: Node, operands: list[Value]) -> str | None:
        """Return the type in which an operator computes; None where it is not for the policy."""
        managed = [
            value
            for name, value in zip(node.operands, operands, strict=True)
            if self.whole.values[name].type.dtype == MASTER
        ]
        if not managed or node.operator == "cast":
            return None
        if node.operator in (*self.policy.kept, *self.policy.inner):
            return MASTER
        if node.operator in self.policy.lowered:
            return self.policy.compute
        if node.operator == "reduce_mean" and not node.results[0].type.rank:
            return MASTER
        if self.policy.others == MASTER:
            return MASTER
        activations = [value for value in managed if not self._follows(value)]
        wide = any(value.type.dtype == MASTER for value in activations)
        return MASTER if wide else self.policy.compute

    def _follows(self, value: Value) -> bool:
        """Return whether a value takes the type of what it is computed with."""
        node = self._nodes.get(value.name)
        return value.name in self.weights or (node is not None and not node.operands)

    def _operands(self, node: Node, operands: list[Value], dtype: str) -> list[Value]:
        """Return the operands in a type; as float32 where the operator cannot take the type."""
        found = self._types(node, operands, dtype)
        try:
            operator_info(node.operator, found, node.attributes)
        except IRError:
            dtype = MASTER
        return [
            self._in_type(value, dtype) if self._is_managed(name) else value
            for name, value in zip(node.operands, operands, strict=True)
        ]

    def _is_managed(self, name: str) -> bool:
        return self.whole.values[name].type.dtype == MASTER

    def _types(self, node: Node, operands: list[Value], dtype: str) -> list[TensorType]:
        return [
            replace(value.type, dtype=dtype) if self._is_managed(name) else value.type
            for name, value in zip(node.operands, operands, strict=True)
        ]

    def _emitted(self, node: Node, operands: list[Value]) -> Node:
        """Emit a node on other operands; its results get the types that follow."""
        types = operator_info(
            node.operator, [value.type for value in operands], node.attributes
        ).result_types
        results = tuple(replace(r, type=t) for r, t in zip(node.results, types, strict=True))
        emitted = replace(node, operands=tuple(value.name for value in operands), results=results)
        self.build.append(emitted)
        self._nodes.update((result.name, emitted) for result in results)
        return emitted

    # Casts

    def _in_type(self, value: Value, dtype: str) -> Value:
        """Return a value in a type; it is cast once."""
        if value.type.dtype == dtype:
            return value
        key = value.name, dtype
        if key not in self._cast:
            self._cast[key] = self._made(value, dtype)
        return self._cast[key]

    def _made(self, value: Value, dtype: str) -> Value:
        """Emit a value in another type: constants are made in it, identities cast before."""
        name, node = f"{value.name}.{short_dtype(dtype)}", self._nodes.get(value.name)
        if node is not None and node.operator == "fill":
            number = node.attributes.get("value", 0.0)
            return self.build.emit(
                "fill", name=name, shape=value.type.shape, dtype=dtype, value=number
            )
        if node is not None and operator_class(node.operator).is_identity:
            source = self._in_type(self._value(node.operands[0]), dtype)
            return self.build.emit(node.operator, source, name=name)
        return self._cast_down(value, name, dtype)

    def _cast_down(self, value: Value, name: str, dtype: str) -> Value:
        """Emit a cast; that of a parameter says in which type its gradient is added up."""
        emit = self.build.emit
        if value.name not in self.trained:
            return emit("cast", value, name=name, dtype=dtype)
        if self.reduce_type == MASTER:
            sums = {"reduce": MASTER, "accumulate": MASTER}
            return emit("cast", value, name=name, dtype=dtype, **sums)  # type: ignore[arg-type]
        if self.accumulate_type == MASTER:
            return emit("cast", value, name=name, dtype=dtype, accumulate=MASTER)
        return emit("cast", value, name=name, dtype=dtype)

    def _value(self, name: str) -> Value:
        """Return a value that has been emitted, or that the program begins with."""
        node = self._nodes.get(name)
        results = self._at.values() if node is None else node.results
        return next(value for value in results if value.name == name)


def _frozen_as_read(graph: Graph) -> Graph:
    """Return the program with frozen parameters stored in the type that all their readers cast to.

    Such a cast makes the same of them in every step. Given data keeps its type.
    """
    drawn = (p for p in graph.parameters if p.attributes.get("initializer") != "data")
    fixed = {p.name for p in drawn if not p.trainable} - {old for old, _ in graph.updates}
    readers: dict[str, list[Node]] = {name: [] for name in fixed}
    for node in graph.nodes:
        for name in fixed.intersection(node.operands):
            readers[name].append(node)
    casts = {
        name: own[0]
        for name, own in readers.items()
        if len(own) == 1 and own[0].operator == "cast" and name not in graph.outputs
    }
    stored = {cast.name: name for name, cast in casts.items()}
    nodes = (
        replace(node, operands=tuple(stored.get(name, name) for name in node.operands))
        for node in graph.nodes
        if node.name not in stored
    )
    parameters = (
        replace(p, value=replace(p.value, type=casts[p.name].results[0].type))
        if p.name in casts
        else p
        for p in graph.parameters
    )
    return replace(graph, nodes=tuple(nodes), parameters=tuple(parameters))


# Products by a recipe of low precision


def _recipe_named(name: object) -> Recipe:
    check_choice("recipe", name, RECIPES)
    return RECIPES[str(name)]


_RECIPE = Spelled(f"one of {', '.join(RECIPES)}", _recipe_named, lambda own: own.name, (str,))


@register_pass
@dataclass(frozen=True)
class QuantizeProducts(Pass):
    """Let a recipe of low precision quantize what products of repeated blocks read.

    Those are products of 16 bits with a weight of a block, dense or of each expert, both of whose
    sides the recipe's multiple divides. A product that experts are chosen by, the router's, stays
    as it is; so do attention and all that is outside of blocks: embeddings and the head. Products
    that read the same rows can share one quantized copy of them, so each has their number,
    `readers`.

    Before::

        h: bf16[64, 32] = matmul(x.bf16, w.bf16)

    After::

        h: bf16[64, 32] = quantized_matmul(x.bf16, w.bf16) {recipe='mxfp8'}

    Parameters
    ----------
    recipe : Recipe
        The recipe; in text its name.
    ends : int
        How many of the first blocks, and of the last, stay as they are.
    """

    name = "quantize_products"
    requires = (WHOLE,)
    ensures = (WHOLE,)

    recipe: Annotated[Recipe, _RECIPE] = RECIPES["fp8-current"]
    ends: int = 0

    def run(self, graph: Graph) -> Graph:
        """Return the program with quantized products.

        Raises
        ------
        PassError
            If it has no product that the recipe quantizes.
        """
        weights = _stored(graph)
        kept = {*_routers(graph), *_of_ends(graph, self.ends)}
        chosen = {
            node.name
            for node in graph.nodes
            if node.name not in kept and self._is_quantized(node, graph, weights)
        }
        readers = Counter(_rows(node) for node in graph.nodes if node.name in chosen)
        nodes = tuple(
            self._quantized(node, readers[_rows(node)]) if node.name in chosen else node
            for node in graph.nodes
        )
        if not chosen:
            raise PassError(
                f"the precision `{self.recipe.name}` quantizes products of repeated blocks with "
                f"weights whose sides are multiples of {self.recipe.multiple}, and the model has "
                f"none{' between its first and its last block' if self.ends else ''}",
                hint="use `bfloat16`",
            )
        return replace(graph, nodes=nodes)

    def _is_quantized(self, node: Node, graph: Graph, weights: set[str]) -> bool:
        if node.operator not in QUANTIZED or node.operands[1] not in weights:
            return False
        weight = graph.values[node.operands[1]].type
        if not block_of(node.scope) or not is_low(numpy_dtype(weight.dtype)):
            return False
        return all(side % self.recipe.multiple == 0 for side in weight.shape[-2:])

    def _quantized(self, node: Node, readers: int) -> Node:
        attributes = {**node.attributes, "recipe": self.recipe.name}
        attributes |= {"readers": readers} if readers > 1 else {}
        return replace(node, operator=QUANTIZED[node.operator], attributes=attributes)


def _rows(node: Node) -> tuple[str, bool]:
    """Return what the products have in common that read one quantized copy of their rows."""
    return node.operands[0], bool(node.attributes.get("transpose_a"))


def _stored(graph: Graph) -> set[str]:
    """Return the parameters of a program, and their copies."""
    found = {parameter.name for parameter in graph.parameters}
    for node in graph.nodes:
        is_copy = node.operator == "cast" or operator_class(node.operator).is_identity
        if is_copy and node.operands[0] in found:
            found.update(result.name for result in node.results)
    return found


def _of_ends(graph: Graph, count: int) -> Iterator[str]:
    """Yield the operators of so many of the first and of the last blocks."""
    blocks = [*dict.fromkeys(filter(None, (block_of(node.scope) for node in graph.nodes)))]
    ends = {*blocks[:count], *blocks[len(blocks) - min(count, len(blocks)) :]}
    return (node.name for node in graph.nodes if block_of(node.scope) in ends)


def _routers(graph: Graph) -> Iterator[str]:
    """Yield the products that choices between experts come from, without a product between."""
    producers, seen = graph.producers, set[str]()
    left = [node.operands[0] for node in graph.nodes if node.operator == "top_k"]
    while left:
        node = producers.get(left.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if node.operator in PRODUCTS:
            yield node.name
        else:
            left.extend(node.operands)

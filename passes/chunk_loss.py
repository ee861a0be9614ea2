"""The head and the cross entropy of a model by chunks of its tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Annotated, Any, Literal

from shardwright.dataflow.properties import WHOLE
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.reachability import without_dead_nodes
from shardwright.ir.values import POSITIVE_INTEGER
from shardwright.operators.builder import Builder
from shardwright.operators.info import operator_class, operator_info
from shardwright.operators.linear.einsum import parse_equation
from shardwright.passes.base import Pass, register_pass

_MOST_PIECES = 64
"""Ranks that may share a vocabulary: no published plan has more. A token has a log sum for each
piece, 4 bytes; at half of them 32 ranks may, and twice as many double these bytes."""
_OPERATOR = "head_log_sum_and_pick"
_LOSSES = ("exp_sum_and_pick", "sparse_softmax_cross_entropy")
_PASSED = (
    "scale",
    "tanh",
    "cast",
    "transpose",
    "log_softmax",
)  # and views and biases, before a loss
_ASKED = "the loss is to be made in chunks"


@register_pass
@dataclass(frozen=True)
class ChunkLoss(Pass):
    """Make the logits of a cross entropy by chunks of the tokens, in forward and in backward.

    A product with the weight of a head, and a bias, whose logits only a cross entropy with labels
    reads, under a soft cap or without, becomes one operator. It has for every token the log sums of
    pieces of the vocabulary, which ranks may share, and the logit at its label. Views of the logits
    become views of these or of the hidden states. Sums over all classes (label smoothing) are
    products with the summed weight.

    Before::

        z: f32[4, 8, 96] = matmul(x, w) {transpose_b=True}
        s: f32[4, 8, 96] = stop_gradient(z)
        m: f32[4, 8] = row_max(s)
        t: f32[4, 8], p: f32[4, 8] = exp_sum_and_pick(z, m, labels)

    After::

        z: f32[4, 8, 8], z.1: f32[4, 8] = head_log_sum_and_pick(x, w, labels) {chunks=2, pieces=8}
        s: f32[4, 8, 8] = stop_gradient(z)
        m: f32[4, 8] = row_max(s)
        t: f32[4, 8] = exp_sum(z, m)

    Parameters
    ----------
    chunks : int
        Chunks of the tokens of a rank, in a micro-batch.
    """

    name = "chunk_loss"
    requires = (WHOLE,)
    ensures = (WHOLE,)

    chunks: Annotated[int, POSITIVE_INTEGER]

    def run(self, graph: Graph) -> Graph:
        """Return the program with its loss by chunks.

        Raises
        ------
        ModelError
            If it has no such loss, the logits are also read elsewhere, or there are more chunks
            than tokens.
        """
        return _Chunking(graph, self.chunks).graph()


def pieces_of(vocabulary: int) -> int:
    """Return into how many equal pieces a vocabulary is divided.

    At most `_MOST_PIECES`, and no more than there are entries in each; of such divisors the one
    that most powers of two divide, since meshes do.

    Examples
    --------
    >>> pieces_of(128256), pieces_of(32000), pieces_of(96), pieces_of(50257)
    (64, 64, 8, 29)
    """
    most = min(_MOST_PIECES, isqrt(vocabulary))
    divisors = (n for n in range(1, most + 1) if vocabulary % n == 0)
    return max(divisors, key=lambda n: (n & -n, n))


@dataclass(frozen=True)
class _Unmade:
    """A value that is left out: logits, or what a loss reads of them.

    Parameters
    ----------
    source : Node
        The product of the model.
    hidden, weight : Value
        Its factors; the hidden states are ``[..., k]`` and the weight a matrix.
    transposed : bool
        Whether the weight is ``[v, k]``.
    shape : tuple of int
        The dimensions of the logits before the classes, a view of those of the hidden states.
    bias : Value, optional
        Added to each row.
    cap : float
        With one, the logits are ``cap`` tanh(product + bias).
    what : str
        The logits; with their dimensions in another order; the largest of each row; their log
        softmax; or products with class weights.
    classes : Value, optional
        The class weights.
    order : tuple of int
        The order of the dimensions.
    """

    source: Node
    hidden: Value
    weight: Value
    transposed: bool
    shape: tuple[int, ...]
    bias: Value | None = None
    cap: float = 0.0
    what: Literal["logits", "turned", "largest", "log_softmax", "weighted"] = "logits"
    classes: Value | None = None
    order: tuple[int, ...] = ()

    @property
    def vocabulary(self) -> int:
        """Length of a row."""
        return self.weight.type.shape[0 if self.transposed else 1]


@dataclass
class _Chunking:
    """A walk over a program that leaves out the logits of its losses."""

    whole: Graph
    chunks: int
    _at: dict[str, Value] = field(default_factory=dict)  # the values of the program as they are now
    _unmade: dict[str, _Unmade] = field(default_factory=dict)
    _heads: dict[tuple[str, ...], tuple[Value, Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.build = Builder.rewriting(self.whole)
        self._at.update((value.name, value) for value in self.whole.inputs)
        self._at.update((p.name, p.value) for p in self.whole.parameters)
        self._products = dict(reversed([*self._found_products()]))
        if not self._products:
            raise self._error("the model has no cross entropy of logits with labels")

    def _error(self, what: str, hint: str = "leave `loss_chunks` out") -> ModelError:
        return ModelError(f"{_ASKED}, and {what}", f"graph {self.whole.name}", hint)

    def graph(self) -> Graph:
        """Return the program in chunks."""
        for node in self._ordered():
            self._visit(node)
        for name in sorted(self.whole.kept() & self._unmade.keys()):
            what = f"its logits `{name}` are returned, too"
            raise self._error(what, "return the loss alone, or leave `loss_chunks` out")
        outputs = tuple(self._at[name].name for name in self.whole.outputs)
        self.build.updates = [(old, self._at[new].name) for old, new in self.whole.updates]
        graph = self.build.graph(self.whole.name, outputs)
        made = graph.producers
        marked = (self.whole.recomputed, self.whole.offloaded)
        recomputed, offloaded = (tuple(name for name in one if name in made) for one in marked)
        graph = replace(graph, recomputed=recomputed, offloaded=offloaded, cuts=self.whole.cuts)
        return without_dead_nodes(graph)

    def _ordered(self) -> list[Node]:
        """Return the nodes; those of labels first, where other sums of the logits need them."""
        nodes, producers = list(self.whole.nodes), self.whole.producers
        if not any(node.operator == "exp_sum" for node in nodes):
            return nodes
        early: set[str] = set()
        rest = list(self._products.values())
        while rest:
            node = producers.get(rest.pop())
            if node is not None and node.name not in early:
                early.add(node.name)
                rest += node.operands
        return sorted(nodes, key=lambda node: node.name not in early)

    # The products whose logits a cross entropy reads

    def _found_products(self) -> Iterator[tuple[str, str]]:
        """Yield the product of each loss, and the labels."""
        for node in self.whole.nodes:
            if node.operator in _LOSSES or (node.operator == "pick" and self._reads_logs(node)):
                yield self._product(node), node.operands[-1]

    def _reads_logs(self, pick: Node) -> bool:
        """Return whether what is picked from is a log softmax, or a view of one."""
        node = self.whole.producers.get(pick.operands[0])
        while node is not None and self._is_view(node):
            node = self.whole.producers.get(node.operands[0])
        return node is not None and node.operator == "log_softmax"

    def _product(self, loss: Node) -> str:
        """Return the product that makes the logits of a loss."""
        node = self.whole.producers.get(loss.operands[0])
        while node is not None and not self._factors(node):
            bias = self._bias(node)
            if not (bias or self._is_view(node) or node.operator in _PASSED):
                break
            name = next(name for name in node.operands if name != bias)
            node = self.whole.producers.get(name)
        if node is None or not self._factors(node):
            maker = f"`{node.operator}` `{node.name}`" if node else "an input"
            what = (
                f"the logits of `{loss.name}` come from {maker}, expected a product with a matrix"
            )
            raise self._error(what)
        return node.name

    def _factors(self, node: Node) -> tuple[str, str, bool] | None:
        """Return hidden states, weight, and whether it is ``[v, k]``, of a product of rows."""
        values = self.whole.operand_values(node)
        if node.operator == "matmul" and not node.attributes.get("transpose_a"):
            hidden, weight = values
            transposed = bool(node.attributes.get("transpose_b"))
            return (hidden.name, weight.name, transposed) if weight.type.rank == 2 else None
        if node.operator != "einsum" or len(values) != 2:
            return None
        terms, result = parse_equation(str(node.attributes["equation"]))
        for (rows, hidden), (columns, weight) in (
            zip(terms, values, strict=True),
            zip(terms[::-1], values[::-1], strict=True),
        ):
            lead, inner, outer = rows[:-1], rows[-1:], result[-1:]
            if result[:-1] == lead and columns in (outer + inner, inner + outer) and inner != outer:
                return hidden.name, weight.name, columns == outer + inner
        return None

    # One node

    def _visit(self, node: Node) -> None:
        self.build.scope = node.scope
        unmade = [name for name in node.operands if name in self._unmade]
        if node.name in self._products:
            self._leave_out(node)
        elif not unmade:
            operands = tuple(self._at[name].name for name in node.operands)
            self.build.append(replace(node, operands=operands))
            self._at.update((result.name, result) for result in node.results)
        elif not self._follow(node, unmade) and not self._end(node, unmade):
            what = f"its logits `{unmade[0]}` are read by `{node.operator}` `{node.name}`, too"
            raise self._error(what)

    def _leave_out(self, node: Node) -> None:
        """Note logits by the factors of their product."""
        factors = self._factors(node)
        assert factors is not None
        if unmade := [name for name in factors[:2] if name in self._unmade]:
            raise self._error(f"its logits `{unmade[0]}` are multiplied in `{node.name}`")
        hidden, weight = (self._at[name] for name in factors[:2])
        rows = hidden.type.elements // hidden.type.shape[-1]
        if self.chunks > rows:
            what = f"the {rows} tokens of the batch cannot be {self.chunks} chunks"
            raise self._error(what, f"use at most {rows}")
        shape = hidden.type.shape[:-1]
        self._unmade[node.name] = _Unmade(node, hidden, weight, factors[2], shape)

    # Logits that stay logits

    def _is_view(self, node: Node) -> bool:
        """Return whether a node passes rows of its operand on, each as it is."""
        kind, result = operator_class(node.operator), node.results[0].type.shape
        if len(node.operands) != 1 or len(node.results) != 1:
            return False
        taken = self.whole.values[node.operands[0]].type.shape
        if not taken or not result or taken[-1] != result[-1] or node.operator == "transpose":
            return False
        return kind.is_identity or kind.is_view or node.operator == "slice"

    def _bias(self, node: Node) -> str | None:
        """Return the operand that adds a number for each class; None where there is none."""
        if node.operator not in ("add", "mul"):
            return None
        shape = node.results[0].type.shape
        for bias, other in (node.operands[::-1], node.operands):
            row = (1,) * (self.whole.values[bias].type.rank - 1) + shape[-1:]
            whole = self.whole.values[other].type.shape == shape
            if whole and self.whole.values[bias].type.shape == row and len(shape) > 1:
                return bias
        return None

    def _follow(self, node: Node, unmade: list[str]) -> bool:
        """Note further logits that a node makes of some; return whether it does."""
        logits, bias, emit = self._unmade[unmade[0]], self._bias(node), self.build.emit
        if len(unmade) > 1 or logits.what not in ("logits", "turned", "log_softmax"):
            return False
        if operator_class(node.operator).stops_gradient:
            logits = self._without_gradient(logits)
        elif node.operator == "transpose" and logits.what != "log_softmax":
            logits = self._turned(node, logits)
        elif logits.what != "turned" and self._is_view(node):
            logits = self._viewed(node, logits)
        elif logits.what != "logits":
            return False
        elif node.operator == "tanh" and not logits.cap:
            logits = replace(logits, cap=1.0)
        elif node.operator == "scale" and logits.cap:
            logits = replace(logits, cap=logits.cap * float(str(node.attributes["factor"])))
        elif node.operator == "add" and bias not in (None, *unmade) and self._takes_bias(logits):
            row = self._shaped(self._at[str(bias)], (logits.vocabulary,))
            logits = replace(logits, bias=row)
        elif node.operator == "scale":
            factor: Any = node.attributes["factor"]
            scaled = logits.bias and emit("scale", logits.bias, factor=factor)
            hidden = emit("scale", logits.hidden, factor=factor)
            logits = replace(logits, hidden=hidden, bias=scaled)
        elif node.operator != "cast":
            return False
        self._unmade[node.name] = logits
        return True

    @staticmethod
    def _takes_bias(logits: _Unmade) -> bool:
        return logits.bias is None and not logits.cap

    def _turned(self, node: Node, logits: _Unmade) -> _Unmade:
        """Return logits with their dimensions in another order; rows may come back."""
        rank = node.results[0].type.rank
        order: Any = node.attributes["permutation"] or tuple(reversed(range(rank)))
        before = logits.order or tuple(range(rank))
        found = tuple(before[axis % rank] for axis in order)
        if found[-1] != rank - 1:
            return replace(logits, what="turned", order=found)
        hidden = self._rows(logits)
        if found != tuple(range(rank)):
            hidden = self.build.emit("transpose", hidden, permutation=found)
        shape = hidden.type.shape[:-1]
        return replace(logits, hidden=hidden, shape=shape, what="logits", order=())

    def _without_gradient(self, logits: _Unmade) -> _Unmade:
        hidden, weight = (
            self.build.emit("stop_gradient", one) for one in (logits.hidden, logits.weight)
        )
        bias = logits.bias and self.build.emit("stop_gradient", logits.bias)
        return replace(logits, hidden=hidden, weight=weight, bias=bias)

    def _viewed(self, node: Node, logits: _Unmade) -> _Unmade:
        """Return logits in another shape, or some of their rows."""
        shape, attributes = node.results[0].type.shape[:-1], dict[str, Any](node.attributes)
        if node.operator != "slice":
            return replace(logits, shape=shape)
        rows = self._rows(logits)
        attributes["size"] = (*attributes["size"][:-1], rows.type.shape[-1])
        return replace(logits, hidden=self.build.emit("slice", rows, **attributes), shape=shape)

    def _rows(self, logits: _Unmade) -> Value:
        """Return the hidden states in the shape of logits."""
        return self._shaped(logits.hidden, (*logits.shape, logits.hidden.type.shape[-1]))

    def _shaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        return (
            value if value.type.shape == shape else self.build.emit("reshape", value, shape=shape)
        )

    # Where logits end

    def _end(self, node: Node, unmade: list[str]) -> bool:
        """Emit what a node makes of logits otherwise; return whether that is known."""
        first = self._unmade.get(node.operands[0])
        what = first.what if first else ""
        rest = [self._unmade[name].what for name in node.operands[1:] if name in self._unmade]
        is_sum = node.operator in ("exp_sum", "exp_sum_and_pick")
        if is_sum and what == "logits" and rest in ([], ["largest"]):
            return self._emit_sums(node)
        if first is None or rest:
            return node.operator == "mul" and self._weigh(node, unmade)
        if node.operator in ("row_max", "log_softmax") and what == "logits":
            named = "largest" if node.operator == "row_max" else node.operator
            self._unmade[node.name] = replace(first, what=named)  # type: ignore[arg-type]
            return node.attributes.get("axis", -1) in (-1, len(first.shape))
        if node.operator == "sparse_softmax_cross_entropy" and what == "logits":
            return self._emit_loss(node, first)
        if node.operator == "pick" and what == "log_softmax":
            return self._emit_loss(node, first)
        if node.operator == "mul":
            return self._weigh(node, unmade)
        return node.operator in ("reduce_sum", "reduce_mean") and self._emit_total(node, first)

    def _set(self, old: Value, new: Value) -> None:
        """Let another value stand for one of the program, in its type."""
        if new.type.dtype != old.type.dtype:
            new = self.build.emit("cast", new, dtype=old.type.dtype)
        self._at[old.name] = new
        self._unmade.pop(old.name, None)

    def _emit_sums(self, node: Node) -> bool:
        """Emit the sum of exponentials of the pieces, and the largest log sum as the shift."""
        logits, shift = self._unmade[node.operands[0]], node.operands[1]
        labels = self._products[logits.source.name] if len(node.operands) == 2 else node.operands[2]
        if labels not in self._at:
            return False
        sums, picked = self._head(logits, labels)
        if shift in self._unmade:
            self._set(self.whole.values[shift], self._largest(sums))
        held = self._at[shift]
        if held.type.dtype != sums.type.dtype:
            held = self.build.emit("cast", held, dtype=sums.type.dtype)
        total = self.build.emit("exp_sum", sums, held)
        for old, new in zip(node.results, (total, picked), strict=False):
            self._set(old, new)
        return True

    def _largest(self, sums: Value) -> Value:
        return self.build.emit("row_max", self.build.emit("stop_gradient", sums))

    def _emit_loss(self, node: Node, logits: _Unmade) -> bool:
        """Emit the log softmax at the label, or its negative, the loss."""
        sums, picked = self._head(logits, node.operands[1])
        shift, emit = self._largest(sums), self.build.emit
        whole = emit("add", emit("log", emit("exp_sum", sums, shift)), shift)
        pair = (picked, whole) if node.operator == "pick" else (whole, picked)
        self._set(node.results[0], emit("sub", *pair))
        return True

    def _weigh(self, node: Node, unmade: list[str]) -> bool:
        """Note logits by class weights, which only a sum over the classes may read."""
        classes, logits = self._bias(node), self._unmade[unmade[0]]
        if classes is None or classes in self._unmade or logits.what != "logits":
            return False
        self._unmade[node.name] = replace(logits, what="weighted", classes=self._at[classes])
        return True

    def _emit_total(self, node: Node, logits: _Unmade) -> bool:
        """Emit a sum over all classes as a product with the sum of the weight."""
        axis: Any = node.attributes.get("axis")
        rank = len(logits.shape) + 1
        axes = axis if isinstance(axis, tuple) else (axis,)
        if logits.what not in ("logits", "weighted") or axes not in ((-1,), (rank - 1,)):
            return False
        if logits.cap:
            return False
        emit, order = self.build.emit, "vk" if logits.transposed else "kv"
        if logits.classes is None:
            summed = emit("reduce_sum", logits.weight, axis=order.index("v"))
        else:
            equation = f"{order},v->k"
            summed = emit("einsum", logits.weight, logits.classes, equation=equation)
        total = emit("einsum", logits.hidden, summed, equation="...k,k->...")
        if logits.bias is not None:
            bias = logits.bias
            bias = emit("mul", bias, logits.classes) if logits.classes else bias
            total = emit("add", total, emit("reduce_sum", bias))
        if node.operator == "reduce_mean":
            total = emit("scale", total, factor=1.0 / logits.vocabulary)
        self._set(node.results[0], self._shaped(total, node.results[0].type.shape))
        return True

    def _head(self, logits: _Unmade, labels: str) -> tuple[Value, Value]:
        """Return log sums of pieces, and the logits at labels; emitted once for equal logits."""
        bias = logits.bias.name if logits.bias else ""
        key = (logits.hidden.name, logits.weight.name, bias, str(logits.cap), labels)
        if key not in self._heads:
            self._heads[key] = self._emitted_head(logits, self._at[labels])
        lead = logits.shape
        shapes = ((*lead, pieces_of(logits.vocabulary)), lead)
        pairs = zip(self._heads[key], shapes, strict=True)
        sums, picked = (self._shaped(value, shape) for value, shape in pairs)
        return sums, picked

    def _emitted_head(self, logits: _Unmade, labels: Value) -> tuple[Value, Value]:
        """Emit a head; the first has the name of the product, by which users pin and mark it."""
        rows = self._shaped(labels, logits.hidden.type.shape[:-1])
        operands = [logits.hidden, logits.weight, rows]
        operands += [] if logits.bias is None else [logits.bias]
        pieces = pieces_of(logits.vocabulary)
        attributes: dict[str, Any] = {"transpose_b": logits.transposed, "pieces": pieces}
        attributes |= {"chunks": self.chunks} | ({"cap": logits.cap} if logits.cap else {})
        info = operator_info(_OPERATOR, [value.type for value in operands], attributes)
        name = logits.source.name
        if any(node.name == name for node in reversed(self.build.nodes)):
            name = self.build.unique_name(name)
        names = (name, self.build.unique_name(f"{name}.1"))
        sums, picked = map(Value, names, info.result_types)
        read = tuple(value.name for value in operands)
        self.build.append(Node(_OPERATOR, read, (sums, picked), attributes, logits.source.scope))
        return sums, picked

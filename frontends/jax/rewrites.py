"""Rewrites of an imported graph: what JAX writes out becomes one operator.

JAX has no normalization, softmax or cross entropy as a primitive. They are recognized in the forms
that `jax.nn`, flax, equinox and optax give them; a value read by others stays as it was.
"""

from collections.abc import Callable
from dataclasses import replace
from math import isclose, prod

from shardwright.frontends.common.patterns.matches import Matches, attribute_of
from shardwright.ir.graph import Graph, Node, Value, renamed_result
from shardwright.operators.models.loss import emit_log_sum, emit_log_sum_and_pick

Pattern = Callable[["Found", Node], Value | None]


class Found(Matches):
    """A graph in which forms of JAX are matched."""

    def node(self, name: str, *operators: str) -> Node | None:
        """Return the node of a value, if it has one of the operators."""
        node = self.graph.producers.get(name)
        return node if node is not None and node.operator in operators else None

    def plain(self, name: str) -> str:
        """Return the value of which a value is a reshape, broadcast, or constant to gradients."""
        node = self.node(name, "reshape", "broadcast_to", "stop_gradient")
        return name if node is None else self.plain(node.operands[0])

    def mean(self, name: str) -> str | None:
        """Return the value whose mean along the last dimension another is."""
        node = self.node(self.plain(name), "scale")
        if node is None:
            return None
        total = self.node(self.plain(node.operands[0]), "reduce_sum")
        if total is None:
            return None
        kind = self.value(total.operands[0]).type
        if attribute_of(total, "axis") != (kind.rank - 1,) or not self.per_row(name, kind.shape):
            return None
        factor = float(str(attribute_of(node, "factor")))
        return total.operands[0] if isclose(factor, 1 / kind.shape[-1], rel_tol=1e-7) else None

    def per_row(self, name: str, shape: tuple[int, ...]) -> bool:
        """Return whether a value is one element for each row of a shape, aligned with it."""
        own = self.value(name).type.shape
        return own in (shape[:-1], (*shape[:-1], 1))

    def per_feature(self, name: str, shape: tuple[int, ...]) -> Value | None:
        """Return the vector along the last dimension of a shape that a value is, or None."""
        own = self.value(name).type.shape
        if not own or own[-1] != shape[-1] or prod(own) != own[-1]:
            return None
        value = self.value(self.plain(name))
        if value.type.shape == own[-1:]:
            return value
        return self.build.emit("reshape", self.value(name), shape=own[-1:])

    def product(self, name: str) -> list[str]:
        """Return the values whose product a value is, within nodes that nothing else reads."""
        node = self.node(name, "mul")
        if node is None:
            return [name]
        return [
            factor
            for operand in node.operands
            for factor in (self.product(operand) if self.reads[operand] == 1 else [operand])
        ]


def with_operators(graph: Graph) -> Graph:
    """Return the graph with normalizations, softmax and cross entropy as operators.

    Nodes that nothing reads any more are not removed.
    """
    found = Found(graph, {})
    nodes: list[Node] = []
    for node in graph.nodes:
        found.build.nodes, found.build.scope = [], node.scope
        made = None
        for pattern in _PATTERNS.get(node.operator, ()):
            made = pattern(found, node)
            if made is not None:
                break
        if made is None or made.type != node.results[0].type:
            nodes.append(node)
        else:
            nodes += [renamed_result(n, made.name, node.name) for n in found.build.nodes]
    return replace(graph, nodes=tuple(nodes))


# Normalizations


def _norm(m: Found, node: Node) -> Value | None:
    """Match (x - mean) / sqrt(variance + epsilon) gamma + beta."""
    for scaled, beta in (node.operands, node.operands[::-1]):
        found = _normalized(m, scaled)
        if found is not None and found[3]:
            x, gamma, epsilon, _ = found
            shift = m.per_feature(beta, x.type.shape)
            if shift is not None:
                return m.build.emit("layer_norm", x, gamma, shift, epsilon=epsilon)
    return None


def _rms_norm(m: Found, node: Node) -> Value | None:
    """Match x / sqrt(mean of squares + epsilon) gamma."""
    found = _normalized(m, node.name)
    if found is None or found[3]:
        return None
    x, gamma, epsilon, _ = found
    return m.build.emit("rms_norm", x, gamma, epsilon=epsilon)


def _normalized(m: Found, name: str) -> tuple[Value, Value, float, bool] | None:
    """Return x, gamma and epsilon of a normalization, and whether it is centred."""
    factors = m.product(name)
    if len(factors) != 3:
        return None
    for i, root in enumerate(factors):
        reciprocal = m.node(m.plain(root), "rsqrt")
        shifted = reciprocal and m.node(m.plain(reciprocal.operands[0]), "add_scalar")
        if not shifted:
            continue
        rest = [f for j, f in enumerate(factors) if j != i]
        epsilon = float(str(attribute_of(shifted, "value")))
        for numerator, scale in (rest, rest[::-1]):
            kind = m.value(numerator).type
            if kind != m.value(name).type or not m.per_row(root, kind.shape):
                continue
            source = _spread_of(m, shifted.operands[0], numerator)
            gamma = m.per_feature(scale, kind.shape)
            if source is not None and gamma is not None:
                return m.value(source), gamma, epsilon, source != numerator
    return None


def _spread_of(m: Found, variance: str, numerator: str) -> str | None:
    """Return x if a value is the variance of x, and the numerator x less its mean.

    Or the numerator, if the value is the mean of its squares.
    """
    variance = m.plain(variance)
    centred = m.node(numerator, "sub")
    x = numerator
    if centred is not None and m.mean(centred.operands[1]) == centred.operands[0]:
        x = centred.operands[0]
    squares = m.mean(variance)
    if squares is not None:
        of = _root(m, squares)
        if of == numerator:
            return x
        other = m.node(of, "sub") if of else None
        is_same = other is not None and m.mean(other.operands[1]) == other.operands[0] == x
        return x if is_same and x != numerator else None
    if x == numerator:
        return None
    limited = m.node(variance, "maximum")
    if limited is not None:
        kept = [n for n in limited.operands if not _is_fill(m, n, 0.0)]
        variance = m.plain(kept[0]) if len(kept) == 1 else variance
    difference = m.node(variance, "sub")
    if difference is None:
        return None
    first, second = m.mean(difference.operands[0]), _root(m, difference.operands[1])
    if first is None or second is None or _root(m, first) != x:
        return None
    return x if m.mean(second) == x else None


def _root(m: Found, name: str) -> str | None:
    """Return the value whose square another is."""
    node = m.node(name, "square", "mul")
    return node.operands[0] if node and len(set(node.operands)) == 1 else None


def _is_fill(m: Found, name: str, number: float) -> bool:
    node = m.node(m.plain(name), "fill")
    return node is not None and attribute_of(node, "value") == number


# Softmax and cross entropy


def _exponentials(m: Found, name: str) -> tuple[str, str, int] | None:
    """Return x, its shift and the axis, of exp(x - shift) whose shift is the maximum along it."""
    exponential = m.node(name, "exp")
    shifted = exponential and m.node(exponential.operands[0], "sub")
    if not shifted:
        return None
    x, shift = shifted.operands
    axis = _maximum_of(m, shift, x)
    return None if axis is None else (x, shift, axis)


def _maximum_of(m: Found, shift: str, x: str) -> int | None:
    """Return the axis along which a value is the maximum of x, as a constant to gradients."""
    name, stopped = shift, False
    for _ in range(6):
        node = m.graph.producers.get(name)
        if node is None:
            return None
        stopped |= node.operator == "stop_gradient"
        if node.operator == "reduce_max":
            break
        if node.operator == "where":  # zero for rows without a finite maximum
            test = m.node(node.operands[0], "is_finite")
            if test is None or test.operands[0] != node.operands[1]:
                return None
            name = node.operands[1]
        elif node.operator in ("stop_gradient", "reshape", "broadcast_to"):
            name = node.operands[0]
        else:
            return None
    else:
        return None
    axes = attribute_of(node, "axis")
    shape = m.value(x).type.shape
    if not stopped or node.operands[0] != x or not isinstance(axes, tuple) or len(axes) != 1:
        return None
    axis = int(str(axes[0]))
    kept = tuple(1 if d == axis else n for d, n in enumerate(shape))
    return axis if m.value(shift).type.shape in (kept, shape) else None


def _total_of(m: Found, name: str, exponential: str, axis: int) -> bool:
    """Return whether a value is the sum of exponentials along an axis."""
    node = m.node(m.plain(name), "reduce_sum")
    if node is None or attribute_of(node, "axis") != (axis,):
        return False
    return node.operands[0] == exponential


def _softmax(m: Found, node: Node) -> Value | None:
    """Match exp(x - max) / sum of exp(x - max)."""
    top, bottom = node.operands
    found = _exponentials(m, top)
    if found is None:
        return None
    x, _, axis = found
    shape = m.value(x).type.shape
    kept = tuple(1 if d == axis else n for d, n in enumerate(shape))
    if m.value(bottom).type.shape != kept or not _total_of(m, bottom, top, axis):
        return None
    return m.build.emit("softmax", m.value(x), axis=axis)


def _log_softmax(m: Found, node: Node) -> Value | None:
    """Match (x - max) - log of the sum of exp(x - max)."""
    shifted, logarithm = node.operands
    log = m.node(m.plain(logarithm), "log")
    inner = m.node(shifted, "sub")
    if log is None or inner is None:
        return None
    total = m.node(m.plain(log.operands[0]), "reduce_sum")
    found = _exponentials(m, total.operands[0]) if total else None
    if total is None or found is None or found[0] != inner.operands[0]:
        return None
    x, shift, axis = found
    shape = m.value(x).type.shape
    kept = tuple(1 if d == axis else n for d, n in enumerate(shape))
    if inner.operands[1] != shift or m.value(logarithm).type.shape != kept:
        return None
    if attribute_of(total, "axis") != (axis,):
        return None
    return m.build.emit("log_softmax", m.value(x), axis=axis)


def _unsigned(m: Found, name: str) -> str:
    """Return the value whose absolute value another is: by its sign, or as such; else itself."""
    if (absolute := m.node(name, "abs")) is not None:
        return absolute.operands[0]
    product = m.node(name, "mul")
    for x, factor in (product.operands, product.operands[::-1]) if product else ():
        sign = m.node(factor, "where")
        test = m.node(sign.operands[0], "less") if sign else None
        if sign is None or test is None or test.operands[0] != x:
            continue
        numbers = zip((test.operands[1], *sign.operands[1:]), (0.0, -1.0, 1.0), strict=True)
        if all(_is_fill(m, one, number) for one, number in numbers):
            return x
    return name


def _log_sum(m: Found, node: Node) -> Value | None:
    """Match log of the sum of exp(x - max) + max, over the last dimension."""
    for logarithm, shift in (node.operands, node.operands[::-1]):
        log = m.node(logarithm, "log")
        total = m.node(_unsigned(m, log.operands[0]), "reduce_sum") if log else None
        found = _exponentials(m, total.operands[0]) if total else None
        if total is None or found is None or m.plain(found[1]) != m.plain(shift):
            continue
        x = m.value(found[0])
        axes, rows = (x.type.rank - 1,), x.type.shape[:-1]
        if (found[2],) == attribute_of(total, "axis") == axes and node.results[
            0
        ].type.shape == rows:
            return emit_log_sum(m.build, x)
    return None


def _cross_entropy(m: Found, node: Node) -> Value | None:
    """Match log of the sum of exp(x - max) + max - x[label], over the last dimension.

    Where the label is out of range, another value may stand in place of x[label].
    """
    outer = m.node(node.operands[1], "where")
    sums = m.node(node.operands[0], "add")
    picked = m.node(outer.operands[1] if outer else node.operands[1], "pick")
    if sums is None or picked is None:
        return None
    for logarithm, shift in (sums.operands, sums.operands[::-1]):
        log = m.node(logarithm, "log")
        if log is None:
            continue
        total = m.node(_unsigned(m, log.operands[0]), "reduce_sum")
        found = _exponentials(m, total.operands[0]) if total else None
        if total is None or found is None or found[0] != picked.operands[0]:
            continue
        x = m.value(found[0])
        last = x.type.rank - 1
        rows = m.value(node.name).type.shape == x.type.shape[:-1]
        if found[2] != last or attribute_of(total, "axis") != (last,) or not rows:
            continue
        if m.plain(found[1]) == m.plain(shift) and m.value(shift).type.shape == x.type.shape[:-1]:
            label = m.value(picked.operands[1])
            if outer is None:
                return _emitted_cross_entropy(m, x, label)
            log_sum, own = emit_log_sum_and_pick(m.build, x, label)
            inside, other = m.value(outer.operands[0]), m.value(outer.operands[2])
            return m.build.emit("sub", log_sum, m.build.emit("where", inside, own, other))
    return None


def _picked_log_softmax(m: Found, node: Node) -> Value | None:
    """Match the logarithm of a softmax at a label."""
    logs = m.node(node.operands[0], "sub")
    if logs is None:
        return None
    made = _log_softmax(m, logs)
    if made is None:
        return None
    softmax = m.build.nodes.pop()
    x = m.value(softmax.operands[0])
    if softmax.attributes["axis"] != x.type.rank - 1:
        return None
    loss = _emitted_cross_entropy(m, x, m.value(node.operands[1]))
    return m.build.emit("neg", loss)


def _emitted_cross_entropy(m: Found, x: Value, label: Value) -> Value:
    return m.build.emit("sub", *emit_log_sum_and_pick(m.build, x, label))


_PATTERNS: dict[str, tuple[Pattern, ...]] = {
    "add": (_norm, _log_sum),
    "div": (_softmax,),
    "mul": (_rms_norm,),
    "pick": (_picked_log_softmax,),
    "sub": (_cross_entropy, _log_softmax),
}

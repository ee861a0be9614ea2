"""Splits that MindSpore's rules refuse, of operators that can be split so here.

A script with one does not compile there, so it does not under MindSpore's names: `check_split` says
which dimension of which operand is in the way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

from shardwright.ir.errors import ModelError, StrategyError
from shardwright.mindspore.calls import maker, node_of
from shardwright.mindspore.context import (
    get_auto_parallel_context,
    get_context,
    splits_operators,
)
from shardwright.mindspore.servers import can_form, group_of
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, tensors_in
from shardwright.tracer import Tracer, current_tracer, is_tracing

Shape = tuple[int, ...]
# The first split of each parameter of a trace, the operator that has it, and how far apart the
# ranks of neighbouring slices are, where that is known.
_SPLITS: WeakKeyDictionary[Tracer, dict[int, tuple[Shape, str, Shape | None]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Split:
    """An operator of MindSpore, applied with a strategy.

    Parameters
    ----------
    primitive : object
        The operator, with what it was made with as `given`.
    counts : tuple of tuple of int
        The slices of each dimension of each operand.
    shapes, results : sequence of tuple of int
        The shapes of the operands that are tensors, and of the results.
    rest : sequence
        The other arguments.
    """

    primitive: Any
    counts: tuple[Shape, ...]
    shapes: Sequence[Shape]
    results: Sequence[Shape]
    rest: Sequence[Any]


# Dimensions that MindSpore's rule of an operator leaves whole: of which operand, and which; None
# stands for all of an operand.
_WHOLE: Mapping[str, tuple[tuple[int, int | None], ...]] = {
    "BoundingBoxEncode": ((0, 1), (1, 1)),
    "CheckValid": ((0, 1), (1, 0)),
    "Conv2D": ((1, 2), (1, 3)),
    "Conv3D": ((0, 4), (1, 2), (1, 3), (1, 4)),
    "GatherNd": ((0, None), (1, -1)),
    "IOU": ((0, 1), (1, 1)),
    "RandomChoiceWithMask": ((0, None),),
    "ROIAlign": ((0, 2), (0, 3), (1, 1)),
    "ResizeBilinear": ((0, 2),),
}
# Operators whose results are split as their operands are, which alone a script may say.
_WITHOUT_RESULT = ("ResizeBilinear", "ResizeNearestNeighbor")
_ON_GPU: Mapping[str, tuple[tuple[int, int | None], ...]] = {"ResizeBilinear": ((0, 3),)}


# What `Depend` returned in each trace: MindSpore merges no operators through it.
_HELD: WeakKeyDictionary[Tracer, set[str]] = WeakKeyDictionary()
_NEVER_LAST = ("UniformCandidateSampler",)


def check_split(name: str, primitive: Any, arguments: Sequence[Any], made: Any) -> None:
    """Refuse what MindSpore's rule of an operator refuses, where the mode splits operators.

    Raises
    ------
    StrategyError
        If it refuses the strategy, or a parameter is split in another way by another operator.
    """
    counts = getattr(primitive, "in_strategy", None)
    if name == "Reshape" and is_tracing():
        _check_reshape(arguments[0])
    if counts is None or not is_tracing() or not splits_operators():
        return
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    operands = tensors if len(tensors) == len(counts) else arguments
    ranks = _arranged(name, primitive, counts)
    _check_parameters(name, operands, counts, ranks.distances() if ranks else [None] * len(counts))
    if ranks:
        _check_groups(name, counts, ranks)
    if name not in _WHOLE and name not in _RULES:
        return
    rest = [x for x in arguments if not isinstance(x, Tensor)]
    results = [tensor.shape for tensor in tensors_in(made)]
    split = Split(primitive, counts, [tensor.shape for tensor in tensors], results, rest)
    on_gpu = _ON_GPU.get(name, ()) if get_context("device_target") == "GPU" else ()
    found = [_is_split(split, *place) for place in (*_WHOLE.get(name, ()), *on_gpu)]
    found += [_RULES[name](split)] if name in _RULES else []
    if name in _WITHOUT_RESULT and getattr(primitive, "out_strategy", None) is not None:
        found.append("slices of the result are given, too")
    why = next(filter(None, found), "")
    if why:
        raise StrategyError(
            f"`{name}` cannot be split by {counts}: MindSpore's rule of it refuses that {why}",
            hint=f"its operands have the shapes {tuple(split.shapes)}; write 1 for that dimension",
        )


@dataclass(frozen=True)
class _Ranks:
    """How MindSpore arranges ranks for an operator: by its factors in their order.

    `sizes` ends with the number of ranks that compute the same; `operands` has the places of the
    factors of each operand in the arrangement.
    """

    sizes: tuple[int, ...]
    operands: Sequence[Sequence[int]]

    def distances(self) -> Sequence[tuple[int, ...]]:
        """Return how far apart the ranks of neighbouring slices of each operand are."""
        apart = [prod(self.sizes[f + 1 :]) if size > 1 else 0 for f, size in enumerate(self.sizes)]
        return [tuple(apart[f] for f in own) for own in self.operands]


def hold(value: Any) -> None:
    """Note that `Depend` returns a value, where a network is traced."""
    if is_tracing():
        tracer = current_tracer()
        names = {tensor.value(tracer).name for tensor in tensors_in(value)}
        _HELD.setdefault(tracer, set()).update(names)


def _check_reshape(operand: Any) -> None:
    """Refuse to reshape what `Depend` returns of what is reshaped, where strategies propagate.

    Raises
    ------
    ModelError
        If the search is MindSpore's sharding propagation, which goes no way between two reshapes.
    """
    tracer, get = current_tracer(), get_auto_parallel_context
    modes = get("parallel_mode"), get("search_mode")
    if modes != ("auto_parallel", "sharding_propagation") or not isinstance(operand, Tensor):
        return
    name, node = operand.value(tracer).name, node_of(operand)
    if name in _HELD.get(tracer, ()) and node is not None and node.operator == "reshape":
        raise ModelError(
            f"`Reshape` reads `{name}`, which another `Reshape` makes and `Depend` returns: "
            f"MindSpore's sharding propagation goes no way between two reshapes",
            hint="reshape once, or let `Depend` return what is reshaped",
        )


def check_loss(made: Any) -> None:
    """Refuse what no loss is made of in MindSpore, where the mode splits operators.

    Raises
    ------
    ModelError
        If an operator makes what is differentiated that cannot be the last one.
    """
    for tensor in tensors_in(made) if splits_operators() else ():
        if (name := maker(tensor)) in _NEVER_LAST:
            raise ModelError(
                f"`{name}` makes what is differentiated: in MindSpore it is not the last operator "
                f"of a network",
                hint="make the loss of its results, with a reduction",
            )


def _arranged(name: str, primitive: Any, counts: tuple[Shape, ...]) -> _Ranks | None:
    """Return the arrangement of ranks of an operator; None where it is not known here."""
    factors = [[*range(len(counts[0]))]] * len(counts)
    if name == "MatMul" and primitive.is_gathered(counts):
        pass  # every rank has a part of both
    elif name == "MatMul" and not primitive.attributes.get("transpose_a"):
        factors = [[0, 1], [2, 1] if primitive.attributes.get("transpose_b") else [1, 2]]
    elif "MatMul" in name or len({*counts}) > 1:
        return None
    pairs = [*zip(factors, counts, strict=True)]
    sizes = {f: n for each, own in pairs for f, n in zip(each, own, strict=True)}
    get = get_auto_parallel_context
    same = get("device_num") // get("pipeline_stages") // prod(sizes.values())
    return _Ranks((*(sizes[f] for f in sorted(sizes)), same), factors)


def _check_groups(name: str, counts: tuple[Shape, ...], ranks: _Ranks) -> None:
    """Refuse splits for which ranks would reduce that form no group on servers of Ascend.

    What an operator of all ranks reads whole has a gradient of all of them, and a product is summed
    over the slices of what it is summed over.
    """
    get, count = get_auto_parallel_context, prod(ranks.sizes)
    if get_context("device_target") != "Ascend" or count * get("pipeline_stages") != get(
        "device_num"
    ):
        return
    everything, rank = range(len(ranks.sizes)), get("global_rank")
    reduced = [("a product", [1])] * (name == "MatMul")
    reduced += [
        (f"the gradient of operand {i}", [f for f in everything if f not in own])
        for i, own in enumerate(ranks.operands)
    ]
    for what, along in reduced:
        begin = rank // count * count
        group = [begin + other for other in group_of(rank - begin, ranks.sizes, along)]
        if not can_form(group):
            raise StrategyError(
                f"`{name}` cannot be split by {counts}: the ranks {group} would reduce {what}, and "
                f"MindSpore forms no such group on servers of eight Ascend devices",
                hint="split so that a group has the same 1, 2, 4 or 8 places in each server",
            )


def _check_parameters(
    name: str,
    operands: Sequence[Any],
    counts: tuple[Shape, ...],
    distances: Sequence[tuple[int, ...] | None],
) -> None:
    """Refuse to split a parameter in two ways: it is stored as all operators read it."""
    known = _SPLITS.setdefault(current_tracer(), {})
    for tensor, own, apart in zip(operands, counts, distances, strict=False):
        if isinstance(tensor, Parameter) and len(own) == tensor.ndim:
            before = known.setdefault(id(tensor), (own, name, apart))
            if before[0] == own and None not in (apart, before[2]) and apart != before[2]:
                raise StrategyError(
                    f"the slices {own} of the parameter `{tensor.name}` are on ranks {apart} apart "
                    f"for `{name}`, and {before[2]} apart for `{before[1]}`: MindSpore refuses two "
                    f"layouts of a parameter",
                    hint="let both operators use as many ranks, in the same order of dimensions",
                )
            if before[0] != own:
                raise StrategyError(
                    f"the parameter `{tensor.name}` is split {own} by `{name}` and {before[0]} by "
                    f"`{before[1]}`: MindSpore refuses two splits of a parameter",
                    hint="give both operators the same slices of it",
                )


def _is_split(split: Split, operand: int, dimension: int | None) -> str:
    """Return what is said of a dimension that should be whole; nothing where it is."""
    counts = split.counts[operand] if operand < len(split.counts) else ()
    if dimension is None:
        return f"operand {operand} is split" if prod(counts) > 1 else ""
    try:
        whole = counts[dimension] == 1
    except IndexError:
        return ""
    return "" if whole else f"dimension {dimension % len(counts)} of operand {operand} is split"


@dataclass(frozen=True)
class _Window:
    """One dimension of a window that slides: sizes in elements, `pads` before and after."""

    size: int
    made: int
    kernel: int
    stride: int
    pads: tuple[int, int]

    def before(self, i: int, count: int) -> int:
        """Return how many elements slice `i` of `count` reads of the slice before it."""
        return self.pads[0] + _quotient((self.size - self.made * self.stride) * i, count)

    def behind(self, i: int, count: int) -> int:
        """Return how many elements slice `i` of `count` reads of the slice behind it."""
        more = _quotient((self.made * self.stride - self.size) * (i + 1), count)
        return more + self.kernel - self.stride - self.pads[0]


def _quotient(one: int, other: int) -> int:
    """Return a quotient cut off towards zero, as MindSpore divides."""
    return abs(one) // other * (1 if one >= 0 else -1)


def _windows(split: Split) -> list[_Window]:
    """Return the windows of a convolution or a pool, of its dimensions behind the channels."""
    own = split.primitive.attributes
    sizes, made = split.shapes[0][2:], split.results[0][2:]
    kernels = own.get("kernel") or split.primitive.kernel_size
    found = []
    for d, (size, out, kernel) in enumerate(zip(sizes, made, kernels, strict=True)):
        wide = own.get("dilation", (1,) * len(sizes))[d] * (kernel - 1) + 1
        stride = own["stride"][d]
        if own["padding"] == "same":
            needed = max((out - 1) * stride + wide - size, 0)
            pads = needed // 2, needed - needed // 2
        else:
            pads = own["padding"][d]
            pads = pads[0], pads[1] - (size + sum(pads) - wide) % stride
        found.append(_Window(size, out, wide, stride, pads))
    return found


def _pool(split: Split) -> str:
    """Return why a pool cannot be split along its windows."""
    for d, (window, count) in enumerate(zip(_windows(split), split.counts[0][2:], strict=True), 2):
        if count > 1 and window.made % count:
            return f"dimension {d} of the result, {window.made}, is split {count} ways"
        if count > 1 and window.kernel > window.stride:
            return f"dimension {d} is split, whose windows overlap"
        if count > 1 and window.size // count % window.stride:
            return f"slices of dimension {d}, {window.size // count}, are no whole strides"
    return ""


def _convolution(split: Split) -> str:
    """Return why a convolution cannot be split along its windows, or into groups."""
    of_weight = split.counts[1][:2]
    if split.primitive.attributes["groups"] != 1 and of_weight != (1, 1):
        return f"channels of its groups are split {of_weight} ways"
    valid = split.primitive.given["pad_mode"].lower() == "valid"
    counts = split.counts[0][2:]
    if set(counts[:2]) == {1}:
        return ""
    for d, (window, count) in enumerate(zip(_windows(split), counts, strict=True), 2):
        if count > 1 and (why := (_valid if valid else _padded)(window, count)):
            return f"dimension {d} is split {count} ways: {why}"
    return ""


def _valid(window: _Window, count: int) -> str:
    """Return why a dimension without padding cannot be split."""
    if window.made % count:
        return f"that of the result is {window.made}"
    if window.kernel > window.stride:
        return "its windows overlap"
    return "slices are no whole strides" if window.size // count % window.stride else ""


def _padded(window: _Window, count: int) -> str:
    """Return why a dimension with padding, whose slices read their neighbours', cannot be split."""
    if window.made % count:
        return f"that of the result is {window.made}"
    if window.pads[1] < 0 or (window.size + sum(window.pads) - window.kernel) % window.stride:
        return "the windows leave a rest"
    if (window.made * window.stride - window.size) % count:
        return "slices of operand and result would be shifted by parts of an element"
    reads = [window.behind(i, count) for i in range(count - 1)]
    reads += [window.before(i, count) for i in range(1, count)]
    if min(reads) < 0:
        return "a slice does not read all of its own elements"
    return "a slice reads more than its neighbour" if max(reads) > window.size // count else ""


def _gathered(split: Split) -> str:
    """Return why a product whose operands are split in one way cannot be gathered."""
    get, used = get_auto_parallel_context, prod(split.counts[0])
    ranks = get("device_num") // get("pipeline_stages")
    if not split.primitive.is_gathered(split.counts) or used == ranks:
        return ""
    return f"both operands are split in one way, over {used} of {ranks} ranks"


def _strided(split: Split) -> str:
    """Return why a slice with strides cannot be split: what is not taken whole stays whole."""
    primitive, (sizes, *_) = split.primitive, split.shapes
    if primitive.ellipsis_mask:
        return f"`ellipsis_mask` is {primitive.ellipsis_mask}"
    begins, ends, *more = split.rest
    strides = more[0] if more and more[0] is not None else (1,) * len(begins)
    new = [d for d in range(len(begins)) if primitive.new_axis_mask >> d & 1]
    places = iter(range(len(sizes)))
    for d, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        own = None if d in new else next(places, None)
        if own is None or split.counts[0][own] == 1:
            continue
        first = 0 if primitive.begin_mask >> d & 1 else begin
        last = sizes[own] if primitive.end_mask >> d & 1 else end
        part = first != 0 or last < sizes[own]
        if stride != 1 or part or primitive.shrink_axis_mask >> d & 1:
            return f"dimension {own}, of which only a part is taken, is split"
    return ""


def _by_rows(split: Split) -> str:
    """Return why slices that are put at positions cannot be split between them."""
    depth = split.shapes[1][-1]
    if prod(split.counts[1]) > 1:
        return "operand 1 is split"
    is_split = prod(split.counts[0][:depth]) > 1
    return f"dimensions of operand 0 before {depth} are split" if is_split else ""


def _sampler(split: Split) -> str:
    """Return why a sampler of classes that leaves out true ones cannot be split."""
    is_split = split.primitive.removes_hits and prod(split.counts[0]) > 1
    return "operand 0 is split, with `remove_accidental_hits`" if is_split else ""


def _resized(split: Split) -> str:
    """Return why images that are resized by their nearest pixels cannot be split."""
    if split.primitive.given.get("align_corners") and prod(split.counts[0][2:]) > 1:
        return "dimensions 2 or 3 are split, with `align_corners`"
    return ""


_RULES: Mapping[str, Callable[[Split], str]] = {
    "AvgPool": _pool,
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "MatMul": _gathered,
    "MaxPool": _pool,
    "ResizeNearestNeighbor": _resized,
    "ScatterNdUpdate": _by_rows,
    "StridedSlice": _strided,
    "TensorScatterUpdate": _by_rows,
    "UniformCandidateSampler": _sampler,
}

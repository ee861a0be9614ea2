"""Branches and loops of `torch.cond`, `while_loop`, `scan`, `associative_scan` and `map`.

Where the condition of a branch depends on data, both are computed and one is chosen. What a branch
reads is chosen before it, too, so that a gradient of the other one, which may be no number, never
leaves it. Loops are unrolled.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.frontends.common.errors import MOST_STEPS, UnsupportedError
from shardwright.frontends.common.items import Constant
from shardwright.frontends.torch.stored import ModuleTensor
from shardwright.ir.graph import Value
from shardwright.operators.builder import Builder


def _cond(importer: Any, condition: Any, true: Any, false: Any, operands: Sequence[Any]) -> Any:
    """Convert a branch, or both."""
    if isinstance(condition, (bool, int)):
        return importer.within(true if condition else false, operands)
    if isinstance(condition, Constant) and not condition.is_absent:
        return importer.within(true if condition.array.all() else false, operands)
    build: Builder = importer.emission.build
    is_true = build.emit("reshape", _value(importer, condition), shape=())
    chosen = []
    for body, flag in ((true, is_true), (false, build.emit("logical_not", is_true))):
        given = [_kept(importer, item, flag) for item in operands]
        chosen.append(importer.within(body, given))
    return [_either(importer, is_true, a, b) for a, b in zip(*map(_listed, chosen), strict=True)]


def _kept(importer: Any, item: Any, flag: Value) -> Any:
    """Return a tensor whose gradient counts only where a flag is true."""
    is_trained = isinstance(item, Constant) and item.trained
    if not is_trained and not isinstance(item, Value):
        return item
    value, build = _value(importer, item), importer.emission.build
    if not value.type.is_float:
        return value
    return build.emit("where", flag, value, build.emit("stop_gradient", value))


def _once(name: str, convert: Callable[..., Any]) -> Callable[..., Any]:
    """Return a converter that notes that PyTorch has no second gradient of its operator.

    PyTorch computes one without an error, and leaves out what depends on the operands of the first.
    """

    def converted(importer: Any, *arguments: Any) -> Any:
        build: Builder = importer.emission.build
        before = {node.name for node in build.nodes}
        found = convert(importer, *arguments)
        for node in build.nodes:
            if node.name not in before:
                importer.emission.once.setdefault(node.name, name)
        return found

    return converted


def _either(importer: Any, flag: Value, a: Any, b: Any) -> Any:
    if not isinstance(a, (Value, Constant)):
        if a != b:
            raise UnsupportedError(f"a branch that returns {a!r} where the other returns {b!r}")
        return a
    return importer.emission.build.emit("where", flag, _value(importer, a), _value(importer, b))


def _while(
    importer: Any, condition: Any, body: Any, carried: Sequence[Any], fixed: Sequence[Any]
) -> Any:
    """Unroll a loop whose conditions are known."""
    state = list(carried)
    for _ in range(MOST_STEPS):
        (goes_on,) = _listed(importer.within(condition, [*state, *fixed]))
        if isinstance(goes_on, Constant) and not goes_on.is_absent:
            goes_on = bool(goes_on.array.all())
        if not isinstance(goes_on, bool):
            raise UnsupportedError("`while_loop`, whose number of steps depends on data,")
        if not goes_on:
            return state
        state = _listed(importer.within(body, [*state, *fixed]))
    raise UnsupportedError(f"`while_loop` of more than {MOST_STEPS:,} steps, which are unrolled,")


def _scan(
    importer: Any, body: Any, carried: Sequence[Any], columns: Sequence[Any], fixed: Sequence[Any]
) -> Any:
    """Unroll a loop over the slices of tensors."""
    state = list(carried)
    rows: list[Sequence[Any]] = []
    for step in range(_steps(columns, "scan")):
        taken = [_row(importer, column, step) for column in columns]
        found = _listed(importer.within(body, [*state, *taken, *fixed]))
        state = found[: len(state)]
        rows.append(found[len(state) :])
    return [*state, *(_stacked(importer, column) for column in zip(*rows, strict=True))]


def _associative(importer: Any, body: Any, columns: Sequence[Any], fixed: Sequence[Any]) -> Any:
    """Unroll a running combination of the slices of tensors."""
    rows: list[Sequence[Any]] = []
    for step in range(_steps(columns, "associative_scan")):
        taken = [_row(importer, column, step) for column in columns]
        if rows:
            taken = _listed(importer.within(body, [*rows[-1], *taken, *fixed]))
        rows.append(taken)
    return [_stacked(importer, column) for column in zip(*rows, strict=True)]


def _map(importer: Any, body: Any, columns: Sequence[Any], fixed: Sequence[Any]) -> Any:
    """Apply a function to every slice of tensors."""
    steps = range(_steps(columns, "map"))
    rows = [
        _listed(importer.within(body, [*(_row(importer, c, step) for c in columns), *fixed]))
        for step in steps
    ]
    return [_stacked(importer, column) for column in zip(*rows, strict=True)]


CONTROL: Mapping[str, Callable[..., Any]] = {
    "associative_scan": _associative,
    "cond": _once("torch.cond", _cond),
    "map_impl": _map,
    "scan": _once("scan", _scan),
    "while_loop": _once("while_loop", _while),
}


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _value(importer: Any, item: Any) -> Value:
    """Return a tensor as a value of the program."""
    found: Value = importer.emission.enter(item) if isinstance(item, Constant) else item
    return found


def _steps(columns: Sequence[Any], name: str) -> int:
    """Return the number of slices."""
    first = columns[0]
    count = (first.type.shape if isinstance(first, Value) else first.shape)[0]
    if count > MOST_STEPS:
        raise UnsupportedError(
            f"`{name}` of {count:,} steps, over {MOST_STEPS:,} are not unrolled,"
        )
    return int(count)


def _row(importer: Any, item: Any, step: int) -> Any:
    """Return one slice along the first dimension."""
    if isinstance(item, Constant) and not item.trained and isinstance(item.data, ModuleTensor):
        return Constant(ModuleTensor(item.data.tensor[step]), item.dtype)
    value, build = _value(importer, item), importer.emission.build
    shape = value.type.shape
    begin, size = (step, *(0,) * (len(shape) - 1)), (1, *shape[1:])
    found = value if shape[0] == 1 else build.emit("slice", value, begin=begin, size=size)
    return build.emit("reshape", found, shape=shape[1:])


def _stacked(importer: Any, column: Sequence[Any]) -> Value:
    """Return the results of all steps as one tensor."""
    values = [_value(importer, item) for item in column]
    found: Value = importer.emission.build.emit("stack", *values, axis=0)
    return found

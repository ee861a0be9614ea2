"""Operators over windows: on exchanged runs they compute the operator on the whole tensor.

Where windows are split, each rank reads a run of elements that is longer than its slice
(`halo_exchange`). An operator on runs represents the operator on the whole tensor if it has exactly
the exchanges that its strategy needs (`halo_plan`).
"""

from collections.abc import Mapping, Sequence

from shardwright.ir.attributes import Attributes
from shardwright.ir.graph import Node
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.info import operator_info
from shardwright.operators.windows.halo_exchange import HaloExchange, OverHalo, halo_plan
from shardwright.operators.windows.windowed import Windowed
from shardwright.proof.terms import applied
from shardwright.proof.values import Bundle, Held, Move, Runs

# Attributes of the runs or windows; `_key` has the windows themselves.
_OF_RUNS = ("space", "slices")
_OF_WINDOWS = ("stride", "padding", "dilation", "kernel")


class RunsError(Exception):
    """Runs do not match the windows that read or define them."""


def exchanged(info: OverHalo, held: Held, kind: TensorType) -> Held:
    """Return the result of a halo exchange or a sum of runs.

    Raises
    ------
    RunsError
        If the operand is a flat buffer, or not the runs that the sum adds.
    """
    move: Move = tuple(sorted(info.attributes.items()))
    if isinstance(held, Bundle):
        raise RunsError(f"`{info.name}` reads a flat buffer")
    if isinstance(info, HaloExchange):
        if isinstance(held, int):
            return Runs(held, kind, (move,), made=False)
        if held.made:
            raise RunsError("`halo_exchange` reads runs whose sum is pending")
        return Runs(held.term, held.kind, (*held.moves, move), made=False)
    if isinstance(held, int) or not held.made or held.moves[-1] != move:
        raise RunsError(f"`{info.name}` adds runs of other windows")
    rest = held.moves[:-1]
    return Runs(held.term, held.kind, rest, made=True) if rest else held.term


def windowed(
    node: Node, info: Windowed, held: Sequence[Held], strategy: Strategy, mesh: Mesh | None
) -> list[Held]:
    """Return the terms of the results of an operator over windows.

    Raises
    ------
    RunsError
        If the runs do not match its windows.
    """
    whole = [_whole(value, kind) for value, kind in zip(held, info.operand_types, strict=True)]
    moves = [value.moves if isinstance(value, Runs) else () for value in held]
    if not info.attributes["slices"]:
        if any(moves):
            raise RunsError(f"`{node.operator}` reads runs, expected slices")
        return list(_on_whole(node, info, whole))
    if mesh is None:
        raise RunsError(f"`{node.operator}` expects runs, and nothing is split")
    origin = of_slices(info, [kind for kind, _ in whole])
    attributes = origin.attributes
    origin.check_strategy(strategy, mesh)
    plan = halo_plan(origin, attributes, strategy, mesh)
    inner = operator_info(node.operator, info.operand_types, plan.attributes)
    assert isinstance(inner, Windowed)
    expected = [_moves(plan.operands, i) for i in range(len(held))]
    if _key(inner, _OF_RUNS) != _key(info, _OF_RUNS) or moves != expected:
        raise RunsError(f"the runs that `{node.operator}` reads do not match its windows")
    found: list[Held] = list(_on_whole(node, origin, whole))
    for i, (term, kind) in enumerate(zip(found, origin.result_types, strict=True)):
        if isinstance(term, int) and (due := _moves(plan.results, i)):
            found[i] = Runs(term, kind, due, made=True)
    return found


def of_slices(info: Windowed, types: Sequence[TensorType]) -> Windowed:
    """Return the operator on whole tensors whose form on runs is `info`."""
    attributes = {k: v for k, v in info.attributes.items() if k not in _OF_RUNS}
    origin = operator_info(info.name, types, attributes)
    assert isinstance(origin, Windowed)
    return origin


def _whole(held: Held, kind: TensorType) -> tuple[TensorType, int]:
    """Return the whole tensor that an operand stands for."""
    if isinstance(held, int):
        return kind, held
    if isinstance(held, Bundle):
        raise RunsError("an operator over windows reads a flat buffer")
    if held.made:
        raise RunsError("an operator over windows reads runs whose sum is pending")
    return held.kind, held.term


def _on_whole(node: Node, info: Windowed, whole: Sequence[tuple[TensorType, int]]) -> list[int]:
    """Return the terms of an operator over the windows of whole tensors."""
    return applied(node.operator, _key(info), whole, len(node.results))


def _key(info: Windowed, more: Sequence[str] = ()) -> str:
    """Return a canonical key of an operator over windows."""
    windows, attributes = info.windows, info.attributes
    written = (windows.kernel, windows.stride, windows.padding, windows.dilation)
    rest = sorted(k for k in attributes if k not in (*_OF_RUNS, *_OF_WINDOWS))
    own = [(k, attributes[k]) for k in (*rest, *more)]
    return repr((written, tuple(info.space), own))


def _moves(table: Mapping[int, Sequence[Attributes]], index: int) -> tuple[Move, ...]:
    """Return the exchanges of one operand or result in the form of `exchanged`."""
    return tuple(
        tuple(sorted({**OverHalo.defaults, **attributes}.items()))
        for attributes in table.get(index, ())
    )

"""The traits of operators are true of their kernels."""

import numpy as np
import pytest

from shardwright.ir.text import parse_type
from shardwright.ir.types import numpy_dtype
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import (
    Example,
    OperatorInfo,
    operator_class,
    operator_info,
    operator_names,
    whole_kernel,
)

CLASSES = [operator_class(name) for name in operator_names()]


def cases(trait: str) -> list[object]:
    return [
        pytest.param(kind, example, id=f"{kind.name}-{number}")
        for kind in CLASSES
        if getattr(kind, trait)
        for number, example in enumerate(kind.examples)
    ]


def run(
    kind: type[OperatorInfo], example: Example, change: object = None
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return random operands, changed by `change`, and the result on them."""
    types = [parse_type(text)[0] for text in example.operands]
    random = np.random.default_rng(0)
    operands = [
        np.asarray(random.integers(0, 2, each.shape), numpy_dtype(each.dtype)) for each in types
    ]
    if callable(change):
        operands = change(operands)
        types = [each.with_shape(x.shape) for each, x in zip(types, operands, strict=True)]
    info = operator_info(kind.name, types, example.attributes)
    return operands, whole_kernel(info, *operands)[0]


@pytest.mark.parametrize(("kind", "example"), cases("is_commutative"))
def test_operands_of_commutative_operators_change_places(
    kind: type[OperatorInfo], example: Example
) -> None:
    swapped = run(kind, example, lambda operands: operands[::-1])[1]
    np.testing.assert_array_equal(run(kind, example)[1], swapped)


@pytest.mark.parametrize(("kind", "example"), cases("is_identity"))
def test_identities_return_their_operand(kind: type[OperatorInfo], example: Example) -> None:
    (operand,), result = run(kind, example)
    np.testing.assert_array_equal(operand, result)


@pytest.mark.parametrize(("kind", "example"), cases("is_scaling"))
def test_scaling_operators_scale(kind: type[OperatorInfo], example: Example) -> None:
    doubled = run(kind, example, lambda operands: [2 * operands[0]])[1]
    np.testing.assert_array_equal(2 * run(kind, example)[1], doubled)


def communications(trait: str) -> list[Communication]:
    found = []
    for kind in CLASSES:
        if getattr(kind, trait):
            attributes = {"axes": ("x", "y")}
            if "previous" in kind.defaults:
                attributes["previous"] = ("y", "x")
            info = operator_info(kind.name, [parse_type("f64[4, 4]")[0]], attributes)
            assert isinstance(info, Communication)
            found.append(info)
    return found


PARTS = [np.full((4, 4), float(i + 1)) for i in range(4)]
EXTENTS = (2, 2)


@pytest.mark.parametrize("info", communications("equalizes"), ids=lambda info: info.name)
def test_equalizing_operators_leave_one_result_on_all_ranks(info: Communication) -> None:
    first, *rest = info.exchange(PARTS, EXTENTS)
    assert all(np.array_equal(first, other) for other in rest)


@pytest.mark.parametrize("info", communications("forwards_parts"), ids=lambda info: info.name)
def test_forwarding_operators_leave_the_part_of_one_rank_or_zeros(info: Communication) -> None:
    for part in info.exchange(PARTS, EXTENTS):
        assert any(np.array_equal(part, other) for other in [*PARTS, np.zeros((4, 4))])


@pytest.mark.parametrize("info", communications("reduces"), ids=lambda info: info.name)
def test_reducing_operators_need_every_part(info: Communication) -> None:
    sums = info.exchange([np.ones((4, 4)) * 10**i for i in range(4)], EXTENTS)
    assert all(np.all(part == 1111) for part in sums)


def test_only_communication_is_collective() -> None:
    for kind in CLASSES:
        if kind.is_collective or kind.keeps_tensor:
            assert issubclass(kind, Communication)
        if issubclass(kind, Communication) and not kind.is_collective and kind.keeps_tensor:
            info = operator_info(kind.name, [parse_type("f64[4, 4]")[0]], {"axes": ("x", "y")})
            assert isinstance(info, Communication)
            assert info.own_part(PARTS[0], 0, EXTENTS) is not None

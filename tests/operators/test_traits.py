"""The traits of operators are true of their kernels."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.ir.errors import OperatorError
from shardwright.ir.text import parse_type
from shardwright.operators.checks.cases import Case, cases_of
from shardwright.operators.checks.operator import check_operator
from shardwright.operators.checks.traits import check_traits
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import (
    Example,
    OperatorInfo,
    operator_class,
    operator_info,
    operator_names,
    register,
)
from shardwright.operators.rule import ShardView

CLASSES = [operator_class(name) for name in operator_names()]


class Wrong(OperatorInfo):
    """The first operand less the second."""

    name = "wrong"
    notation = "..., ... -> ..."
    linear = ((0, 1),)
    examples = (Example(("f64[4, 6]", "f64[4, 6]")),)

    def kernel(self, view: ShardView, *operands: np.ndarray) -> np.ndarray:
        return operands[0] - operands[1]


@pytest.mark.parametrize(
    "case", [case for kind in CLASSES for case in cases_of(kind.name)], ids=str
)
def test_traits_are_true_of_the_kernel(case: Case) -> None:
    check_traits(case)


@pytest.mark.usefixtures("own_operators")
@pytest.mark.parametrize(
    ("trait", "message"),
    [
        ("is_identity", "`is_identity` is set, and the result differs from the operand"),
        ("is_commutative", "`is_commutative` is set, and the order of operands matters"),
    ],
)
def test_a_false_trait_is_found(trait: str, message: str) -> None:
    register(type("Wrong", (Wrong,), {trait: True}))
    with pytest.raises(OperatorError) as caught:
        check_operator("wrong")
    assert str(caught.value) == f"{message} (in wrong-0)"


@pytest.mark.usefixtures("own_operators")
def test_a_false_scaling_is_found() -> None:
    changes = {"notation": "... -> ...", "examples": (Example(("f64[4]",)),), "is_scaling": True}
    changes |= {"kernel": lambda self, view, x: x + x.dtype.type(1)}
    register(type("Wrong", (Wrong,), changes))
    with pytest.raises(OperatorError, match="doubling does not scale the result"):
        check_operator("wrong")


def communications(trait: str) -> list[Communication]:
    found = []
    for kind in CLASSES:
        if getattr(kind, trait):
            attributes = {"axes": ("x", "y")}
            if "previous" in kind.defaults:
                attributes["previous"] = ("y", "x")
            tensor = replace(parse_type("f64[4, 4]")[0], in_host=kind.reads_host)
            info = operator_info(kind.name, [tensor], attributes)
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
            assert issubclass(kind, (Communication, RingOperator))
        if issubclass(kind, Communication) and not kind.is_collective and kind.keeps_tensor:
            attributes = {"axes": ("x", "y")} if "axes" in kind.defaults else {}
            tensor = replace(parse_type("f64[4, 4]")[0], in_host=kind.reads_host)
            info = operator_info(kind.name, [tensor], attributes)
            assert isinstance(info, Communication)
            assert info.own_part(PARTS[0], 0, EXTENTS) is not None

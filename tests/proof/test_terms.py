"""Terms: sums are equal in any order and scale, and nothing else is."""

from itertools import permutations

from shardwright.ir.types import TensorType
from shardwright.proof.terms import PRIME, applied, broadcast, combination, hashed

KIND = TensorType("float32", (2, 3))
X, Y, Z = (hashed(name) for name in "xyz")


def term(operator: str, *operands: int, attributes: str = "") -> int:
    return applied(operator, attributes, [(KIND, operand) for operand in operands], 1)[0]


def add(*parts: int) -> int:
    return combination([(1, part) for part in parts])


def test_sums_are_equal_in_any_order_and_grouping() -> None:
    sums = {add(add(a, b), c) for a, b, c in permutations((X, Y, Z))}
    assert sums == {add(X, add(Y, Z))}
    assert add(X, X) != X
    assert add(X, X) == combination([(2.0, X)])


def test_constants_multiply_out() -> None:
    assert combination([(0.125, combination([(0.25, X)]))]) == combination([(1 / 32, X)])
    assert combination([(0.5, add(X, Y))]) == add(combination([(0.5, X)]), combination([(0.5, Y)]))
    assert combination([(1, X), (-1, X)]) == 0


def test_no_power_of_two_that_a_float_can_be_is_one() -> None:
    """Modulo 2**127 - 1, a product with 2.0**127 would be the identity."""
    assert all(pow(2, k, PRIME) not in (1, PRIME - 1) for k in range(1, 5000))
    assert combination([(2.0**127, X)]) != X


def test_operators_are_told_apart() -> None:
    assert term("matmul", X, Y) != term("matmul", Y, X)
    commuted = [applied("mul", "", [(KIND, a), (KIND, b)], 1, True) for a, b in ((X, Y), (Y, X))]
    assert commuted[0] == commuted[1]
    assert term("relu", X) != term("tanh", X)
    assert term("softmax", X, attributes="axis=0") != term("softmax", X, attributes="axis=1")
    first, second = applied("top_k", "k=2", [(KIND, X)], 2)
    assert first != second
    assert applied("top_k", "k=2", [(KIND, X)], 1)[0] not in (first, second)


def test_linear_operators_do_not_commute() -> None:
    assert term("matmul", term("matmul", X, Y), Z) != term("matmul", term("matmul", X, Z), Y)
    assert term("relu", add(X, Y)) != add(term("relu", X), term("relu", Y))


def test_types_of_operands_are_part_of_a_term() -> None:
    wide = TensorType("float32", (3, 3))
    assert applied("exp", "", [(KIND, 0)], 1) != applied("exp", "", [(wide, 0)], 1)


def test_broadcasting_is_linear() -> None:
    shapes = ((3,), (2, 3))
    assert broadcast(add(X, Y), *shapes) == add(broadcast(X, *shapes), broadcast(Y, *shapes))
    assert broadcast(X, (3,), (3,)) == X
    assert broadcast(X, (3,), (2, 3)) != broadcast(X, (3,), (4, 3))

"""Every legal equation of einsum is numpy's, with its gradients; others are refused."""

from collections.abc import Sequence

import numpy as np
import pytest

from shardwright.dataflow.cotangents import gradient_name
from shardwright.frontends.common.call import Emitting
from shardwright.frontends.common.einsum import emit_einsum
from shardwright.frontends.common.emission import Emission
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, InitialValues
from shardwright.operators.info import Array, operator_info, whole_kernel
from shardwright.passes.differentiate import Differentiate
from tests.extent import first

Case = tuple[str, tuple[tuple[int, ...], ...]]
LEGAL: list[Case] = [
    ("b...,b->b...", ((2, 3, 5), (2,))),
    ("i...,i...->...", ((4, 3), (4, 3))),
    ("a,b...->ab...", ((2,), (3, 4))),
    ("bi,b...->b...", ((2, 3), (2, 4))),
    ("...ii->...i", ((2, 3, 3),)),
    ("i...i->...", ((3, 2, 3),)),
    ("iii", ((3, 3, 3),)),
    ("bi,bi", ((2, 3), (2, 3))),
    ("B a, a C", ((2, 3), (3, 4))),
    ("ij,jk", ((2, 1), (3, 4))),
    ("...,...", ((2, 1, 3), (4, 3))),
    (",ij->ji", ((), (2, 3))),
    (",->", ((), ())),
    ("ij->", ((2, 3),)),
    ("...ij,jk,k->...i", ((2, 4, 6), (6, 2), (2,))),
]


def _random_case(seed: int) -> Case:
    """Return a random legal equation and the shapes of its operands."""
    random = np.random.default_rng(seed)
    letters = list(random.permutation(list("abcXYz"))[: random.integers(1, 6)])
    sizes = {name: int(random.integers(1, 4)) for name in letters}
    dots = tuple(int(n) for n in random.integers(1, 4, size=random.integers(0, 3)))
    terms, shapes = [], []
    for _ in range(int(random.integers(1, 4))):
        names = [str(n) for n in random.choice(letters, size=random.integers(0, 4))]
        shape = [sizes[n] for n in names]
        for name in set(names):  # broadcast in this operand alone
            if random.random() < 0.1:
                shape = [1 if n == name else s for n, s in zip(names, shape, strict=True)]
        if random.random() < 0.5:
            at = int(random.integers(0, len(names) + 1))
            count = int(random.integers(0, len(dots) + 1))
            kept = [1 if random.random() < 0.2 else n for n in dots[len(dots) - count :]]
            names, shape = [*names[:at], "...", *names[at:]], [*shape[:at], *kept, *shape[at:]]
        terms.append("".join(names))
        shapes.append(tuple(shape))
    equation = ",".join(terms)
    if random.random() < 0.7:
        known = sorted(set("".join(terms).replace(".", "")))
        result = [str(n) for n in random.permutation(known)[: random.integers(0, len(known) + 1)]]
        if "..." in equation:
            result.insert(int(random.integers(0, len(result) + 1)), "...")
        equation += "->" + "".join(result)
    if random.random() < 0.3:
        equation = equation.replace(",", " , ").replace("->", " -> ")
    return equation, tuple(shapes)


def _computed(equation: str, operands: Sequence[Array], weights: Array | None) -> list[Array]:
    """Return the result; with weights of its elements, the gradients of their sum instead."""
    emission = Emission()
    call = Emitting(emission, (), {})
    values = [emission.enter(Constant(x, "float64", trained=True)) for x in operands]
    result = emit_einsum(call, equation, values)
    if weights is None:
        graph = emission.build.graph("einsum", (result.name,))
        wanted = [result.name]
    else:
        weighted = call.emit("mul", result, call.constant(weights, "float64"))
        loss = call.emit("reduce_sum", weighted) if weighted.type.rank else weighted
        graph = Differentiate().run(emission.build.graph("einsum", (loss.name,)))
        wanted = [gradient_name(value.name) for value in values]
    arrays = {name: np.asarray(array) for name, array in InitialValues(emission.data).items()}
    for node in graph.nodes:
        types = [graph.values[name].type for name in node.operands]
        info = operator_info(node.operator, types, node.attributes)
        found = whole_kernel(info, *(arrays[name] for name in node.operands))
        arrays.update(zip((r.name for r in node.results), found, strict=True))
    return [arrays[name] for name in wanted]


def _summed_over_dots(equation: str, operands: Sequence[Array]) -> Array:
    """Return numpy's result; without `...` in the result they are summed over, as in PyTorch."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    if arrow and "..." in left and "..." not in right:
        whole = np.einsum(f"{left}->...{right}", *operands)
        extra = whole.ndim - len(right)
        return np.asarray(whole.sum(tuple(range(extra))))
    return np.asarray(np.einsum(equation, *operands))


CASES = [*LEGAL, *map(_random_case, first(60, range(4000)))]


@pytest.mark.parametrize("case", CASES, ids=[f"{i} {case[0]}" for i, case in enumerate(CASES)])
def test_an_equation_is_numpys(case: Case) -> None:
    equation, shapes = case
    random = np.random.default_rng(1)
    operands = [random.normal(size=shape) for shape in shapes]
    right = _summed_over_dots(equation, operands)
    (result,) = _computed(equation, operands, None)
    assert result.shape == right.shape
    np.testing.assert_allclose(result, right, rtol=1e-12, atol=1e-12)
    weights = random.normal(size=right.shape)
    gradients = _computed(equation, operands, weights)
    for i, (gradient, operand) in enumerate(zip(gradients, operands, strict=True)):
        assert gradient.shape == operand.shape
        along = random.normal(size=operand.shape)  # linear in each operand, so exact
        moved = _summed_over_dots(equation, [*operands[:i], along, *operands[i + 1 :]])
        np.testing.assert_allclose(
            (gradient * along).sum(), (moved * weights).sum(), rtol=1e-10, atol=1e-10
        )


REFUSED = [
    ("ij,jk", ((2, 3),), "of 1 operands"),
    ("ij->i", ((2, 3, 4),), "of operands of ranks (3,)"),
    ("ij...->i", ((2,),), "of operands of ranks (1,)"),
    ("ij,jk->ik", ((2, 3), (4, 5)), "where `j` is 3 and 4"),
    ("ii->i", ((1, 3),), "where `i` is 1 and 3 in one operand"),
    ("ij->ii", ((2, 3),), ""),
    ("ij->k", ((2, 3),), ""),
    ("i1->i", ((2, 3),), ""),
    ("...i...->i", ((2, 3),), ""),
    ("i.j->i", ((2, 3),), "of operands of ranks (2,)"),
    ("ij->i->j", ((2, 3),), ""),
]


@pytest.mark.parametrize(("equation", "shapes", "why"), REFUSED, ids=lambda c: str(c)[:20])
def test_an_equation_that_is_not_legal_is_refused(
    equation: str, shapes: tuple[tuple[int, ...], ...], why: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        _computed(equation, [np.ones(shape) for shape in shapes], None)
    message = " ".join(f"the einsum `{equation}` {why} cannot be imported".split())
    assert str(caught.value) == message


def test_a_diagonal_does_not_read_what_is_beside_it() -> None:
    x = np.where(np.eye(3) == 1, [1.0, 2.0, 3.0], np.nan)
    assert _computed("ii->i", [x], None)[0].tolist() == [1, 2, 3]

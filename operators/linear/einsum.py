"""Sums of products in Einstein's notation: the equation is the rule."""

from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.operators.broadcasting import unbroadcast
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.products import Product
from shardwright.operators.rule import Rule, ShardView


def parse_equation(equation: str) -> tuple[tuple[str, ...], str]:
    """Return the terms of the operands, and the term of the result.

    Without ``->`` the result has the letters that occur once, in alphabetical order.

    Raises
    ------
    IRError
        If a term is not letters, each once, behind an optional ``...``; or if the result has a
        letter that no operand has.

    Examples
    --------
    >>> parse_equation("bij, bjk -> bik")
    (('bij', 'bjk'), 'bik')
    >>> parse_equation("ij,jk")
    (('ij', 'jk'), 'ik')
    """
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = tuple(left.split(","))
    letters = "".join(terms).replace(".", "")
    if not arrow:
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        result = "..." * ("..." in left) + "".join(once)
    for term in (*terms, result):
        names = term.removeprefix("...")
        if not ((names.isascii() and names.isalpha()) or not names):
            raise IRError(
                f"`{term}` of the equation `{equation}` is not a term",
                hint="write one letter for each dimension, and `...` only before them",
            )
        if len(set(names)) != len(names):
            raise IRError(f"`{term}` of the equation `{equation}` has a letter twice")
    if missing := set(result.replace(".", "")) - set(letters):
        raise IRError(f"no operand of the equation `{equation}` has `{min(missing)}`")
    return terms, result


@register
class Einsum(Product):
    """The sum of products that ``equation`` describes: ``bij,bjk->bik``.

    Letters that the result lacks are summed over. ``...`` denotes leading dimensions, which are
    broadcast and kept.
    """

    name = "einsum"
    result_dtype = "common"
    defaults: ClassVar = {"equation": "", **Product.defaults}
    examples = (
        Example(("f64[4, 6]", "f64[6, 2]"), {"equation": "ij,jk->ik"}),
        Example(("f64[2, 3, 4]", "f64[3, 6, 2]"), {"equation": "bij, ikb -> kj"}),
        Example(("f64[2, 4, 6]", "f64[6, 2]", "f64[2]"), {"equation": "...ij,jk,k->...ik"}),
        Example(("f64[4, 6]",), {"equation": "ij->j"}),
        Example(("f64[4, 6]", "f64[2, 6]"), {"equation": "ij,kj->i"}),
        Example(("f64[1, 4, 2]", "f64[6, 2, 4]"), {"equation": "...ij,...ji->...i"}),
    )

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """Each operand alone."""
        return tuple((i,) for i in range(len(self.operand_types)))

    def make_rule(self) -> Rule:
        """Contract the letters that the result lacks."""
        self.terms, self.result = parse_equation(self.attributes["equation"])
        if any("..." in term for term in self.terms) and "..." not in self.result:
            raise IRError("the dimensions of `...` cannot be summed over", hint="give them letters")
        operands = ", ".join(map(self._words, self.terms))
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(f"{operands} -> {self._words(self.result)}", shapes)

    def _words(self, term: str) -> str:
        names = term.removeprefix("...")
        kept = [name + "+" * (name not in self.result) for name in names]
        return " ".join(["..."] * (names != term) + kept)

    @property
    def flops(self) -> float:
        """Count a product for each further operand, and a sum, at every point."""
        return float(self.rule.points * len(self.operand_types))

    @property
    def product_flops(self) -> float:
        """Count all operations, where operands are multiplied and contracted."""
        contracts = "sum" in self.rule.kinds.values() and len(self.operand_types) > 1
        return self.flops if contracts else 0.0

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compute with numpy, in its order of products."""
        equation = f"{','.join(self.terms)}->{self.result}"
        result = np.einsum(equation, *map(self.factor, operands), optimize=len(operands) > 1)
        return np.asarray(result, operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Emit for each operand the sum of products of the cotangent and the others."""
        return [self._operand_gradient(build, at, i) for i in range(len(at.operands))]

    def _operand_gradient(self, build: Emitter, at: Linearization, position: int) -> Value:
        operand, term = at.operands[position], self.terms[position]
        others = [i for i in range(len(self.terms)) if i != position]
        terms = [self.result, *(self.terms[i] for i in others)]
        known = set("".join(terms))
        dots = "..." if any("..." in t for t in terms) else ""
        letters = term.removeprefix("...")
        found = dots + "".join(letter for letter in letters if letter in known)
        equation = f"{','.join(terms)}->{found}"
        factors = (at.cotangents[0], *(at.operands[i] for i in others))
        gradient = build.emit("einsum", *factors, equation=equation)
        summed = tuple(i for i, letter in enumerate(letters) if letter not in known)
        if summed and dots:
            raise IRError(
                f"`{letters[summed[0]]}` of the equation `{self.attributes['equation']}` is summed "
                "over in one operand alone",
                hint="sum it first, or write letters for `...`",
            )
        if summed:
            shape = operand.type.shape
            gradient = build.emit("spread", gradient, like=operand, shape=shape, axis=summed)
        return unbroadcast(build, gradient, operand)

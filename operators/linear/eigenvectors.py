"""Eigenvalues and vectors of matrices that need not be symmetric, over the last two dimensions.

Complex numbers are pairs of real ones in a last dimension of two.
"""

import numpy as np

from shardwright.ir.graph import Value
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.linear.decompositions import SquareDecomposition, distances
from shardwright.operators.linear.square import turned, working
from shardwright.operators.rule import ShardView

Pair = tuple[Value, Value]  # matrices of real and of imaginary parts


@register
class Eigenvectors(SquareDecomposition):
    """The eigenvalues of matrices in LAPACK's order, and their vectors of length one as columns.

    The largest element of a complex vector is real; a loss that depends on this choice has the
    gradient of one that does not. The results are pairs of real and imaginary parts.
    """

    name = "eig"
    results_notation = "... n^ p^, ... m^ n^ p^"
    products = 25.0
    # Vectors of random matrices change their phases: central differences are of these, too.
    examples = (Example(("f64[1, 1]",)), Example(("f64[3, 1, 1]",)))

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Decompose."""
        (a,) = working(*operands)
        found = np.linalg.eig(a)
        dtype = operands[0].dtype
        return tuple(np.stack([z.real, z.imag], axis=-1).astype(dtype) for z in found)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Divide what turns vectors by the distances of their values.

        References
        ----------
        Boeddeker et al., "On the computation of complex-valued gradients", 2017.
        """
        (w, v), emit = at.results, build.emit
        values, vectors = _parts(build, w), _parts(build, v)
        of_values, of_vectors = (_parts(build, g) for g in at.cotangents)
        adjoint = turned(build, vectors[0]), emit("neg", turned(build, vectors[1]))
        along = _product(build, "matmul", adjoint, of_vectors)
        n = w.type.shape[-2]
        one = emit("fill", shape=(n, n), dtype=w.type.dtype, value=1.0)
        is_diagonal = emit("greater", emit("tril", emit("triu", one)), emit("zeros_like", one))
        none = emit("zeros_like", along[0])
        size = emit("reduce_sum", emit("where", is_diagonal, along[0], none), axis=(-1,))
        size = emit("expand_dims", size, axis=-2)  # what changes the lengths of vectors
        sized = emit("mul", vectors[0], size), emit("mul", vectors[1], size)
        kept = _product(build, "matmul", adjoint, sized)
        along = emit("sub", along[0], kept[0]), emit("sub", along[1], kept[1])
        apart = distances(build, values[0]), distances(build, values[1])
        squares = emit("add", *(emit("square", x) for x in apart))
        squares = emit("where", is_diagonal, emit("ones_like", squares), squares)
        # A quotient by the conjugate of the distances is a product with these.
        quotient = _product(build, "mul", along, apart)
        inner = [
            emit("where", is_diagonal, emit("expand_dims", g, axis=-2), emit("div", x, squares))
            for g, x in zip(of_values, quotient, strict=True)
        ]
        right = _product(build, "matmul", (inner[0], inner[1]), adjoint)
        whole = emit(
            "concat",
            emit("concat", adjoint[0], emit("neg", adjoint[1]), axis=-1),
            emit("concat", adjoint[1], adjoint[0], axis=-1),
            axis=-2,
        )
        found = emit("solve", whole, emit("concat", *right, axis=-2))
        shape = at.operands[0].type.shape
        return [emit("slice", found, begin=(0,) * len(shape), size=shape)]


def _parts(build: Emitter, x: Value) -> Pair:
    """Emit the real and the imaginary part of pairs."""
    *shape, _ = x.type.shape
    begin = [0] * len(shape)
    real, imaginary = (
        build.emit(
            "reshape",
            build.emit("slice", x, begin=(*begin, at), size=(*shape, 1)),
            shape=tuple(shape),
        )
        for at in (0, 1)
    )
    return real, imaginary


def _product(build: Emitter, operator: str, x: Pair, y: Pair) -> Pair:
    """Emit a product of complex numbers, by the operator that multiplies real ones."""
    (a, b), (c, d), emit = x, y, build.emit
    real = emit("sub", emit(operator, a, c), emit(operator, b, d))
    return real, emit("add", emit(operator, a, d), emit(operator, b, c))

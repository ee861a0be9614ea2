"""The functions that run operators in JAX: on every device they give what the kernels give."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX")

sys.path.insert(0, str(Path(__file__).parents[1]))

from on_ranks import MESH, cases, difference, operators_of, without_signs  # noqa: E402

from shardwright.exports.emission.vocabulary import MODULES  # noqa: E402
from shardwright.exports.jax.jax_program import VOCABULARY  # noqa: E402
from shardwright.ir.mesh import Mesh  # noqa: E402
from shardwright.ir.text import parse_type  # noqa: E402
from shardwright.operators.info import operator_info  # noqa: E402

MOST = 3  # strategies of an example: JAX compiles each function for each shape


@pytest.fixture(scope="module", autouse=True)
def wide_types():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def functions(wide_types):
    return {name: import_module(f"shardwright.exports.jax.support.{name}") for name in MODULES}


class Place:
    """A device of the mesh, whose place is known when the program runs."""

    def __init__(self, rank):
        self.places = {"x": rank // 2, "y": rank % 2}

    def start(self, size, *axes):
        place = 0
        for axis in axes:
            place = place * MESH.sizes[axis] + self.places[axis]
        return place * (size // MESH.extent(axes))


@pytest.mark.parametrize("name", operators_of(VOCABULARY))
def test_an_operator_gives_what_its_kernel_gives_on_every_device(name, functions):
    traced = set()
    for text, rank, parts, right in cases(name, VOCABULARY, MOST):

        def run(rank, *parts, text=text):
            names = {f"i{n}": part for n, part in enumerate(parts)}
            found = eval(text, {**functions, "mesh": Place(rank), **names})
            return found if isinstance(found, tuple | list) else (found,)

        arrays = [jax.numpy.asarray(part) for part in parts]
        if text not in traced:  # the place is not known when JAX traces
            jax.eval_shape(run, rank, *arrays)
            traced.add(text)
        found = without_signs(name, run(rank, *arrays))
        for ours, theirs in zip(found, without_signs(name, right), strict=True):
            assert difference(ours, theirs) < 1e-12, text


@pytest.mark.parametrize("inside", [False, True])
def test_the_gradient_of_a_clip_is_that_of_the_kernel_at_its_bounds(inside, functions):
    x, dy = np.array([-1.0, -0.5, 0.0, 1.0, 2.0]), np.arange(1.0, 6.0)
    attributes = {"low": -0.5, "high": 1.0, "inside": inside}
    kind = parse_type("f64[5]")[0]
    info = operator_info("clip_gradient", [kind, kind], attributes)
    right = info.kernel(info.rule.view(info.generate_strategies(Mesh(()))[0], Mesh(()), 0), dy, x)
    assert difference(functions["pointwise"].clip_gradient(dy, x, **attributes), right) == 0


@pytest.mark.parametrize("rate", ["0.1 if step < 3 else 0.1 / (step - 2)", (0.1, 0.2, 0.3)])
def test_learning_rates_follow_the_step(rate, functions):
    function = jax.jit(lambda step: functions["updates"].learning_rate(step, rate=rate))
    expected = [0.1, 0.2, 0.3, 0.3, 0.3] if isinstance(rate, tuple) else [0.1] * 4 + [0.05]
    assert [float(function(step)) for step in range(5)] == expected


def test_eigenvectors_of_matrices_that_are_not_symmetric(functions):
    a = np.random.default_rng(0).normal(size=(2, 5, 5))
    values, vectors = (
        x[..., 0] + 1j * x[..., 1] for x in map(np.array, functions["matrices"].eig(a))
    )
    assert np.abs(values.imag).max() > 0.1
    assert np.abs(a @ vectors - vectors * values[:, None]).max() < 1e-12
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-12

"""Muon: its operators against the formulas, and the parameters that it updates."""

import numpy as np
import pytest

from shardwright.ir.errors import IRError, OptionError
from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel
from shardwright.operators.models.muon import adjustment_ratio
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.optimizer_text import optimizer_of

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def run(operator: str, *operands: Array, **attributes: object) -> tuple[Array, ...]:
    types = [TensorType(str(x.dtype), x.shape) for x in operands]
    return whole_kernel(operator_info(operator, types, attributes), *operands)  # type: ignore[arg-type]


def polynomial_of_singular_values(x: Array, iterations: int) -> Array:
    """Iterate on the singular values themselves: Newton and Schulz change nothing else."""
    left, values, right = np.linalg.svd(x / np.linalg.norm(x), full_matrices=False)
    for _ in range(iterations):
        a, b, c = COEFFICIENTS
        values = a * values + b * values**3 + c * values**5
    return left * values @ right


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5), (1, 7)])
@pytest.mark.parametrize("iterations", [1, 5])
def test_an_iteration_is_a_polynomial_of_the_singular_values(shape, iterations):
    x = np.random.default_rng(0).normal(size=shape)
    (found,) = run("orthogonalize", x, iterations=iterations)
    np.testing.assert_allclose(found, polynomial_of_singular_values(x, iterations), rtol=1e-9)


def test_the_matrices_of_a_stack_are_orthogonalized_each_by_itself():
    x = np.random.default_rng(1).normal(size=(3, 4, 2))
    (found,) = run("orthogonalize", x)
    for one, matrix in zip(found, x, strict=True):
        np.testing.assert_allclose(one, polynomial_of_singular_values(matrix, 5), rtol=1e-9)


def test_a_matrix_of_zeros_stays_one():
    (found,) = run("orthogonalize", np.zeros((3, 4)))
    assert not found.any()


def test_singular_values_come_near_one():
    x = np.random.default_rng(2).normal(size=(32, 64))
    (found,) = run("orthogonalize", x)
    values = np.linalg.svd(found, compute_uv=False)
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_the_direction_and_the_update():
    random = np.random.default_rng(3)
    p, g, m, o = random.normal(size=(4, 3, 2))
    mean = 0.9 * m + 0.1 * g
    (plain,) = run("muon_direction", g, m, momentum=0.9, nesterov=False, dtype="float64")
    (ahead,) = run("muon_direction", g, m, momentum=0.9, dtype="float64")
    np.testing.assert_allclose(plain, mean, rtol=1e-14)
    np.testing.assert_allclose(ahead, 0.9 * mean + 0.1 * g, rtol=1e-14)
    settings = {"learning_rate": 0.1, "weight_decay": 0.5, "momentum": 0.9, "ratio": 2.0}
    after, state = run("muon_update", p, g, m, o, **settings)
    np.testing.assert_allclose(after, (1 - 0.05) * p - 0.2 * o, rtol=1e-14)
    np.testing.assert_allclose(state, mean, rtol=1e-14)


def test_the_ratios_of_pytorch():
    assert adjustment_ratio("original", (9, 1)) == 3
    assert adjustment_ratio("match_rms_adamw", (4, 25)) == 1
    assert adjustment_ratio("spectral_unclamped", (1, 4)) == 0.5
    assert adjustment_ratio("none", (1, 4)) == 1


def test_a_vector_has_no_matrices():
    with pytest.raises(IRError) as caught:
        operator_info("orthogonalize", [TensorType("float32", (4,))], {})
    assert str(caught.value) == "orthogonalize: a tensor of 1 dimensions has no matrices"


WRONG = [
    ("adamm", "`optimizer` is `adamm`, expected sgd, momentum, adam, adam8bit, muon, ftrl"),
    ("muon:beta1=0.9", "`muon` has no setting `beta1`"),
    ("muon:adamw_momentum=0.9", "`adam` has no setting `momentum`"),
    ("muon:iterations=0", "`iterations` is 0, expected an integer of at least 1"),
    ("muon:adjustment=cubic", "`adjustment` is `cubic`, expected original, match_rms_adamw"),
    ("adamw:weight_decay=-1", "`weight_decay` is -1, expected a number of at least 0"),
    ("adamw:weight_decay", "the optimizer `adamw:weight_decay` has the item `weight_decay`"),
    ("adamw:beta1=0.9,beta1=0.8", "gives `beta1` twice; give it once"),
    ("adam8bit:block=4", "`adam8bit` has no setting `block`"),
    ("sgd:w/optimizer=adam", "`optimizer` of a parameter is the text `adam`, expected `sgd`"),
    ("gradient", "`optimizer` is `gradient`, expected sgd, momentum"),  # it would train nothing
    ("sgd:w/optimizer=gradient", "`optimizer` is `gradient`, expected sgd, momentum"),
]


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_what_is_no_optimizer_is_refused(text, expected):
    with pytest.raises(OptionError) as caught:
        optimizer_of(text)
    assert expected in str(caught.value)


def test_settings_of_the_parameters_that_adamw_updates():
    own = {"learning_rate": 0.02, "momentum": 0.9, "adamw_beta1": 0.8}
    muon = Optimizer("muon", own, {"b": {"optimizer": "adam", "weight_decay": 0.0}})
    assert muon.settings_of("w") == {"learning_rate": 0.02, "momentum": 0.9}
    assert muon.settings_of("b") == {"learning_rate": 0.02, "weight_decay": 0.0, "beta1": 0.8}
    assert (muon.states_of("w"), muon.states_of("b")) == (("momentum",), ("m", "v"))

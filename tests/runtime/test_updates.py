"""Updates in place: the same values as without, and no second copy of a parameter."""

import numpy as np
import pytest

import shardwright
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.graph import Graph, Value
from shardwright.ir.text import parse
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import operator_class, operator_info
from shardwright.operators.models.optimizer import STATES
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.runtime.updates import overwrites, overwriting, replaced_operands
from tests.extent import ANY_PLAN, crossed, first, long_after

KINDS = [kind for kind in STATES if kind != "gradient"]  # which updates nothing
MODEL = "mlp:batch=8,inputs=16,hidden=64,classes=4,layers=3"
OPTIONS = ({"search": "data_parallel"}, {"optimizer_parallel": True, **ANY_PLAN})


def compiled(**options):
    return shardwright.compile(MODEL, 4, **options)


def trained(plan, in_place, fetch=()):
    communicator = LocalCommunicator(plan.mesh)
    executor = Executor(plan.program, communicator, in_place=in_place)
    state = initialize(plan.program, 0, communicator)
    rng = np.random.default_rng(0)
    batch = {
        value.name: rng.integers(0, 4, value.type.shape).astype(value.type.dtype)
        for value in plan.program.inputs
    }
    results = [executor.step(batch, state, fetch) for _ in range(3)]
    return results, state


@pytest.mark.parametrize(
    ("options", "optimizer"),
    long_after(
        6,
        first(
            len(KINDS),
            crossed([{"search": "data_parallel"}, {"optimizer_parallel": True, **ANY_PLAN}], KINDS),
        ),
    ),
)
def test_values_are_those_without(optimizer, options):
    plan = compiled(optimizer=optimizer, **options).plan
    (_, expected), (_, found) = trained(plan, False), trained(plan, True)
    assert expected.keys() == found.keys()
    for name, parts in expected.items():
        for rank, part in parts.items():
            np.testing.assert_array_equal(found[name][rank], part, name)


def test_the_peak_is_the_predicted_one():
    compilation = compiled(optimizer="adam", **ANY_PLAN)
    results, _ = trained(compilation.plan, True)
    predicted = peak_memory(compilation.plan.program).peak_bytes
    assert [result.peak_bytes for result in results] == [predicted] * 3
    assert trained(compilation.plan, False)[0][0].peak_bytes > predicted


def test_a_fetched_parameter_keeps_its_value():
    plan = compiled(optimizer="adam", **ANY_PLAN).plan
    name = plan.program.parameters[0].name
    (first, *_), _ = trained(plan, True, (name,))
    begin = initialize(plan.program, 0, LocalCommunicator(plan.mesh))[name]
    np.testing.assert_array_equal(first.fetched[name][0], begin[0])


def test_a_parameter_that_is_read_through_a_view_later_is_not_overwritten():
    def updated(*, late):
        build = Builder()
        w = build.parameter(Value("w", TensorType("float32", (2, 2))), {}, "weight")
        view = build.emit("reshape", w, shape=(4,))
        if not late:
            read = build.emit("relu", view)
        new = build.emit("sgd_update", w, build.emit("scale", w, factor=0.5))
        if late:
            read = build.emit("relu", view)
        build.updates.append((w.name, new.name))
        return build.graph("program", (read.name,))

    def names(graph: Graph):
        return list(replaced_operands(graph))

    assert len(names(updated(late=False))) == 1
    assert names(updated(late=True)) == []


SCALAR = """graph scalar {
  parameter w: f64[]
  g: f64[] = mul(w, w)
  next: f64[] = sgd_update(w, g) {learning_rate=0.5}
  update w = next
  return g
}"""


def test_a_scalar_parameter_is_updated():
    communicator, found = LocalCommunicator(), []
    for in_place in (False, True):
        state = {"w": {0: np.float64(2.0)}}
        Executor(parse(SCALAR), communicator, in_place=in_place).step({}, state)
        found.append(float(state["w"][0]))
    assert found == [0.0, 0.0]


RULES = (
    ("sgd", {}),
    ("sgd", {"weight_decay": 0.1}),
    ("momentum", {}),
    ("momentum", {"nesterov": True, "weight_decay": 0.1}),
    ("adam", {"lazy": True}),
    ("adam", {"weight_decay": 0.1, "l2": 0.1, "bias_correction": "rate"}),
    ("adam", {"bias_correction": "none"}),
    ("ftrl", {}),
    ("adagrad", {}),
    ("rmsprop", {}),
    ("adam", {"nesterov": True}),
    ("amsgrad", {"l2": 0.1, "bias_correction": "rate"}),
    ("dampened", {"dampening": 0.3}),
    ("centered", {"initial_square": 1.0}),
)
# The type, whether the rate is read, and whether the gradient may be spent.
USES = (
    ("float32", False, False),
    ("float64", True, True),
    ("float64", False, True),
    ("float32", True, False),
    ("float32", False, True),
    ("float64", True, False),
    ("float32", True, True),
    ("float64", False, False),
)


@pytest.mark.parametrize(("use", "rule"), first(2 * len(RULES), crossed(USES, RULES)))
def test_what_is_overwritten_has_the_bits_of_the_kernel(use, rule, monkeypatch):
    monkeypatch.setattr("shardwright.runtime.updates._CHUNK_BYTES", 2**13)
    (dtype, reads_rate, spends), (kind, settings) = use, rule
    random = np.random.default_rng(3)
    update = operator_class(f"{kind}_update")
    shape = (7, 901)  # in several chunks, the last of which is shorter
    types = [TensorType(dtype, shape)] * (2 + update.states)
    types += [TensorType("int64", ())] * update.counts_steps
    types += [TensorType("float64", ())] * reads_rate
    info = operator_info(f"{kind}_update", types, settings)
    tensors = [np.abs(random.normal(size=shape)).astype(dtype) for _ in range(2 + update.states)]
    tensors[0][0] *= -1
    tensors[1][:2] *= random.integers(-1, 2, (2, 901))
    scalars = [np.array(3)] * update.counts_steps + [np.array(0.05)] * reads_rate
    replaced = (0, *range(2, 2 + update.states))
    assert overwrites(info, replaced)
    expected = info.kernel(info.rule.view(), *tensors, *scalars)
    arrays = [array.copy() for array in tensors] + scalars
    before = [id(array) for array in arrays]
    overwriting(info, replaced)(arrays, spends_gradient=spends)
    assert [id(array) for array in arrays] == before
    for i, new in zip(replaced, expected, strict=True):
        assert np.ascontiguousarray(new).tobytes() == arrays[i].tobytes()
    if not spends:
        np.testing.assert_array_equal(arrays[1], tensors[1])


def test_states_that_share_an_array_get_one_each():
    info = operator_info("momentum_update", [TensorType("float32", (3,))] * 3, {})
    zeros = np.zeros(3, np.float32)
    arrays = [zeros, np.ones(3, np.float32), zeros]
    overwriting(info, (0, 2))(arrays)
    np.testing.assert_array_equal(arrays[0], np.full(3, -0.01, np.float32))
    np.testing.assert_array_equal(arrays[2], np.ones(3))


def test_a_gradient_that_is_a_state_keeps_its_values_until_they_are_read():
    info = operator_info("momentum_update", [TensorType("float32", (3,))] * 3, {})
    ones = np.ones(3, np.float32)
    arrays = [np.zeros(3, np.float32), ones, ones]
    overwriting(info, (0, 2))(arrays)
    np.testing.assert_array_equal(arrays[2], np.full(3, np.float32(0.9) + np.float32(1)))


def test_what_may_be_skipped_or_has_16_bits_is_not_overwritten():
    half, single = TensorType("float16", (3,)), TensorType("float32", (3,))
    scale, count = TensorType("float64", ()), TensorType("int64", ())
    for types in ([half, half, single], [half] * 3, [single] * 3 + [scale, count]):
        assert not overwrites(operator_info("momentum_update", types, {}), (0, 2))
    assert not overwrites(operator_info("momentum_update", [single] * 3, {}), (2, 0))

"""What the search counts as memory is held by the emitted program, and is nearly all of it."""

import numpy as np
import pytest

from shardwright import zoo
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.errors import InfeasibleError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.differentiate import Differentiate
from shardwright.planner.options import CompileOptions
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.memory import MemoryAccount
from shardwright.solver.evaluate import evaluate
from tests.extent import first
from tests.random_graphs import multilayer_perceptron, random_graph
from tests.random_plans import profile_for, random_plan
from tests.zoo_sizes import SMALL

CPU = cluster("cpu")


def recurrent(steps: int, width: int = 64) -> Graph:
    """Return steps that all read one weight, on few rows."""
    build = Builder()
    state = build.input(Value("x", TensorType("float64", (8, width))))
    weight = build.parameter(Value("w", TensorType("float64", (width, width))))
    for _ in range(steps):
        state = build.emit("tanh", build.emit("matmul", state, weight))
    return build.graph("recurrent", (build.emit("reduce_sum", state).name,))


def squared() -> Graph:
    """Return a product of a weight with itself."""
    build = Builder()
    weight = build.parameter(Value("w", TensorType("float64", (16, 16))))
    product = build.emit("matmul", weight, weight)
    return build.graph("squared", (build.emit("reduce_sum", product).name,))


def compiled(graph: Graph, limit: float | None = None, kind: str = "sgd", **others) -> Compiled:
    optimizer = Optimizer(kind)  # type: ignore[arg-type]
    options = CompileOptions(objective="serial", memory_limit=limit, optimizer=optimizer, **others)
    return compile_graph(graph, CPU, 8, options)


def counted(found: Compiled) -> float:
    assert found.result is not None
    return found.result.memory_bytes


MODELS = {
    "wide": lambda: multilayer_perceptron(batch=16, width=256),
    "long": lambda: multilayer_perceptron(batch=4096, width=32, layers=12),
    "recurrent": lambda: recurrent(6),
    "bert": lambda: zoo.load("bert:layers=1,hidden=64,heads=4,batch=8,sequence=32").graph,
    "gpt": lambda: zoo.load("gpt:layers=2,hidden=64,heads=4,batch=8,sequence=32").graph,
}


# The sum of a weight's gradients over many steps is not counted while it is made.
COUNTED = {"wide": 0.95, "long": 0.95, "recurrent": 0.65, "gpt": 0.99, "bert": 0.95}


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for kind in ("adam", "sgd") for name in first(2, [*MODELS])],
)
def test_the_search_counts_what_the_program_holds(name: str, kind: str) -> None:
    graph = MODELS[name]()
    free = compiled(graph, kind=kind)
    assert COUNTED[name] * free.memory.peak_bytes <= counted(free) <= free.memory.peak_bytes
    for share in (0.93, 0.85):
        limit = share * free.memory.peak_bytes
        try:
            tight = compiled(graph, limit, kind)
        except InfeasibleError:
            continue
        assert tight.memory.peak_bytes <= limit
        assert COUNTED[name] * tight.memory.peak_bytes <= counted(tight) <= limit


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("seed", first(8, range(40)))
def test_no_program_holds_less_than_the_search_counts(seed: int, kind: str) -> None:
    """Else a bound within a memory limit, and a proof that nothing fits, would be false."""
    profile, random, optimizer = profile_for(8), np.random.default_rng(seed), Optimizer(kind)  # type: ignore[arg-type]
    graph = Canonicalize().run(random_graph(seed, nodes=3 + seed % 10))
    space = build_search_space(graph, profile, optimizer=optimizer)
    for _ in range(5):
        program, assignment = random_plan(space, profile, random, optimizer)
        held = peak_memory(program).peak_bytes
        assert evaluate(space.problem, assignment).peak_usage <= held


@pytest.mark.long
@pytest.mark.parametrize("model", first(4, [*SMALL]))
def test_no_program_of_the_zoo_holds_less_than_the_search_counts(model: str) -> None:
    profile, random, optimizer = profile_for(4), np.random.default_rng(0), Optimizer("adam")
    graph = Canonicalize().run(zoo.load(SMALL[model]).graph)
    space = build_search_space(graph, profile, optimizer=optimizer)
    program, assignment = random_plan(space, profile, random, optimizer)
    held = peak_memory(program).peak_bytes
    assert 0.5 * held <= evaluate(space.problem, assignment).peak_usage <= held


def test_an_operator_may_read_a_weight_twice() -> None:
    found = compiled(squared())
    assert 0.5 * found.memory.peak_bytes <= counted(found) <= 1.5 * found.memory.peak_bytes


def test_what_just_fits_is_not_refused() -> None:
    """The gradients of all layers are never there together with all that the gradient keeps."""
    graph = multilayer_perceptron(batch=256, width=256, layers=6)
    free = compiled(graph, kind="adam")
    again = compiled(graph, free.memory.peak_bytes, "adam")
    assert again.result is not None
    assert free.result is not None
    assert again.result.cost == free.result.cost


@pytest.mark.parametrize("name", first(2, [*MODELS]))
def test_what_the_leanest_program_takes_is_enough_and_less_than_the_bound_is_not(name: str) -> None:
    graph = MODELS[name]()
    with pytest.raises(InfeasibleError) as caught:
        compiled(graph, 1.0)
    found, bound = caught.value.least_memory_bytes, caught.value.least_memory_bound
    assert found is not None
    assert bound is not None
    assert 0.3 * found <= bound <= found
    assert compiled(graph, found).memory.peak_bytes <= found
    with pytest.raises(InfeasibleError):
        compiled(graph, 0.999 * bound)


def test_gradients_that_are_reduced_together_fit_too() -> None:
    graph = multilayer_perceptron(batch=64, width=64, layers=8)
    alone, fused = (compiled(graph, fusion=size).memory.peak_bytes for size in (0.0, 64.0))
    assert fused > alone
    limit = (alone + fused) / 2
    assert compiled(graph, limit, fusion=64.0).memory.peak_bytes <= limit


def test_gradients_of_a_weight_that_many_steps_read_do_not_wait_for_each_other() -> None:
    weight = 64 * 64 * 8
    program = Differentiate().run(recurrent(steps=16))
    # The weight, the sum so far, what is added, and the sum after it; and small tensors.
    assert 4 * weight <= peak_memory(program).peak_bytes < 8 * weight


def test_gradients_begin_at_few_moments_and_never_too_early() -> None:
    account = MemoryAccount(100)
    sizes = np.random.default_rng(0).integers(1, 100, 100)
    for i, size in enumerate(sizes):
        account.hold_gradient(i, np.array([float(size)]), account.backward(i), account.end)
    begins = [uses[0].start for uses in account.uses(100)]
    assert all(begin >= account.backward(i) for i, begin in enumerate(begins))
    assert len(set(begins)) <= 32
    for moment in range(account.end):
        late = [account.backward(i) <= moment < begin for i, begin in enumerate(begins)]
        assert sizes[late].sum() <= sizes.sum() / 16


def test_transient_memory_is_counted_where_most_is_held() -> None:
    account = MemoryAccount(40)
    for i in range(40):
        account.hold_transient(i, np.array([1.0]), account.backward(i), account.backward(i) + 1)
    account.hold(40, np.array([1000.0]), 0, account.backward(30))  # freed before the others
    account.hold(41, np.array([10.0]), account.backward(20), account.backward(10))
    counted_at = [i for i, uses in enumerate(account.uses(42)[:40]) if uses]
    assert counted_at == [*range(14, 21), *range(31, 40)]

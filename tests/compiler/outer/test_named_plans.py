"""The named plan that is built where no other was found: it fits, and is one of what is asked."""

from itertools import product

import pytest

from shardwright.api import compile
from shardwright.compiler.evaluation.evaluated import least_memory
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.outer.named_plans import NamedPlans
from shardwright.cost_model.cluster import cluster
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.choice.configuration import Configuration
from shardwright.planner.options import CompileOptions
from tests.extent import first

CLUSTER = cluster("a100-pod:figures=datasheet").without_host()
WHERE = {"cluster": CLUSTER, "batch": 16, "optimizer": "adam", "precision": "bfloat16"}
MODEL = "gpt3-175b:layers=4,vocabulary=51200"


def mesh(*sizes: int) -> Mesh:
    """Return the mesh of some ranks of each level, from the outermost on."""
    levels = zip(sizes, (1, 0, 0), strict=False)
    return Mesh(tuple(MeshAxis(f"x{i}", size, level) for i, (size, level) in enumerate(levels)))


def named(
    configurations: list[Configuration], model: str = MODEL, batch: int = 16, **options: object
) -> NamedPlans:
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}), **options)
    graph = training_definition(model, batch, 1)[0].graph
    return NamedPlans(EvaluatedModel(graph, CLUSTER, asked), 16, configurations)


@pytest.mark.long
def test_it_fits_and_is_among_the_plans_of_a_configuration():
    forms = (1, 1, "1f1b"), (2, 1, "1f1b"), (2, 2, "interleaved")
    asked = [
        Configuration(mesh(2 // stages, 8), count, stages, chunks, order)
        for (stages, chunks, order), count in product(forms, (1, 2, 4, 8, 16))
    ]
    one, plan = named(asked).best()
    assert one in asked
    assert (plan.pipeline, plan.chunks, plan.passes(16, 16)) == (
        *(one.stages, one.chunks),
        one.micro_batches,
    )
    built = compile(MODEL, 16, plan=plan, **WHERE)
    usual = compile(MODEL, 16, plan="tensor=8,data=2,zero=1,recompute=selective", **WHERE)
    assert built.plan.document.objective <= usual.plan.document.objective


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*has statistics of the batch")
def test_of_a_mixture_it_is_no_slower_than_a_usual_one():
    model = "mixtral-8x7b:layers=2"
    _, plan = named([Configuration(mesh(2, 8))], model).best()
    step = compile(model, 16, plan=plan, **WHERE).plan.document.objective
    usual = compile(model, 16, plan="data=16,expert=4,zero=1,recompute=full", **WHERE)
    assert step <= usual.plan.document.objective


@pytest.mark.long
@pytest.mark.parametrize("count", first(2, [1, 12, 3]))
def test_every_number_of_micro_batches_has_one_on_any_mesh(count):
    one = Configuration(mesh(2, 2, 4), count)
    model = "gpt3-175b:layers=2,vocabulary=512"
    found = named([one], model, 24, memory_limit=20 * 2**30).best()
    assert found[0] == one
    assert found[1].passes(24, 16) == count


@pytest.mark.long
def test_where_none_of_the_first_fits_it_is_the_one_of_least_memory():
    asked = [Configuration(mesh(2, 8), 1), Configuration(mesh(1, 8), 16, 2, 1, "1f1b")]
    model = "gpt3-175b:layers=2,vocabulary=512"
    every = named(asked, model)
    least = least_memory(every.model, every._bounds)
    within = named(asked, model, memory_limit=1.001 * least.evaluation.fitted_bytes)
    found = within.best()
    assert within.model.evaluation(found[1], 16).is_within_limit
    assert named(asked, model, memory_limit=0.9 * least.evaluation.fitted_bytes).best() is None


def test_a_configuration_that_no_named_plan_is_of_has_none():
    assert named([Configuration(mesh(2, 8), 5)]).best() is None
    assert named([Configuration(mesh(1, 8), 1, 2, 3, "interleaved")]).best() is None


@pytest.mark.long
@pytest.mark.parametrize("workers", first(1, [2, 1]))
@pytest.mark.parametrize("limit", [{"effort": 1e-3}, {"time_limit": 0.2}])
def test_where_a_named_plan_fits_no_limit_ends_the_search_without_a_plan(workers, limit):
    model, devices = "gpt3-175b:layers=2,vocabulary=512", 8
    searched = {"mesh": "search", "micro_batches": "search", **limit}
    found = compile(model, devices, workers=workers, **{**WHERE, "batch": 24}, **searched)
    plan = "data=8,micro_batch=3,zero=3"  # not the fastest
    usual = compile(model, devices, plan=plan, **{**WHERE, "batch": 24})
    assert found.plan.document.objective <= usual.plan.document.objective * (1 + 1e-9)
    assert "the budget ended the search" in found.plan.document.how

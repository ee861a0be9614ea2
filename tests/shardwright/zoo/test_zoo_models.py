"""The models of the zoo: as large as published, and right on 8 ranks at a small size."""

import numpy as np
import pytest

from shardwright import zoo
from shardwright.api import compile, verify
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from tests.equivalence import assert_equal, trained
from tests.extent import ANY_PLAN, first
from tests.random_plans import profile_for, random_program
from tests.zoo_sizes import SMALL

# Trained parameters, as the papers or the implementations that are in use publish them.
PUBLISHED = {
    "lenet5": 61_706,
    "resnet18": 11_689_512,  # torchvision
    "resnet:layers=34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet:layers=101": 44_549_160,
    "resnet:layers=152": 60_192_808,
    "resnet18-cifar": 11_173_962,
    "resnet50-cifar": 23_520_842,
    "resnet50-32k": 23_508_032 + 32_768 * 2049,  # all but the head of torchvision's, and the head
    "vgg16": 138_357_544,  # torchvision
    "vit-b16": 86_567_656,  # torchvision
    "unet": 31_037_698,
    "bert-base": 109_514_298,  # with the head for masked tokens, without the pooler
    "bert-large": 335_174_458,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
}
# As rounded in the papers.
ROUNDED = {"gpt3-175b": 175e9, "dlrm": 540e6}


@pytest.mark.long
@pytest.mark.parametrize("model", PUBLISHED)
def test_full_sizes_have_the_published_parameters(model: str) -> None:
    assert zoo.load(model).parameter_count == PUBLISHED[model]


@pytest.mark.parametrize("model", ROUNDED)
def test_full_sizes_have_the_parameters_of_the_paper(model: str) -> None:
    assert zoo.load(model).parameter_count == pytest.approx(ROUNDED[model], rel=3e-3)


def test_every_model_is_verified() -> None:
    assert {zoo.PRESETS.get(name, (name,))[0] for name in SMALL} == set(zoo.MODELS)


# Data parallelism treats all operators alike: these models have all kinds of layers.
CASES = [(model, "auto_parallel") for model in first(4, [*SMALL][1:] + [*SMALL][:1])] + [
    (model, "data_parallel") for model in first(1, ["mlp", "mixtral", "gpt", "resnet18-cifar"])
]


@pytest.mark.long
@pytest.mark.parametrize(("model", "mode"), CASES)
def test_plans_compute_what_one_device_computes(model: str, mode: str) -> None:
    how = ANY_PLAN if mode == "auto_parallel" else {}
    mesh = "2x4" if model.startswith("resnet") else "2x2x2"  # its search takes longest
    plan = compile(SMALL[model], 8, cluster="cpu", mesh=mesh, mode=mode, **how)
    result = verify(plan, steps=1)
    assert result.equal, result.reason


@pytest.mark.long
@pytest.mark.parametrize("model", first(3, sorted(SMALL, key="resnet18-cifar".__eq__)))
def test_random_strategies_compute_what_one_device_computes(model: str) -> None:
    definition = zoo.load(SMALL[model])
    highs = {spec.name: spec.high or 2 for spec in definition.inputs}
    optimizer = Optimizer("momentum")
    alone = compile(definition, 1, cluster="cpu", mode="stand_alone", optimizer=optimizer)
    whole = trained(alone.plan.program, 1, highs, definition.initial)
    graph, random = Canonicalize().run(definition.graph), np.random.default_rng(len(model))
    program = random_program(graph, profile_for(8), random, optimizer)
    assert_equal(trained(program, 1, highs, definition.initial), whole)


@pytest.mark.long
def test_experts_are_a_factor_like_any_other() -> None:
    found = compile("mixtral:layers=1,sequence=1024,dtype=bfloat16", 8, batch=8)
    graph, strategies = found.compiled.source, found.plan.document.strategies
    experts = [
        strategies[node.name].split_counts
        for node in graph.nodes
        if node.operator == "grouped_matmul"
    ]
    assert experts == [((8, 1, 1, 1), (8, 1, 1))] * 3
    assert found.plan.document.communication["all_to_all"].count > 0

"""Plans on disk: what is written is read back, complete or not at all."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwright.api import compile
from shardwright.compiler.plans.accounting import operator_costs, traffic
from shardwright.compiler.plans.binding import bind_rank, rank_text, rank_texts
from shardwright.compiler.plans.document import PlanDocument
from shardwright.compiler.plans.files import read_plan, write_plan
from shardwright.compiler.plans.strategies_file import read_strategies
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import PassError
from shardwright.ir.text import parse, to_text
from shardwright.operators.models.optimizer import Optimizer
from tests.extent import crossed, first

ROOT = Path(__file__).parents[2]
GPT = "gpt:layers=2,hidden=16,heads=2,batch=8,sequence=4,vocabulary=32,dtype=float32"


@pytest.fixture(scope="module")
def compilation():
    return compile(GPT, 8, search="fully_sharded", optimizer=Optimizer("adam"), seed=3)


def test_a_plan_is_read_as_it_was_written(compilation, tmp_path):
    write_plan(tmp_path / "plan", compilation.plan)
    found = read_plan(tmp_path / "plan")
    assert found.model == compilation.plan.model
    assert found.program == compilation.plan.program
    assert replace(found, document=compilation.plan.document) == compilation.plan
    assert found.document.model_copy(update={"files": {}}) == compilation.plan.document
    assert found.document.cluster == cluster("h100-pod:figures=datasheet")
    assert found.document.optimizer.optimizer == Optimizer("adam")
    assert found.document.device_mesh == found.mesh
    assert found.reference == compilation.plan.reference


def test_the_document_says_how_good_the_plan_is(compilation):
    document = compilation.plan.document
    compiled = compilation.compiled
    assert document.predicted_step_seconds == compiled.step_seconds
    assert document.memory.peak_bytes == sum(document.memory.by_kind.values())
    assert (document.status, document.search, document.seed) == ("feasible", "fully_sharded", 3)
    assert document.parameters["embedding.embedding_table"].type == "f32[32, 16]"
    assert document.parameters["embedding.embedding_table"].slice_shape in ((4, 16), (32, 2))


def test_given_data_is_kept(compilation, tmp_path):
    given = {"position_table": np.arange(64.0).reshape(4, 16), "file": np.zeros(3)}
    write_plan(tmp_path / "plan", replace(compilation.plan, initial=given))
    found = read_plan(tmp_path / "plan").initial
    assert sorted(found) == ["file", "position_table"]
    assert all(np.array_equal(found[name], given[name]) for name in given)


@pytest.mark.long
def test_strategies_are_read_back_as_pins(compilation, tmp_path):
    write_plan(tmp_path / "plan", compilation.plan)
    pins = read_strategies(tmp_path / "plan" / "strategies.json")
    again = compile(GPT, 8, optimizer=Optimizer("adam"), strategies=pins)
    found = again.plan.document.strategies
    assert {name: item.split_counts for name, item in found.items()} == pins
    assert again.plan.document.objective <= compilation.plan.document.objective
    assert again.plan.document.pins == pins


def test_a_pin_has_a_price():
    model = "mlp:batch=4096"
    free = compile(model, 8, objective="serial").plan.document
    pinned = compile(
        model, 8, objective="serial", strategies={"matmul_0": ((1, 8), (1, 8))}
    ).plan.document
    assert pinned.strategies["matmul_0"].split_counts == ((1, 8), (1, 8))
    price = pinned.objective - free.objective
    assert pinned.pin_prices["matmul_0"] == pytest.approx(price)
    assert price > 0


@pytest.mark.long
def test_plans_are_equal_whatever_the_hash_seed(tmp_path):
    model = GPT.replace("layers=2", "layers=1")
    code = (
        "import sys, shardwright\n"
        f"shardwright.compile('{model}', 4, cluster='cpu', gap=0.3).write(sys.argv[1])\n"
        "shardwright.compile('mlp', 8, search='tensor_parallel').write(sys.argv[2])\n"
    )
    contents = []
    for seed in ("1", "2"):
        folders = [tmp_path / seed / name for name in ("gpt", "mlp")]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code, *map(str, folders)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        contents.append(
            [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
        )
    assert contents[0] == contents[1]
    assert len(contents[0][0]) == 8


# Listings of ranks


def test_a_listing_is_bound_to_its_rank(compilation):
    program = compilation.plan.program
    bound = bind_rank(program, 5)
    text = rank_text(program, 5)
    assert text.startswith("# rank 5 of 8 at x=1 y=0 z=1\n# tokens is [5:6, 0:4] of i32[8, 4]\n")
    assert parse(text) == bound
    assert to_text(bound) in text
    assert bound.values["tokens"].type.shape == (1, 4)
    gathers = [node for node in bound.nodes if node.operator == "all_gather"]
    assert {node.attributes["ranks"] for node in gathers} == {tuple(range(8))}


def test_listings_that_are_made_together_are_those_made_alone():
    program = compile("mlp:batch=16", 4, plan="tensor=2,data=2").plan.program
    alone = [rank_text(program, rank) for rank in range(4)]
    assert list(rank_texts(program, range(4))) == alone
    assert [parse(text) for text in alone] == [bind_rank(program, rank) for rank in range(4)]
    groups = {tuple(line for line in text.splitlines() if "ranks=" in line) for text in alone}
    assert len(groups) == 4


def test_groups_are_those_of_the_rank():
    program = compile("mlp:batch=16", 4, mesh="data=2,model=2", search="tensor_parallel")
    program = program.plan.program
    reduces = [node for node in bind_rank(program, 2).nodes if node.operator == "all_reduce"]
    axes = {node.attributes["axes"]: node.attributes["ranks"] for node in reduces}
    expected = {("data",): (0, 2), ("model",): (2, 3), ("data", "model"): (0, 1, 2, 3)}
    assert axes
    assert all(expected[key] == ranks for key, ranks in axes.items())


def test_there_is_no_rank_beyond_the_mesh(compilation):
    with pytest.raises(PassError) as caught:
        bind_rank(compilation.plan.program, 8)
    assert str(caught.value) == "there is no rank 8, the program has 8; ranks are 0 to 7"


# Accounts


MODELS = (GPT, GPT + ",dropout=0.1,tied=false", "mlp")
SEARCHES = ("exact", "tensor_parallel", "fully_sharded")


@pytest.mark.parametrize(("model", "search"), first(6, crossed(MODELS, SEARCHES)))
def test_every_node_has_an_owner_and_costs_add_up(model, search):
    compilation = compile(model, 8, search=search, mesh="2x4")
    costs = operator_costs(compilation.compiled, compilation.cluster)
    assert sum(cost.seconds for cost in costs) == pytest.approx(compilation.compiled.step_seconds)
    whole = traffic(compilation.plan.program)
    for kind, volume in whole.items():
        parts = [c.communication[kind] for c in costs if kind in c.communication]
        assert sum(part.count for part in parts) == volume.count
        assert sum(part.bytes for part in parts) == pytest.approx(volume.bytes)


def test_communication_belongs_to_the_operator_that_causes_it():
    compilation = compile("mlp:batch=16", 2, search="tensor_parallel")
    costs = operator_costs(compilation.compiled, compilation.cluster)
    causing = {c.node.name: dict(c.communication) for c in costs if c.communication}
    assert next(iter(causing)) == "add_1"  # which adds a bias to the product of parts
    volume = causing["add_1"]["all_reduce"]
    assert (volume.count, volume.bytes) == (1, 16 * 512 * 4)  # of two ranks each sends half, twice


def test_the_bytes_of_a_ring():
    compilation = compile("mlp:batch=16", 4, search="data_parallel")
    volume = traffic(compilation.plan.program)["all_reduce"]
    gradients = sum(p.value.type.nbytes for p in compilation.plan.model.parameters)
    assert volume.bytes == pytest.approx(2 * 3 / 4 * (gradients + 4), rel=1e-3)


def test_json_of_the_document_is_stable(compilation):
    text = compilation.plan.document.to_text()
    assert PlanDocument.from_text(text, "here") == compilation.plan.document
    assert list(json.loads(text)) == sorted(json.loads(text))

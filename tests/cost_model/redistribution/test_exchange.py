"""How often a token is sent for its choices of experts, and what that takes."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.collectives import collective_seconds_array, exchange_seconds_array
from shardwright.cost_model.efficiency.program_work import Repetition, program_work
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.redistribution.exchange import Choices
from shardwright.cost_model.timeline import simulate
from shardwright.ir.mesh import MeshAxis
from tests.cost_model.test_efficiency import program

PLACES = (MeshAxis("ranks", 8, 0), MeshAxis("nodes", 4, 1))
MIXTRAL = (
    "mixtral:layers=3,hidden=64,heads=4,kv_heads=2,inner=96,sequence=32,vocabulary=64,"
    "dtype=float32,experts=8"
)


@pytest.mark.parametrize(("experts", "chosen", "groups"), [(8, 3, 4), (12, 2, 3), (6, 5, 2)])
def test_choices_alike_are_in_as_many_groups_as_all_sets_of_them_in_the_mean(
    experts, chosen, groups
):
    each = experts // groups
    sets = [len({e // each for e in some}) for some in combinations(range(experts), chosen)]
    found = Choices(experts, chosen).groups(groups, "alike")
    assert found == pytest.approx(sum(sets) / comb(experts, chosen), rel=1e-9)


@pytest.mark.parametrize("few", [1, 2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_choices_in_few_parts_are_in_as_many_groups_as_all_sets_of_parts_and_experts(groups, few):
    experts, parts, chosen = 16, 4, 3
    size, each, found = experts // parts, experts // groups, []
    for some in combinations(range(parts), few):
        allowed = [e for e in range(experts) if e // size in some]
        found += [len({e // each for e in those}) for those in combinations(allowed, chosen)]
    choices = Choices(experts, chosen, parts=(few, parts))
    assert choices.groups(groups, "alike") == pytest.approx(sum(found) / len(found), rel=1e-9)


def test_a_token_of_deepseek_v3_goes_to_fewer_nodes_and_about_as_many_ranks():
    free, limited = Choices(256, 8), Choices(256, 8, parts=(4, 8))
    of_free, of_limited = (
        (one.groups(8, "alike"), one.groups(64, "alike")) for one in (free, limited)
    )
    assert of_free == pytest.approx((5.295, 7.676), abs=1e-3)
    of_nodes = 4 * (1 - comb(96, 8) / comb(128, 8))  # 32 of 128 allowed experts are on a node
    of_ranks = 32 * (1 - comb(124, 8) / comb(128, 8))
    assert of_limited == pytest.approx((of_nodes, of_ranks), rel=1e-9)
    assert of_limited == pytest.approx((3.63, 7.35), abs=0.02)


@pytest.mark.parametrize(
    ("experts", "chosen", "groups", "count"),
    [(128, 8, 8, 1), (256, 8, 64, 2), (256, 8, 8, 1), (384, 8, 32, 4 / 3), (128, 6, 8, 1.25)],
)
def test_neighbours_are_in_few_groups(experts, chosen, groups, count):
    each = experts // groups
    sets = [
        len({(chosen * token + i) % experts // each for i in range(chosen)})
        for token in range(experts)
    ]
    found = Choices(experts, chosen).groups(groups, "neighbours")
    assert found == pytest.approx(sum(sets) / experts)
    assert found == pytest.approx(count)


def test_ranks_that_divide_the_experts_already_count():
    within = Choices(256, 8, held=8).copies(8, "alike")
    assert within == Choices(256, 8).copies(64, "alike")


def test_a_token_crosses_the_network_once_for_each_node_and_the_slowest_level_decides():
    where, nbytes = cluster("h100-pod:figures=datasheet"), np.array([0.0, 1e9])
    choices = Choices(64, 8)

    def copies(count):
        return choices.copies(count, "alike")

    found = exchange_seconds_array(nbytes, PLACES, where, copies)
    nodes, ranks = choices.groups(4, "alike"), choices.groups(32, "alike")
    inside, across = where.levels
    network = nodes / 8 * 3 / 4 * 1e9 / across.bandwidth + 3 * across.latency
    assert ranks / 8 * 7 / 8 * 1e9 / inside.bandwidth < network
    assert found == pytest.approx([0.0, network])
    plain = collective_seconds_array("all_to_all", nbytes, PLACES, where)
    assert found[1] < plain[1] / 1.5


@pytest.mark.long
def test_software_that_sends_a_token_once_is_faster_and_its_work_says_the_same():
    graph = program(MIXTRAL, "data=8,expert=4,micro_batch=1", 8, 16)
    described, plain = cluster("h100-3200g"), software("automodel")
    assert plain is not None
    steps = {}
    for name, run_by in {
        "each choice": plain.model_copy(update={"exchange": "choices"}),
        "each rank": plain,
        "neighbours": software("automodel+balanced_gate"),
    }.items():
        timed = described.run_by(run_by)
        steps[name] = simulate(graph, timed).step_seconds
        found = program_work(graph, described).seconds(timed, Repetition(3, 2))
        assert found == pytest.approx(steps[name], rel=1e-9)
    assert steps["neighbours"] <= steps["each rank"] <= steps["each choice"]

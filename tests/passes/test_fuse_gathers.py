"""Parameters are gathered together, and their gradients scattered together."""

from collections import Counter

import numpy as np
import pytest

from shardwright import nn
from shardwright.api import compile, prove, verify
from shardwright.ir.errors import OptionError
from shardwright.ir.text import parse, to_text
from shardwright.parallel import AutoParallel
from shardwright.passes.fuse_gathers import FuseGathers
from shardwright.train import Model
from tests.extent import crossed, first, long_after
from tests.shardwright.test_train import ALONE, DATA, Network

MLP = "mlp:batch=16,inputs=32,hidden=64,classes=8,layers=4"
SPREAD = {"mode": "data_parallel", "cluster": "h100-pod:figures=datasheet", "optimizer": "adam"}
MOVES = ("all_gather", "reduce_scatter")
RULES = (True, "shard_size=2", "level=level3", "shard_size=4,level=level2")


def count(program):
    return Counter(node.operator for node in program)


@pytest.mark.parametrize(
    ("passes", "rule"), long_after(2, first(len(RULES), crossed([1, 2], RULES)))
)
def test_gathers_are_fused_by_size(rule, passes):
    options = {**SPREAD, "mesh": "2x2x2", "optimizer_parallel": rule, "micro_batches": passes}
    alone = compile(MLP, 8, **options)
    fused = compile(MLP, 8, gather_fusion="allgather=64,reducescatter=64", **options)
    before, after = count(alone.compiled.program), count(fused.compiled.program)
    assert all(after[name] < before[name] for name in MOVES)
    assert after["unpack_gathered"] == after["all_gather"] > 0
    assert after["pack_dealt"] == after["reduce_scatter"] > 0
    assert verify(fused).equal
    assert prove(fused).proven
    program = fused.compiled.program
    assert parse(to_text(program)) == program


def test_small_sizes_make_several_groups():
    options = {**SPREAD, "mesh": "4", "optimizer_parallel": True}
    groups = [
        count(compile(MLP, 4, gather_fusion=f"allgather={mb}", **options).compiled.program)
        for mb in (1e-4, 0.02, 64)
    ]
    gathers = [found["all_gather"] for found in groups]
    assert gathers[0] > gathers[1] > gathers[2] == 1
    assert all(found["pack_dealt"] == 0 for found in groups)


def test_mixed_strategies():
    """Parameters that tensor ranks divide, too, in a mesh whose last axis is the data ranks'."""
    options = {
        "mesh": "tensor=2,data=4",
        "cluster": "h100-pod:figures=datasheet",
        "search": "data_parallel",
    }
    options |= {"optimizer_parallel": "shard_size=4", "mode": "auto_parallel"}
    found = compile(MLP, 8, gather_fusion="allgather=64,reducescatter=64", **options)
    assert verify(found).equal
    assert prove(found).proven


def spread_network(*fusions, rule="level1"):
    network = Network(None)
    for layer, fusion in zip((network.layer1, network.layer2), fusions, strict=True):
        layer.set_comm_fusion(fusion)
    parallel = AutoParallel(
        network, "data_parallel", devices=4, cluster="h100-pod:figures=datasheet"
    )
    parallel.hsdp(threshold=0, optimizer_level=rule)
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    return Model(parallel, nn.CrossEntropyLoss(), optimizer)


def test_numbers_of_layers_are_obeyed_with_hsdp():
    """0 is no fusion; layers with one number are fused, with different numbers each for itself."""
    counts = []
    for fusions in ((0, 0), (1, 2), (3, 3)):
        model = spread_network(*fusions)
        np.testing.assert_allclose(model.train(2, DATA), ALONE, rtol=1e-4)
        counts.append(count(model.session.compiled.program))
    assert [found["pack_dealt"] for found in counts] == [0, 2, 1]
    assert [found["unpack_gathered"] for found in counts] == [0, 2, 1]


def test_the_dictionary_of_mindspore():
    network = Network(None)
    parallel = AutoParallel(
        network, "data_parallel", devices=4, cluster="h100-pod:figures=datasheet"
    )
    parallel.hsdp(threshold=0)
    sizes = {"mode": "size", "config": 32}
    parallel.comm_fusion({"openstate": True, "allgather": sizes, "reducescatter": {"mode": "auto"}})
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    model = Model(parallel, nn.CrossEntropyLoss(), optimizer)
    np.testing.assert_allclose(model.train(2, DATA), ALONE, rtol=1e-4)
    found = count(model.session.compiled.program)
    assert (found["all_gather"], found["reduce_scatter"]) == (1, 1)


def test_groups_of_neighbours():
    options = {**SPREAD, "mesh": "4"}
    found = compile(MLP, 4, fusion=(2, 6), **options)
    packs = [len(node.operands) for node in found.compiled.program if node.operator == "pack"]
    assert sorted(packs) == [2, 2, 4]
    assert verify(found).equal


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ("allgather=-1", "`allgather` of `gather_fusion` is -1, expected a number of at least 0"),
        ("allreduce=1", "`gather_fusion` has no setting `allreduce`"),
        (3, "`gather_fusion` is 3, expected sizes, such as `allgather=64,reducescatter=32`"),
    ],
)
def test_wrong_sizes_are_refused(option, what):
    with pytest.raises(OptionError) as caught:
        compile(MLP, 4, gather_fusion=option, **SPREAD)
    assert what in str(caught.value)


def test_a_second_run_changes_nothing():
    options = {**SPREAD, "mesh": "4", "optimizer_parallel": True}
    program = compile(MLP, 4, **options).compiled.program
    once = FuseGathers(64, 64).run(program)
    assert FuseGathers(64, 64).run(once) == once


@pytest.mark.parametrize(
    "options",
    first(
        3,
        [
            {"plan": "data=8,zero=1"},
            {"optimizer_parallel": True},
            {"optimizer_parallel": True, "stages": 2, "micro_batches": 2, "effort": 0.02},
            {"optimizer_parallel": True, "objective": "serial"},
            {"optimizer_parallel": True, "micro_batches": 2},
            {"optimizer_parallel": True, "explain_search": True},
        ],
    ),
)
def test_every_way_to_a_plan_fuses(options):
    """What fusion does to the step is not bounded: no plan claims a bound of the step."""
    sizes = "allgather=64,reducescatter=64"
    found = compile(MLP, 8, cluster="h100-pod:figures=datasheet", gather_fusion=sizes, **options)
    assert count(found.compiled.program)["unpack_gathered"] > 0
    result = found.compiled.result
    if found.compiled.minimizes_step and result is not None:
        assert result.lower_bound == 0
    assert verify(found).equal
    assert prove(found).proven

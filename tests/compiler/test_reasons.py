"""Why collectives are in a program."""

import pytest

import shardwright as sw
from shardwright.compiler.plans.accounting import traffic
from shardwright.compiler.reasons import collectives

GPT = "gpt:layers=1,hidden=32,heads=2,batch=8,sequence=8,vocabulary=64,dtype=float32"


def explained(model, **options):
    compilation = sw.compile(model, 4, cluster="cpu", **options)
    return compilation, collectives(compilation.compiled, compilation.cluster)


def reasons(found, forward):
    return [(item.node.operator, item.reason) for item in found if item.forward is forward]


def test_the_sum_of_a_split_product_names_its_factor():
    _, found = explained(
        "mlp", mode="semi_auto_parallel", mesh="4", strategies={"matmul_0": ((1, 4), (1, 4))}
    )
    reduced = next(item for item in found if item.forward)
    assert reduced.operator == "matmul_0" or reduced.tensor == "matmul_0"
    assert "adds up layer1/matmul, whose factor k is split" in reduced.reason
    assert reduced.axes == ("x",)
    assert reduced.nbytes > 0
    assert reduced.seconds > 0


def test_data_parallelism_adds_up_the_gradient_of_every_parameter():
    compilation, found = explained("mlp", mode="data_parallel", mesh="4")
    told = {reason for _, reason in reasons(found, forward=False)}
    names = compilation.plan.document.parameters
    assert told == {f"adds up each rank's part of the gradient of {name}" for name in names}
    assert {item.reason for item in found if item.forward} == {
        "adds up loss/reduce_sum, whose factor i0 is split"
    }


def test_fused_gradients_are_told_as_one():
    _, found = explained("mlp", mode="data_parallel", mesh="4", fusion=64.0)
    (reason,) = (reason for _, reason in reasons(found, forward=False))
    assert reason.startswith("adds up each rank's part of 6 gradients at once, first that of layer")


def test_a_gradient_that_is_scattered_first_and_fused_then_has_its_name():
    _, found = explained(GPT, search="tensor_parallel", fusion=64.0)
    told = [reason for _, reason in reasons(found, False)]
    names = {reason.rpartition(" ")[2] for reason in told if "part of the gradient of" in reason}
    _, alone = explained(GPT, search="tensor_parallel")
    assert names <= {reason.rpartition(" ")[2] for _, reason in reasons(alone, False)}


def test_split_storage_is_gathered_for_use_and_again_for_the_gradient():
    _, found = explained("mlp", search="fully_sharded", mesh="4")
    first, again = "layer2/matmul takes its weight", "layer2/matmul takes again its weight"
    forward, backward = reasons(found, True), reasons(found, False)
    assert ("all_gather", f"{first}, which is stored split") in forward
    assert ("all_gather", f"{again}, which is stored split") in backward


@pytest.mark.parametrize("search", ["exact", "tensor_parallel", "fully_sharded"])
def test_every_collective_is_explained_and_none_is_told_twice(search):
    compilation, found = explained(GPT, search=search)
    kinds = traffic(compilation.plan.program)
    assert len(found) == sum(volume.count for volume in kinds.values())
    assert sum(item.nbytes for item in found) == pytest.approx(
        sum(volume.bytes for volume in kinds.values())
    )
    known = {node.name for node in compilation.compiled.source}
    for item in found:
        assert item.operator in known | {""}
        assert item.reason
        assert "the gradient of ," not in item.reason


def test_a_maximum_is_not_told_as_a_sum():
    _, found = explained(GPT, search="tensor_parallel", mesh="4")
    told = [reason for kind, reason in reasons(found, True) if kind == "all_reduce"]
    assert "takes the max of loss/row_max, whose factor v is split" in told


def test_the_gradient_of_a_table_that_is_used_twice_has_the_name_of_the_table():
    _, found = explained(GPT, mode="data_parallel", mesh="4")
    told = [reason for _, reason in reasons(found, False)]
    assert "adds up each rank's part of the gradient of embedding.embedding_table" in told


def test_collectives_of_a_hand_written_program_are_its_own():
    examples = __file__.rpartition("/tests/")[0] + "/examples"
    _, found = explained(f"{examples}/manual_parallel.py:model", mode="hybrid_parallel")
    told = reasons(found, True)
    assert told == [("all_reduce", "the model itself asks for it")]

"""A program from which any one communication is missing is found out, and a tensor is named."""

from dataclasses import replace

import pytest

from shardwright.api import compile, verify
from shardwright.compiler.plans.accounting import sent_bytes
from shardwright.ir.graph import renamed
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class
from shardwright.runtime import LocalCommunicator
from shardwright.verification.comparison import verify_plan
from tests.extent import crossed, first, long_after

GPT = "gpt:layers=1,hidden=16,heads=2,batch=8,sequence=4,vocabulary=32,dropout=0.2"
MLP = "mlp:batch=16,inputs=16,hidden=8,classes=4"
SEARCHES = ("data_parallel", "tensor_parallel", "fully_sharded", "sharding_propagation")
CASES = first(len(SEARCHES), crossed((GPT, MLP, "two_matmul:batch=16"), SEARCHES))


@pytest.fixture(scope="module")
def plans():
    """Return plans by model and search, each compiled once."""
    made = {}

    def plan(model, search):
        if (model, search) not in made:
            made[model, search] = compile(model, 8, mesh="2x4", search=search).plan
        return made[model, search]

    return plan


def communications(graph):
    """Return every node that changes what ranks hold, local or not."""
    return [
        node
        for node in graph.nodes
        if issubclass(operator_class(node.operator), Communication) and node.operator != "mirror"
    ]


def without(graph, missing):
    """Return the graph with the readers of a node reading its operand instead."""
    names = {missing.name: missing.operands[0]}
    return replace(
        graph,
        nodes=tuple(renamed(node, names) for node in graph.nodes if node is not missing),
        outputs=tuple(names.get(name, name) for name in graph.outputs),
        updates=tuple((name, names.get(new, new)) for name, new in graph.updates),
    )


@pytest.mark.parametrize(("model", "search"), long_after(1, CASES))
def test_whole_plans_are_right(plans, model, search):
    result = verify(plans(model, search))
    assert (result.equal, result.first_difference, result.reason) == (True, None, None)
    assert result.tensors > 3


@pytest.mark.parametrize(("model", "search"), CASES)
def test_a_deleted_communication_is_found(plans, model, search):
    plan = plans(model, search)
    deleted = communications(plan.program)
    assert deleted
    for node in deleted:
        damaged = replace(plan, program=without(plan.program, node))
        for static in (True, False):
            result = verify_plan(damaged, 1, static=static)
            assert not result.equal, node.name
            assert result.first_difference in {**plan.program.values, **plan.reference.values}
            assert result.reason


class Silent(LocalCommunicator):
    """Loses the exchange with one number: every rank keeps what it has."""

    def __init__(self, mesh, lost):
        super().__init__(mesh)
        self.lost, self.count = lost, 0

    def exchange(self, operator, axes, parts):
        self.count += 1
        if self.count - 1 == self.lost:
            return dict(parts)
        return super().exchange(operator, axes, parts)


@pytest.mark.long
@pytest.mark.parametrize(("model", "search"), CASES)
def test_an_exchange_that_does_not_happen_is_found_by_its_numbers(plans, model, search):
    plan = plans(model, search)
    sending = [node for node in plan.program.nodes if _sends(node, plan.program)]
    for number, node in enumerate(sending):
        result = verify_plan(plan, 1, communicator=Silent(plan.mesh, number))
        assert not result.equal, node.name
        assert result.first_difference is not None


def _sends(node, graph):
    return "axes" in node.attributes and sent_bytes(node, graph) is not None


@pytest.mark.parametrize("position", [0, -1])
def test_any_change_of_a_number_is_found(plans, position):
    plan = plans(MLP, "tensor_parallel")
    updates = [node for node in plan.program.nodes if node.operator == "sgd_update"]
    wrong = replace(updates[position], attributes={"learning_rate": 0.02})
    nodes = tuple(wrong if node is updates[position] else node for node in plan.program.nodes)
    result = verify(replace(plan, program=plan.program.with_nodes(nodes)))
    assert not result.equal
    updated = dict((new, name) for name, new in plan.program.updates)[wrong.name]
    assert result.first_difference == updated
    assert result.max_relative_error > 1e-6

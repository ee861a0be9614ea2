"""An operator emitted once for all strategies: as it is emitted under each of them alone."""

from random import Random

import pytest

from shardwright.cost_model import emission
from shardwright.cost_model.emission import OperatorEmitter, emit
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.checks.cases import cases_of
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_info, operator_names

MESH = Mesh((MeshAxis("a", 2, 1), MeshAxis("b", 3), MeshAxis("c", 2)))
OTHER = Mesh((MeshAxis("a", 3), MeshAxis("b", 2, 1), MeshAxis("c", 4)))
CASES = [case for name in operator_names() for case in cases_of(name)]
# Their gradients by updates keep factors whole that the operators split.
WITHOUT_GRADIENT = ("scatter_nd_max", "scatter_nd_min")


@pytest.fixture
def emitted(monkeypatch):
    """Return the strategies under which an operator is really emitted."""
    strategies, before = [], emission.emit_split

    def emit_split(build, node, operands, strategy):
        strategies.append(strategy)
        return before(build, node, operands, strategy)

    monkeypatch.setattr(emission, "emit_split", emit_split)
    emission._pattern_of.cache_clear()
    return strategies


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_every_operator_under_random_strategies(part):
    for case in CASES[part::4]:
        random, info = Random(str(case)), case.info()
        if isinstance(info, Communication):
            continue
        has_gradient = case.operator not in WITHOUT_GRADIENT
        wanted = tuple(has_gradient and random.random() < 0.8 for _ in info.operand_types)
        for mesh in (MESH, OTHER):  # what is known of the one is not taken for the other
            emitter, strategies = (
                OperatorEmitter(info, wanted, mesh),
                info.generate_strategies(mesh),
            )
            for strategy in random.sample(strategies, min(3, len(strategies))):
                expected = emit(info, strategy, wanted, mesh)
                assert emitter.emit(strategy) == expected, (case, mesh, strategy)


def test_a_product_is_emitted_once_for_all_meshes(emitted):
    types = [TensorType("float32", (72, 24, 48)), TensorType("float32", (48, 144))]
    info, wanted = operator_info("matmul", types, {}), (True, True)
    for mesh in (MESH, OTHER):
        emitter, strategies = OperatorEmitter(info, wanted, mesh), info.generate_strategies(mesh)
        layouts = {emitter.emit(strategy).results[0] for strategy in strategies}
        assert (len(strategies), len(layouts), len(emitted)) == (125, 125, 1)


def test_a_convolution_is_emitted_once_for_each_exchange_of_halos(emitted):
    types = [TensorType("float32", (8, 4, 12, 12)), TensorType("float32", (12, 4, 3, 3))]
    info, wanted = operator_info("convolution", types, {}), (True, True)
    emitter, strategies = OperatorEmitter(info, wanted, MESH), info.generate_strategies(MESH)
    exchanges = set()
    for strategy in strategies:
        emitter.emit(strategy)
        exchanges.add(tuple(item for item in strategy.assignment if item[0] in info.halos))
    assert len(emitted) == len(exchanges) < len(strategies) / 5

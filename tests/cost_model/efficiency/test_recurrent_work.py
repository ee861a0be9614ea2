"""The work of recurrent layers: their steps follow each other."""

from dataclasses import replace

import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.figures import Count
from shardwright.cost_model.efficiency.work import Product, Work, work_seconds
from shardwright.cost_model.roofline import operator_work
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.info import operator_info

STEPS, SAMPLES, HIDDEN = 16, 128, 128
LAYER = [(STEPS, SAMPLES, 4 * HIDDEN), (4 * HIDDEN, HIDDEN), *[(SAMPLES, HIDDEN)] * 2]
STATES = [(STEPS, SAMPLES, HIDDEN)] * 2


def work_of(name: str, shapes: list[tuple[int, ...]]) -> Work:
    """Return the work of an operator on one rank."""
    info = operator_info(name, [TensorType("float32", shape) for shape in shapes], {})
    copies = [Layout.replicated(kind.rank) for kind in (*info.operand_types, *info.result_types)]
    return operator_work(info, copies[: len(shapes)], copies[len(shapes) :], Mesh(()))


def test_the_steps_of_a_layer_fill_waves_by_themselves() -> None:
    machine = cluster("a100-selene")
    assert machine.device.efficiency is not None
    processors = Count(value=8, tag="datasheet", source="a test")
    own = machine.device.efficiency.model_copy(
        update={"multiprocessors": processors, "depth": None, "tile": None}
    )
    device = machine.device.model_copy(update={"efficiency": own})
    machine = machine.model_copy(update={"device": device})
    work = work_of("recurrent_layer", LAYER)
    assert work.products == (Product(SAMPLES, 4 * HIDDEN, HIDDEN, steps=STEPS),)
    assert work.products[0].flops == work.flops
    at_once = replace(work, products=(Product(STEPS * SAMPLES, 4 * HIDDEN, HIDDEN),))
    launch = device.launch_seconds
    found, least = (work_seconds(one, machine) - launch for one in (work, at_once))
    assert found == pytest.approx(2 * least)  # 4 tiles in each step, 64 at once, on 8 processors


def test_a_gradient_is_three_products_of_a_layer() -> None:
    forward = work_of("recurrent_layer", LAYER)
    work = work_of("recurrent_layer_gradient", [*STATES, *LAYER, *STATES])
    assert work.flops == 3 * forward.flops
    assert sum(product.flops for product in work.products) == work.flops
    assert [product.steps for product in work.products] == [STEPS, 1, 1]

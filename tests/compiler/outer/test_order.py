"""What is priced to raise the least bound, and the check of the bounds at the end."""

import pytest

from shardwright.compiler.outer.block_prices import BlockPrices
from shardwright.compiler.outer.configuration import Configuration
from shardwright.compiler.outer.entries import BUILDING, DRAFTING, PRICING, Entry, Found
from shardwright.compiler.outer.order import Chosen, PricedOrder, enqueue, first_taken
from shardwright.compiler.outer.run import check_bounds
from shardwright.compiler.outer.trace import Outcome, Tried
from shardwright.ir.errors import PassError
from shardwright.ir.mesh import Mesh, MeshAxis

MESH = Mesh((MeshAxis("x", 8, 0),))
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
SEEDS = (1, 2, 6)  # of six micro-batches, each rank has one sample


def entries(priced: tuple[int, ...] = ()) -> list[Entry[int]]:
    """Return configurations of 48 samples on eight ranks, priced in some numbers."""
    found: list[Entry[int]] = []
    for count in COUNTS:
        one: Entry[int] = Entry(Configuration(MESH, count), 1.0 + count / 1000, "computation")
        one.is_priced = count in priced
        found.append(one)
    return found


def priced_next(priced: tuple[int, ...], least: int) -> list[int]:
    """Return in what numbers of micro-batches blocks are priced if the bound of one is least."""
    tried = entries((*SEEDS, *priced))  # which are priced first
    for entry in tried:
        if entry.configuration.micro_batches == least:
            entry.bound = 0.5
    best = next(entry for entry in tried if entry.configuration.micro_batches == 1)
    best.found, best.outcome = Found(1.5, 1.0, 0.0, 0), "compiled"
    chosen = PricedOrder(tried, 2).next(best, compiles=True)
    assert chosen is not None
    assert chosen.tier == PRICING
    return [entry.configuration.micro_batches for entry in chosen.entries]


@pytest.mark.parametrize(
    ("priced", "least", "expected"),
    [
        ((), 48, 4),  # of fewer, each rank has whole samples
        ((4,), 48, 8),  # that of its divisor did not do
        ((4, 8), 48, 12),
        ((), 12, 4),
        ((), 3, 4),
    ],
)
def test_few_micro_batches_that_bound_many_are_priced(
    priced: tuple[int, ...], least: int, expected: int
) -> None:
    first, *others = priced_next(priced, least)
    assert first == expected
    assert all(other % first for other in others)


def test_what_has_a_high_bound_is_not_priced_with_the_least() -> None:
    for bound, expected in ((0.5, [12, 8]), (1.2, [8])):
        tried = entries((*SEEDS, 4))
        for entry in tried:
            count = entry.configuration.micro_batches
            entry.bound = {8: 0.5, 12: bound}.get(count, 1.2)
        best = next(entry for entry in tried if entry.configuration.micro_batches == 1)
        best.found, best.outcome = Found(1.5, 1.0, 0.0, 0), "compiled"
        chosen = PricedOrder(tried, 2).next(best, compiles=True, enough=1.1)
        assert chosen is not None
        assert [entry.configuration.micro_batches for entry in chosen.entries] == expected


def test_what_waits_for_the_bound_of_fewer_is_not_priced() -> None:
    tried = entries(SEEDS)
    running = next(entry for entry in tried if entry.configuration.micro_batches == 8)
    running.is_running = True
    chosen = PricedOrder(tried, 2).next(None, compiles=True)
    assert chosen is not None
    assert chosen.entries
    assert all(entry.configuration.micro_batches % 8 for entry in chosen.entries)


@pytest.mark.parametrize(("bound", "cost", "is_false"), [(1.0, 1.0, False), (1.1, 1.0, True)])
def test_a_bound_above_the_cost_of_a_plan_is_refused(
    bound: float, cost: float, is_false: bool
) -> None:
    outcome: Outcome = "compiled"
    tried = (
        Tried(Configuration(MESH), "left", 0.5, "computation"),
        Tried(Configuration(MESH, 2), outcome, bound, "blocks alone", cost),
    )
    if not is_false:
        check_bounds(tried)
        return
    with pytest.raises(PassError, match="2 micro-batches costs 1, the search said that each"):
        check_bounds(tried)


FINER = Mesh((MeshAxis("x", 2, 0), MeshAxis("y", 4, 0)))
HALF = Mesh((MeshAxis("x", 4, 0),))


def staged(floor: float, estimate: float | None = None) -> list[Entry[int]]:
    """Return one stage on two meshes, of which one may be priced, and pipelines of a floor."""
    found: list[Entry[int]] = []
    for count in (1, 2, 16):
        found += [Entry(Configuration(mesh, count), 1.0, "computation") for mesh in (MESH, FINER)]
        found.append(Entry(Configuration(HALF, count, 2), floor, "computation"))
    for entry in found:
        if entry.configuration.mesh == MESH and estimate is not None:
            entry.is_priced, entry.estimate = True, estimate
    return found


def best_of(tried: list[Entry[int]]) -> Entry[int]:
    """Return the last one, with a plan of two seconds."""
    tried[-1].found = Found(2.0, 1.0, 0.0, 0)
    return tried[-1]


def test_one_stage_is_priced_first() -> None:
    tried = staged(1.0)
    order = PricedOrder(tried, 2)
    chosen = order.next(None, compiles=True)
    assert chosen is not None
    assert [str(e.configuration) for e in chosen.entries] == [
        str(tried[i].configuration) for i in (0, 3)
    ]
    for entry in chosen.entries:
        entry.is_running = True
    waits = order.next(None, compiles=True)
    assert waits is not None
    assert not waits.entries


@pytest.mark.parametrize(("floor", "is_asked"), [(1.0, True), (1.19, False)])
def test_pipelines_that_are_no_faster_than_an_estimate_are_not_priced_first(
    floor: float, is_asked: bool
) -> None:
    tried = staged(floor, 1.2)
    chosen = PricedOrder(tried, 2).next(best_of(tried), compiles=True)
    assert chosen is not None
    assert chosen.tier == PRICING
    assert (chosen.entries[0].configuration.stages == 2) == is_asked


def test_finer_meshes_are_priced_before_a_draft() -> None:
    tried = staged(1.9, 1.2)
    order = PricedOrder(tried, 2)
    chosen = order.next(best_of(tried), compiles=True)
    assert chosen is not None
    (first,) = chosen.entries
    assert (first.configuration.mesh, first.configuration.micro_batches) == (FINER, 1)
    first.is_running = True
    waits = order.next(best_of(tried), compiles=True)
    assert waits is not None
    assert not waits.entries
    first.is_running, first.is_priced, first.estimate = False, True, 1.1
    first.estimate = 1.01
    chosen = order.next(best_of(tried), compiles=True)
    assert chosen is not None
    assert (chosen.tier, chosen.entries) == (DRAFTING, [first])


def test_a_finer_mesh_takes_the_estimate_of_the_one_that_merges_its_axes() -> None:
    cases = (1.0, False, True), (1.1, False, False), (1.0, True, False)
    for bound, is_short, is_taken in cases:
        merged, finer, further, *_ = (
            Entry[int](Configuration(mesh, count), 1.0, "computation")
            for mesh, count in ((MESH, 1), (FINER, 1), (FINER, 2))
        )
        prices = BlockPrices(merged.configuration, bound, bound * (1.2 if is_short else 1.0))
        for one in (finer, further):
            one.take_estimate_of_merged(merged, prices)
        assert finer.is_priced == is_taken
        assert not further.is_priced
        if is_taken:
            assert finer.estimate == prices.estimate(merged.configuration)


def test_of_equal_estimates_that_of_the_finest_mesh_is_compiled() -> None:
    tried = staged(1.9, 1.2)
    for entry in tried:
        entry.is_priced, entry.estimate = True, 1.2
    compiled = PricedOrder(tried, 2).next(best_of(tried), compiles=True)
    assert compiled is not None
    assert compiled.entries[0].configuration.mesh == FINER


def test_a_draft_does_not_wait_for_prices_where_memory_is_short() -> None:
    tried = staged(1.9, 1.2)
    for entry in tried:
        entry.is_short_of_memory = True
    drafted = PricedOrder(tried, 2).next(best_of(tried), compiles=True)
    assert drafted is not None
    assert drafted.tier == DRAFTING


def test_a_draft_that_gains_little_waits_for_prices_where_memory_is_short() -> None:
    cases = (1.99, 1.935, PRICING), (1.9, 1.935, DRAFTING), (1.99, 1.95, DRAFTING)
    for estimate, floor, tier in cases:
        tried = staged(1.9, estimate)
        for entry in tried:
            entry.is_short_of_memory = True
            if not entry.is_priced:
                entry.bound = floor
        chosen = PricedOrder(tried, 2).next(best_of(tried), compiles=True)
        assert chosen is not None
        assert chosen.tier == tier


def test_plans_that_come_soon_are_answered_before_what_waits() -> None:
    running: list[Chosen[int]] = []
    tiers = [*(PRICING,) * 5, DRAFTING, DRAFTING, BUILDING, PRICING]
    for number, tier in enumerate(tiers):
        chosen: Chosen[int] = Chosen([], tier, number=number)
        enqueue(running, chosen)
    taken = []
    while running:
        taken.append(first_taken(running))
        running.remove(taken[-1])
    # a named plan at once, a draft after three prices, which another process finds beside it
    assert [one.number for one in taken] == [7, 0, 1, 2, 5, 3, 4, 8, 6]

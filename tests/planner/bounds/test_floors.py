"""Floors of configurations: no schedule of any stages is faster."""

import random
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import pytest

import shardwright as sw
from shardwright.compiler.outer import block_prices
from shardwright.compiler.outer.block_prices import BlockKind, BlockPrices
from shardwright.compiler.outer.judge import ProgramJudge
from shardwright.compiler.outer.run import OuterRun
from shardwright.dataflow.orders import SCHEDULES as SCHEDULES_BY_NAME
from shardwright.dataflow.schedule_paths import chain_transfers, simulate_schedule
from shardwright.dataflow.schedules import FORWARD, make_schedule
from shardwright.planner.bounds import floors
from shardwright.planner.bounds.floors import ComputationFloor, FinePieces, Launches, least_share
from shardwright.planner.choice.configuration import Configuration
from shardwright.solver.work import Budget
from tests.extent import ANY_PLAN

SCHEDULES = ("1f1b", "gpipe", "zero_bubble", "interleaved", "zero_bubble_v", "dualpipe_v")
PUTS_OFF = ("zero_bubble", "zero_bubble_v", "dualpipe_v")
"""Schedules in which gradients of weights may come last."""
ON_POD = {"cluster": "a100-pod:figures=datasheet", "optimizer": "adam"}


@cache
def drawn(
    seed: int, schedule: str, launches: float = 0.0, *, even: bool = False
) -> tuple[ComputationFloor, Configuration, float]:
    """Return the floor of random blocks, a configuration, and the step of random stages of them.

    Where they are even, each stage is a block, and every part of its pass takes equal time.
    """
    draw = random.Random(seed)
    stages, count, chunks = draw.choice([2, 3, 4, 8]), draw.choice([2, 3, 4, 8, 16]), 1
    if schedule == "interleaved":
        chunks, count = draw.choice([2, 3, 4]), stages * draw.choice([1, 2, 3])
    if schedule.endswith("_v"):
        chunks, count = 2, count + SCHEDULES_BY_NAME[schedule].fewest * stages
    parts = stages * chunks
    blocks = [draw.choice([1e-3, draw.uniform(0.1, 1.0)]) for _ in range(parts)]
    blocks += [draw.uniform(0.1, 1.0) for _ in range(draw.randint(0, 8))]
    shares = [draw.uniform(0.2, 0.4) for _ in blocks]
    if even:
        blocks, shares = [1.0] * parts, [1 / 3] * parts
    launched = [launches * draw.uniform(0.0, 0.1) for _ in blocks]  # of each half, whatever runs
    cut = [0, *sorted(draw.sample(range(1, len(blocks)), parts - 1)), len(blocks)]
    made = make_schedule(schedule, stages, chunks, count)
    durations = {}
    for stage, part in made.segments:
        among = range(cut[stage], cut[stage + 1])
        forward = sum(blocks[i] * shares[i] + launched[i] for i in among)
        rest = sum(blocks[i] + 2 * launched[i] for i in among) - forward
        durations[stage, part] = forward if part == FORWARD else rest / (len(made.parts) - 1)
    step = simulate_schedule(made, durations, dict.fromkeys(chain_transfers(made), 0.0))
    # A pass of one device over the whole batch takes as long as all passes of all device groups.
    each = Launches(0.0, tuple(2 * seconds for seconds in launched))
    pairs = list(zip(blocks, launched, strict=True))
    of_blocks = tuple(count * seconds + 2 * launch for seconds, launch in pairs)
    forward = [count * share * s + k for share, (s, k) in zip(shares, pairs, strict=True)]
    one, share = sum(of_blocks), least_share(forward, of_blocks, launched, each.blocks)
    floor = ComputationFloor(stages, one, one, one, share, parts, of_blocks, launches=each)
    return floor, Configuration(None, count, stages, chunks, schedule), step.step_seconds


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_random_stages_are_faster_than_their_floor(schedule: str) -> None:
    for seed in range(300):
        floor, configuration, step = drawn(seed, schedule)
        assert floor.of(configuration) <= step * (1 + 1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_random_stages_with_launches_are_faster_than_their_floor(schedule: str) -> None:
    higher = 0
    for seed in range(300):
        floor, configuration, step = drawn(seed, schedule, 1.0)
        assert floor.of(configuration) <= step * (1 + 1e-9)
        higher += replace(floor, launches=Launches()).of(configuration) < floor.of(configuration)
    assert higher > 250


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_floor_with_too_many_launches_is_caught(schedule: str) -> None:
    cases = [drawn(seed, schedule, 1.0) for seed in range(300)]
    wrong = [
        (replace(one, launches=Launches(0.0, tuple(3 * b for b in one.launches.blocks))), *rest)
        for one, *rest in cases
    ]
    assert any(one.of(configuration) > step for one, configuration, step in wrong)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_random_stages_are_faster_than_the_prices_of_their_blocks(schedule: str) -> None:
    for seed in range(300):
        floor, configuration, step = drawn(seed, schedule, even=seed % 6 == 0)
        for most in (0, configuration.parts):
            assert priced(floor, configuration, most) <= step * (1 + 1e-9)


def priced(floor: ComputationFloor, configuration: Configuration, most: int | None = None) -> float:
    """Return the bound of the prices of blocks, where cuts of so many stages are between them."""
    own = replace(configuration, chunks=1, schedule=None)
    kinds = tuple(BlockKind(1, one / configuration.micro_batches) for one in floor.blocks)
    between = configuration.parts if most is None else most
    return BlockPrices(own, 0.0, 0.0, kinds, most_stages=between).bound(configuration)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_even_stages_are_faster_than_their_floor(schedule: str) -> None:
    for seed in range(50):
        floor, configuration, step = drawn(seed, schedule, even=True)
        assert floor.of(configuration) <= step * (1 + 1e-9)


@pytest.mark.parametrize("schedule", ["interleaved", "zero_bubble_v", "dualpipe_v"])
def test_a_floor_with_too_many_first_blocks_is_caught(schedule: str) -> None:
    cases = [drawn(seed, schedule, even=schedule.endswith("_v")) for seed in range(300)]
    wrong = [(replace(one, blocks=tuple(3 * b for b in one.blocks)), *rest) for one, *rest in cases]
    assert any(one.of(configuration) > step for one, configuration, step in wrong)


@pytest.mark.parametrize("schedule", PUTS_OFF)
def test_a_floor_with_too_great_a_share_is_caught(schedule: str) -> None:
    cases = [drawn(seed, schedule, even=True) for seed in range(50)]
    assert any(replace(one, forward_share=1.0).of(c) > step for one, c, step in cases)


@pytest.mark.parametrize("module", [floors, block_prices])
@pytest.mark.parametrize("schedule", PUTS_OFF)
def test_bounds_by_backward_passes_of_stages_before_are_caught(
    schedule: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold of schedules whose gradients of weights are not put off."""
    monkeypatch.setattr(module, "has_two_parts", lambda configuration: True)
    cases = [drawn(seed, schedule, even=True) for seed in range(50)]
    if module is floors:
        assert any(floor.of(where) > 1.001 * step for floor, where, step in cases)
    else:
        assert any(priced(*case[:2]) > 1.001 * case[2] for case in cases)


@pytest.mark.parametrize("schedule", ["zero_bubble", "interleaved"])
def test_where_cuts_may_be_inside_of_blocks_the_share_is_not_used(schedule: str) -> None:
    floor, configuration, _ = drawn(0, schedule)
    within = replace(floor, most_stages=configuration.parts - 1)
    assert within.of(configuration) == floor.staged_seconds / floor.devices
    assert within.of(configuration) < floor.of(configuration)


def judge_of(
    model: str, devices: int, monkeypatch: pytest.MonkeyPatch, **searched: Any
) -> ProgramJudge:
    """Return what judges the meshes of a model."""

    class SeenError(Exception):
        pass

    judges: list[ProgramJudge] = []

    def seen(run: OuterRun) -> None:
        judges.append(run.judge)
        raise SeenError

    with monkeypatch.context() as patched:
        patched.setattr(OuterRun, "run", seen)
        with pytest.raises(SeenError):
            sw.compile(model, devices, mesh="search", **searched, **ON_POD)
    return judges[0]


def floor_of(gpt: str, monkeypatch: pytest.MonkeyPatch) -> ComputationFloor:
    """Return the floor of a model on four devices."""
    judge = judge_of(gpt, 4, monkeypatch, micro_batches="search", stages="search")
    return judge.floor({1, 2, 4}, Budget(60))


@pytest.mark.long
def test_one_stage_of_a_model_is_no_faster_than_its_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpt = "gpt:layers=2,hidden=64,heads=4,batch=16,sequence=16,vocabulary=64,dtype=float32"
    floor = floor_of(gpt, monkeypatch)
    for count in (1, 2, 4):
        found = sw.compile(gpt, 4, micro_batches=count, **ON_POD)
        least = floor.of(Configuration(None, count))
        assert floor.step_seconds / 4 < floor.launches.of_step(count) < least
        assert least <= found.compiled.cost


@pytest.mark.long
def test_statistics_of_the_batch_have_a_floor_where_one_micro_batch_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = "resnet18-cifar:batch=32,side=8,width=4"
    assert not judge_of(model, 16, monkeypatch, micro_batches=2).floor({1}, Budget(60)).step_seconds
    floor = judge_of(model, 16, monkeypatch).floor({1}, Budget(60))
    found = sw.compile(model, 16, mode="data_parallel", **ON_POD)
    assert 0 < floor.of(Configuration(None, 1)) <= found.compiled.cost


@pytest.mark.long
@pytest.mark.parametrize(
    ("schedule", "chunks", "count", "how"),
    [
        ("1f1b", 1, 2, {"stages": 2, "schedule": "1f1b", **ANY_PLAN}),
        ("zero_bubble", 1, 4, {"plan": "pipeline=2,data=2,schedule=zero_bubble,micro_batch=2"}),
        (
            *("zero_bubble_v", 2, 4),
            {"plan": "pipeline=2,data=2,chunks=2,schedule=zero_bubble_v,micro_batch=2"},
        ),
        ("interleaved", 2, 4, {"plan": "pipeline=2,tensor=2,chunks=2,micro_batch=4"}),
    ],
)
def test_no_pipeline_of_a_model_is_faster_than_its_floor(
    schedule: str, chunks: int, count: int, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt = (
        f"gpt:layers={2 * chunks},hidden=64,heads=4,batch=16,sequence=16,vocabulary=64,"
        "dtype=float32"
    )
    floor = floor_of(gpt, monkeypatch)
    assert 0.2 < floor.forward_share < 0.5
    given = {} if "plan" in how else {"micro_batches": count}
    found = sw.compile(gpt, 4, **given, **how, **ON_POD)
    least = floor.of(Configuration(None, count, 2, chunks, schedule))
    assert found.plan.program.stages == 2 * chunks
    assert floor.staged_seconds / 4 <= least <= found.compiled.cost


@pytest.mark.long
def test_no_pipeline_that_is_cut_inside_of_blocks_is_faster_than_its_floor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpt = "gpt:layers=2,hidden=64,heads=4,batch=16,sequence=1024,vocabulary=64,dtype=float32"
    floor = floor_of(gpt, monkeypatch)
    assert floor.most_stages == 2
    where = Configuration(None, 2, 4, 1, "zero_bubble")
    asked = {"stages": 4, "schedule": "zero_bubble", "effort": 0.01, **ANY_PLAN}
    found = sw.compile(gpt, 4, micro_batches=2, **asked, **ON_POD)
    divided = replace(floor, launches=Launches())
    assert replace(divided, finer={}).of(where) < divided.of(where) <= floor.of(where)
    assert floor.of(where) <= found.compiled.cost


def test_no_stages_are_faster_than_the_floor_of_their_pieces() -> None:
    for seed in range(100):
        floor, where, step = drawn(seed, "zero_bubble")
        pieces = FinePieces(floor.pass_seconds, floor.forward_share)
        finer = replace(floor, most_stages=0, forward_share=1.0, finer={where.stages: pieces})
        assert finer.of(where) == floor.of(where) <= step * (1 + 1e-9)
        of_others = replace(finer, finer={where.stages + 1: pieces})
        assert of_others.of(where) == floor.staged_seconds / floor.devices

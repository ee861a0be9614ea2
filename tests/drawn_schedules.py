"""Schedules of pipelines, and what their segments take, drawn at random."""

import random

from hypothesis import strategies as st

from shardwright.dataflow.orders import SCHEDULES
from shardwright.dataflow.schedule_paths import chain_transfers
from shardwright.dataflow.schedules import make_schedule

REPEATING = [name for name in SCHEDULES if SCHEDULES[name].repeats]


def chunks_of(order):
    return (2,) if order.in_v else (2, 3) if order.has_chunks else (1,)


@st.composite
def schedules(draw, most=6):
    name = draw(st.sampled_from([*SCHEDULES]))
    groups = draw(st.integers(1, most))
    order = SCHEDULES[name]
    chunks = draw(st.integers(2, 2 if order.in_v else 3)) if order.has_chunks else 1
    times = draw(st.integers(1, 3 if order.in_rounds else 8))
    more = times * groups if order.in_rounds else times
    return make_schedule(name, groups, chunks, order.fewest * groups + more - bool(order.fewest))


def drawn(schedule, seed):
    generator = random.Random(seed)
    durations = {s: generator.choice((0.0, 1.0, generator.random())) for s in schedule.segments}
    delays = {t: generator.choice((0.0, generator.random())) for t in chain_transfers(schedule)}
    return durations, delays

"""The time that failures cost: against the least of the formula, and simulated failures."""

import math

import numpy as np
import pytest

from shardwright.compiler.fit.training_time import DEVICE_HOURS, Failures, Training


def longer(failures, interval):
    """How many times as long a training takes with checkpoints after so many seconds of work."""
    apart = failures.apart_seconds
    each = interval + failures.checkpoint_seconds
    return apart * math.exp(failures.restart_seconds / apart) * math.expm1(each / apart) / interval


@pytest.mark.parametrize(("devices", "written"), [(64, 100.0), (16384, 3.0), (16384, 600.0)])
def test_no_other_interval_is_better(devices, written):
    failures = Failures(devices, written)
    near = failures.interval_seconds * np.geomspace(0.2, 5.0, 2001)
    least = min(longer(failures, interval) for interval in near)
    assert least <= failures.slowdown <= least * (1 + 1e-5)


def test_simulated_failures_take_as_long():
    failures, work, random = Failures(16384, 60.0), 4e6, np.random.default_rng(0)
    apart, interval = failures.apart_seconds, failures.interval_seconds
    clock, done = 0.0, 0.0
    while done < work:
        left = random.exponential(apart)
        each = interval + failures.checkpoint_seconds
        whole = int(left // each)
        done += whole * interval
        clock += left
        restart = failures.restart_seconds
        while (again := random.exponential(apart)) < restart:  # it fails while it restarts
            clock += again
        clock += restart
    assert clock / done == pytest.approx(failures.slowdown, rel=0.02)


def test_llama_3_failed_every_three_hours():
    failures = Failures(16384, 3.0)
    assert failures.apart_seconds / 3600 == pytest.approx(54 * 24 / 419)
    assert failures.apart_seconds * 16384 / 3600 == pytest.approx(DEVICE_HOURS)
    assert 1 / failures.slowdown > 0.9  # its effective training time, as published


def test_a_training_that_cannot_end_takes_for_ever():
    failures = Failures(10**6, 10_000.0, device_hours=10.0)
    assert failures.interval_seconds == failures.apart_seconds
    assert failures.slowdown == math.inf
    assert Training(1.0, 2.0).slowed(3.0) == Training(3.0, 6.0)
    assert Training(1.0, None).slowed(3.0) == Training(3.0, None)

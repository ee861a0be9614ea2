"""The fewest devices on which a plan fits."""

from itertools import pairwise

import pytest

from shardwright.compiler.evaluation.family import family
from shardwright.compiler.fit.questions import (
    fewest_devices,
    least_devices,
    may_fit_on,
    on_devices,
)
from tests.compiler.fit.models import GIB, model


@pytest.mark.long
@pytest.mark.parametrize("limits", [(2, 16)])
def test_more_memory_needs_no_more_devices(limits):
    counts = []
    for limit in limits:
        found = fewest_devices(model(limit * GIB, narrow=True))
        counts.append(10**9 if found is None else found.devices)
        assert least_devices(model(limit * GIB, narrow=True)) <= counts[-1]
    assert all(after <= before for before, after in pairwise(counts))
    assert counts[-1] < counts[0]


@pytest.mark.long
def test_the_fewest_devices_are_fewest():
    whole = model(2 * GIB, narrow=True)
    found = fewest_devices(whole)
    assert found is not None
    fewer = found.devices // 2
    assert fewer < least_devices(whole) or on_devices(whole, fewer).best is None


@pytest.mark.long
def test_what_all_plans_hold_says_where_none_may_fit():
    said = set[bool]()
    for devices in (1, 4, 32):
        own = model()
        bounds = sorted(one.memory_bytes for one in family(own, devices))
        held = own.least_held(devices, 1), own.least_held(devices, 2)
        for limit in (*held, sum(held) / 2, *bounds[::40], bounds[0] * 0.999):
            limited = model(limit)
            may = any(map(limited.may_fit, family(limited, devices)))
            assert may_fit_on(limited, devices) or not may
            said.add(may_fit_on(limited, devices))
    assert said == {True, False}

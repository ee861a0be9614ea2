"""What `fit` says to change first: the cheapest of the changes, and nothing that cannot be had."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from shardwright.compiler.fit.questions import Change
from shardwright.tools.fit.advice import advice

GIB = 2**30
LIMIT = 100 * GIB


@dataclass(frozen=True)
class Plan:
    """A plan of so many seconds and GiB."""

    seconds: float
    gib: float
    devices: int = 8
    model: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(limit_bytes=LIMIT))

    @property
    def memory_bytes(self):
        return self.gib * GIB

    @property
    def fits(self):
        return self.memory_bytes <= LIMIT


def change(text, seconds, gib, devices=8):
    return Change("", text, Plan(seconds, gib, devices))


def test_memory_is_freed_by_the_change_that_costs_least_for_each_byte():
    found = advice(
        Plan(1.0, 80), [change("a", 1.3, 20), change("b", 1.05, 60), change("c", 1.0, 78)]
    )
    assert found[0] == "for memory: `b` frees 20.00 GiB for +5.0% of the step"


def test_more_devices_are_no_change_of_the_plan():
    found = advice(Plan(1.0, 80), [change("16 devices", 0.5, 40, devices=16)])
    assert found == [
        "for memory: no single change frees much",
        "for speed: no single change is faster on as many devices",
    ]


def test_a_faster_change_that_does_not_fit_is_told_with_what_it_takes():
    base = Plan(1.0, 80)
    assert advice(base, [change("a", 0.9, 120)])[1] == (
        "for speed: none that fits is faster on as many devices; `a`, -10.0%, takes "
        "120.00 GiB and does not fit"
    )
    assert advice(base, [change("a", 0.9, 120), change("b", 0.97, 85)])[1] == (
        "for speed: `b`, -3.0% of the step"
    )


def test_a_change_that_is_not_told_from_the_plan_is_no_advice_for_speed():
    base, changes = Plan(1.0, 80), [change("a", 0.9, 80), change("b", 0.8, 90)]
    assert advice(base, changes)[1] == "for speed: `b`, -20.0% of the step"
    found = advice(base, changes, lambda one: one.text != "b")
    assert found[1] == "for speed: `a`, -10.0% of the step"
    found = advice(base, changes, lambda _: False)
    assert found[1] == "for speed: no single change is told to be faster on as many devices"


def test_of_what_does_not_fit_the_change_is_told_that_makes_it_fit():
    base = Plan(1.0, 150)
    changes = [
        change("16 devices", 0.5, 50, devices=16),
        change("a", 2.0, 90),
        change("b", 3.0, 20),
    ]
    assert advice(base, changes) == ["to fit: `a`, 90.00 GiB"]
    assert advice(base, changes[:1]) == ["to fit: `16 devices`, 50.00 GiB"]
    assert advice(base, []) == ["no single change makes it fit"]

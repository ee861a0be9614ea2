"""The error for several candidates claims no more than the errors of all together."""

from shardwright.ir.errors import InfeasibleError, NotFoundError, combined


def infeasible(found, bound):
    return InfeasibleError("no plan fits", least_memory_bytes=found, least_memory_bound=bound)


def test_the_bound_is_the_least():
    told = combined([infeasible(10.0, 9.0), infeasible(12.0, 7.0)])
    assert isinstance(told, InfeasibleError)
    assert (told.least_memory_bytes, told.least_memory_bound) == (10.0, 7.0)


def test_nothing_is_proven_unless_it_is_for_each():
    told = combined([infeasible(10.0, 9.0), NotFoundError("none found", least_memory_bytes=11.0)])
    assert isinstance(told, NotFoundError)
    assert (told.least_memory_bytes, told.least_memory_bound) == (10.0, None)

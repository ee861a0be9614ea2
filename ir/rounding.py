"""How far apart two results of float64 are that would be equal without rounding.

Each operation errs by 1.1e-16 of its result. Numbers that are further apart than this are different
ones: no plan is faster than another by so little.
"""

from typing import Final

EQUAL: Final = 1e-9
"""Relative difference of the same quantity, computed in two ways of up to some million operations.

By half and by twice of it the tests of the solver, of schedules, of stages and of counts pass.
"""

OF_SUM: Final = 1e-12
"""Relative error of one sum, of some thousand terms. The same holds of half and of twice of it."""

OF_SEARCH: Final = 1e-6
"""Relative difference of the cost that a search says and that of the program that it is of.

Beyond it a compilation is refused, and a bound is told to exceed a plan. Both sum the same costs,
so that they differ by rounding alone: half and twice of it refuse the same programs.
"""

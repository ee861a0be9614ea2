"""Modules that load OR-Tools or numba, which takes up to a second: imported at their first use.

Most plans need none of them. Only this module names them as text; the modules themselves import
OR-Tools and numba at their top.
"""

from shardwright.ir.optional import LazyModule

anytime_search = LazyModule("shardwright.solver.anytime.search")
"""The anytime method: numba."""

gap_closing = LazyModule("shardwright.solver.anytime.gap_closing")
"""The CP-SAT finish of the anytime method: OR-Tools."""

network_model = LazyModule("shardwright.solver.exact.network_model")
"""The CP-SAT finish of the exact method: OR-Tools."""

linear_program = LazyModule("shardwright.solver.linear_program")
"""The master problem of cutting planes, solved by GLOP: OR-Tools."""

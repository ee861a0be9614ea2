"""Modules that load CP-SAT or numba, which takes up to a second: imported at their first use.

Most plans need none of them. Only this module names them as text; the modules themselves import
CP-SAT and numba at their top. (GLOP, in `linear_program`, loads in a few milliseconds.)
"""

from shardwright.ir.optional import LazyModule

anytime_search = LazyModule("shardwright.solver.anytime.search")
"""The anytime method: numba."""

gap_closing = LazyModule("shardwright.solver.anytime.gap_closing")
"""The CP-SAT finish of the anytime method: CP-SAT."""

network_model = LazyModule("shardwright.solver.exact.network_model")
"""The CP-SAT finish of the exact method: CP-SAT."""

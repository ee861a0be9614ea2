"""The anytime search: problems with tens of thousands of variables, within a budget.

The problem is in flat arrays instead of objects (`flat`); `reductions` and `dominance` make it
smaller, `presolve` runs them to a fixed point and lifts answers back. `bounded_search` joins the
dual ascent and the local search of a problem; `search` runs the phases.
"""

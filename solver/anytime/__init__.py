"""Assignment problems with tens of thousands of variables, solved within a time limit.

Flat arrays instead of objects: `flat` holds the problem, `reductions` and `dominance` make it
smaller, `presolve` runs them to a fixed point and maps answers back.
"""

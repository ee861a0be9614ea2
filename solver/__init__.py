"""Assignment problems and their solvers. Knows nothing of graphs of operators."""

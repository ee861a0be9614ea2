"""Execution of per-rank programs on numpy."""

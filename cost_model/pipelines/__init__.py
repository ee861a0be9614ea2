"""Pipelines: the memory of every device group, and the simulated step."""

"""Strategies chosen by rule, to compare the exact search with."""

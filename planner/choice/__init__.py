"""Choosing a whole plan: which plan each block has."""

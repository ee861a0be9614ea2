"""Operators that move elements: look up, write, cut, join, reshape."""

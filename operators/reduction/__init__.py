"""Operators that reduce, scan or order the elements along a dimension."""

"""A plan's program as Python for another system: an operator a line, and the functions it calls."""

"""Converters of ATen operators, a module per family."""

"""Operators: rule, shapes, kernel, gradient and flops of each, in one place."""

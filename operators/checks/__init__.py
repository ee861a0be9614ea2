"""Checks that an operator keeps the promises of its rule, linear sets and gradient.

The kernel runs on random operands of each example, whole and in the slices of every strategy on a
few meshes; the slices, assembled by the rule, must equal the whole, and so must the gradients.
"""

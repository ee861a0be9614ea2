"""What is equal of equal operators: all but the random numbers that they draw."""

from shardwright.ir.attributes import Attributes

RANDOM = "key"
"""The attribute that tells the random numbers of one operator from those of another."""


def constants(attributes: Attributes) -> Attributes:
    """Return the attributes of an operator that are equal where operators are."""
    return {name: value for name, value in attributes.items() if name != RANDOM}

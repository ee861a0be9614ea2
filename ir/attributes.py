"""Attributes: the constants of nodes and parameters."""

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Any, NoReturn

from shardwright.ir.errors import IRError

Attribute = int | float | bool | str | None | tuple["Attribute", ...]
Attributes = Mapping[str, Attribute]


class FrozenAttributes(dict[str, Attribute]):
    """Attributes that cannot be changed, since programs share their nodes.

    Examples
    --------
    >>> FrozenAttributes(factor=2.0)
    {'factor': 2.0}
    """

    @cached_property
    def ordered(self) -> tuple[tuple[str, Attribute], ...]:
        """The attributes by name."""
        return tuple(sorted(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenAttributes, (dict(self),)

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise IRError(
            "the attributes of a node cannot be changed: programs share their nodes",
            hint="make another node: "
            "`dataclasses.replace(node, attributes={**node.attributes, ...})`",
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


def ordered(attributes: Attributes) -> tuple[tuple[str, Attribute], ...]:
    """Return attributes by name; those of a node are sorted once."""
    if isinstance(attributes, FrozenAttributes):
        return attributes.ordered
    return tuple(sorted(attributes.items()))


def check_constants(operator: str, attributes: Attributes) -> None:
    """Refuse attributes that can be changed, such as lists: a node has constants.

    Raises
    ------
    IRError
        If one can be.
    """
    for name, value in attributes.items():
        if not isinstance(value, Hashable):
            what = f"`{name}` of `{operator}` is {value!r}, expected a number, a text or a tuple"
            raise IRError(what)

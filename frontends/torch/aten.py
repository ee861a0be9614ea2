"""The table of ATen operators: for each a function that emits it in operators of our IR.

A function takes the call, and the operator's arguments by the names that its schema has (``self``
and ``input`` are called ``x``). The annotation of a parameter says how a tensor is passed: a
`Value` of the program; an `Operand`, which is a number where the tensor is a known scalar; an
`Item`, which may be a constant. An argument that the function does not have is refused, unless it
is the default of the schema or says nothing about the result, such as the device.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.items import Item
from shardwright.frontends.torch.aten_call import Chosen
from shardwright.frontends.torch.private import OpOverload, schema_of

COMPLEX = "complex "  # before the names of operators that take or return complex numbers
SELECTION = "aten.masked_select.default"  # its result has a shape that depends on data
Function = Callable[..., Any]


@dataclass(frozen=True)
class Converter:
    """A function of the table.

    Parameters
    ----------
    function : callable
        The function.
    names : frozenset of str
        Names of its parameters.
    numbers : frozenset of str
        Parameters that may be numbers instead of tensors.
    items : frozenset of str
        Parameters that may be constants.
    selections : frozenset of str
        Those of them that may be elements that a mask selects.
    """

    function: Function
    names: frozenset[str]
    numbers: frozenset[str]
    items: frozenset[str]
    selections: frozenset[str] = frozenset()


CONVERTERS: dict[str, Converter] = {}


def converts(*operators: str) -> Callable[[Function], Function]:
    """Register a function as the converter of operators, by names such as ``aten.add``."""

    def add(function: Function) -> Function:
        parameters = inspect.signature(function).parameters
        kinds = {name: parameter.annotation for name, parameter in parameters.items()}
        converter = Converter(
            function,
            frozenset(kinds) - {"call"},
            frozenset(name for name, kind in kinds.items() if kind is Operand),
            frozenset(name for name, kind in kinds.items() if kind in (Item, Chosen)),
            frozenset(name for name, kind in kinds.items() if kind == Chosen),
        )
        CONVERTERS.update(dict.fromkeys(operators, converter))
        return function

    return add


def is_known(target: object) -> bool:
    """Return whether an operator of PyTorch has a converter, is run at import, or is none."""
    if not isinstance(target, OpOverload):
        return True
    if not _takes_tensors(target) and torch.Tag.nondeterministic_seeded not in target.tags:
        return True
    name = str(target)
    packet = name.rpartition(".")[0]
    return name in CONVERTERS or packet in CONVERTERS


def _takes_tensors(target: Any) -> bool:
    return any("Tensor" in str(argument.type) for argument in schema_of(target).arguments)


def is_selection(node: fx.Node) -> bool:
    """Return whether a node selects by a mask, and all that read it take selections."""
    if str(node.target) != SELECTION:
        return False
    targets = [str(user.target).rpartition(".")[0] for user in node.users]
    readers = [CONVERTERS.get(target) for target in targets if target != "aten.sym_size"]
    return all(reader is not None and reader.selections for reader in readers)

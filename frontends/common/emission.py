"""The graph that grows while a model is imported, and the constants that enter it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, InitialValues, Item, StoredTensor
from shardwright.ir.attributes import Attribute, Attributes
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Node, Value, renamed_result
from shardwright.ir.provenance import ParameterRole
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array, operator_info, whole_kernel

# Elements of a constant that is computed at the import. A causal mask of 16,384 positions has as
# many; half would refuse it, twice as many take a gigabyte more of memory.
_MOST_ELEMENTS = 2**28


@dataclass
class Emission:
    """A graph that grows, and the constants that have entered it.

    Parameters
    ----------
    build : Builder
        Grows the graph.
    is_scratch : bool
        Whether it is run once, to fold constants.
    data : dict of str to array or StoredTensor
        Initial values of parameters, or where they are stored.
    constants : dict of int to (Constant, Value)
        The value of each constant, by its identity.
    equals : dict of object to Value
        The value of each untrained constant, by its elements.
    held : set of str
        The names of the values of constants.
    names : dict of str to str
        Names in our graph by names of the model.
    counter : Value, optional
        The number of the training step, where an operator reads it.
    producers : dict of str to Node
        The node of each value that was emitted, of the first `seen` nodes.
    seen : int
        How many nodes that has.
    slopes : set of str
        Constants to gradients that given gradients of functions read: they are no constants to
        the gradients of those.
    once : dict of str to str
        The values of what PyTorch has a gradient of, and a wrong second one: what that is.
    """

    build: Builder = field(default_factory=Builder)
    is_scratch: bool = False
    data: dict[str, Array | StoredTensor] = field(default_factory=dict)
    constants: dict[int, tuple[Constant, Value]] = field(default_factory=dict)
    equals: dict[object, Value] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    counter: Value | None = None
    producers: dict[str, Node] = field(default_factory=dict)
    seen: int = 0
    slopes: set[str] = field(default_factory=set)
    once: dict[str, str] = field(default_factory=dict)

    def enter(self, constant: Constant) -> Value:
        """Return the value of a constant: a parameter, or a fill with one number."""
        if id(constant) not in self.constants:
            value = self._entered(constant) if constant.trained else self._shared(constant)
            self.constants[id(constant)] = (constant, value)
            self.held.add(value.name)
        return self.constants[id(constant)][1]

    def outputs(self, items: Sequence[Item], model: str) -> tuple[Value, ...]:
        """Return the outputs of a program, each a value of its own.

        Parameters
        ----------
        items : sequence of Item
            What the model returns: values and constants.
        model : str
            What the model is, for messages.

        Raises
        ------
        UnsupportedError
            If there are none.
        """
        self.build.scope = ""
        taken = {v.name for v in self.build.inputs} | {p.name for p in self.build.parameters}
        found: list[Value] = []
        for item in items:
            value = self.enter(item) if isinstance(item, Constant) else item
            assert isinstance(value, Value)
            if value.name in taken | self.held:
                value = self.build.emit("identity", value)
            taken.add(value.name)
            found.append(value)
        if not found:
            raise UnsupportedError(f"{model} that returns no tensor")
        return tuple(found)

    def step(self) -> Value:
        """Return the number of the training step; emit its counter once."""
        if self.counter is None:
            number = Value(self.build.unique_name("step"), TensorType("int64", ()))
            attributes: Attributes = {"initializer": "zeros", "trainable": False}
            self.counter = self.build.parameter(number, attributes, "buffer")
            following = self.build.emit("add_scalar", number, name="step.next", value=1)
            self.build.updates.append((number.name, following.name))
        return self.counter

    def enter_named(self, constant: Constant) -> Value:
        """Return the value of an untrained tensor that keeps its name: state, or frozen."""
        name = self.names.get(constant.name) or self.build.unique_name("state", numbered=True)
        self.data[name] = constant.data
        attributes: Attributes = {"initializer": "data", "trainable": False}
        kind = TensorType(constant.dtype, constant.shape)
        self.held.add(name)
        return self.build.parameter(Value(name, kind), attributes, "buffer")

    def update(self, name: str, item: Constant | Value) -> None:
        """Note the value of a tensor of `enter_named` after the step."""
        following = self.enter(item) if isinstance(item, Constant) else item
        if following.name in self.held:
            following = self.build.emit("identity", following)
        self.build.updates.append((self.names[name], following.name))

    def renamed(self, value: Value, new: str, mark: int) -> Value:
        """Return a value that was emitted since `mark` by a new name."""
        nodes = self.build.nodes
        if not any(r.name == value.name for node in nodes[mark:] for r in node.results):
            return value
        nodes[mark:] = [renamed_result(node, value.name, new) for node in nodes[mark:]]
        self.seen = min(self.seen, mark)
        return replace(value, name=new)

    def producer(self, name: str) -> Node | None:
        """Return the node of a value that was emitted before; None for inputs and parameters."""
        for node in self.build.nodes[self.seen :]:
            self.producers.update({result.name: node for result in node.results})
        self.seen = len(self.build.nodes)
        return self.producers.get(name)

    def _shared(self, constant: Constant) -> Value:
        """Return the value of all constants that are equal to one."""
        key = (constant.dtype, constant.shape, _elements(constant))
        if key not in self.equals:
            self.equals[key] = self._entered(constant)
        return self.equals[key]

    def _entered(self, constant: Constant) -> Value:
        kind = TensorType(constant.dtype, constant.shape)
        number = None if constant.trained or self.is_scratch else _uniform(constant)
        if number is not None:
            return self.build.emit("fill", shape=kind.shape, dtype=kind.dtype, value=number)
        name = self.names.get(constant.name, "")
        if not name or name in self.data:
            name = self.build.unique_name(name or "constant", numbered=True)
        self.data[name] = constant.data
        attributes: Attributes = {"initializer": "data", "trainable": constant.trained}
        role: ParameterRole = "weight" if constant.trained else "buffer"
        return self.build.parameter(Value(name, kind), attributes, role)


def _elements(constant: Constant) -> object:
    """Return a key that equal elements share; the name if the elements are missing."""
    if constant.is_absent:
        return constant.name
    elements = np.ascontiguousarray(constant.array).reshape(-1)
    return hashlib.sha256(elements.view(np.uint8).data).digest()  # bfloat16 has no buffer


def _uniform(constant: Constant) -> Attribute:
    """Return the number that all elements equal; None if they differ or are missing."""
    if constant.is_absent:
        return None
    array = constant.array
    first = array.ravel()[:1]
    if np.isnan(first).any() or not (array == first).all():
        return None
    number: Attribute = first[0].item()
    return number


def check_constant(elements: int) -> None:
    """Refuse a constant that is larger than any that models compute.

    Raises
    ------
    ModelError
        Tells its elements.
    """
    if elements > _MOST_ELEMENTS:
        raise ModelError(
            f"the model computes a constant of {elements:,} elements, at most "
            f"{_MOST_ELEMENTS:,} are computed at its import",
            hint="compute it from an input, or store it as a weight",
        )


def evaluated(emission: Emission, items: Sequence[Item]) -> tuple[Item, ...]:
    """Run the emitted nodes, and return the items as constants.

    Raises
    ------
    ModelError
        If a constant would be larger than any that models hold.
    """
    arrays: dict[str, Array] = dict(InitialValues(emission.data))
    types = {p.name: p.value.type for p in emission.build.parameters}
    for node in emission.build.nodes:
        for result in node.results:
            check_constant(result.type.elements)
        info = operator_info(node.operator, [types[n] for n in node.operands], node.attributes)
        results = whole_kernel(info, *(arrays[name] for name in node.operands))
        for result, array in zip(node.results, results, strict=True):
            arrays[result.name] = np.asarray(array, numpy_dtype(result.type.dtype))
            types[result.name] = result.type

    def known(item: Item) -> Item:
        if isinstance(item, Value):
            return Constant(arrays[item.name], item.type.dtype)
        return tuple(map(known, item)) if isinstance(item, tuple) else item

    return tuple(map(known, items))

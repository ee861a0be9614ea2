"""The walk over an ONNX graph: resolves names, folds constants, inlines functions and branches.

Values that are known at import (shapes, masks, positions) never reach the program: a node with
constant inputs is run at once by our own kernels, and becomes a constant.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto, helper

from shardwright.frontends.common.emission import Emission, evaluated
from shardwright.frontends.common.errors import NeedsConstantError, UnsupportedError
from shardwright.frontends.common.items import Constant, Item, items_of
from shardwright.frontends.onnx.conversion import Conversion, Scope
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import CONVERTERS, FOLDERS
from shardwright.frontends.onnx.onnx_types import (
    array_of,
    attribute_value,
    dtype_of,
    enum_of,
)
from shardwright.frontends.onnx.origins import TensorOrigins
from shardwright.frontends.onnx.schemas import (
    domain_of,
    folder,
    function_body,
    key_of,
    schema_of,
    title,
)
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.ir.text import plain_name

# Nodes of a model whose functions are written out. The largest of exporters have some 50,000; half
# of this would refuse none, twice as many take minutes to be converted.
MOST_NODES = 1_000_000
# Never folded as a whole: the nodes of a body are folded one by one.
_WITH_BODY = ("If", "Loop", "Scan")
# Operators in which a single number is a bound, divisor or choice, not a weight.
_TAKE_NUMBERS = ("Clip", "Div", "Max", "Min", "Pow", "Where")


class Importer(Conversion):
    """Grows our graph from ONNX nodes.

    Parameters
    ----------
    functions : mapping of (str, str) to FunctionProto
        The functions of the model, by domain and name.
    names : iterable of str
        Names of inputs, weights and results in the model, which are reserved for them.
    """

    def __init__(
        self,
        functions: Mapping[tuple[str, str], FunctionProto],
        names: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self.functions = functions
        self.origins = TensorOrigins()  # which tensors of the file were parameters
        for name in names:
            self.emission.names[name] = self.build.unique_name(plain_name(name))
        self._node: NodeProto | None = None
        self._converted_nodes = 0

    @property
    def where(self) -> str | None:
        """The node that is being converted, for messages."""
        return None if self._node is None else f"{self._node.op_type} `{title(self._node)}`"

    # Graphs

    def graph(self, graph: GraphProto, scope: Scope) -> tuple[Item, ...]:
        """Convert a graph whose inputs are in scope, and return its outputs."""
        for tensor in graph.initializer:
            if tensor.name not in scope.names.maps[0]:
                scope.names[tensor.name] = Constant(
                    array_of(tensor), dtype_of(tensor.data_type), tensor.name
                )
        self.nodes(graph.node, scope)
        return tuple(scope.names[output.name] for output in graph.output)

    def branch(
        self, graph: GraphProto, scope: Scope, items: Sequence[Item] = ()
    ) -> tuple[Item, ...]:
        """Convert the body of a node, which may read the names around it."""
        inner = scope.inside()
        for declared, item in zip(graph.input, items, strict=True):
            inner.names[declared.name] = item
        return self.graph(graph, inner)

    def nodes(self, nodes: Iterable[NodeProto], scope: Scope) -> None:
        """Convert nodes in order."""
        for node in nodes:
            self.node(node, scope)

    def node(self, node: NodeProto, scope: Scope) -> None:
        """Convert a node, and bind the names of its results."""
        self._converted_nodes += 1
        if self._converted_nodes > MOST_NODES:
            raise UnsupportedError(f"a model of more than {MOST_NODES:,} nodes, loops written out")
        outer, self._node = self._node, self._node or node
        place, self.build.scope = self.build.scope, self.build.scope or folder(node)
        names = list(node.input)
        while names and not names[-1]:
            names.pop()
        for name in names:
            if name and name not in scope.names:
                raise IRError(f"the node reads `{name}`, which is not defined")
        items = [scope.names[name] if name else None for name in names]
        attributes = self._attributes(node, scope)
        mark = len(self.build.nodes)
        found = self.apply(node, items, attributes, scope)
        for name, item in zip(node.output, found, strict=False):
            if name:
                scope.names[name] = item if outer else self.named(item, name, mark)
        self._node, self.build.scope = outer, place

    def _attributes(self, node: NodeProto, scope: Scope) -> dict[str, AttributeProto]:
        """Return the attributes of a node, with references to function attributes resolved."""
        found = {}
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                found[attribute.name] = attribute
            elif attribute.ref_attr_name in scope.attributes:
                given = AttributeProto()
                given.CopyFrom(scope.attributes[attribute.ref_attr_name])
                given.name = attribute.name
                found[attribute.name] = given
        return found

    def apply(
        self,
        node: NodeProto,
        items: Sequence[Item],
        attributes: Mapping[str, AttributeProto],
        scope: Scope,
    ) -> tuple[Item, ...]:
        """Return the results of a node."""
        local = self.functions.get((node.domain, node.op_type))
        if local is not None:
            return self._inlined(local, items, attributes, scope)
        if key_of(node) not in CONVERTERS:
            return self._composed(node, items, attributes, scope)
        values = {name: attribute_value(a) for name, a in attributes.items()}
        opset = scope.opsets.get(domain_of(node.domain), 1)
        if key_of(node) in _TAKE_NUMBERS and not self.origins.is_noted:
            items = [self.frozen(item) if _is_number(item) else item for item in items]
        key = key_of(node)
        count = max((i + 1 for i, name in enumerate(node.output) if name), default=0)
        call = Call(self, key, items, values, opset, count, scope, node.input)
        try:
            return self._converted(call)
        except UnsupportedError:
            if function_body(node, scope.opsets) is None:
                raise
            return self._composed(node, items, attributes, scope)

    def _composed(
        self,
        node: NodeProto,
        items: Sequence[Item],
        attributes: Mapping[str, AttributeProto],
        scope: Scope,
    ) -> tuple[Item, ...]:
        """Return the results of a node, converted as its function body in the ONNX standard."""
        plain = NodeProto(op_type=node.op_type, domain=node.domain, name=node.name)
        plain.input.extend(node.input)
        plain.output.extend(node.output)
        plain.attribute.extend(attributes.values())
        body = function_body(plain, scope.opsets, [self._proto(item) for item in items])
        if body is None:
            raise UnsupportedError(f"the operator {node.op_type}")
        return self._inlined(body, items, {**_defaults(node, scope), **attributes}, scope)

    def _proto(self, item: Item) -> TypeProto:
        """Return the ONNX type of an item; empty if it is no tensor."""
        if item is None or isinstance(item, tuple):
            return TypeProto()
        shape = item.shape if isinstance(item, Constant) else item.type.shape
        return helper.make_tensor_type_proto(enum_of(self.dtype(item)), shape)

    def _inlined(
        self,
        function: FunctionProto,
        items: Sequence[Item],
        attributes: Mapping[str, AttributeProto],
        scope: Scope,
    ) -> tuple[Item, ...]:
        given = [*items, *[None] * (len(function.input) - len(items))]
        names = dict(zip(function.input, given, strict=False))
        opsets = {**scope.opsets, **{domain_of(o.domain): o.version for o in function.opset_import}}
        defaults = {a.name: a for a in function.attribute_proto}
        inner = Scope(ChainMap(names), {**defaults, **attributes}, opsets)
        self.nodes(function.node, inner)
        return tuple(inner.names.get(name) for name in function.output)

    def _converted(self, call: Call) -> tuple[Item, ...]:
        constants = [item for item in call.items if item is not None]
        if call.operator in FOLDERS and call.operator != "Concat":
            _check_emptiness(call)
        foldable = all(isinstance(i, Constant) and not i.trained for i in constants)
        if constants and foldable and call.operator not in _WITH_BODY:
            return self._folded(call)
        return items_of(CONVERTERS[call.operator](call))

    # Constants

    def _folded(self, call: Call) -> tuple[Item, ...]:
        """Run a node on constants, with our kernels, or with numpy if a constant is empty."""
        outer, self.emission = self.emission, Emission(is_scratch=True)
        try:
            found = items_of(CONVERTERS[call.operator](call))
            return evaluated(self.emission, found)
        except (IRError, UnsupportedError):
            if call.operator not in FOLDERS:
                raise
            arrays = [item.array for item in call.items if isinstance(item, Constant)]
            array = FOLDERS[call.operator](call, arrays)
            same = array.dtype == arrays[0].dtype
            return (Constant(array, call.dtype(0) if same else array.dtype.name),)
        finally:
            self.emission = outer

    def run(
        self,
        operator: str,
        items: Sequence[Item],
        attributes: dict[str, Any],
        opset: int,
        scope: Scope,
    ) -> tuple[Item, ...]:
        """Convert an operator that is no node of the model."""
        names = [""] * len(items)
        return self._converted(Call(self, operator, items, attributes, opset, 1, scope, names))

    # Names

    def named(self, item: Item, name: str, mark: int) -> Item:
        """Rename a value that was emitted since `mark` to its name in the model."""
        if not isinstance(item, Value) or item.name in self.emission.held:
            return item
        return self.emission.renamed(item, self.emission.names[name], mark)


def _check_emptiness(call: Call) -> None:
    """Require constant inputs if one has no elements: programs have no empty tensors."""
    # A reduction along no axes is one along all.
    items = call.items[:1] if call.operator.startswith("Reduce") else call.items
    if any(isinstance(item, Constant) and not item.size for item in items):
        for name, item in zip(call.names, call.items, strict=True):
            if isinstance(item, Value):
                raise NeedsConstantError(name)


def _is_number(item: Item) -> bool:
    return isinstance(item, Constant) and item.size == 1


def _defaults(node: NodeProto, scope: Scope) -> dict[str, AttributeProto]:
    schema = schema_of(node, scope.opsets)
    found = {} if schema is None else schema.attributes
    return {name: a.default_value for name, a in found.items() if a.default_value.name}

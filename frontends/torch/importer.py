"""The walk over an exported graph: binds arguments, folds constants, inlines bodies.

A node whose tensors are all known is run by PyTorch at once, and becomes a constant.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ExportGraphSignature, InputKind

from shardwright.frontends.common.emission import Emission
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant
from shardwright.frontends.common.own_gradients import OwnGradients
from shardwright.frontends.torch.aten import COMPLEX, CONVERTERS, SELECTION, Converter
from shardwright.frontends.torch.aten_call import Call, Notes, Selected
from shardwright.frontends.torch.control import CONTROL
from shardwright.frontends.torch.exporting.choices import PLACES
from shardwright.frontends.torch.exporting.known import ASSUMED
from shardwright.frontends.torch.gradients import GRADIENT, differentiated
from shardwright.frontends.torch.places import module_path, place
from shardwright.frontends.torch.private import HigherOrderOperator, OpOverload, schema_of
from shardwright.frontends.torch.stored import ModuleTensor, computed
from shardwright.frontends.torch.torch_types import constant_dtype_of, pair_type_of, type_of
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.ir.text import plain_name

# Arguments that say nothing about the elements of a result.
_PLACEMENT = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"}
# Names of arguments that functions here cannot have.
_NAMES = {"self": "x", "input": "x", "from": "begin", "LU_data": "lu", "LU_pivots": "pivots"}
# Operators without a result.
CHECKS = ("aten._assert", "aten.sym_constrain", "aten._functional_assert")
# Operators of PyTorch that run a graph inside of a mode.
NO_GRADIENT, _AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"


class Importer:
    """Grows our graph from the nodes of an exported one.

    Parameters
    ----------
    names : mapping of str to str
        The name of each parameter and buffer, by all of its names; tied ones have one.
    tensors : mapping of str to Tensor
        The parameters, buffers and constants, by name.
    held : mapping of str to Tensor
        The inputs that are constants of the program, by name.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        tensors: Mapping[str, torch.Tensor],
        held: Mapping[str, torch.Tensor],
    ) -> None:
        self.emission = Emission()
        self.own = OwnGradients(self.emission)
        self.marks: dict[int, Value] = {}
        self.names, self.tensors, self.held = names, tensors, held
        self.entered: dict[str, Any] = {}
        self.notes = Notes()
        self.assumptions: dict[str, list[Value]] = {}
        self.node: fx.Node | None = None

    @property
    def where(self) -> str | None:
        """The module and the line of the node that is being converted, for messages."""
        return None if self.node is None else place(self.node)

    # Inputs

    def placeholders(self, graph: fx.Graph, signature: ExportGraphSignature) -> dict[fx.Node, Any]:
        """Return the items of the parameters, buffers, constants and inputs of a graph."""
        updated = {self.names[name] for name in signature.buffers_to_mutate.values()}
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        items: dict[fx.Node, Any] = dict.fromkeys(nodes)  # tokens of effects stay None
        for node, spec in zip(nodes, signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                is_held = node.name in self.held
                items[node] = _as_constants(self.held[node.name]) if is_held else self._input(node)
            elif spec.kind is InputKind.CUSTOM_OBJ:
                self.node = next(iter(node.users), node)
                raise UnsupportedError("an object that is no tensor, such as a generator,")
            elif spec.target is not None:
                items[node] = self._stored(self.names.get(spec.target, spec.target), updated)
        return items

    def _input(self, node: fx.Node) -> Any:
        tensor = node.meta["val"]
        if not isinstance(tensor, torch.Tensor):
            return tensor
        name = self.emission.build.unique_name(plain_name(node.name))
        return self.emission.build.input(Value(name, type_of(tensor)))

    def _stored(self, name: str, updated: set[str]) -> Any:
        """Return a tensor of the module: a parameter, state, or a constant."""
        if name not in self.entered:
            tensor = self.tensors[name]
            # State is copied: the module changes it whenever it runs.
            own = tensor.detach().clone() if name in updated else tensor
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            if own.is_complex() and (is_parameter or name in updated):
                own = torch.view_as_real(own.detach().resolve_conj())
            stored = ModuleTensor(own)
            trained = is_parameter and tensor.requires_grad
            self.emission.names[name] = self.emission.build.unique_name(plain_name(name))
            self.entered[name] = Constant(stored, stored.dtype, name, trained)
            is_frozen = is_parameter and not trained
            if name in updated or is_frozen:
                self.entered[name] = self.emission.enter_named(self.entered[name])
        return self.entered[name]

    # Nodes

    def run(self, graph: fx.Graph, items: dict[fx.Node, Any], module: torch.nn.Module) -> Any:
        """Convert the nodes of a graph, and return its outputs."""
        last, checks, points = _last_readers(graph), _checks(graph), differentiated(graph)
        self.notes.differentiates |= bool(points)
        for node in graph.nodes:
            if node.op == "output":
                return self._given(items, node.args[0])
            if node.op == "get_attr":
                items[node] = getattr(module, str(node.target))
            elif node.op == "call_function" and node not in checks:
                self.node = node
                items[node] = self._result(node, items, module)
            if node in points:
                items[node] = self._distinct(node, items[node])
            for done in last.get(node, ()):
                items.pop(done, None)
        raise UnsupportedError("a graph without outputs")

    def _distinct(self, node: fx.Node, item: Any) -> Any:
        """Return a tensor as a value of its own: gradients by it are not by one that it equals."""
        if isinstance(item, Constant) and not item.trained:
            return self.emission.build.emit("identity", self.emission.enter(item))
        is_own = node.op == "placeholder" or not isinstance(item, Value)
        return item if is_own else self.emission.build.emit("identity", item)

    def _given(self, items: Mapping[fx.Node, Any], argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return items[argument]
        if isinstance(argument, (tuple, list)):
            return [self._given(items, part) for part in argument]
        if isinstance(argument, dict):
            return {key: self._given(items, part) for key, part in argument.items()}
        return argument

    def _result(self, node: fx.Node, items: Mapping[fx.Node, Any], module: torch.nn.Module) -> Any:
        arguments = self._given(items, list(node.args))
        keywords = self._given(items, dict(node.kwargs))
        if node.target is operator.getitem:
            return self._one_of(node, *arguments)
        if isinstance(node.target, HigherOrderOperator):
            return self._inlined(node, arguments)
        if not isinstance(node.target, OpOverload):
            raise UnsupportedError(f"the operator {node.target}, whose result depends on data,")
        self.emission.build.scope = module_path(node)
        if str(node.target).startswith("shardwright.") and (name := _own(node.target)):
            return getattr(self, name)(node, *arguments)
        if is_assumption(node):
            return self._assumed(arguments[0], arguments[1])
        if str(node.target) == SELECTION and not _all_known(arguments):
            return self._selected(node, *arguments)
        draws = torch.Tag.nondeterministic_seeded in node.target.tags
        is_run = draws or str(node.target).startswith(GRADIENT)
        known = not is_run and _all_known([*arguments, *keywords.values()])
        return (
            self._folded(node, arguments, keywords)
            if known
            else self._converted(node, arguments, keywords)
        )

    def _selected(self, node: fx.Node, values: Any, mask: Any) -> Selected:
        """Return a selection, for a converter that takes it as it is."""
        call = Call(self.emission, str(node.target), (), self.notes)
        x, chosen = call.value(values), call.value(mask)
        shape = torch.broadcast_shapes(x.type.shape, chosen.type.shape)
        return Selected(call.broadcast(x, shape), call.broadcast(chosen, shape))

    # Assumptions

    def _assumed(self, holds: Any, message: str) -> None:
        """Note a value that is true where what the module reads is as in the example."""
        if isinstance(holds, Constant):
            return  # it follows from inputs that are held constant
        self.assumptions.setdefault(message.removeprefix(ASSUMED), []).append(holds)

    def guarded(self, outputs: Sequence[Value]) -> tuple[Value, ...]:
        """Return outputs that are infinite where an assumption does not hold."""
        values = [value for group in self.assumptions.values() for value in group]
        if not values:
            return tuple(outputs)
        self.emission.build.scope = "assumptions"
        call = Call(self.emission, "assumptions", (), self.notes)
        holds = values[0]
        for value in values[1:]:
            holds = call.emit("logical_and", holds, value)
        return tuple(
            self.emission.build.emit(
                "where",
                call.broadcast(holds, one.type.shape),
                one,
                call.fill(float("inf"), one.type.dtype, one.type.shape),
                name=f"checked_{one.name}",
            )
            if one.type.is_float
            else one
            for one in outputs
        )

    # Gradients that the module computes

    def _cotangent(self, node: fx.Node, number: int, *_: Any) -> Value:
        self.marks[number] = self.own.mark(type_of(node.meta["val"]))
        return self.marks[number]

    def _own_gradient(
        self, _: fx.Node, values: Any, numbers: Any, targets: Any, gradients: Any
    ) -> list[Value]:
        made = [None if one is None else self._entered(one) for one in gradients]
        results, arguments = ([self._entered(one) for one in items] for items in (values, targets))
        marks = [
            self.marks.pop(number) if number in self.marks else self.own.mark(result.type)
            for number, result in zip(numbers, results, strict=True)
        ]
        return self.own.given(results, marks, arguments, made)

    def _boundary(self, _: fx.Node, items: Any) -> Any:
        return items

    def _entered(self, item: Any) -> Value:
        return self.emission.enter(item) if isinstance(item, Constant) else item

    def _one_of(self, node: fx.Node, results: Sequence[Any], index: int) -> Any:
        """Return one result of an operator; converters give None for what they do not compute."""
        if results[index] is None and node.users:
            raise UnsupportedError(f"result {index} of the operator {node.args[0]}")
        return results[index]

    def _inlined(self, node: fx.Node, arguments: list[Any]) -> Any:
        """Convert the graphs that an operator runs: inside of a mode, branches, loops."""
        name = str(node.target.name() if callable(node.target.name) else node.target)
        if name in CONTROL:
            return CONTROL[name](self, *arguments)
        position = {NO_GRADIENT: 1, _AUTOCAST: 4}.get(name)
        if position is None:
            raise UnsupportedError(f"the operator {name}, which runs functions of the module,")
        if name == _AUTOCAST and arguments[2]:
            raise UnsupportedError("automatic mixed precision inside of the module")
        results = self.within(arguments[position], arguments[position + 1 :])
        if name == NO_GRADIENT and not arguments[0]:
            results = [self._stopped(item) for item in results]
        return results

    def within(self, body: torch.fx.GraphModule, arguments: Sequence[Any]) -> Any:
        """Convert the graph of a function, and return its results."""
        node, inner = self.node, [n for n in body.graph.nodes if n.op == "placeholder"]
        results = self.run(body.graph, dict(zip(inner, arguments, strict=True)), body)
        self.node = node
        return results

    def _stopped(self, item: Any) -> Any:
        """Return a tensor as a constant to gradients."""
        if not isinstance(item, Value) or not item.type.is_float:
            return item
        return self.emission.build.emit("stop_gradient", item)

    # Constants

    def _folded(self, node: fx.Node, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Run a node on constants."""
        keywords = {k: v for k, v in keywords.items() if k not in ("device", "pin_memory")}
        if "device" in node.kwargs:
            keywords["device"] = "cpu"
        result = computed(node.target, _plain(arguments), _plain(keywords), node.meta.get("val"))
        return _as_constants(result)

    # Converters

    def _converted(self, node: fx.Node, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        target = node.target
        assert isinstance(target, OpOverload)
        packet = str(target).rpartition(".")[0]
        prefix = COMPLEX if _is_complex(node) else ""
        converter = CONVERTERS.get(prefix + str(target)) or CONVERTERS.get(prefix + packet)
        if converter is None and packet == "aten._local_scalar_dense":
            raise UnsupportedError("a number that a module reads from a tensor, as by `item`,")
        if converter is None:
            raise UnsupportedError(f"the operator {target}{' of complex numbers' * bool(prefix)}")
        sample = node.meta.get("val")
        if isinstance(sample, torch.Tensor) and not _has_elements(sample):
            return _as_constants(torch.empty(sample.shape, dtype=sample.dtype))
        call = Call(self.emission, str(target), (), self.notes)
        if prefix:
            call.is_complex = _holds_complex(node)
            call.complex_arguments = _complex_arguments(node, target)
        call.memory = _memory(node)
        bound = self._bound(call, converter, target, arguments, keywords)
        call.results = results = _types(sample)
        mark = len(self.emission.build.nodes)
        try:
            found = converter.function(call, **bound)
        except IRError as error:
            raise UnsupportedError(f"the operator {target} ({error.what})") from error
        _check_types(target, found, results)
        return self._named(node, found, mark)

    def _bound(
        self,
        call: Call,
        converter: Converter,
        target: Any,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the arguments of a converter by name, tensors as it wants them."""
        schema = schema_of(target).arguments
        given = {a.name: v for a, v in zip(schema, arguments, strict=False)} | dict(keywords)
        defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
        bound = {}
        for name, item in {**defaults, **given}.items():
            ours = _NAMES.get(name, name.lower())
            if ours in converter.names:
                bound[ours] = _passed(call, converter, ours, item)
            elif (
                name in given
                and name not in _PLACEMENT
                and not (name in defaults and defaults[name] == item)
            ):
                raise UnsupportedError(f"the argument `{name}` of the operator {target}")
        return bound

    def _named(self, node: fx.Node, found: Any, mark: int) -> Any:
        """Rename a result that was emitted since `mark` to the name of its node in the export."""
        if not isinstance(found, Value) or found.name in self.emission.held:
            return found
        name = self.emission.build.unique_name(plain_name(node.name))
        renamed = self.emission.renamed(found, name, mark)
        views = self.notes.views
        if found.name in views:
            views[renamed.name] = views[found.name]
        return renamed


def _own(target: Any) -> str | None:
    """Return the method for an operator of `autograd.marks`."""
    name = str(target).split(".")[1]
    return f"_{name}" if name in ("cotangent", "own_gradient", "boundary") else None


def _passed(call: Call, converter: Converter, name: str, item: Any) -> Any:
    if isinstance(item, list):
        return [_passed(call, converter, name, part) for part in item]
    if isinstance(item, torch.dtype):
        return constant_dtype_of(item)
    if isinstance(item, Selected) and name not in converter.selections:
        raise UnsupportedError("a selection by a mask, whose shape depends on data,")
    if not isinstance(item, Constant) or name in converter.items:
        return item
    if name in converter.numbers and not item.shape and not item.trained and not item.is_absent:
        return item.array.item()
    return call.value(_as_pairs(item))


def _as_pairs(item: Constant) -> Constant:
    """Return a complex constant as its real and imaginary parts, and another one as it is."""
    if isinstance(item.data, ModuleTensor) and item.data.tensor.is_complex():
        return _as_constants(torch.view_as_real(item.data.tensor.resolve_conj()))
    return item


def _is_complex(node: fx.Node) -> bool:
    """Return whether an operator takes or returns complex numbers."""
    return any(_holds_complex(one) for one in (node, *node.all_input_nodes))


def _holds_complex(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _holds_complex_node(item: Any) -> bool:
    return isinstance(item, fx.Node) and _holds_complex(item)


def _memory(node: fx.Node) -> tuple[tuple[int, ...], int]:
    """Return strides and beginning of the first argument of a node, none where it is no tensor."""
    first = node.args[0] if node.args else None
    value = first.meta.get("val") if isinstance(first, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return (), 0
    return tuple(value.stride()), value.storage_offset()


def _complex_arguments(node: fx.Node, target: Any) -> frozenset[str]:
    """Return the names of the arguments that are complex tensors."""
    given = zip(
        (argument.name for argument in schema_of(target).arguments), node.args, strict=False
    )
    pairs = [*given, *node.kwargs.items()]
    return frozenset(
        _NAMES.get(name, name.lower())
        for name, item in pairs
        if _holds_complex_node(item)
        or (isinstance(item, (list, tuple)) and item and all(map(_holds_complex_node, item)))
    )


def _all_known(arguments: Sequence[Any]) -> bool:
    """Return whether all tensors among arguments are constants with elements."""
    for item in arguments:
        if isinstance(item, (list, tuple)):
            if not _all_known(item):
                return False
        elif isinstance(item, (Value, Selected)) or (
            isinstance(item, Constant) and (item.trained or item.is_absent)
        ):
            return False
    return True


def _plain(item: Any) -> Any:
    """Return arguments with tensors of PyTorch for constants, which are on the CPU."""
    if isinstance(item, list):
        return [_plain(part) for part in item]
    if isinstance(item, dict):
        return {key: _plain(part) for key, part in item.items()}
    if isinstance(item, torch.device):
        return torch.device("cpu")
    if isinstance(item, Constant):
        return item.data.tensor if isinstance(item.data, ModuleTensor) else torch.tensor(item.array)
    return item


def _as_constants(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return Constant(ModuleTensor(result), constant_dtype_of(result.dtype))
    if isinstance(result, (tuple, list)):
        return [_as_constants(part) for part in result]
    return result


def _types(result: Any) -> tuple[Any, ...]:
    """Return the types of the results of a node; None where a result is not a tensor."""
    if isinstance(result, torch.Tensor):
        return (pair_type_of(result),)
    if isinstance(result, (tuple, list)):
        return tuple(pair_type_of(r) if _has_elements(r) else None for r in result)
    raise UnsupportedError("a result that is no tensor and depends on data")


def _has_elements(result: Any) -> bool:
    if not isinstance(result, torch.Tensor):
        return False
    return not any(isinstance(n, int) and n == 0 for n in result.shape)


def _check_types(target: Any, found: Any, expected: Sequence[Any]) -> None:
    """Require the shapes and element types that PyTorch has."""
    results = found if isinstance(found, (list, tuple)) else [found]
    for result, kind in zip(results, expected, strict=False):
        if isinstance(result, Value) and result.type.dense != kind:
            raise UnsupportedError(f"the operator {target} as {kind} (it would be {result.type})")


def _checks(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that check what the module asserts, with all that only they read."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "call_function":
            is_check = str(node.target).startswith(CHECKS) and not is_assumption(node)
            unread = not node.users and str(node.target).startswith(PLACES)
            if is_check or unread or (node.users and all(user in found for user in node.users)):
                found.add(node)
    return found


def is_assumption(node: fx.Node) -> bool:
    """Return whether a node asserts what the user assumes, which the program checks."""
    message = node.args[1] if str(node.target).startswith(CHECKS) and len(node.args) > 1 else ""
    return isinstance(message, str) and message.startswith(ASSUMED)


def _last_readers(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Return for each node the nodes that no later one reads, to free constants early."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for read in node.all_input_nodes:
            last[read] = node
    found: dict[fx.Node, list[fx.Node]] = {}
    for read, reader in last.items():
        found.setdefault(reader, []).append(read)
    return found

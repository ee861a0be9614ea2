"""Exports without writes, of operators that have converters."""

import operator
from collections.abc import Iterator
from functools import partial

import torch
from torch import fx
from torch.export import ExportedProgram, default_decompositions

from shardwright.frontends.torch.importer import CHECKS, NO_GRADIENT
from shardwright.frontends.torch.places import place
from shardwright.frontends.torch.table import is_known
from shardwright.ir.errors import ModelError

_ROUNDS = 4  # of decomposition
# Operators that write to statistics, which their schemas do not say.
_WRITING = ("aten.batch_norm", "aten._batch_norm_impl_index", "aten.instance_norm")
# Composed operators whose results may be their arguments, and whose converters take all forms.
_PLAIN = {
    f"aten.{name}"
    for name in ("to", "type_as", "contiguous", "reshape", "flatten", "view_as", "expand_as")
}
_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd


def functional(program: ExportedProgram) -> ExportedProgram:
    """Return a program without writes, in which unknown operators are composed of known ones.

    PyTorch traces the whole program again for that, so one that has this form is left as it is.

    Parameters
    ----------
    program : ExportedProgram
        What `torch.export.export` returns; its graph is changed.

    Raises
    ------
    ModelError
        If its gradient is not that of a program without writes.
    """
    if all(_is_plain(node) for graph in _graphs(program) for node in graph.nodes):
        return program
    for graph in _graphs(program):
        for node in list(graph.nodes):
            if _stops_gradients(node):
                _detach(graph, node)
    return _decomposed(program)


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """Return a program in which operators without a converter are composed of others.

    Each round traces the whole program again; the first one makes it functional, too.
    """
    for done in range(_ROUNDS + 1):
        unknown = {node.target for node in program.graph.nodes if not is_known(node.target)}
        table = default_decompositions() if unknown else {}
        chosen = {target: table[target] for target in unknown if target in table}
        if done and not chosen:
            break
        program = program.run_decompositions(chosen)
    return program


def _graphs(program: ExportedProgram) -> Iterator[fx.Graph]:
    """Yield the graph of a program, and those of the functions that it runs inside of modes."""
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            yield module.graph


def _is_plain(node: fx.Node) -> bool:
    """Return whether a node writes to no tensor, and can be imported."""
    if node.op != "call_function":
        return True
    target, value = node.target, node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.is_complex():
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem or _is_mode(node)
    if str(target).startswith(CHECKS):
        return True
    packet = str(target).rpartition(".")[0]
    if not is_known(target) or target._schema.is_mutable or packet in _WRITING:
        return False
    may_alias = any(argument.alias_info for argument in target._schema.arguments)
    return packet in _PLAIN or not (may_alias and target.has_kernel_for_dispatch_key(_COMPOSED))


def _is_mode(node: fx.Node) -> bool:
    """Return whether a node runs a function with gradients, or without."""
    is_mode = isinstance(node.target, torch._ops.HigherOrderOperator)
    return is_mode and str(node.target) == NO_GRADIENT


# Decompositions run functions inside of modes in line, and forget that gradients stop there.


def _stops_gradients(node: fx.Node) -> bool:
    return node.op == "call_function" and _is_mode(node) and not node.args[0]


def _detach(graph: fx.Graph, mode: fx.Node) -> None:
    """Let the results of a function without gradients be constants to gradients."""
    _check_writes(graph, mode)
    for result in list(mode.users):
        value = result.meta["val"]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        with graph.inserting_after(result):
            stopped = graph.call_function(torch.ops.aten.detach.default, (result,))
        stopped.meta = dict(result.meta)
        result.replace_all_uses_with(stopped, partial(operator.is_not, stopped))


def _check_writes(graph: fx.Graph, mode: fx.Node) -> None:
    """Refuse a function without gradients that writes to what was computed with them."""
    assert graph.owning_module is not None
    body = getattr(graph.owning_module, str(mode.args[1].target))  # type: ignore[union-attr]
    inner = [node for node in body.graph.nodes if node.op == "placeholder"]
    given = dict(zip(inner, mode.args[2:], strict=True))
    for node in body.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            written = node
            while written.args and isinstance(written.args[0], fx.Node):  # through views
                written = written.args[0]
            outer, value = given.get(written), written.meta.get("val")
            is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
            if isinstance(outer, fx.Node) and outer.op != "placeholder" and is_float:
                raise ModelError(
                    f"`{outer.name}` is written to where gradients are off, so its gradient is not "
                    "that of what is computed",
                    place(node),
                    "write where gradients are on, or to a copy",
                )

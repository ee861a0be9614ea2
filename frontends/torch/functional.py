"""Exports without writes, of operators that have converters."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from operator import getitem, is_not
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram, default_decompositions

from shardwright.frontends.torch.aten import is_known
from shardwright.frontends.torch.control import CONTROL
from shardwright.frontends.torch.derivatives import keep_losses
from shardwright.frontends.torch.importer import CHECKS, NO_GRADIENT
from shardwright.frontends.torch.places import place, whole_traces
from shardwright.frontends.torch.private import (
    COMPOSED,
    HigherOrderOperator,
    OpOverload,
    schema_of,
)
from shardwright.ir.errors import ModelError

# The operator that raises an error where equations could not be solved.
_SOLVED = "aten._linalg_check_errors"
# Operators that write to statistics, which their schemas do not say.
_WRITING = ("aten.batch_norm", "aten._batch_norm_impl_index", "aten.instance_norm")
# Operators that return their argument itself where they have nothing to do.
_ITSELF = {
    f"aten.{name}"
    for name in (
        "to", "type_as", "contiguous", "flatten", "dropout", "feature_dropout", "alpha_dropout",
        "feature_alpha_dropout", "positive", "resolve_conj", "resolve_neg", "conj", "real",
        "atleast_1d", "atleast_2d", "atleast_3d",
    )
}  # fmt: skip
# Composed operators whose results may be their arguments, and whose converters take all forms.
_PLAIN = {
    f"aten.{name}"
    for name in ("to", "type_as", "contiguous", "reshape", "flatten", "view_as", "expand_as")
}


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
    for graph in _graphs(program):
        _pass_through(graph)
    if all(_is_plain(node) for graph in _graphs(program) for node in graph.nodes):
        return program
    trained = program.graph_signature.inputs_to_parameters
    for graph in _graphs(program):
        keep_losses(graph)
        _detach_in_place(graph)
        for node in list(graph.nodes):
            if _stops_gradients(node):
                _detach(graph, node, trained)
        _separate_written(graph, trained)
    return _decomposed(program)


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """Return a program in which operators without a converter are composed of others.

    Each round traces the whole program again; the first one makes it functional, too.
    """
    known: dict[Any, Any] | None = None
    while True:
        nodes = [node for graph in _graphs(program) for node in graph.nodes]
        unknown = {node.target for node in nodes if not is_known(node.target)}
        table = default_decompositions() if unknown else {}
        chosen = {target: table[target] for target in unknown if target in table}
        if known is not None and chosen.keys() <= known.keys():
            break
        known = {**(known or {}), **chosen}
        with whole_traces(_inner_traces(program)):
            program = program.run_decompositions(known)
    for graph in _graphs(program):
        _drop_checks(graph)
    return program


def _drop_checks(graph: fx.Graph) -> None:
    """Leave out checks that equations could be solved, which transforms make effects of.

    Elements are infinite or not numbers where such a check would fail.
    """
    for node in list(graph.nodes):
        if str(node.target) == "with_effects" and str(node.args[1]).startswith(_SOLVED):
            for result in list(node.users):
                result.replace_all_uses_with(node.args[0])
                graph.erase_node(result)
            graph.erase_node(node)


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
    if not isinstance(target, OpOverload):
        return target is getitem or _is_mode(node) or str(target) in CONTROL
    if str(target).startswith(CHECKS):
        return True
    packet = str(target).rpartition(".")[0]
    if not is_known(target) or schema_of(target).is_mutable or packet in _WRITING:
        return False
    may_alias = any(argument.alias_info for argument in schema_of(target).arguments)
    return packet in _PLAIN or not (may_alias and target.has_kernel_for_dispatch_key(COMPOSED))


def _is_mode(node: fx.Node) -> bool:
    """Return whether a node runs a function with gradients, or without."""
    is_mode = isinstance(node.target, HigherOrderOperator)
    return is_mode and str(node.target) == NO_GRADIENT


# Decompositions run functions inside of modes in line, and forget that gradients stop there, and
# the lines that they come from.


def _inner_traces(program: ExportedProgram) -> dict[str, str]:
    """Return where operators of functions come from, by the lines of code that PyTorch runs."""
    found: dict[str, str] = {}
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule) and module is not program.graph_module:
            module.recompile()
            traces = {one.name: one.meta.get("stack_trace") for one in module.graph.nodes}
            for line in module.code.splitlines():
                statement = line.strip().partition(";")[0]
                trace = traces.get(statement.partition(" = ")[0])
                if trace:
                    found.setdefault(statement, trace)
    return found


def _stops_gradients(node: fx.Node) -> bool:
    return node.op == "call_function" and _is_mode(node) and not node.args[0]


def _pass_through(graph: fx.Graph) -> None:
    """Let what reads a tensor that a function without gradients returns as it is read the tensor.

    `x.to(x.dtype)` is `x` itself, so an export lets all that reads `x` later read the result.
    """
    for mode in [node for node in graph.nodes if _stops_gradients(node)]:
        function: Any = mode.args[1]
        body: fx.Graph = getattr(graph.owning_module, str(function.target)).graph
        inner = [node for node in body.nodes if node.op == "placeholder"]
        given = dict(zip(inner, mode.args[2:], strict=True))
        returned: Any = next(node for node in body.nodes if node.op == "output").args[0]
        for user in [one for one in mode.users if one.target is getitem]:
            item = user.args[1]
            outer = given.get(_itself(returned[item])) if isinstance(item, int) else None
            if isinstance(outer, fx.Node):
                user.replace_all_uses_with(outer)


def _itself(node: Any) -> Any:
    """Return the tensor that a node returns as it is, or the node."""
    while isinstance(node, fx.Node) and str(node.target).rpartition(".")[0] in _ITSELF:
        argument, value = node.args[0], node.meta.get("val")
        before = argument.meta.get("val") if isinstance(argument, fx.Node) else None
        if not isinstance(value, torch.Tensor) or not isinstance(before, torch.Tensor):
            break
        kept = [(t.dtype, t.device, t.layout, t.shape, t.stride()) for t in (value, before)]
        if kept[0] != kept[1] or _argument(node, "copy") or _argument(node, "train"):
            break
        node = argument
    return node


def _argument(node: fx.Node, name: str) -> Any:
    """Return an argument of an operator by its name, None where it is left out."""
    names = [argument.name for argument in schema_of(node.target).arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}.get(name)


def _detach(graph: fx.Graph, mode: fx.Node, trained: Mapping[str, str]) -> None:
    """Let results of a function without gradients, and what it writes, be constants to them."""
    _detach_written(graph, mode, trained)
    for result in list(mode.users):
        if _is_float(result):
            result.replace_all_uses_with(stopped := _detached(result), partial(is_not, stopped))


def _detached(node: fx.Node) -> fx.Node:
    """Return a node that stops gradients of another one, behind it."""
    with node.graph.inserting_after(node):
        stopped = node.graph.call_function(torch.ops.aten.detach.default, (node,))
    stopped.meta = dict(node.meta)
    return stopped


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _detach_written(graph: fx.Graph, mode: fx.Node, trained: Mapping[str, str]) -> None:
    """Detach what a function writes; refuse if it writes to what may have a gradient."""
    function: Any = mode.args[1]
    body: fx.Graph = getattr(graph.owning_module, str(function.target)).graph
    inner = [node for node in body.nodes if node.op == "placeholder"]
    given = dict(zip(inner, mode.args[2:], strict=True))
    for node in list(body.nodes):
        targets = _targets(node)
        for written in targets:
            outer = given.get(list(_viewed(written))[-1])
            if (
                isinstance(outer, fx.Node)
                and _is_float(outer)
                and _may_have_gradient(outer, trained)
            ):
                name = trained.get(outer.name, outer.name)
                raise ModelError(
                    f"`{name}` is written to where gradients are off, so its gradient is not that "
                    "of what is computed",
                    place(node),
                    "write where gradients are on, or to a copy",
                )
        for read in node.all_input_nodes if targets else ():
            if read not in targets and _is_float(read):
                node.replace_input_with(read, _detached(read))


def _detach_in_place(graph: fx.Graph) -> None:
    """Let what reads a tensor after its `detach_` read it detached."""
    places = {node: number for number, node in enumerate(graph.nodes)}
    for node in [one for one in graph.nodes if str(one.target) == "aten.detach_.default"]:
        whole = node.args[0]
        stopped = _detached(whole)
        node.append(stopped)
        node.replace_all_uses_with(stopped)
        for user in [one for one in whole.users if places.get(one, -1) > places[node]]:
            user.replace_input_with(whole, stopped)
        graph.erase_node(node)


def _separate_written(graph: fx.Graph, trained: Mapping[str, str]) -> None:
    """Let a detached tensor that is written to have the gradient of what is written.

    A program without writes makes the detached tensor anew from the whole one after each write, so
    gradients would stop there. It becomes the tensor itself where that has no gradient, else a
    copy.

    Raises
    ------
    ModelError
        If the tensor has a gradient and is read after the write, or written to besides: its
        gradient is then not that of a program without writes.
    """
    for stopped in [node for node in graph.nodes if _is_detach(node) and _is_float(node)]:
        writes = _writes_to(stopped)
        whole = list(_viewed(stopped))[-1]
        if not writes:
            continue
        if not _may_have_gradient(whole, trained):
            stopped.replace_all_uses_with(stopped.args[0])
            continue
        _refuse_shared(graph, stopped, whole, writes)
        if whole.op != "placeholder":
            with graph.inserting_after(stopped):
                copy = graph.call_function(torch.ops.aten.clone.default, (stopped,))
            copy.meta = dict(stopped.meta)
            stopped.replace_all_uses_with(copy, partial(is_not, copy))


def _refuse_shared(
    graph: fx.Graph, stopped: fx.Node, whole: fx.Node, writes: Collection[fx.Node]
) -> None:
    """Refuse a tensor that is read after writes to its detached one, or written to besides."""
    places = {node: number for number, node in enumerate(graph.nodes)}
    first = min(writes, key=places.__getitem__)
    others = _views_of(whole) - _views_of(stopped)
    read = any(places[user] > places[first] for one in others for user in one.users)
    besides = (user for one in others for user in one.users if one in _targets(user))
    if read or any(places[user] > places[stopped] for user in besides):
        raise ModelError(
            f"`{whole.name}` is written to through `detach`, so its gradient is not that "
            "of what is computed",
            place(first),
            "write to the tensor itself, or to a copy",
        )


def _writes_to(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that write to a tensor, or to what shares its elements."""
    return [user for one in _views_of(node) for user in one.users if one in _targets(user)]


def _targets(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that a node writes to: in place, or as its results."""
    if not isinstance(node.target, OpOverload):
        return []
    schema = schema_of(node.target).arguments
    pairs = [(argument.name, given) for argument, given in zip(schema, node.args, strict=False)]
    given = dict(pairs) | dict(node.kwargs)
    written = (given.get(a.name) for a in schema if a.alias_info and a.alias_info.is_write)
    return [one for one in written if isinstance(one, fx.Node)]


def _viewed(node: fx.Node) -> Iterator[fx.Node]:
    """Yield a tensor, what that is a view of, and so on."""
    one: Any = node
    while isinstance(one, fx.Node):
        yield one
        one = one.args[0] if _is_view(one) and one.args else None


def _is_view(node: fx.Node) -> bool:
    """Return whether the result of a node shares the elements of its first argument."""
    if not isinstance(node.target, OpOverload):
        return False
    arguments = schema_of(node.target).arguments
    return bool(arguments) and arguments[0].alias_info is not None


def _is_detach(node: fx.Node) -> bool:
    return str(node.target).startswith("aten.detach.")


def _views_of(node: fx.Node) -> set[fx.Node]:
    """Return a node, and all that share its elements."""
    found, todo = {node}, [node]
    while todo:
        one = todo.pop()
        views = [user for user in one.users if _is_view(user) and user.args[0] is one]
        todo += [view for view in views if view not in found]
        found.update(views)
    return found


def _may_have_gradient(node: fx.Node, trained: Mapping[str, str]) -> bool:
    """Return whether a node depends on a parameter, also by writes to what it shares.

    Of what a function is given, nothing is known.
    """
    seen, todo = {node}, [node]
    is_whole = any(one.name in trained for one in node.graph.nodes)
    while todo:
        one = todo.pop()
        if one.op == "placeholder" and (one.name in trained or not is_whole):
            return True
        whole = list(_viewed(one))[-1]
        found = {given for write in _writes_to(whole) for given in write.all_input_nodes}
        found = (found if _is_detach(one) else found.union(one.all_input_nodes)) - seen
        seen |= found
        todo += found
    return False

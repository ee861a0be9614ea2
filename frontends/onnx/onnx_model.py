"""The import of an ONNX model: inputs, weights, nodes and a loss."""

import difflib
from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    ValueInfoProto,
    helper,
    shape_inference,
    version_converter,
)

from shardwright.frontends.common.errors import NeedsConstantError, UnsupportedError
from shardwright.frontends.common.imported import Imported, finished
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.common.loss import append_loss
from shardwright.frontends.onnx.conversion import Scope
from shardwright.frontends.onnx.importer import MOST_NODES, Importer
from shardwright.frontends.onnx.onnx_operators import CONVERTERS
from shardwright.frontends.onnx.onnx_types import dtype_of
from shardwright.frontends.onnx.origins import tensor_origins, warnings_of
from shardwright.frontends.onnx.schemas import function_body, key_of, schema_of, title
from shardwright.frontends.onnx.stored import Stored
from shardwright.ir.errors import IRError, ModelError
from shardwright.ir.graph import Value
from shardwright.ir.text import plain_name
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.ir.units import first_names
from shardwright.operators.info import Array

OLDEST_OPSET = 11  # of ONNX, from 2019; older models are converted to it where ONNX can


def read_model(path: str | Path) -> ModelProto:
    """Return the model in a file; external weights are read on use.

    Raises
    ------
    ModelError
        If it cannot be read.
    """
    if not Path(path).is_file():
        raise ModelError(
            f"`{path}` is no file" if Path(path).exists() else f"there is no file `{path}`"
        )
    try:
        return onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError, OSError, onnx.checker.ValidationError) as error:
        raise ModelError(f"`{path}` is no ONNX model: {error}") from error


def import_model(
    model: ModelProto,
    *,
    folder: str | Path = "",
    sizes: Mapping[str, int] | None = None,
    constants: Mapping[str, Array] | None = None,
    loss: str = "none",
    class_axis: int | None = None,
) -> Imported:
    """Return a model as a graph of our IR.

    Parameters
    ----------
    model : ModelProto
        The model.
    folder : str or Path
        The folder of external weights.
    sizes : mapping of str to int, optional
        Sizes of open dimensions of inputs, by their names in the model; ``batch`` is the first
        dimension of every input, ``INPUT.1`` a dimension by its position.
    constants : mapping of str to array, optional
        Inputs with fixed values, which become constants.
    loss : str
        The loss that is appended to the first output; see `append_loss`.
    class_axis : int, optional
        Position of the classes among the dimensions of the first output.

    Raises
    ------
    ModelError
        If our IR cannot express the model. The message lists all missing operators.
    """
    model = _recent(model)
    opsets = _opsets(model)
    functions = {(f.domain, f.name): f for f in model.functions}
    _check_operators(model.graph, opsets, functions)
    _check_functions(model.graph, functions)
    importer = Importer(functions, _names(model.graph))
    try:
        importer.origins = tensor_origins(model, str(folder))
        names = _weights(importer, model.graph, str(folder))
        outputs = _convert(importer, model.graph, names, opsets, sizes or {}, constants or {})
        outputs = append_loss(importer.build, outputs, loss, class_axis)
    except NeedsConstantError as error:
        files = {t.name: Stored(t, str(folder)) for t in model.graph.initializer}
        is_missing = error.name in files and files[error.name].is_absent
        hint = (
            f"they are in `{files[error.name].location}`, which is missing" if is_missing else None
        )
        raise ModelError(str(error), importer.where, hint) from error
    except UnsupportedError as error:
        raise ModelError(str(error), importer.where) from error
    except IRError as error:
        raise ModelError(error.what, importer.where, error.hint) from error
    except RecursionError:
        what = "the functions and branches of the model are nested too deeply"
        raise ModelError(what, hint="write some of them out") from None
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        what = f"an attribute or an input does not fit the node ({type(error).__name__}: {error})"
        raise ModelError(what, importer.where) from error
    return _imported(importer, model, outputs, str(folder))


def _imported(
    importer: Importer, model: ModelProto, outputs: tuple[Value, ...], folder: str
) -> Imported:
    """Return the emitted graph, with patterns fused and without dead nodes."""
    graph = importer.build.graph(
        plain_name(model.graph.name or "model"), tuple(value.name for value in outputs)
    )
    imported = finished(graph, importer.emission.data)
    trained = {p.name for p in imported.graph.parameters if p.trainable}
    named = [name for name, ours in importer.emission.names.items() if ours in trained]
    said = (*warnings_of(importer.origins, model.graph, named), *_missing(model.graph, folder))
    return replace(imported, warnings=(*imported.warnings, *said))


def _recent(model: ModelProto) -> ModelProto:
    """Return the model in a supported opset; ONNX converts older models."""
    if _opsets(model).get("", OLDEST_OPSET) >= OLDEST_OPSET:
        return model
    failures = (version_converter.ConvertError, shape_inference.InferenceError)
    try:
        recent = version_converter.convert_version(model, OLDEST_OPSET)
    except (RuntimeError, ValueError, *failures):
        return model  # the errors then list the changed operators
    for node in every_node(recent.graph.node, {}):
        if node.op_type == "Resize":  # the converter leaves the defaults of the new version
            made = (
                helper.make_attribute("coordinate_transformation_mode", "asymmetric"),
                helper.make_attribute("nearest_mode", "simple"),
            )
            node.attribute.extend(made)
    return recent


def _names(graph: GraphProto) -> dict[str, None]:
    """Return the names of inputs, weights and results of a graph, in order."""
    starts = [value.name for value in (*graph.input, *graph.initializer)]
    results = [name for node in graph.node for name in node.output if name]
    return dict.fromkeys([*starts, *results])


def _opsets(model: ModelProto) -> dict[str, int]:
    return {
        "" if item.domain == "ai.onnx" else item.domain: item.version for item in model.opset_import
    }


def _missing(graph: GraphProto, folder: str) -> list[str]:
    """Return the warning about missing files of weights."""
    stored = [Stored(tensor, folder) for tensor in graph.initializer]
    files = dict.fromkeys(f"`{item.location}`" for item in stored if item.is_absent)
    if not files:
        return []
    return [f"the weights in {', '.join(files)} are missing: it can be planned, but not run"]


def _weights(importer: Importer, graph: GraphProto, folder: str) -> dict[str, Item]:
    """Return the tensors of a file as constants, by name."""
    if graph.sparse_initializer:
        raise UnsupportedError("a weight of which only some elements are stored")
    known = importer.origins
    stored: dict[str, Constant] = {}
    for tensor in graph.initializer:
        data = Stored(tensor, folder)
        stored[tensor.name] = Constant(data, data.dtype, tensor.name, tensor.name in known.trained)
    for name, source in known.copies.items():
        stored[name] = replace(stored[source], name=name, trained=name in known.trained)
    return {
        name: importer.emission.enter(item) if item.is_absent and not item.trained else item
        for name, item in stored.items()
    }


def _convert(
    importer: Importer,
    graph: GraphProto,
    names: dict[str, Item],
    opsets: Mapping[str, int],
    sizes: Mapping[str, int],
    constants: Mapping[str, Array],
) -> tuple[Value, ...]:
    _check_sizes([declared for declared in graph.input if declared.name not in names], sizes)
    for declared in graph.input:
        if declared.name in constants:
            dtype = _dtype(declared)
            array = np.asarray(constants[declared.name], numpy_dtype(dtype))
            names[declared.name] = Constant(array, dtype, declared.name)
        elif declared.name not in names:
            dtype, shape = _dtype(declared), _shape(declared, sizes)
            if 0 in shape:
                names[declared.name] = importer.item(np.zeros(shape), dtype)
                continue
            value = Value(importer.emission.names[declared.name], TensorType(dtype, shape))
            names[declared.name] = importer.build.input(value)
    scope = Scope(ChainMap(names), {}, opsets)
    merged = importer.origins.copies
    importer.nodes((n for n in graph.node if not merged.keys() & set(n.output)), scope)
    return _outputs(importer, [scope.names[output.name] for output in graph.output], graph)


def _outputs(importer: Importer, items: list[Item], graph: GraphProto) -> tuple[Value, ...]:
    """Return the results as distinct values with their names in the model."""
    starts = {v.name for v in importer.build.inputs} | {p.name for p in importer.build.parameters}
    found: list[Value] = []
    for item, output in zip(items, graph.output, strict=True):
        value = importer.value(item)
        taken = {other.name for other in found}
        if value.name in starts | taken | importer.emission.held:
            mark = len(importer.build.nodes)
            value = importer.build.emit("identity", value)
            if importer.emission.names[output.name] not in starts | taken:
                value = importer.value(importer.named(value, output.name, mark))
        found.append(value)
    return tuple(found)


def _dtype(declared: ValueInfoProto) -> str:
    if declared.type.WhichOneof("value") != "tensor_type":
        raise UnsupportedError(f"the input `{declared.name}`, which is no tensor")
    return dtype_of(declared.type.tensor_type.elem_type)


def _shape(declared: ValueInfoProto, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an input; sizes from the user override the model."""
    shape = []
    for position, dim in enumerate(declared.type.tensor_type.shape.dim):
        names = _size_names(declared, position)
        given = [sizes[name] for name in names if name in sizes]
        if given:
            shape.append(given[0])
        elif dim.WhichOneof("value") == "dim_value":
            shape.append(dim.dim_value)
        else:
            raise ModelError(
                f"the input `{declared.name}` has an open size `{dim.dim_param or '?'}` in "
                f"dimension {position}",
                hint=f"give it: `model.onnx:{names[0]}=8`",
            )
    return tuple(shape)


def _size_names(declared: ValueInfoProto, position: int) -> list[str]:
    """Return the names of a size of an input: as in the model, ``batch``, ``INPUT.1``."""
    param = declared.type.tensor_type.shape.dim[position].dim_param
    names = [param] if param.isidentifier() else []
    return [*names, *["batch"] * (position == 0), f"{declared.name}.{position}"]


def _check_sizes(inputs: Sequence[ValueInfoProto], sizes: Mapping[str, int]) -> None:
    """Refuse sizes that no input has.

    Raises
    ------
    ModelError
        Names the size and the known sizes.
    """
    known = {
        name
        for declared in inputs
        for position in range(len(declared.type.tensor_type.shape.dim))
        for name in _size_names(declared, position)
    }
    for name in sizes:
        if name not in known:
            raise ModelError(
                f"the model has no size `{name}`", hint=f"its sizes are {', '.join(sorted(known))}"
            )


# Missing operators


def _check_operators(
    graph: GraphProto,
    opsets: Mapping[str, int],
    functions: Mapping[tuple[str, str], FunctionProto],
) -> None:
    """Refuse a model with unknown operators; list them all.

    Raises
    ------
    ModelError
        Names the operators, their nodes, and the nearest known operators.
    """
    lacking: dict[str, list[str]] = {}
    for node in every_node(graph.node, functions):
        reason = _reason(node, opsets, functions)
        if reason:
            lacking.setdefault(reason, []).append(title(node))
    if not lacking:
        return
    found = "; ".join(f"{operator} at {first_names(nodes)}" for operator, nodes in lacking.items())
    raise ModelError(
        f"the model has {len(lacking)} operators that cannot be imported: {found}",
        hint="compose them of operators in docs/onnx.md, or leave them out of the model",
    )


def _check_functions(graph: GraphProto, functions: Mapping[tuple[str, str], FunctionProto]) -> None:
    """Refuse functions that call themselves, or stand for more nodes than any model has.

    Raises
    ------
    ModelError
        Names the function, or the number of nodes.
    """
    bodies = {name: _calls(function.node) for name, function in functions.items()}
    inner = {
        name: [called for called in body if called in functions] for name, body in bodies.items()
    }
    sizes: dict[tuple[str, str], int] = {}
    try:
        for name in TopologicalSorter(inner).static_order():
            sizes[name] = sum(n * sizes.get(called, 1) for called, n in bodies[name].items())
    except CycleError as error:
        (_, name) = error.args[1][0]
        what = f"the function `{name}` calls itself, directly or through others"
        raise ModelError(what, hint="ONNX allows no recursion: use Loop") from None
    whole = sum(n * sizes.get(called, 1) for called, n in _calls(graph.node).items())
    if whole > MOST_NODES:
        raise ModelError(
            f"the model has {whole:,} nodes with its functions written out, at most "
            f"{MOST_NODES:,} are imported"
        )


def _calls(nodes: Iterable[NodeProto]) -> Counter[tuple[str, str]]:
    """Count the nodes of each operator, those in branches included."""
    return Counter((node.domain, node.op_type) for node in every_node(nodes, {}))


def _reason(
    node: NodeProto,
    opsets: Mapping[str, int],
    functions: Mapping[tuple[str, str], FunctionProto],
) -> str | None:
    """Return the missing operator of a node; None if it is known."""
    if (node.domain, node.op_type) in functions:
        return None
    version = opsets.get("", OLDEST_OPSET)
    if key_of(node) == node.op_type and version < OLDEST_OPSET:
        now, then = schema_of(node, opsets), schema_of(node, {"": OLDEST_OPSET})
        if now is None or then is None or now.since_version != then.since_version:
            return f"`{node.op_type}` of operator set {version} (the oldest is {OLDEST_OPSET})"
    if key_of(node) in CONVERTERS or function_body(node, opsets) is not None:
        return None
    near = difflib.get_close_matches(node.op_type, CONVERTERS, 1)
    return f"`{key_of(node)}`" + (f" (nearest: `{near[0]}`)" if near else "")


def every_node(
    nodes: Iterable[NodeProto], functions: Mapping[tuple[str, str], FunctionProto]
) -> Iterator[NodeProto]:
    """Yield nodes, and the nodes in their branches and functions."""
    seen: set[tuple[str, str]] = set()
    waiting = list(nodes)
    for node in waiting:
        yield node
        called = (node.domain, node.op_type)
        if called in functions and called not in seen:
            seen.add(called)
            waiting.extend(functions[called].node)
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                waiting.extend(attribute.g.node)
            waiting.extend(n for graph in attribute.graphs for n in graph.node)

"""The import of a PyTorch module: its export, parameters, nodes and a loss."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch.export import ExportedProgram

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.imported import Imported, finished, unread_warning
from shardwright.frontends.common.items import Constant
from shardwright.frontends.common.loss import with_loss
from shardwright.frontends.torch.alignment import traced_alignments
from shardwright.frontends.torch.aten_call import Selected
from shardwright.frontends.torch.autograd.functions import traced_functions
from shardwright.frontends.torch.autograd.hooks import give_hooked, traced_hooks
from shardwright.frontends.torch.autograd.marks import Gradients
from shardwright.frontends.torch.buffers import with_elements
from shardwright.frontends.torch.derivatives import refuse_without_derivative
from shardwright.frontends.torch.experts import experts_in_rows
from shardwright.frontends.torch.exporting.assertions import passing_assertions
from shardwright.frontends.torch.exporting.choices import grouped_products
from shardwright.frontends.torch.exporting.comparison import as_before, refuse_different
from shardwright.frontends.torch.exporting.flex_attention import composed_attention
from shardwright.frontends.torch.exporting.following import refuse_changing, traced
from shardwright.frontends.torch.functional import functional
from shardwright.frontends.torch.gradients import by_tensors, separate_leaves, traced_gradients
from shardwright.frontends.torch.importer import Importer
from shardwright.frontends.torch.loops import experts_without_loops
from shardwright.frontends.torch.places import line_of, place, whole_traces
from shardwright.frontends.torch.private import tree_leaves, tree_map_only
from shardwright.frontends.torch.tracing import (
    plain_biases,
    plain_modes,
    traced_statistics,
    without_caches,
)
from shardwright.frontends.torch.transforms import traced_transforms
from shardwright.ir.errors import IRError, ModelError
from shardwright.ir.graph import Graph, Value

# What the user may do where elements decide branches or sizes.
_AS_EXAMPLE = (
    "import with `as_example=True` if it is as in the example in every batch, which is checked"
)
# What converters raise on arguments that they do not expect.
_UNFIT = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError)


def import_module(
    module: torch.nn.Module,
    inputs: Any,
    *,
    loss: str = "auto",
    class_axis: int | None = None,
    outputs: bool = False,
    as_example: bool = False,
) -> Imported:
    """Return a module as a graph of our IR.

    Parameters
    ----------
    module : Module
        The module; its parameters may be on the device `meta`, if it is only planned.
    inputs : tuple, dict or Tensor
        Example inputs, positional or by name, whose shapes the program has.
    loss : str
        The loss that is appended to the first output; see `append_loss`. By default none where the
        first output is a floating-point scalar.
    class_axis : int, optional
        Position of the classes among the dimensions of the first output.
    outputs : bool
        Whether the program returns all outputs of the module; by default a program with a loss
        returns the loss alone.
    as_example : bool
        Whether branches and sizes may depend on the elements of any input: they are those of the
        example inputs. The program checks what was read of them, and its loss is infinite for a
        batch that differs there; warnings list the lines.

    Raises
    ------
    ModelError
        If PyTorch cannot export the module, or our IR cannot express it.
    """
    program, held = exported(module, inputs, as_example)
    tensors, names = _tensors(module, program)
    importer = Importer(names, tensors, held)
    try:
        made = _converted(importer, program)
        made = importer.guarded(with_loss(importer.emission.build, made, loss, class_axis))
    except ModelError:
        raise
    except UnsupportedError as error:
        said = str(error)
        is_open = "shape" in said and "depends on data" in said
        hint = _AS_EXAMPLE if is_open and not as_example else None
        raise ModelError(said, importer.where, hint) from error
    except IRError as error:
        raise ModelError(error.what, importer.where, error.hint) from error
    except _UNFIT as error:
        if _is_open(error):
            what, hint = "a size that depends on data cannot be imported", _AS_EXAMPLE
            raise ModelError(what, importer.where, None if as_example else hint) from error
        said = next(iter(str(error).splitlines()), "")
        what = f"an argument does not fit the operator ({type(error).__name__}: {said})"
        raise ModelError(what, importer.where) from error
    returned = made if outputs or made[0].type.shape or not made[0].type.is_float else made[:1]
    name = re.sub(r"\W", "_", type(module).__name__).lower()
    graph = importer.emission.build.graph(name, tuple(value.name for value in returned))
    imported = finished(graph, importer.emission.data)
    constant = (
        f"sizes or branches depend on the elements of the input `{one}`: the program is that of "
        "the example's elements, and does not take it"
        for one in held
    )
    assumed = (
        f"it is assumed that what is read of the inputs is as in the example ({line}): the loss is "
        "infinite for a batch that differs there"
        for line in importer.assumptions
    )
    told = (*constant, *assumed, *_warnings(module, program, imported))
    return replace(imported, warnings=(*imported.warnings, *told))


def exported(
    module: torch.nn.Module, inputs: Any, as_example: bool = False
) -> tuple[ExportedProgram, dict[str, torch.Tensor]]:
    """Return the export of a module, functional and of whole operators, and inputs held constant.

    Where sizes or branches depend on the elements of integer inputs, the program is that of the
    example's elements.

    Raises
    ------
    ModelError
        If PyTorch cannot export it.
    """
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"the model is {type(module).__name__}, expected a `torch.nn.Module`")
    arguments, keywords = _arguments(inputs)
    gradients = Gradients()
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # where PyTorch prints graphs
            warnings.simplefilter("ignore")
            with (
                experts_in_rows(module),
                experts_without_loops(module),
                grouped_products(),
                whole_traces(),
                plain_modes(),
                without_caches(module),
                traced_statistics(),
                composed_attention(),
                plain_biases(),
                passing_assertions(),
                traced_gradients(module),
                traced_transforms(),
                traced_alignments(),
                traced_functions(gradients),
                traced_hooks(module, gradients),
            ):
                program, held, read = traced(module, arguments, keywords, as_example)
            refuse_different(program, module, arguments, keywords)
            separate_leaves(program)
            give_hooked(program, gradients.removed)
            refuse_without_derivative(program)
            program = functional(program)
            by_tensors(program)
            refuse_changing(program, read)
            return program, held
    except ModelError:
        raise
    except Exception as error:  # PyTorch raises errors of many types
        raise _failure(error, module, arguments, keywords, as_example) from error


def _failure(
    error: Exception,
    module: torch.nn.Module,
    arguments: Any,
    keywords: Any,
    as_example: bool,
) -> ModelError:
    """Return whose fault it is that an export fails: the module's, PyTorch's, or ours."""
    if _is_open(error):
        return ModelError(
            "a branch or a size depends on the elements of tensors",
            line_of(error),
            "let neither sizes nor branches depend on the elements of tensors; assertions may, "
            "without `not`, `:=` or `lambda` inside of their conditions"
            + ("" if as_example else f"; or {_AS_EXAMPLE}"),
        )
    own = _raised(module, lambda: module(*arguments, **keywords))
    if own is not None:
        return ModelError(
            f"the module itself fails on the example inputs ({_reason(own)})",
            line_of(own) or line_of(error),
            "call the module with them: it must run",
        )
    if "cache" in str(error).lower():
        return ModelError(_exports(error), line_of(error), "leave `use_cache=True` out")
    told = _raised(module, lambda: _told(module, arguments, keywords))
    if told is not None and line_of(told) == line_of(error):
        return ModelError(
            f"the module itself fails where it is told that it is exported ({_reason(told)})",
            line_of(told),
            "let it compute the same where `torch.compiler.is_exporting()` is true",
        )
    plain = _raised(module, lambda: torch.export.export(module, arguments, keywords, strict=False))
    if plain is not None:
        is_same = _reason(plain) == _reason(error)
        fault = ", and the fault is `torch.export`'s" if is_same else ""
        hint = f"the module runs{fault}: write the line without it"
        return ModelError(_exports(error), line_of(error), hint)
    backward = _raised(module, lambda: _gradients(module, arguments, keywords))
    if backward is not None:
        return ModelError(
            f"the module's own backward pass fails on the example inputs ({_reason(backward)})",
            line_of(backward) or line_of(error),
            "train it in PyTorch with them: it must run",
        )
    return ModelError(
        f"the import cannot trace the module, which `torch.export` can ({_reason(error)})",
        line_of(error),
        "the fault is this package's: report it with the line",
    )


def _told(module: torch.nn.Module, arguments: Any, keywords: Any) -> None:
    """Run a module that is told that it is exported."""
    with (
        patch.object(torch.compiler, "is_exporting", lambda: True),
        patch.object(torch.compiler, "is_compiling", lambda: True),
    ):
        module(*arguments, **keywords)


def _gradients(module: torch.nn.Module, arguments: Any, keywords: Any) -> None:
    """Compute gradients of a module's first output, and leave those that its parameters have."""
    outputs = tree_leaves(module(*arguments, **keywords))
    trained = [p for p in module.parameters() if p.requires_grad]
    for output in outputs:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            torch.autograd.grad(output.sum(), trained, allow_unused=True)
            break


def _is_open(error: Exception) -> bool:
    """Return whether PyTorch asked for a size or a condition that depends on elements."""
    return "DataDependent" in type(error).__name__


def _exports(error: Exception) -> str:
    return f"PyTorch {torch.__version__.split('+')[0]} cannot export the module ({_reason(error)})"


def _raised(module: torch.nn.Module, run: Callable[[], Any]) -> Exception | None:
    """Return what running a module raises, and leave its buffers and random numbers as they are."""
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), as_before(module):
            warnings.simplefilter("ignore")
            run()
    except Exception as error:  # PyTorch raises errors of many types
        return error
    return None


def _reason(error: Exception) -> str:
    """Return the first line of an error, without the addresses of objects."""
    lines = re.sub(r"0x[0-9a-f]+|\d{12,}", "...", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named inputs, each tensor of its own: equal ones would be one input."""
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list, Mapping)) or not inputs:
        raise ModelError(
            f"the example inputs are {type(inputs).__name__}, expected a tuple or a dict of tensors"
        )
    copied = tree_map_only(torch.Tensor, torch.clone, inputs)
    return ((), dict(copied)) if isinstance(inputs, Mapping) else (tuple(copied), {})


def _tensors(
    module: torch.nn.Module, program: ExportedProgram
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return tensors by their first name, and the first name of each by all its names."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    own = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in own:
        names[name] = first.setdefault(id(tensor), name)
        tensors.setdefault(names[name], tensor)
    places = {tensor.data_ptr(): names[name] for name, tensor in module.named_parameters()}
    for name, tensor in program.constants.items():
        if name not in names and isinstance(tensor, torch.Tensor):
            _refuse_copy(tensor, places, _first_reader(program, name))
            names[name], tensors[name] = name, tensor
    tensors.update(with_elements(module, tensors))
    return tensors, names


def _first_reader(program: ExportedProgram, constant: str) -> fx.Node | None:
    """Return the first node with a line that depends on a constant."""
    inputs = program.graph_signature.inputs_to_lifted_tensor_constants
    reached = {name for name, tensor in inputs.items() if tensor == constant}
    for node in program.graph.nodes:
        if not reached.isdisjoint(one.name for one in node.all_input_nodes):
            reached.add(node.name)
            if place(node):
                return node
    return None


def _refuse_copy(
    tensor: torch.Tensor, parameters: Mapping[int, str], reader: fx.Node | None
) -> None:
    """Refuse a constant that is a parameter: training would leave it as it is."""
    name = parameters.get(tensor.data_ptr()) if tensor.numel() else None
    if name is not None and tensor.device.type != "meta":
        raise ModelError(
            f"a function or a hook reads the parameter `{name}` by itself, and not as a part of "
            "the module, so that it would be a constant",
            None if reader is None else place(reader),
            "let it read an attribute of the module that has the parameter",
        )


def _converted(importer: Importer, program: ExportedProgram) -> tuple[Value, ...]:
    """Convert the nodes, and return the outputs as distinct values."""
    signature, graph = program.graph_signature, program.graph
    items = importer.placeholders(graph, signature)
    for node in graph.output_node().all_input_nodes:
        importer.node = node
        if isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].is_complex():
            raise UnsupportedError(f"the result `{node.name}` of complex numbers")
    made = importer.run(graph, items, program.graph_module)
    importer.own.finish()
    returned = []
    ends: Any = graph.output_node().args[0]
    for item, spec, node in zip(made, signature.output_specs, ends, strict=True):
        importer.node = node if isinstance(node, fx.Node) else None
        if spec.kind.name == "BUFFER_MUTATION":
            importer.emission.update(importer.names[str(spec.target)], item)
        elif spec.kind.name == "USER_OUTPUT":
            if isinstance(item, Selected):
                raise UnsupportedError("a result that a mask selects, whose shape depends on data,")
            returned.append(item)
    importer.node = None
    tensors = [item for item in returned if isinstance(item, (Value, Constant))]
    return importer.emission.outputs(tensors, "a module")


def _warnings(
    module: torch.nn.Module, program: ExportedProgram, imported: Imported
) -> Iterable[str]:
    """Yield warnings: parameters that are not trained, random numbers, missing elements."""
    for name in program.graph_signature.user_inputs_to_mutate.values():
        yield f"the module overwrites its input `{name}`; the program leaves it as it is"
    trained = {p.name for p in imported.graph.parameters if p.trainable}
    unread = [n for n, p in module.named_parameters() if p.requires_grad and n not in trained]
    if unread:
        yield unread_warning(unread)
    operators = {node.operator for node in imported.graph.nodes}
    if "dropout" in operators:
        yield "dropout draws other random numbers than PyTorch; `module.eval()` leaves it out"
    if "random_uniform" in operators:
        yield "the program draws other random numbers than PyTorch"
    if _reads_vectors(imported.graph):
        yield (
            "the signs of singular vectors and eigenvectors may be others than PyTorch's: a loss "
            "that depends on them differs"
        )
    if absent := imported.absent:
        yield (
            f"the elements of {len(absent)} parameters are missing (they are on the device "
            "`meta`): it can be planned, but not run"
        )


def _reads_vectors(graph: Graph) -> bool:
    """Return whether vectors of decompositions are read, whose signs are open."""
    read = {*graph.outputs, *(name for node in graph.nodes for name in node.operands)}
    return any(
        result.name in read
        for node in graph.nodes
        if node.operator in ("eig", "eigh", "svd")
        for result in node.results
        if result.type.rank == node.results[-1].type.rank
    )


def is_module(item: object) -> bool:
    """Return whether an object is a module of PyTorch."""
    return isinstance(item, torch.nn.Module)

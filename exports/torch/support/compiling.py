"""A program whose lines are compiled in regions, each of them once for all equal layers.

A region is a run of lines of one layer and phase that only compute. Regions of one text are one
function, which is traced and compiled without breaks when it first meets tensors of some form.
Attention, collectives, updates, and what depends on the number of the step run between regions.
"""

import ast
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from .pointwise import _recording
from .rows import Rows

_HAS_NO_GUARDS = hasattr(torch.compiler, "skip_all_guards_unsafe")  # since PyTorch 2.8
_MODULES = {
    *("attention", "functions", "layers", "losses", "matrices", "pointwise", "recurrent"),
    *("routing", "rows", "scans", "tensors", "windows"),
}
# Kernels of their own, chunks that bound memory, and what depends on the number of the step.
_ALONE = {
    *("scaled_dot_product_attention", "scaled_dot_product_attention_gradient"),
    *("head_log_sum_and_pick", "head_log_sum_and_pick_gradient"),
    *("dropout", "random_uniform"),
}
_VIEWS = {*("reshape", "flatten", "expand_dims", "squeeze", "transpose", "split", "broadcast_to")}
# Regions look at the forms of their operands themselves.
_OPTIONS = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe} if _HAS_NO_GUARDS else None
_LAYER = re.compile(r"(.*?(?:^|/)\d+)(?:/|$)")  # `model/layers/0` of `model/layers/0/mlp`
_OF_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


def check_compiler(device: torch.device) -> None:
    """Raise an error where nothing can be compiled for a device.

    Raises
    ------
    RuntimeError
        If `torch.compile` fails for the smallest function.
    """
    try:
        torch.compile(torch.neg, fullgraph=True)(torch.ones(2, device=device))
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise RuntimeError(
            f"`torch.compile` cannot compile for the device `{device}` on this machine "
            f"({type(error).__name__}: {reason}): install a C++ compiler, and Triton for a GPU, "
            "or leave out `compile=True`"
        ) from error


# Regions


class Region:
    """A function of tensors, compiled for each form of them.

    Parameters
    ----------
    function : function
        Returns a tuple of tensors and rows.
    place : str
        The layer and the phase where it was found first.

    Attributes
    ----------
    forms : dict
        The compiled functions, by the shapes, strides and types of their operands; the function
        itself where what it does depends on values of tensors.
    """

    def __init__(self, function: Callable[..., tuple[Any, ...]], place: str) -> None:
        self._function, self._place = function, place
        self.forms: dict[Any, Callable[..., tuple[Any, ...]]] = {}

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        """Run the function."""
        form = tuple(
            (type(operand), tensor.shape, tensor.stride(), tensor.dtype)
            for operand in operands
            for tensor in _tensors(operand)
        )
        run = self.forms.get(form)
        if run is None:
            found = self._function(*operands)  # which makes the tables that all layers read
            self.forms[form] = self._compiled(operands, [type(part) for part in found])
            return found
        return run(*operands)

    def _compiled(
        self, operands: Sequence[Any], kinds: Sequence[type]
    ) -> Callable[..., tuple[Any, ...]]:
        """Return the function for operands like some, compiled."""

        def of_tensors(*tensors: Tensor) -> list[Tensor]:
            found = self._function(*_joined(map(type, operands), tensors))
            return [tensor for part in found for tensor in _tensors(part)]

        given = [tensor for operand in operands for tensor in _tensors(operand)]
        try:
            with _recording(self._place), torch.autograd.set_multithreading_enabled(False):
                graph = make_fx(of_tensors)(*given)
        except RuntimeError as error:
            return self._as_it_is(str(error).partition("\n")[0])
        for node in graph.graph.nodes:
            if _depends_on_values(node):
                return self._as_it_is(f"`{node.target}` depends on values of tensors")
        run = torch.compile(graph, fullgraph=True, dynamic=False, options=_OPTIONS)

        def of_operands(*operands: Any) -> tuple[Any, ...]:
            return tuple(_joined(kinds, run(*(t for part in operands for t in _tensors(part)))))

        return of_operands

    def _as_it_is(self, reason: str) -> Callable[..., tuple[Any, ...]]:
        warnings.warn(f"`{self._place}` is not compiled: {reason}", stacklevel=2)
        return self._function


def _depends_on_values(node: torch.fx.Node) -> bool:
    """Return whether the host reads values of tensors for an operator, or for a shape."""
    tags = {*getattr(node.target, "tags", ())}
    if node.target == torch.ops.aten.index.Tensor:  # by positions it has no such shape
        places = [place.meta.get("tensor_meta") for place in node.args[1] if place is not None]
        return any(place is None or place.dtype in (torch.bool, torch.uint8) for place in places)
    return bool(_OF_VALUES & tags)


def _tensors(part: Any) -> tuple[Tensor, ...]:
    return tuple(part) if isinstance(part, Rows) else (part,)


def _joined(kinds: Iterable[type], tensors: Iterable[Tensor]) -> Iterator[Any]:
    """Yield tensors, and rows of two."""
    left = iter(tensors)
    for kind in kinds:
        yield Rows(next(left), next(left)) if kind is Rows else next(left)


# Programs


class CompiledProgram:
    """A program whose lines run in regions.

    Parameters
    ----------
    program : module
        The module `program` of a package, or that of a device group.
    mesh : Mesh
        The ranks.

    Attributes
    ----------
    forward_backward, update : function
        Those of the program.
    regions : list of Region
        The regions that differ.
    """

    def __init__(self, program: Any, mesh: Any) -> None:
        source = Path(program.__file__).read_text(encoding="utf-8")
        own = {**vars(program), "mesh": mesh}
        functions = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
        writer = _Writer(source.splitlines(), functions["forward_backward"], own)
        _define(writer.written(), own)
        self.forward_backward, self.update = own["forward_backward"], program.update
        self.regions: list[Region] = writer.regions


def _define(function: ast.stmt, own: dict[str, Any]) -> None:
    """Define a function among the names of a module."""
    module = ast.fix_missing_locations(ast.Module([function], []))
    exec(compile(module, "<regions>", "exec"), own)


class _Writer:
    """Writes a function anew, with calls of regions in place of their lines."""

    def __init__(self, lines: Sequence[str], tree: ast.FunctionDef, own: dict[str, Any]) -> None:
        self._places, self._tree, self._own = [*_places(lines)], tree, own
        self._modules = _MODULES if _has_fixed_rows(tree) else _MODULES - {"rows"}
        self._variables = set(_names([tree], ast.Store))
        self._reads = _names([tree], ast.Load)
        self._regions: dict[str, str] = {}
        self.regions: list[Region] = []

    def written(self) -> ast.FunctionDef:
        """Return the function."""
        self._tree.body = [*self._body(self._tree.body)]
        return self._tree

    def _body(self, statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
        run: list[ast.stmt] = []
        place = ""
        for statement in statements:
            if _is_cast_of_parameter(statement):  # the update may have left it
                yield statement
                continue
            computes = self._function_of(statement) != ""
            here = self._places[statement.lineno - 1]
            if (computes and here == place) or (run and isinstance(statement, ast.Delete)):
                run.append(statement)
                continue
            yield from self._region(run, place)
            run, place = ([statement], here) if computes else ([], here)
            if not computes:
                if isinstance(statement, ast.For | ast.FunctionDef):
                    statement.body = [*self._body(statement.body)]
                yield statement
        yield from self._region(run, place)

    def _function_of(self, statement: ast.stmt) -> str:
        """Return the function of a line that only computes; empty for other lines."""
        match statement:
            case ast.Assign(value=ast.Call(func=ast.Attribute(ast.Name(module), name))):
                if module in self._modules and name not in _ALONE:
                    return name
        return ""

    def _region(self, run: list[ast.stmt], place: str) -> Iterator[ast.stmt]:
        """Yield the call of a region, and what is deleted behind it."""
        reads, made = _names(run, ast.Load), _names(run, ast.Store)
        left = [name for name in made if self._reads[name] > reads[name]]
        moves = all(self._function_of(statement) in {"", *_VIEWS} for statement in run)
        if moves or not left:
            yield from run
            return
        dead = [name for name in _names(run, ast.Del) if name not in made]
        renaming = _Renaming(self._variables, {*dead, *left})
        body = [renaming.visit(deepcopy(statement)) for statement in run]
        results = [renaming.names[name] for name in left]
        text = "\n    ".join([*map(ast.unparse, filter(None, body)), f"return {_tuple(results)}"])
        name = self._named(f"({', '.join(renaming.operands)}):\n    {text}", place)
        operands = ", ".join(renaming.operands.values())
        yield from ast.parse(f"{_tuple(left)} = {name}({operands})").body
        if dead:
            yield from ast.parse(f"del {', '.join(dead)}").body

    def _named(self, text: str, place: str) -> str:
        """Return the name of the region of a function with some operands and lines."""
        if text not in self._regions:
            name = self._regions[text] = f"_region_{len(self._regions)}"
            (function,) = ast.parse(f"def {name}{text}").body
            _define(function, self._own)
            self._own[name] = Region(self._own[name], place)
            self.regions.append(self._own[name])
        return self._regions[text]


def _places(lines: Iterable[str]) -> Iterator[str]:
    """Yield the layer and the phase of each line, by the comment above."""
    place = ""
    for line in lines:
        if line.lstrip().startswith("# "):
            scope, _, phase = line.strip("# ").rpartition(", ")
            layer = _LAYER.match(scope)
            place = f"{layer[1] if layer else 'model'}, {phase}"
        yield place


def _names(trees: Iterable[ast.AST], context: type[ast.expr_context]) -> Counter[str]:
    """Return the names that are read, assigned or deleted in trees."""
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name))
    return Counter(node.id for node in nodes if isinstance(node.ctx, context))


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)},)"


def _has_fixed_rows(tree: ast.AST) -> bool:
    """Return whether the rows of experts are as many in each step: this rank has all experts."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    for call in calls:
        match call.func:
            case ast.Attribute(attr="all_to_all_rows"):
                return False
            case ast.Attribute(ast.Name("rows"), "dispatch"):
                sizes = {word.arg: ast.unparse(word.value) for word in call.keywords}
                if sizes["size_e"] != sizes.get("experts", "1"):
                    return False
    return True


def _is_cast_of_parameter(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(
            value=ast.Call(func=ast.Attribute(attr="cast"), args=[ast.Subscript(ast.Name("state"))])
        ):
            return True
    return False


class _Renaming(ast.NodeTransformer):
    """Names the variables of lines by their order, and parameters like them.

    Parameters
    ----------
    variables : set of str
        Those of the whole function.
    kept : set of str
        Those that the lines do not delete.

    Attributes
    ----------
    names : dict of str to str
        The new names.
    operands : dict of str to str
        What the lines read that they do not make, by the new names.
    """

    def __init__(self, variables: set[str], kept: set[str]) -> None:
        self._variables, self._kept = variables, kept
        self.names: dict[str, str] = {}
        self.operands: dict[str, str] = {}

    def visit_Delete(self, node: ast.Delete) -> ast.Delete | None:
        own = [name for name in _names([node], ast.Del) if name not in self._kept]
        node.targets = [ast.Name(self._new(name), ast.Del()) for name in own]
        return node if own else None

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id not in self._variables:
            return node
        return ast.Name(self._new(node.id, isinstance(node.ctx, ast.Load)), node.ctx)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "state":
            return ast.Name(self._new(ast.unparse(node), True), ast.Load())
        return node

    def _new(self, name: str, is_read: bool = False) -> str:
        if name not in self.names:
            self.names[name] = f"v{len(self.names)}"
            if is_read:
                self.operands[self.names[name]] = name
        return self.names[name]

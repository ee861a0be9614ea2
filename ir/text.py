"""The text form of a graph, and its parser: ``parse(to_text(graph)) == graph``.

One line per input, parameter, node and update, the type on the name it defines::

    graph mlp on x=2 y=4:1 {
      input a: f32[32@x, 128]
      parameter w: f32[128, 512@y] {initializer='normal'}
      w.to_0: f32[128, 512@y] = all_gather(w) {axes=('x',)} from h as redistribution of w
      h: f32[32@x, 512@y] = matmul(a, w.to_0) {transpose_b=False} split(m=x, n=y) in 'layer1'
      update w = w.next
      return h
    }

``@axis`` after a size: split over that mesh axis, major to minor. ``+axis`` after a type: the
values are still to be summed over the axis (``+axis:max`` for another reduction). ``*`` after a
type: a layout is decided and replicates. ``stage 1`` after a type: the value is in that pipeline
stage alone. ``y=4:1``: the links of axis y are at level 1 of the cluster; ``m=8:time``: axis m is
run in time; ``s=4:1:stages``: axis s is of pipeline stages, ``s=4:1:v_stages``: of stages in a V
(`StageMap`). ``from h as redistribution of w to v``: the `Provenance` of a node, left out where it
is an operator of the model itself. A parameter is declared by its role: ``parameter`` for a weight,
``buffer``, or ``state w.m of w: f32[4]``. A line
``shared h: f32[32, 512]* {gradient=('y',)}`` before the updates gives the `SharedLayout` of a
tensor; ``recompute h`` says that an operator is computed again for backward, ``regather h`` that
its result is saved as it is made and redistributed again, ``offload h`` that it is saved in host
memory, ``cut h`` that it is the first of a pipeline stage; ``schedule 1f1b`` names the schedule.
``f32[32, 512] in host`` is the type of a tensor in host memory; in ``f32[2/8*1.5, 16~, 64]`` two of
eight entries are filled for each of 16 rows (`Ragged`). ``#`` begins a comment.
"""

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import isinf

from shardwright.ir.attributes import Attribute, Attributes, FrozenAttributes
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Graph, Node, Parameter, Value
from shardwright.ir.layout import Layout, SharedLayout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.provenance import ROLES, ParameterRole, Provenance
from shardwright.ir.types import Ragged, TensorType, dtype_from_short, short_dtype
from shardwright.ir.units import shortened

_NAME = r"\w[\w./-]*"
_LAYOUT = r"(\*|(?: (?:\+\w+)+(?::\w+)?))?(?: stage (\d+))?( in host)?"
_TYPE = re.compile(rf"(\w+)\[([^\]]*)\]{_LAYOUT}$")
_HEAD = re.compile(rf"graph ({_NAME})(?: on (.*?))? \{{$")
_BINDER = re.compile(rf"({_NAME}): (\w+\[[^\]]*\]{_LAYOUT})")
_CALL = re.compile(
    rf"(?P<operator>{_NAME})\((?P<operands>[^)]*)\)"
    r"(?: \{(?P<attributes>.*?)\})?(?: split\((?P<strategy>[^)]*)\))?(?: in '(?P<scope>[^']*)')?"
    rf"(?: from (?P<source>{_NAME}))?(?: as (?P<role>\w+))?(?: of (?P<tensor>{_NAME}))?"
    rf"(?: to (?P<target>{_NAME}))?$"
)
_PARAMETER = re.compile(rf"({_NAME})(?: of ({_NAME}))?(: .*?)(?: \{{(.*)\}})?")
_NAMING = ("recompute", "regather", "offload", "cut", "schedule")  # lines of one name each
_PARAMETER_ROLES: Mapping[str, ParameterRole] = {
    "parameter": "weight",
    "buffer": "buffer",
    "state": "state",
}


def type_text(value: Value) -> str:
    """Return the text of the type and layout of a value."""
    dtype, layout = short_dtype(value.type.dtype), value.layout
    if layout is None:
        return str(value.type)
    sizes = value.type.size_texts
    dims = ("@".join((n, *axes)) for n, axes in zip(sizes, layout.splits, strict=True))
    mark = "" if layout.split_axes or layout.partial else "*"
    text = f"{dtype}[{', '.join(dims)}]{mark}{layout.partial_text}{layout.stage_text}"
    return text + value.type.memory_text


def _binder(value: Value) -> str:
    return f"{value.name}: {type_text(value)}"


def _literal(value: Attribute) -> str:
    """Spell a constant so that the parser reads it back: no bare ``#``, no name ``inf``."""
    if isinstance(value, tuple):
        if set(map(type, value)) == {int}:  # the ranks of a group can be many
            return repr(value)
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return repr(value).replace("#", "\\x23")


def _attributes_text(attributes: Attributes) -> str:
    inner = ", ".join(f"{key}={_literal(attributes[key])}" for key in sorted(attributes))
    return f" {{{inner}}}" if inner else ""


def node_text(node: Node) -> str:
    """Return the line of one node."""
    binders = ", ".join(_binder(result) for result in node.results)
    strategy = f" split({node.strategy})" if node.strategy is not None else ""
    scope = f" in '{node.scope}'" if node.scope else ""
    call = f"{node.operator}({', '.join(node.operands)})"
    provenance = node.provenance.text(node.name)
    origin = f" {provenance}" if provenance else ""
    return f"{binders} = {call}{_attributes_text(node.attributes)}{strategy}{scope}{origin}"


def parameter_text(parameter: Parameter) -> str:
    """Return the line of one parameter."""
    keyword = next(word for word, role in _PARAMETER_ROLES.items() if role == parameter.role)
    weight = f" of {parameter.weight}" if parameter.weight else ""
    attributes = _attributes_text(parameter.attributes)
    return f"{keyword} {parameter.name}{weight}: {type_text(parameter.value)}{attributes}"


def to_text(
    graph: Graph,
    comment: Callable[[Node], str] | None = None,
    line: Callable[[Node], str] = node_text,
) -> str:
    """Return the text form of `graph`.

    Parameters
    ----------
    graph : Graph
        The graph.
    comment : callable, optional
        Returns for a node a remark to write behind its line; the parser drops it.
    line : callable, optional
        Returns the line of a node.
    """
    mesh = f" on {_mesh_text(graph.mesh)}" if graph.mesh else ""
    lines = [f"graph {graph.name}{mesh} {{"]
    lines += [f"  input {_binder(value)}" for value in graph.inputs]
    lines += [f"  {parameter_text(parameter)}" for parameter in graph.parameters]
    for node in graph.nodes:
        remark = comment(node) if comment else ""
        lines.append(f"  {line(node)}" + (f"  # {remark}" if remark else ""))
    lines += [f"  shared {_shared_text(graph, *item)}" for item in graph.shared_layouts]
    lines += [f"  recompute {name}" for name in graph.recomputed]
    lines += [f"  regather {name}" for name in graph.regathered]
    lines += [f"  offload {name}" for name in graph.offloaded]
    lines += [f"  cut {name}" for name in graph.cuts]
    lines += [f"  schedule {graph.schedule}"] if graph.schedule else []
    lines += [f"  update {name} = {new}" for name, new in graph.updates]
    lines.append(f"  return {', '.join(graph.outputs)}".rstrip())
    return "\n".join(lines) + "\n}\n"


def _shared_text(graph: Graph, name: str, shared: SharedLayout) -> str:
    value = replace(graph.value(name), layout=shared.layout)
    attributes: Attributes = {"gradient": shared.gradient} if shared.gradient else {}
    return f"{_binder(value)}{_attributes_text(attributes)}"


def _mesh_text(mesh: Mesh) -> str:
    return " ".join(map(_axis_text, mesh.axes)) or "1"


def _axis_text(axis: MeshAxis) -> str:
    if axis.in_time:
        return f"{axis.name}={axis.size}:time"
    level = f":{axis.level}" if axis.level else ""
    kind = ":v_stages" if axis.in_v else ":stages" if axis.of_stages else ""
    return f"{axis.name}={axis.size}{level}{kind}"


def _parse_mesh(text: str | None) -> Mesh | None:
    if text is None:
        return None
    axes = []
    for item in text.split() if text != "1" else ():
        match = re.fullmatch(r"(\w+)=(\d+)(?::(\d+))?(?::(time|(v_)?stages))?", item)
        if not match:
            raise IRError(f"`{item}` is not a mesh axis", hint="an axis reads `name=size:level`")
        in_time, in_v = match[4] == "time", match[5] is not None
        of_stages = match[4] is not None and not in_time
        axes.append(MeshAxis(match[1], int(match[2]), int(match[3] or 0), in_time, of_stages, in_v))
    return Mesh(tuple(axes))


@lru_cache(maxsize=4096)  # a graph has few types, and many values of each
def parse_type(text: str) -> tuple[TensorType, Layout | None]:
    """Return the type that `text` spells, and the layout if it spells one.

    Raises
    ------
    IRError
        If it cannot be read.
    """
    match = _TYPE.match(text)
    if not match:
        raise IRError(f"`{text}` is not a type", hint="a type reads `f32[32@axis, 128] +axis`")
    dims = [dim.strip().split("@") for dim in match[2].split(",")] if match[2].strip() else []
    try:
        shape, ragged = _parse_sizes([dim[0] for dim in dims])
    except ValueError:
        raise IRError(f"`{text}` has a size that is not a number") from None
    tensor = TensorType(dtype_from_short(match[1]), shape, match[5] is not None, ragged)
    splits = tuple(tuple(dim[1:]) for dim in dims)
    if match[3] is None and match[4] is None and not any(splits):
        return tensor, None
    axes, _, reduction = (match[3] or "").strip(" *").partition(":")
    partial = tuple(axes.split("+")[1:])
    stage = None if match[4] is None else int(match[4])
    return tensor, Layout(splits, partial, reduction or "sum", stage)


def _parse_sizes(texts: list[str]) -> tuple[tuple[int, ...], Ragged | None]:
    """Return the sizes that texts spell, and which entries are filled where not all are."""
    ragged, shape = None, []
    rows = tuple(i for i, text in enumerate(texts) if text.endswith("~"))
    for dimension, text in enumerate(texts):
        text, _, limit = text.partition(" in ")
        filled, slash, size = text.rpartition("/")
        size, _, imbalance = size.removesuffix("~").partition("*")
        shape.append(int(size))
        if slash:
            few, _, count = (limit or "1/1").partition("/")
            parts = int(few), int(count)
            ragged = Ragged(dimension, rows, int(filled), float(imbalance or 1.0), parts)
    return tuple(shape), ragged


def _parse_binder(text: str) -> Value:
    match = _BINDER.fullmatch(text.strip())
    if not match:
        raise IRError(f"`{text}` does not define a value", hint="write `name: f32[2, 3]`")
    return Value(match[1], *parse_type(match[2]))


def _beginning(text: str) -> str:
    """Return a text for a message, without most of it where it is long."""
    return shortened(text, 300)


@lru_cache(maxsize=4096)  # operators of one kind mostly have the same
def _parse_attributes(text: str | None) -> Attributes:
    if not text:
        return FrozenAttributes({})
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        read = {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}
        hash(tuple(read.values()))  # constants are: numbers, texts and tuples of them
    except (SyntaxError, ValueError, TypeError, AssertionError, RecursionError, MemoryError):
        raise IRError(f"the attributes `{{{_beginning(text)}}}` cannot be read") from None
    return FrozenAttributes(read)


def _parse_strategy(text: str | None) -> Strategy | None:
    if text is None:
        return None
    pairs = (item.strip().partition("=") for item in text.split(",") if item.strip())
    return Strategy(tuple((factor, tuple(axes.split("@"))) for factor, _, axes in pairs))


def _parse_node(line: str) -> Node:
    binders, equals, call = line.partition(" = ")
    match = _CALL.match(call)
    if not equals or not match:
        raise IRError(
            "the line is neither an input, a parameter, a node, an update nor a return",
            hint="a node reads `name: f32[2, 3] = operator(operands) {key=value}`",
        )
    results = tuple(_parse_binder(text) for text in re.split(rf", (?={_NAME}: )", binders))
    operands = tuple(name.strip() for name in match["operands"].split(",") if name.strip())
    return Node(
        match["operator"],
        operands,
        results,
        _parse_attributes(match["attributes"]),
        match["scope"] or "",
        _parse_strategy(match["strategy"]),
        _parse_provenance(match),
    )


def _parse_provenance(match: re.Match[str]) -> Provenance:
    role = match["role"] or "forward"
    known = {name: name for name in ROLES}
    if role not in known:
        raise IRError(f"unknown role `{role}`: expected one of {', '.join(known)}")
    return Provenance(
        match["source"] or "", known[role], match["tensor"] or "", match["target"] or ""
    )


def _parse_parameter(keyword: str, text: str) -> Parameter:
    declared = _PARAMETER.fullmatch(text)
    if declared is None:
        return Parameter(_parse_binder(text))  # raises
    value = _parse_binder(declared[1] + declared[3])
    attributes = _parse_attributes(declared[4])
    return Parameter(value, attributes, _PARAMETER_ROLES[keyword], declared[2] or "")


def parse(text: str) -> Graph:
    """Return the graph that `text` describes.

    Raises
    ------
    IRError
        If a line cannot be read; the message names the line.
    """
    lines = [(n, _uncommented(line)) for n, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line]
    if not lines:
        raise IRError("the text is empty", hint="a graph begins with `graph name {`")
    try:
        return _parse_lines(lines)
    except IRError as error:
        if error.where is None:
            raise IRError(error.what, "the text of a graph", error.hint) from None
        raise


def _uncommented(line: str) -> str:
    return line.split("  # ")[0].strip() if not line.lstrip().startswith("#") else ""


def _parse_lines(lines: list[tuple[int, str]]) -> Graph:
    head = _HEAD.fullmatch(lines[0][1])
    if not head or lines[-1][1] != "}":
        raise IRError("a graph begins with `graph name {` and ends with `}`, this one does not")
    inputs: list[Value] = []
    parameters: list[Parameter] = []
    nodes: list[Node] = []
    updates: list[tuple[str, str]] = []
    shared: list[tuple[Value, SharedLayout]] = []
    named: dict[str, list[str]] = {key: [] for key in _NAMING}
    outputs: tuple[str, ...] = ()
    for number, line in lines[1:-1]:
        keyword, _, rest = line.partition(" ")
        try:
            if keyword == "input":
                inputs.append(_parse_binder(rest))
            elif keyword in _PARAMETER_ROLES:
                parameters.append(_parse_parameter(keyword, rest))
            elif keyword == "shared":
                shared.append(_parse_shared(rest))
            elif keyword in named and " " not in rest:
                named[keyword].append(rest)
            elif keyword == "update":
                name, _, new = rest.partition(" = ")
                updates.append((name, new))
            elif keyword == "return":
                outputs = _names(rest.split(","))
            else:
                nodes.append(_parse_node(line))
        except IRError as error:
            raise IRError(error.what, f"line {number}: {_beginning(line)}", error.hint) from None
    graph = Graph(
        head[1],
        tuple(inputs),
        tuple(parameters),
        tuple(nodes),
        outputs,
        tuple(updates),
        _parse_mesh(head[2]),
        tuple((value.name, layout) for value, layout in shared),
        tuple(named["recompute"]),
        tuple(named["cut"]),
        _only(named["schedule"]),
        tuple(named["regather"]),
        tuple(named["offload"]),
    )
    for value, _ in shared:
        _check_shared_type(graph, value)
    return graph


def _check_shared_type(graph: Graph, value: Value) -> None:
    tensor = graph.values.get(value.name)
    if tensor is not None and tensor.type != value.type:
        what = f"`{value.name}` is {tensor.type}, its shared layout is one of {value.type}"
        raise IRError(what, f"shared {_binder(value)}")


def _parse_shared(text: str) -> tuple[Value, SharedLayout]:
    declared = re.fullmatch(r"(.*?)(?: \{(.*)\})?", text)
    assert declared is not None
    value, attributes = _parse_binder(declared[1]), _parse_attributes(declared[2])
    gradient = attributes.get("gradient", ())
    if value.layout is None or not isinstance(gradient, tuple) or attributes.keys() - {"gradient"}:
        raise IRError(
            "a shared layout reads `shared name: f32[8, 16@x] {gradient=('y',)}`, this one does not"
        )
    return value, SharedLayout(value.layout, tuple(map(str, gradient)))


def _only(schedules: list[str]) -> str:
    if len(schedules) > 1:
        raise IRError(f"the schedule is named {len(schedules)} times, expected once")
    return "".join(schedules)


def _names(parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.strip() for part in parts if part.strip())


def plain_name(name: str) -> str:
    """Return the nearest name that the text form of a graph allows."""
    plain = re.sub(r"[^\w./-]", "_", name, flags=re.ASCII).lstrip("/.-")
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"

import json
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import IRError
from shardwright.ir.export import to_json
from shardwright.ir.graph import Graph, Node, Parameter, Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.provenance import ROLES, ParameterRole, Provenance
from shardwright.ir.text import parse, to_text
from shardwright.ir.types import DTYPES, TensorType
from shardwright.ir.verify import verify_structure
from tests.extent import first

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 4, 1)))

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_./-]{0,8}", fullmatch=True)
scalars = (
    st.integers()
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.none()
    | st.text(st.characters(codec="utf-8", exclude_categories=["C"]))
)
attributes = st.dictionaries(
    st.from_regex(r"at_[a-z]{0,4}", fullmatch=True),
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5),
    max_size=3,
)


@st.composite
def values(draw: st.DrawFn, name: str) -> Value:
    shape = draw(st.lists(st.integers(1, 64), max_size=3))
    kind = TensorType(draw(st.sampled_from(DTYPES)), tuple(shape))
    if draw(st.booleans()):
        return Value(name, kind)
    free = draw(st.permutations(MESH.names))
    splits: list[tuple[str, ...]] = [()] * len(shape)
    for i in range(len(shape)):
        count = draw(st.integers(0, len(free)))
        splits[i], free = tuple(free[:count]), free[count:]
    partial = tuple(free) if draw(st.booleans()) else ()
    reduction = draw(st.sampled_from(["sum", "max", "min"])) if partial else "sum"
    return Value(name, kind, Layout(tuple(splits), partial, reduction))


@st.composite
def parameters(draw: st.DrawFn, name: str) -> Parameter:
    role = draw(st.sampled_from(get_args(ParameterRole)))
    return Parameter(draw(values(name)), draw(attributes), role, draw(st.just("") | names))


provenances = st.builds(
    Provenance, st.just("") | names, st.sampled_from(ROLES), *[st.just("") | names] * 2
)


@st.composite
def nodes(draw: st.DrawFn, results: list[str]) -> Node:
    strategy = draw(
        st.none()
        | st.just(Strategy())
        | st.just(Strategy.of({"m": ("x",), "n": ("y",)}))
        | st.just(Strategy.of({"m": ("y", "x")}))
    )
    return Node(
        draw(names),
        tuple(draw(st.lists(names, max_size=3))),
        tuple(draw(values(name)) for name in results),
        draw(attributes),
        draw(st.from_regex(r"[a-z0-9/]{0,8}", fullmatch=True)),
        strategy,
        draw(provenances),
    )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Give graphs that need not mean anything: the text form knows no operator."""
    unique = draw(st.lists(names, unique=True, min_size=6, max_size=6))
    return Graph(
        draw(names),
        (draw(values(unique[0])),),
        tuple(draw(parameters(name)) for name in unique[1:3]),
        (draw(nodes(unique[3:5])), draw(nodes(unique[5:]))),
        tuple(draw(st.lists(st.sampled_from(unique), max_size=2))),
        tuple(draw(st.lists(st.sampled_from([(unique[1], unique[3])]), max_size=1))),
        draw(st.sampled_from([None, MESH, Mesh(())])),
    )


@pytest.mark.long
@settings(max_examples=len(first(30, range(60))))
@given(graphs())
def test_parse_is_the_inverse_of_to_text(graph: Graph) -> None:
    assert parse(to_text(graph)) == graph


TEXT = """\
graph mlp on x=2 y=4:1 {
  input a: f32[32@x, 128]
  parameter w: f32[128, 512@y] {initializer='normal', mean=0.5}
  buffer mean: f32[4]*
  state w.m of w: f32[128, 512@y] {initializer='zeros'}
  w.to_0: f32[128, 512@y] = cast(w) in 'layer1' from h as redistribution of w
  h: f32[32@x, 512@y] = matmul(a, w) {transpose_b=False} split(m=x, n=y) in 'layer1'
  low: f32[16@x], high: f32[16@x] +y:max = halves(h)
  s: f32[]* = reduce_sum(low) {axis=(0,)}
  update w = w
  return s, h
}
"""


def test_the_text_form_stands() -> None:
    graph = parse(TEXT)
    assert to_text(graph) == TEXT
    assert graph.mesh == MESH
    assert graph.producers["h"].strategy == Strategy.of({"m": ("x",), "n": ("y",)})
    assert graph.producers["h"].provenance == Provenance("h")
    assert graph.producers["w.to_0"].provenance == Provenance("h", "redistribution", "w")
    assert [(p.role, p.weight) for p in graph.parameters] == [
        ("weight", ""),
        ("buffer", ""),
        ("state", "w"),
    ]
    assert graph.values["high"].layout == Layout((("x",),), ("y",), "max")
    assert graph.values["s"].layout == Layout(())


@pytest.mark.parametrize(
    "value",
    [float("inf"), -float("inf"), "a  # b", "} in 'x'", "it's {so}", 'a "b" \\', (), ((1,), "")],
)
def test_awkward_constants_stand(value: Attribute) -> None:
    attributes = {"a": value, "b": 1}
    result = Value("y", TensorType("float32", ()))
    node = Node("f", (), (result,), attributes, "scope", Strategy())
    graph = Graph("g", (), (Parameter(Value("w", result.type), attributes),), (node,), ("y",))
    assert parse(to_text(graph)) == graph


def test_comments_are_dropped() -> None:
    graph = parse(TEXT)
    remarked = to_text(graph, comment=lambda node: f"costs {node.name}")
    assert "  # costs h\n" in remarked
    assert parse("# a graph\n\n" + remarked) == graph


def line_error(line: str) -> str:
    with pytest.raises(IRError) as error:
        parse(f"graph g {{\n  input x: f32[2]\n  {line}\n  return x\n}}\n")
    return str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "y f32[2] = relu(x)",
            "`y f32[2]` does not define a value (in line 3: y f32[2] = relu(x)); "
            "write `name: f32[2, 3]`",
        ),
        (
            "y: f32[2] = relu x",
            "the line is neither an input, a parameter, a node, an update nor a return "
            "(in line 3: y: f32[2] = relu x); "
            "a node reads `name: f32[2, 3] = operator(operands) {key=value}`",
        ),
        (
            "y: f31[2] = relu(x)",
            "no element type is spelled `f31` (in line 3: y: f31[2] = relu(x)); "
            "use ('f64', 'f32', 'f16', 'bf16', 'i64', 'i32', 'i16', 'i8', 'u64', 'u32', 'u16', "
            "'u8', 'bool')",
        ),
        (
            "y: f32[a] = relu(x)",
            "`f32[a]` has a size that is not a number (in line 3: y: f32[a] = relu(x))",
        ),
        (
            "y: f32[0] = relu(x)",
            "a tensor has the shape (0,), every size must be at least 1 "
            "(in line 3: y: f32[0] = relu(x))",
        ),
        (
            "y: f32[2] = relu(x) {slope=one}",
            "the attributes `{slope=one}` cannot be read "
            "(in line 3: y: f32[2] = relu(x) {slope=one})",
        ),
        (
            "y: f32[2] = relu(x) as helper",
            "unknown role `helper`: expected one of forward, redistribution, mirror, offload, "
            "seed, backward, recompute, reload, accumulation, gradient_redistribution, fusion, "
            "update (in line 3: y: f32[2] = relu(x) as helper)",
        ),
        (
            "state y of",
            "`y of` does not define a value (in line 3: state y of); write `name: f32[2, 3]`",
        ),
        (
            "input y",
            "`y` does not define a value (in line 3: input y); write `name: f32[2, 3]`",
        ),
    ],
)
def test_a_wrong_line_is_named(line: str, message: str) -> None:
    assert line_error(line) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty; a graph begins with `graph name {`"),
        (
            "graph g\n}\n",
            "a graph begins with `graph name {` and ends with `}`, this one does not "
            "(in the text of a graph)",
        ),
        (
            "graph g on x {\n}\n",
            "`x` is not a mesh axis (in the text of a graph); an axis reads `name=size:level`",
        ),
    ],
)
def test_a_wrong_frame_is_named(text: str, message: str) -> None:
    with pytest.raises(IRError) as error:
        parse(text)
    assert str(error.value) == message


def test_shared_layouts_are_written_and_read_back() -> None:
    text = (
        "graph g on x=2 y=2 {\n  input a: f32[8@x, 4]\n"
        "  b: f32[8, 4] = relu(a) split(d0=x)\n"
        "  shared b: f32[8@y, 4] {gradient=('x',)}\n  shared a: f32[8, 4]*\n  return b\n}\n"
    )
    graph = parse(text)
    assert to_text(graph) == text
    assert [shared.gradient for _, shared in graph.shared_layouts] == [("x",), ()]
    assert json.loads(to_json(graph))["shared_layouts"] == {
        "b": {"layout": "[y, *]", "gradient": ["x"]},
        "a": {"layout": "[*, *]", "gradient": []},
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "shared a: f32[8, 4]",
            "a shared layout reads `shared name: f32[8, 16@x] {gradient=('y',)}`, this one does "
            "not (in line 3: shared a: f32[8, 4])",
        ),
        (
            "shared a: f32[8, 4]* {saved=True}",
            "a shared layout reads `shared name: f32[8, 16@x] {gradient=('y',)}`, this one does "
            "not (in line 3: shared a: f32[8, 4]* {saved=True})",
        ),
        (
            "shared a: f32[8]*",
            "`a` is f32[8, 4], its shared layout is one of f32[8] (in shared a: f32[8]*)",
        ),
        ("shared b: f32[8]*", "the shared value `b` is not defined (in shared b: [*])"),
        (
            "shared a: f32[8@z, 4]",
            "the mesh has no axis `z` (in shared a: [z, *]); its axes are ('x',)",
        ),
        (
            "shared a: f32[8@x, 4] {gradient=('z',)}",
            "the mesh has no axis `z` (in shared a: [x, *]); its axes are ('x',)",
        ),
    ],
)
def test_wrong_shared_layouts(line: str, said: str) -> None:
    text = f"graph g on x=2 {{\n  input a: f32[8@x, 4]\n  {line}\n  return a\n}}\n"
    with pytest.raises(IRError) as caught:
        verify_structure(parse(text))
    assert str(caught.value) == said


def test_names_may_begin_with_a_digit() -> None:
    """As those of the parameters of a sequence of layers that is the whole network."""
    text = """graph sequence {
  input x: f32[4, 8]
  parameter 0.weight: f32[8, 2]
  0: f32[4, 2] = matmul(x, 0.weight) in '0' from 0
  1_loss: f32[] = reduce_sum(0) {axis=None}
  return 1_loss
}
"""
    graph = parse(text)
    assert [p.name for p in graph.parameters] == ["0.weight"]
    assert parse(to_text(graph)) == graph

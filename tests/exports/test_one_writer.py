"""Text enters exported files through one writer alone: a rule over the syntax tree."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.writing import (
    Code,
    code,
    fixed,
    identifier,
    lines,
    listed,
    literal,
    word,
)
from shardwright.exports.table import write_export
from shardwright.ir.errors import PlanError

ROOT = Path(__file__).parents[2]
WRITER = ROOT / "exports" / "emission" / "writing.py"
# What these take first is a text of the program: a literal, or a constant that is one.
TEMPLATES = ("code", "fixed")
OPENERS = ("open", "write_text", "write_bytes", "write_file", "write_files", "write_folder")


def is_literal(node: ast.expr | None, constants: frozenset[str]) -> bool:
    """Return whether an expression is a text that stands in the program."""
    if isinstance(node, ast.IfExp):
        return is_literal(node.body, constants) and is_literal(node.orelse, constants)
    if isinstance(node, ast.Name):
        return node.id in constants
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def constants_of(tree: ast.Module, known: dict[str, frozenset[str]]) -> frozenset[str]:
    """Return the names of a module that are bound once, to a literal, or imported as such."""
    found: set[str] = set()
    bound: list[str] = [
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    bound += [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    for node in tree.body:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_literal(value, frozenset()):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for one in targets if isinstance(one, ast.Name)}
        if isinstance(node, ast.ImportFrom) and node.module in known:
            found |= {one.name for one in node.names if not one.asname} & known[node.module]
    return frozenset(name for name in found if bound.count(name) <= 1)


def violations(text: str, known: dict[str, frozenset[str]] | None = None) -> Iterator[str]:
    """Yield what a module of exports does that the one writer alone may do."""
    tree = ast.parse(text)
    constants = constants_of(tree, known or {})
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("emission.writing"):
            yield from (f"{one.name} has another name" for one in node.names if one.asname)
        if isinstance(node, ast.Import):
            yield from (
                f"{one.name} is imported whole"
                for one in node.names
                if one.name.endswith("emission.writing")
            )
        if isinstance(node, ast.ClassDef):
            yield from (
                "a class is made of Code"
                for base in node.bases
                if "Code" in ast.unparse(base).split(".")
            )
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name.split(".")[-1] == "Code" or name.startswith(("Code.", "str.__new__")):
            yield f"{name} is called"
        if name.split(".")[-1] == "cast" and any("Code" in ast.unparse(a) for a in node.args):
            yield "something is cast to Code"
        if name in TEMPLATES and not is_literal(next(iter(node.args), None), constants):
            yield f"{name} takes a text that is no literal: {ast.unparse(node)[:60]}"
        between = node.args[1:] if name == "listed" else ()
        between = [*between, *(k.value for k in node.keywords if k.arg in ("between", "template"))]
        yield from (
            f"{name} takes a text that is no literal"
            for b in between
            if not is_literal(b, constants)
        )
        if name.split(".")[-1] in OPENERS:
            yield f"a file is written: {name}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("shardwright", *(part for part in parts if part != "__init__")))


def test_exports_make_code_by_the_writer_alone() -> None:
    paths = [p for p in (ROOT / "exports").rglob("*.py") if "support" not in p.parts]
    texts = {path: path.read_text() for path in paths if path != WRITER}
    known = {module_name(p): constants_of(ast.parse(t), {}) for p, t in texts.items()}
    found = {
        str(path.relative_to(ROOT)): told
        for path, text in texts.items()
        if (told := list(violations(text, known)))
    }
    assert found == {"exports/table.py": ["a file is written: write_folder"]}


HEAD = (
    "from shardwright.exports.emission.writing import Code, code, fixed, lines, listed\n"
    "_X = 'x = {}'\n"
)


@pytest.mark.parametrize(
    "planted",
    [
        "code(f'x = {name}')",
        "code('x = %s' % name)",
        "code('x = ' + name)",
        "code('x = {}'.format(name))",
        "code(''.join(parts))",
        "code(text)",
        "code(template=text)",
        "fixed(name)",
        "fixed(f'{name}')",
        "fixed('a' if x else name)",
        "listed(parts, name)",
        "listed(parts, between=f',{name}')",
        "Code(f'x = {name}')",
        "writing.Code(name)",
        "Code.__new__(Code, name)",
        "str.__new__(Code, name)",
        "cast(Code, name)",
        "cast('Code', name)",
        "typing.cast(Code, name)",
        "class Mine(Code): ...",
        "class Mine(writing.Code): ...",
        "from shardwright.exports.emission.writing import code as made",
        "import shardwright.exports.emission.writing",
        "def f(_X): code(_X)",
        "_X += name; code(_X)",
        "code()",
        "(folder / 'a.py').write_text(f'x = {name}')",
        "open('a.toml', 'w').write('x = ' + name)",
        "write_file(path, b'' + name, 'it', ours)",
    ],
)
def test_what_is_planted_is_found(planted: str) -> None:
    assert list(violations(HEAD + planted))


@pytest.mark.parametrize(
    "right",
    [
        "code('x = {}', name)",
        "code(_X, name)",
        "fixed('a' if x else 'b')",
        "listed(parts, ',\\n')",
        "lines([code('{}', a), fixed('b')])",
        "raise PlanError(f'no {name}')",
    ],
)
def test_what_is_right_is_not(right: str) -> None:
    assert not list(violations(HEAD + right))


@pytest.mark.parametrize("text", ["x = 1", f"{1}", "a" + "b", str(fixed("a"))])
def test_other_texts_are_never_written(text: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="was not made by the writer"):
        write_export(tmp_path / "new", Exported({"a.py": text}))  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="was not made by the writer"):
        lines([text])  # type: ignore[list-item]
    assert not (tmp_path / "new").exists()
    with pytest.raises(TypeError, match=r"`a\.py` is written as bytes"):
        write_export(tmp_path / "new", Exported({"a.py": text.encode()}))


@pytest.mark.parametrize(
    "data", ["a\n'\"\\{}", ("x",), [1, (2.5, None)], {"a\n": float("inf")}, ()]
)
def test_data_stay_data(data: object) -> None:
    assert eval(code("{}", data)) == data
    assert eval(listed([data, data])) == (data, data)


def test_what_has_no_literal_is_refused() -> None:
    for value in (object(), {1, 2}, Path("x"), b"x"):
        with pytest.raises(TypeError, match="has no literal"):
            code("{}", value)
    assert code("{}", {"a": Code("b")}) == "{'a': 'b'}"  # inside of data all is data


@pytest.mark.parametrize("text", ["a b", "a;b", "", "class", "a.1", "x()", "a\nb", "a.b;c"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="is no name in Python"):
        identifier(text)


@pytest.mark.parametrize("text", ["a b", "a;b", "", "$x", "`x`", "a\nb", '"', "é", "a#b"])
def test_what_is_no_word_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="is no word"):
        word(text)


def test_fields_are_never_filled_twice() -> None:
    assert code("{} {}", literal("{0}"), code("{{{}}}", fixed("{1}"))) == '"{0}" {{1}}'

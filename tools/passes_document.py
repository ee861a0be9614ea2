"""docs/passes.md: what every built-in pass does, requires and ensures, with an example."""

import re
from collections.abc import Iterator
from difflib import unified_diff
from inspect import cleandoc
from pathlib import Path

from shardwright.dataflow.properties import PROPERTIES, Property
from shardwright.ir.errors import PassError
from shardwright.passes.base import Pass, options_of
from shardwright.passes.pipeline import BUILT_IN, value_text
from shardwright.planner.options import MODES
from shardwright.planner.pipelines import pass_names

HEAD = """\
# Passes

Written by `shardwright opt --markdown docs/passes.md`; a test holds it to the code.

A pass makes one graph of another. It requires properties of the graph that it is given and ensures
properties of the graph that it leaves; the compiler checks both. A pipeline is a list of passes
with their options, `canonicalize,differentiate{loss_scale=2}`, and
`shardwright opt FILE --passes PASSES` runs one on the text of a graph
([how to read it](reading-the-ir.md)). The passes of each mode, in order:

| mode | passes |
|---|---|
"""
SHOWN = "# shown in docs/passes.md"
"""The second line of the golden file that is the example of its pass."""
_SECTION = re.compile(r"\n\n(?:Before|After)::\n(?:\n? {4}.*)*|\n\nParameters\n-+\n(?:.|\n)*")


def document(golden: Path) -> str:
    """Return docs/passes.md.

    Parameters
    ----------
    golden : Path
        The folder of golden files, for the examples.
    """
    head = HEAD + "\n".join(_modes())
    return "\n".join([head, *_properties(), *(_section(kind, golden) for kind in BUILT_IN)])


def _modes() -> Iterator[str]:
    modes: dict[str, list[str]] = {}
    for mode in MODES:
        names = ", ".join(f"`{name}`" for name in pass_names(mode))
        modes.setdefault(names, []).append(f"`{mode}`")
    return (f"| {', '.join(kinds)} | {names} |" for names, kinds in modes.items())


def _properties() -> Iterator[str]:
    yield "\n## Properties\n"
    yield "| property | a graph has it where |\n|---|---|"
    for item in PROPERTIES:
        yield f"| `{item.name}` | {item.meaning[0].lower()}{item.meaning[1:].rstrip('.')} |"
    yield ""


def _section(kind: type[Pass], golden: Path) -> str:
    prose = _plain(_SECTION.sub("", cleandoc(kind.__doc__ or "")))
    lines = [f"## `{kind.name}`", "", prose, "", *_options(kind)]
    module = "/".join(kind.__module__.split(".")[1:]) + ".py"
    requires, ensures = _names(kind.requires), _names(kind.ensures)
    lines += [f"Requires {requires}; ensures {ensures}. In [`{module}`](../{module}).", ""]
    return "\n".join([*lines, *_example(kind, golden)])


def _options(kind: type[Pass]) -> Iterator[str]:
    options = options_of(kind)
    if not options:
        return
    yield "| option | expected | default | meaning |\n|---|---|---|---|"
    for option in options:
        literal = option.literal(option.default) if not option.required else ""
        default = f"`{value_text(literal)}`" if not option.required else "none"
        yield f"| `{option.name}` | {option.expected} | {default} | {_plain(option.meaning)} |"
    yield ""


def _plain(text: str) -> str:
    return text.replace("``", "`")


def _names(properties: tuple[Property, ...]) -> str:
    return ", ".join(f"`{item.name}`" for item in properties) or "nothing"


def _example(kind: type[Pass], golden: Path) -> Iterator[str]:
    """Yield the example of a pass: the golden file that is marked as shown, as a difference."""
    for file in sorted((golden / kind.name).glob("*.before.ir")):
        text = file.read_text(encoding="utf-8")
        if SHOWN in text.splitlines():
            break
    else:
        raise PassError(f"no golden file of `{kind.name}` has the line `{SHOWN}`", str(golden))
    after = file.with_name(file.name.replace(".before.", ".after.")).read_text(encoding="utf-8")
    before = [line for line in text.splitlines() if not line.startswith("# ")]
    difference = unified_diff(before, after.splitlines(), n=len(before), lineterm="")
    yield f"`{text.splitlines()[0].removeprefix('# pass: ')}`:\n\n```diff"
    yield from list(difference)[3:]
    yield "```\n"

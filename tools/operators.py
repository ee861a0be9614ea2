"""``shardwright operators``: the operators, their rules, and the coverage of MindSpore."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from shardwright.ir.files.writing import begins, write_file
from shardwright.ir.text import parse_type
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import OperatorInfo, operator_class, operator_info, operator_names
from shardwright.ops.names import Cover, cover, releases
from shardwright.tools.console.arguments import UsageError
from shardwright.tools.console.tables import print_table

_HEAD = """\
# Operators

Written by `shardwright operators --markdown docs/operators.md`; a test holds it to the code.

A rule names the factors of an operator: `k+` is contracted, `c^` stays whole, windows slide over
`h~`, `(a b)` is a dimension of two factors. [How it works](how-it-works.md) explains them.
Rules are shown for the first example of an operator.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("name", nargs="?", help="show this operator alone")
    parser.add_argument(
        "--coverage", action="store_true", help="show the counterpart of each of MindSpore's"
    )
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write all as a document")


def run(arguments: argparse.Namespace) -> int:
    """Print the operators, or write the document."""
    given = {
        "an operator": arguments.name is not None,
        "`--coverage`": arguments.coverage,
        "`--markdown`": arguments.markdown is not None,
    }
    asked = [what for what, is_given in given.items() if is_given]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} are given", hint="leave one out")
    if arguments.markdown is not None:
        write_file(arguments.markdown, document().encode(), "the document", begins(b"# Operators"))
        return 0
    if arguments.coverage:
        print_table("", ("MindSpore", "release", "kind", "counterpart"), list(_coverage_rows()))
        return 0
    names = (operator_class(arguments.name).name,) if arguments.name else operator_names()
    rows = [(name, rule_of(name), _summary(operator_class(name))) for name in names]
    print_table("", ("operator", "rule", "description"), rows)
    return 0


def rule_of(name: str) -> str:
    """Return the rule of an operator's first example; empty where it has none."""
    examples = operator_class(name).examples
    if not examples:
        return ""
    types = [parse_type(text)[0] for text in examples[0].operands]
    return operator_info(name, types, examples[0].attributes).rule.text


def _summary(operator: type[OperatorInfo]) -> str:
    return (operator.__doc__ or "").partition("\n")[0]


def _coverage_rows() -> Iterator[tuple[str, str, str, str]]:
    for release, names in releases().items():
        for name in sorted(names):
            counterpart = cover(name)
            yield name, release, _KINDS[counterpart.kind], counterpart.what


_KINDS = {
    "operator": "an operator",
    "composition": "of several operators",
    "compiler": "in the compiler",
    "none": "not supported",
}


# The document


def document() -> str:
    """Return docs/operators.md."""
    return "\n".join([_HEAD, *_operators(), *_coverage()])


def _operators() -> Iterator[str]:
    groups: dict[str, list[str]] = {"": [], "gradient": [], "communication": []}
    for name in operator_names():
        gradient = name.endswith("_gradient") and name != "stop_gradient"
        moves = issubclass(operator_class(name), (Communication, RingOperator))
        groups["gradient" if gradient else "communication" if moves else ""].append(name)
    yield f"## The {len(groups[''])} operators of models\n"
    yield "| operator | rule | description |\n|---|---|---|"
    for name in groups[""]:
        operator = operator_class(name)
        yield f"| {_linked(name, operator)} | `{rule_of(name)}` | {_cell(operator)} |"
    yield f"\n## The {len(groups['communication'])} that communicate\n"
    yield "| operator | description |\n|---|---|"
    for name in groups["communication"]:
        operator = operator_class(name)
        yield f"| {_linked(name, operator)} | {_cell(operator)} |"
    yield f"\n## The {len(groups['gradient'])} that only gradients use\n"
    yield ", ".join(_linked(name, operator_class(name)) for name in groups["gradient"]) + ".\n"


def _coverage() -> Iterator[str]:
    yield "## MindSpore's operator infos\n"
    yield (
        "The counterpart of each class that MindSpore registers, less its ending `Info`.\n"
        "`ops` and `nn` are modules of `shardwright`; most names can be written as MindSpore has\n"
        "them: `ops.TensorAdd()`.\n"
    )
    counterparts = {
        release: [(name, cover(name)) for name in names] for release, names in releases().items()
    }
    yield "| release | classes | " + " | ".join(_KINDS.values()) + " |\n|---|" + "---|" * 5
    for release, covers in counterparts.items():
        counts = [sum(c.kind == kind for _, c in covers) for kind in _KINDS]
        yield f"| {release} | {len(covers)} | " + " | ".join(map(str, counts)) + " |"
    for release, covers in counterparts.items():
        yield f"\n### Release {release}\n\n| MindSpore | here |\n|---|---|"
        for name, c in sorted(covers):
            if c.kind != "none":
                yield f"| {name} | {_here(c)} |"
        missing = [name for name, c in covers if c.kind == "none"]
        if missing:
            yield f"\nNot supported ({len(missing)}): " + ", ".join(missing) + "."
    yield ""


def _linked(name: str, operator: type[OperatorInfo]) -> str:
    """Return the name of an operator as a link, from docs/ to the module of its class."""
    return f"[`{name}`](../{'/'.join(operator.__module__.split('.')[1:])}.py)"


def _cell(operator: type[OperatorInfo]) -> str:
    return _summary(operator).replace("|", "\\|").replace("``", "`")


def _here(counterpart: Cover) -> str:
    return counterpart.what if counterpart.kind == "compiler" else f"`{counterpart.what}`"

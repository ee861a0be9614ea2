"""Exports of modules whose elements decide sizes and branches, and what their programs hold for."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from shardwright.frontends.torch.aten import is_selection
from shardwright.frontends.torch.exporting.choices import choices_in_rows
from shardwright.frontends.torch.exporting.known import Known, is_whole, known_values
from shardwright.frontends.torch.packed import traced_packing
from shardwright.frontends.torch.private import tree_leaves
from shardwright.ir.errors import ModelError

Traced = tuple[ExportedProgram, dict[str, Tensor], dict[str, str | None]]
# Names of inputs that a module learns, which are no structure.
_LEARNED = re.compile(r"label|target(?!_(size|shape|ratio))")
# Operators whose results have the elements of their first argument, or few others.
_SAME = tuple(
    f"aten.{name}."
    for name in (
        "view", "reshape", "clone", "to", "_to_copy", "contiguous", "slice", "select", "squeeze",
        "unsqueeze", "expand", "masked_fill", "masked_fill_", "index_put", "index_put_", "clamp",
        "flatten", "detach", "alias", "copy", "where",
    )
)  # fmt: skip


def traced(
    module: torch.nn.Module,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    assumes: bool = False,
) -> Traced:
    """Return an export, and what decides its sizes: elements of inputs by name, lines by buffer.

    Raises
    ------
    Exception
        Of the first export, if known elements do not help.
    """

    def export() -> ExportedProgram:
        with traced_packing():
            return torch.export.export(module, arguments, keywords, strict=False)

    failed: Exception | None = None
    plain: ExportedProgram | None = None
    try:
        plain = export()
        if not _has_unknown_sizes(plain):
            return plain, {}, {}
    except ModelError:
        raise
    except Exception as error:  # PyTorch raises errors of many types
        failed = error
    rest: Traced | None = None if plain is None else (plain, {}, {})
    for assumed in (False, True) if assumes else (False,):
        try:
            with known_values(module, (arguments, keywords), assumed) as known:
                following = export()
            held = _held(following, known, (arguments, keywords))
        except Exception as error:
            failed = error if failed is None or isinstance(error, ModelError) else failed
        else:
            read = {name: line for name, line in known.read.items() if isinstance(name, str)}
            if assumed or not _has_unknown_sizes(following):
                return following, held, read
            rest = rest if assumes else (following, held, read)
        if not assumed and (chosen := _by_choices(export)) is not None:
            return chosen, {}, {}
    if rest is not None:
        return rest
    assert failed is not None
    raise failed from None


def _by_choices(export: Callable[[], ExportedProgram]) -> ExportedProgram | None:
    """Return an export in which the tokens that chose an expert are rows; None if it fails."""
    try:
        with choices_in_rows():
            program = export()
    except Exception:  # the errors of the other exports are told
        return None
    return None if _has_unknown_sizes(program) else program


def refuse_changing(program: ExportedProgram, read: dict[str, str | None]) -> None:
    """Refuse sizes and branches by buffers that a step changes; each is read by a line.

    Raises
    ------
    ModelError
        If there is one.
    """
    changing = read.keys() & set(program.graph_signature.buffers_to_mutate.values())
    if changing:
        name = min(changing)
        raise ModelError(
            f"sizes or branches depend on the elements of the buffer `{name}`, which every step "
            "changes",
            read[name],
            "decide them by a number of Python",
        )


def _held(program: ExportedProgram, known: Known, inputs: Any) -> dict[str, Tensor]:
    """Return the inputs that were read, by the names of their nodes."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    specs = program.graph_signature.input_specs
    own = [n for n, s in zip(nodes, specs, strict=True) if s.kind is InputKind.USER_INPUT]
    leaves = tree_leaves(inputs)
    held = {own[i].name: leaves[i] for i in sorted(i for i in known.read if isinstance(i, int))}
    for position, line in known.read.items():
        if not isinstance(position, int):
            continue
        node = own[position]
        if _differs(node, leaves[position]):
            if known.assumes:
                del held[node.name]
                continue
            raise ModelError(
                f"sizes or branches depend on the elements of `{node.name}`, which differ in every "
                "batch",
                line,
                "give what decides sizes as an input of its own, or import with `as_example=True` "
                "if it is as in the example in every batch, which is checked",
            )
    return held


def _differs(node: fx.Node, example: Tensor) -> bool:
    """Return whether an input is no structure: its elements differ in every batch."""
    return not is_whole(example) or _looked_up(node) or bool(_LEARNED.search(node.name))


def _looked_up(node: fx.Node) -> bool:
    """Return whether rows of a table are looked up at the elements of a node."""
    todo, seen = [node], {node}
    while todo:
        one = todo.pop()
        for user in one.users:
            if str(user.target).startswith("aten.embedding.") and user.args[1] is one:
                return True
            if user not in seen and str(user.target).startswith(_SAME) and user.args[0] is one:
                seen.add(user)
                todo.append(user)
    return False


def _has_unknown_sizes(program: ExportedProgram) -> bool:
    """Return whether sizes of tensors depend on elements, beside those that a converter takes."""
    for node in program.graph.nodes:
        if is_selection(node):
            continue
        for one in tree_leaves(node.meta.get("val")):
            if isinstance(one, Tensor) and any(not isinstance(s, int) for s in one.shape):
                return True
    return False

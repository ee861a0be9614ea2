"""Python expressions for the nodes of a program, on the slices of one rank."""

import keyword
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from shardwright.exports.emission.rows import OWN_FORMS, runs_on_rows, touches_rows
from shardwright.exports.emission.vocabulary import MODULES, RINGS, ROWS, Signature, Vocabulary
from shardwright.ir.errors import PlanError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import OperatorInfo, operator_info

_OWN_NAMES = (
    *("mesh", "state", "inputs", "outputs", "gradients", "others", "totals", "new"),
    *("Mesh", "Totals", "Tensor", "Array", "Mapping", "again", "_", *MODULES, RINGS, ROWS),
    *("ORDER", "Iterator", "micro_batch"),
)
# Attributes that are sizes of a whole tensor; a function has them of the part of the rank.
_IMPLIED: Mapping[frozenset[str], tuple[str, ...]] = {
    frozenset({"shape", "shapes"}): ("shape", "shapes", "size", "kernel", "after"),
    frozenset({"size_v"}): ("rows", "depth"),
    frozenset({"size_g"}): ("groups",),
    frozenset({"size_p"}): ("pieces",),
}
_OF_OPERATORS: Mapping[str, tuple[str, ...]] = {
    "flatten": ("start",),
    "expand_dims": ("axis",),
    "squeeze": ("axis",),
    "tile": ("multiples",),
    "on_gradient": ("apply", "keywords", "reads", "returns"),
    "gather_elements_gradient": ("size",),
    "own_samples": ("size",),
    "pack": ("length",),
    "unpack": ("splits",),
    "pack_dealt": ("length", "splits", "axes"),
    "unpack_gathered": ("splits", "axes"),
}
_COLLECTIVES = {
    *("all_gather", "all_reduce", "reduce_scatter", "local_slice"),
    *("all_to_all", "collective_permute", "to_partial"),
}


class Expressions:
    """The expressions of the nodes of a program.

    Parameters
    ----------
    program : Graph
        A training step, partitioned and lowered.
    mesh : Mesh
        Its mesh.
    vocabulary : Vocabulary
        The functions of the other system.

    Attributes
    ----------
    groups : list of tuple of str
        The axes of the groups that communicate, in the order in which they were met.
    """

    def __init__(self, program: Graph, mesh: Mesh, vocabulary: Vocabulary) -> None:
        self._program, self._mesh, self._vocabulary = program, mesh, vocabulary
        self.groups: list[tuple[str, ...]] = []
        self._names = _identifiers(program)
        self._parameters = {parameter.name for parameter in program.parameters}
        self._on_rows = vocabulary.has_rows and runs_on_rows(program)
        updated = {name for name, _ in program.updates}
        wholes = [v for v in program.values.values() if v.name in self._parameters]
        for value in wholes:  # to make whole tensors of parameters and outputs
            self._note_groups(value)
        for name in (*program.outputs, *updated):
            self._note_groups(program.values[name])

    def _note_groups(self, value: Value) -> None:
        for axes in value.layout.splits if value.layout else ():
            if axes and not set(axes) & set(self._mesh.in_time):
                self._group(axes)

    def _group(self, axes: tuple[str, ...]) -> str:
        if axes not in self.groups:
            self.groups.append(axes)
        return repr(axes)

    def name(self, value: str) -> str:
        """Return the variable of a value."""
        return self._names[value]

    def read(self, value: str) -> str:
        """Return the expression of a value that is read."""
        return f"state[{value!r}]" if value in self._parameters else self._names[value]

    # Sizes

    def _length(self, size: int, axes: tuple[str, ...]) -> str:
        """Return the local size of a dimension: a number where all parts are equally large."""
        count = self._mesh.extent(axes)
        if size % count == 0:
            return str(size // count)
        return f"mesh.length({size}, {', '.join(map(repr, axes))})"

    def _start(self, size: int, axes: tuple[str, ...]) -> str:
        return f"mesh.start({size}, {', '.join(map(repr, axes))})" if axes else "0"

    # Operators

    def of(self, node: Node, after: str = "") -> str:
        """Return the expression that runs a node.

        Parameters
        ----------
        node : Node
            The node.
        after : str
            A value before it, where the node does again what an earlier one did.

        Raises
        ------
        PlanError
            If its operator has no translation.
        """
        operands = self._operands(node, after)
        if node.operator in _COLLECTIVES:
            return self._collective(node, operands[0])
        signature = self._vocabulary.signatures.get(node.operator)
        if signature is None:
            raise self._refused(node, self._untranslated)
        values = self._program.operand_values(node)
        info = operator_info(node.operator, [value.type for value in values], node.attributes)
        taken = self._attributes(node, info, signature)
        taken |= self._places(node, info, signature)
        missing = signature.required - taken.keys()
        if missing:
            raise self._refused(node, f"has no `{min(missing)}`, which its translation reads")
        if signature.module == RINGS:
            self._group(info.axes)  # type: ignore[attr-defined]
            operands = ["mesh", *operands]
        items = [*operands, *(f"{k}={v}" for k, v in taken.items())]
        if self._on_rows and touches_rows(self._program, node):
            return _of_rows(node.operator, signature.module, items)
        return f"{signature.module}.{node.operator}({', '.join(items)})"

    def _operands(self, node: Node, after: str) -> list[str]:
        operands = [self.read(name) for name in node.operands]
        if after and operands:
            operands[0] = f"{self._vocabulary.repeat}({operands[0]}, {self.read(after)})"
        return operands

    @property
    def _untranslated(self) -> str:
        return f"has no translation to {self._vocabulary.system}"

    def _refused(self, node: Node, what: str) -> PlanError:
        scope = f" in `{node.scope}`" if node.scope else ""
        return PlanError(
            f"`{node.operator}` of `{node.provenance.operator or node.name}`{scope} {what}",
            hint="compile the model without it, or run the plan with `shardwright run`",
        )

    def _attributes(self, node: Node, info: OperatorInfo, signature: Signature) -> dict[str, str]:
        attributes = {**node.attributes, **_explicit(info)}
        taken = {}
        for key, value in attributes.items():
            if key in ("shape", "shapes") and key in signature.keywords:
                continue
            if key in signature.keywords:
                taken[key] = _literal(value)
            elif value != info.defaults[key] and not _is_implied(node.operator, key, signature):
                raise self._refused(node, f"with `{key}` {value!r} {self._untranslated}")
        return taken

    def _places(self, node: Node, info: OperatorInfo, signature: Signature) -> dict[str, str]:
        """Return what a function takes of the part of the rank."""
        if not signature.keywords:
            return {}
        rule, strategy = info.rule, self._strategy(node, info)
        sizes = {f: strategy.axes.get(f.removesuffix("~"), ()) for f in rule.sizes}
        found = {}
        for keyword_ in sorted(signature.keywords):
            kind, _, factor = keyword_.partition("_")
            if keyword_ in ("shape", "shapes"):
                found[keyword_] = self._shapes(node, single=keyword_ == "shape")
            elif keyword_ in ("starts", "whole_shape"):
                (first, *_) = self._program.operand_values(node)
                whole = keyword_ == "whole_shape"
                found[keyword_] = repr(first.type.shape) if whole else self._starts(first)
            elif keyword_ == "whole":
                found[keyword_] = str(info.count)  # type: ignore[attr-defined]
            elif keyword_ == "keys":
                k = node.operands[info.first + 1]  # type: ignore[attr-defined]
                found[keyword_] = str(self._program.values[k].type.shape[2])
            elif kind in ("start", "size", "whole") and factor in sizes:
                axes, size = sizes[factor], rule.sizes[factor]
                if kind == "start" and axes:
                    found[keyword_] = self._start(size, axes)
                elif kind == "size":
                    found[keyword_] = self._length(size, axes)
                elif kind == "whole":
                    found[keyword_] = str(size)
        return found

    def _strategy(self, node: Node, info: OperatorInfo) -> Strategy:
        values = self._program.operand_values(node)
        taken = [v.layout or Layout.replicated(v.type.rank) for v in values]
        left = [v.layout.reduced() if v.layout else None for v in node.results]
        return info.infer_layouts(taken, self._mesh, left)[0]

    def _shapes(self, node: Node, single: bool) -> str:
        shapes = [self.shape(value) for value in node.results]
        return shapes[0] if single else _tuple(shapes)

    def shape(self, value: Value) -> str:
        """Return the local shape of a value."""
        splits = value.layout.splits if value.layout else ((),) * value.type.rank
        return _tuple([self._length(n, a) for n, a in zip(value.type.shape, splits, strict=True)])

    def _starts(self, value: Value) -> str:
        splits = value.layout.splits if value.layout else ((),) * value.type.rank
        return _tuple([self._start(n, a) for n, a in zip(value.type.shape, splits, strict=True)])

    # Communication

    def _collective(self, node: Node, part: str) -> str:
        attributes = node.attributes
        if attributes.get("group_size", 0) or attributes.get("groups", ()):
            raise self._refused(node, f"has groups of its own, it {self._untranslated}")
        axes: Any = attributes["axes"]
        write: dict[str, Callable[[Node, str], str]] = {
            "all_reduce": self._reduction,
            "reduce_scatter": self._reduction,
            "all_gather": self._gathered,
            "all_to_all": self._gathered,
        }
        more = write.get(node.operator, self._plain)(node, "")
        rows = "_rows" if self._on_rows and touches_rows(self._program, node) else ""
        return f"mesh.{node.operator}{rows}({part}, {self._group(axes)}{more})"

    @staticmethod
    def _plain(node: Node, more: str) -> str:
        if "previous" in node.attributes:
            more += f", {node.attributes['previous']!r}"
        if node.operator != "to_partial":
            more += f", {node.attributes.get('dimension', 0)!r}"
        return more

    def _reduction(self, node: Node, more: str) -> str:
        kind = node.attributes.get("reduction", "sum")
        if kind not in self._vocabulary.reductions[node.operator]:
            raise self._refused(node, f"with the reduction `{kind}` {self._untranslated}")
        if node.operator == "reduce_scatter":
            more += f", {node.attributes.get('dimension', 0)!r}"
        return more + (f", {kind!r}" if kind != "sum" else "")

    def _gathered(self, node: Node, more: str) -> str:
        """Return the dimensions, and the size of the joined one in the result."""
        if node.operator == "all_to_all":
            split = node.attributes.get("split_dimension", 0)
            joined: Any = node.attributes.get("concat_dimension", 0)
            more += f", {split!r}"
        else:
            joined = node.attributes.get("dimension", 0)
        (value,) = node.results
        axes = value.layout.splits[joined] if value.layout else ()
        return f"{more}, {joined!r}, {self._length(value.type.shape[joined], axes)}"

    def accumulated(self, node: Node) -> str:
        """Return the statement that accumulates a value over micro-batches."""
        part = self.read(node.operands[0])
        if node.operator == "all_reduce":
            kind = node.attributes.get("reduction", "sum")
            more = f", {kind!r}" if kind != "sum" else ""
            return f"totals.reduce({node.name!r}, {part}{more})"
        return f"totals.append({node.name!r}, {part}, {node.attributes.get('dimension', 0)!r})"


def _explicit(info: OperatorInfo) -> Mapping[str, Any]:
    """Return the attributes of windows, a number or a pair for each dimension."""
    windows = getattr(info, "windows", None)
    if windows is None:
        return {}
    names = ("kernel", "stride", "padding", "dilation")
    return {name: getattr(windows, name) for name in names if name in info.defaults}


def _is_implied(operator: str, key: str, signature: Signature) -> bool:
    """Return whether what a function takes of the part of a rank says an attribute, too."""
    told = next((names for names, keys in _IMPLIED.items() if key in keys), frozenset())
    return bool(told & signature.keywords) or key in _OF_OPERATORS.get(operator, ())


def _identifiers(program: Graph) -> dict[str, str]:
    """Return a variable for each value."""
    found: dict[str, str] = {}
    taken = set(_OWN_NAMES)
    for name in program.values:
        text = re.sub(r"\W", "_", name)
        text = f"v_{text}" if not text or text[0].isdigit() or keyword.iskeyword(text) else text
        unique, number = text, 1
        while unique in taken:
            number += 1
            unique = f"{text}_v{number}"
        taken.add(unique)
        found[name] = unique
    return found


def _literal(value: Any) -> str:
    """Return the expression of an attribute; infinity and nan have no literal."""
    is_finite = not isinstance(value, float) or isfinite(value)
    return repr(value) if is_finite else f"float({str(value)!r})"


def _of_rows(operator: str, module: str, items: list[str]) -> str:
    """Return the expression of an operator on the filled rows of experts."""
    if operator in OWN_FORMS:
        return f"{ROWS}.{operator}({', '.join(items)})"
    return f"{ROWS}.apply({', '.join((f'{module}.{operator}', *items))})"


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

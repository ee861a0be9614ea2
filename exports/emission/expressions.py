"""Python expressions for the nodes of a program, on the slices of one rank."""

import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any

from shardwright.exports.emission.rows import OWN_FORMS, runs_on_rows, touches_rows
from shardwright.exports.emission.vocabulary import MODULES, RINGS, ROWS, Signature, Vocabulary
from shardwright.exports.emission.writing import Code, code, identifier, in_parentheses, listed
from shardwright.ir.errors import PlanError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Strategy
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
        for output in (*program.outputs, *updated):
            self._note_groups(program.values[output])

    def _note_groups(self, value: Value) -> None:
        for axes in value.layout.splits if value.layout else ():
            if axes and not set(axes) & set(self._mesh.in_time):
                self._group(axes)

    def _group(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        if axes not in self.groups:
            self.groups.append(axes)
        return axes

    def name(self, value: str) -> Code:
        """Return the variable of a value."""
        return self._names[value]

    def read(self, value: str) -> Code:
        """Return the expression of a value that is read."""
        return code("state[{}]", value) if value in self._parameters else self._names[value]

    # Sizes

    def _length(self, size: int, axes: tuple[str, ...]) -> Code:
        """Return the local size of a dimension: a number where all parts are equally large."""
        count = self._mesh.extent(axes)
        if size % count == 0:
            return code("{}", size // count)
        return code("mesh.length({})", listed([size, *axes]))

    def _start(self, size: int, axes: tuple[str, ...]) -> Code:
        return code("mesh.start({})", listed([size, *axes])) if axes else code("0")

    # Operators

    def of(self, node: Node, after: str = "") -> Code:
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
            operands = [code("mesh"), *operands]
        items = [*operands, *(code("{}={}", identifier(k), v) for k, v in taken.items())]
        if self._on_rows and touches_rows(self._program, node):
            return _of_rows(node.operator, signature.module, items)
        return code("{}({})", _function(signature.module, node.operator), listed(items))

    def _operands(self, node: Node, after: str) -> list[Code]:
        operands = [self.read(operand) for operand in node.operands]
        if after and operands:
            repeat = identifier(self._vocabulary.repeat)
            operands[0] = code("{}({}, {})", repeat, operands[0], self.read(after))
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

    def _attributes(self, node: Node, info: OperatorInfo, signature: Signature) -> dict[str, Code]:
        attributes = {**node.attributes, **_explicit(info)}
        taken: dict[str, Code] = {}
        for key, value in attributes.items():
            if key in ("shape", "shapes") and key in signature.keywords:
                continue
            if key == "products":  # the package has one switch for all of them
                continue
            if key in signature.keywords:
                taken[key] = code("{}", value)
            elif value != info.defaults[key] and not _is_implied(node.operator, key, signature):
                raise self._refused(node, f"with `{key}` {value!r} {self._untranslated}")
        return taken

    def _places(self, node: Node, info: OperatorInfo, signature: Signature) -> dict[str, Code]:
        """Return what a function takes of the part of the rank."""
        if not signature.keywords:
            return {}
        rule, strategy = info.rule, self._strategy(node, info)
        sizes = {f: strategy.axes.get(f.removesuffix("~"), ()) for f in rule.sizes}
        found: dict[str, Code] = {}
        for keyword_ in sorted(signature.keywords):
            kind, _, factor = keyword_.partition("_")
            if keyword_ in ("shape", "shapes"):
                found[keyword_] = self._shapes(node, single=keyword_ == "shape")
            elif keyword_ in ("starts", "whole_shape"):
                (first, *_) = self._program.operand_values(node)
                whole = keyword_ == "whole_shape"
                shape = first.type.shape
                found[keyword_] = code("{}", shape) if whole else self._starts(first)
            elif keyword_ == "whole":
                found[keyword_] = code("{}", info.count)  # type: ignore[attr-defined]
            elif keyword_ == "keys":
                k = node.operands[info.first + 1]  # type: ignore[attr-defined]
                found[keyword_] = code("{}", self._program.values[k].type.shape[2])
            elif kind in ("start", "size", "whole") and factor in sizes:
                axes, size = sizes[factor], rule.sizes[factor]
                if kind == "start" and axes:
                    found[keyword_] = self._start(size, axes)
                elif kind == "size":
                    found[keyword_] = self._length(size, axes)
                elif kind == "whole":
                    found[keyword_] = code("{}", size)
        return found

    def _strategy(self, node: Node, info: OperatorInfo) -> Strategy:
        values = self._program.operand_values(node)
        taken = [v.known_layout for v in values]
        left = [v.layout.reduced() if v.layout else None for v in node.results]
        return info.infer_layouts(taken, self._mesh, left)[0]

    def _shapes(self, node: Node, single: bool) -> Code:
        shapes = [self.shape(value) for value in node.results]
        return shapes[0] if single else in_parentheses(shapes)

    def shape(self, value: Value) -> Code:
        """Return the local shape of a value."""
        splits = value.layout.splits if value.layout else ((),) * value.type.rank
        pairs = zip(value.type.shape, splits, strict=True)
        return in_parentheses(self._length(n, a) for n, a in pairs)

    def _starts(self, value: Value) -> Code:
        splits = value.layout.splits if value.layout else ((),) * value.type.rank
        pairs = zip(value.type.shape, splits, strict=True)
        return in_parentheses(self._start(n, a) for n, a in pairs)

    # Communication

    def _collective(self, node: Node, part: Code) -> Code:
        attributes = node.attributes
        if attributes.get("group_size", 0) or attributes.get("groups", ()):
            raise self._refused(node, f"has groups of its own, it {self._untranslated}")
        axes: Any = attributes["axes"]
        write: dict[str, Callable[[Node], list[Any]]] = {
            "all_reduce": self._reduction,
            "reduce_scatter": self._reduction,
            "all_gather": self._gathered,
            "all_to_all": self._gathered,
        }
        more = write.get(node.operator, self._plain)(node)
        on_rows = self._on_rows and touches_rows(self._program, node)
        operator = identifier(f"{node.operator}_rows" if on_rows else node.operator)
        return code("mesh.{}({})", operator, listed([part, self._group(axes), *more]))

    @staticmethod
    def _plain(node: Node) -> list[Any]:
        more = [node.attributes["previous"]] if "previous" in node.attributes else []
        if node.operator != "to_partial":
            more.append(node.attributes.get("dimension", 0))
        return more

    def _reduction(self, node: Node) -> list[Any]:
        kind = node.attributes.get("reduction", "sum")
        if kind not in self._vocabulary.reductions[node.operator]:
            raise self._refused(node, f"with the reduction `{kind}` {self._untranslated}")
        is_scattered = node.operator == "reduce_scatter"
        more = [node.attributes.get("dimension", 0)] if is_scattered else []
        return [*more, *([kind] if kind != "sum" else [])]

    def _gathered(self, node: Node) -> list[Any]:
        """Return the dimensions, and the size of the joined one in the result."""
        if node.operator == "all_to_all":
            more = [node.attributes.get("split_dimension", 0)]
            joined: Any = node.attributes.get("concat_dimension", 0)
        else:
            more, joined = [], node.attributes.get("dimension", 0)
        (value,) = node.results
        axes = value.layout.splits[joined] if value.layout else ()
        return [*more, joined, self._length(value.type.shape[joined], axes)]

    def accumulated(self, node: Node) -> Code:
        """Return the statement that accumulates a value over micro-batches."""
        part = self.read(node.operands[0])
        if node.operator == "all_reduce":
            kind = node.attributes.get("reduction", "sum")
            more = [kind] if kind != "sum" else []
            return code("totals.reduce({})", listed([node.name, part, *more]))
        dimension = node.attributes.get("dimension", 0)
        return code("totals.append({}, {}, {})", node.name, part, dimension)


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


def _identifiers(program: Graph) -> dict[str, Code]:
    """Return a variable for each value."""
    found: dict[str, Code] = {}
    taken = set(_OWN_NAMES)
    for value in program.values:
        text = re.sub(r"\W", "_", value, flags=re.ASCII)  # Python takes some others for equal
        text = f"v_{text}" if not text or text[0].isdigit() or keyword.iskeyword(text) else text
        unique, number = text, 1
        while unique in taken:
            number += 1
            unique = f"{text}_v{number}"
        taken.add(unique)
        found[value] = identifier(unique)
    return found


def _of_rows(operator: str, module: str, items: list[Code]) -> Code:
    """Return the expression of an operator on the filled rows of experts."""
    if operator in OWN_FORMS:
        return code("{}({})", _function(ROWS, operator), listed(items))
    return code("{}.apply({})", identifier(ROWS), listed([_function(module, operator), *items]))


def _function(module: str, operator: str) -> Code:
    return code("{}.{}", identifier(module), identifier(operator))

"""Which tensors of an ONNX file were parameters, and what an exporter has merged or folded.

ONNX does not tell parameters from constants. PyTorch's exporter (`dynamo=True`) notes the kind of
each tensor, and the sources of every tensor that its constant folding has computed. Without such
notes the name decides: exporters keep the names of parameters, and number the tensors that they
compute. PyTorch's older exporter replaces all but one of several equal parameters by `Identity`
nodes, which keep their names.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import GraphProto, ModelProto

from shardwright.frontends.common.patterns.masks import is_mask
from shardwright.frontends.onnx.schemas import SCOPES, names_in, notes_of
from shardwright.frontends.onnx.stored import Stored
from shardwright.ir.types import TensorType
from shardwright.ir.units import WHOLE_LIST

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_ORIGINAL = "pkg.torch.onnx.original_node_name"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
_TRACED = "pkg.torch.onnx.fx_node"

# Names that exporters give to tensors that they compute.
_NUMBERED = re.compile(
    r"onnx::.+|_?val_\d+|\d+|const_fold.*|(.*/)?_?[Cc]onst(ant)?(_\d+)?(__\d+)?(_output_\d+)?(:\d+)?"
    r"|.*_output_\d+|.*const_fold_opt__\d+"
)
# The last parts of names that modules give to tensors that are not trained.
_BUFFERS = {
    *("running_mean", "running_var", "moving_mean", "moving_variance"),
    *("inv_freq", "original_inv_freq", "freqs_cis", "cos_cached", "sin_cached"),
    *("masked_bias", "causal_mask", "attention_mask", "attn_mask"),
    *("relative_position_index", "relative_coords_table", "position_ids", "token_type_ids"),
}
# Operators whose results are folded as constants, by PyTorch's names.
_OPERATIONS = {
    *("zeros", "ones", "full", "arange", "scalar_tensor", "zeros_like", "ones_like", "full_like"),
    *("expand", "unsqueeze", "squeeze", "view", "reshape", "permute", "transpose", "slice"),
    *("cat", "stack", "index", "index_select", "embedding", "clone", "alias", "detach", "copy"),
    *("add", "sub", "rsub", "mul", "div", "neg", "abs", "pow", "sqrt", "rsqrt", "exp", "log"),
    *("sin", "cos", "cumsum", "sum", "mean", "any", "all", "minimum", "maximum", "clamp"),
    *("eq", "ne", "le", "lt", "ge", "gt", "where", "logical_not", "logical_and", "bitwise_and"),
    *("bitwise_or", "bitwise_not", "masked_fill", "to", "_to_copy", "select", "lift_fresh_copy"),
    *("tril", "triu", "repeat", "flip", "roll", "matmul", "mm", "bmm", "linspace", "floor"),
    *("shape", "fill", "value", "val", "getitem", "diff", "new_zeros", "new_ones"),
    *("new_full", "constant", "cast", "type_as", "expand_as", "view_as", "unflatten", "round"),
    *("convert_element_type_default",),
}
_REMEDY = "export with `torch.onnx.export(..., dynamo=True, optimize=False)`"


@dataclass(frozen=True)
class TensorOrigins:
    """The origins of the tensors of a file.

    Parameters
    ----------
    trained : frozenset of str
        The tensors that were parameters.
    copies : mapping of str to str
        Parameters that were replaced by an equal one, and their replacements; each is imported by
        itself.
    shared : mapping of str to str
        Tensors that were another one, or equal to it; both are imported as one.
    lost : tuple of str
        Tensors of the model that were folded into others or replaced, and are not in the file.
    unnamed : mapping of str to tuple of str
        Real tensors that are not trained and may have been parameters, with the tensors that they
        were computed from, where the exporter has noted those.
    is_noted : bool
        Whether the exporter has noted which tensors were parameters.
    """

    trained: frozenset[str] = frozenset()
    copies: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    unnamed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_noted: bool = False


def tensor_origins(model: ModelProto, folder: str) -> TensorOrigins:
    """Return which tensors of a model were parameters."""
    graph = model.graph
    stored = {tensor.name: Stored(tensor, folder) for tensor in graph.initializer}
    real = {name: item for name, item in stored.items() if TensorType(item.dtype, ()).is_float}
    notes = {v.name: notes_of(v) for v in graph.value_info if v.name in stored}
    if any(_KIND in note for note in notes.values()):
        trained = frozenset(n for n in real if notes.get(n, {}).get(_KIND) == "PARAMETER")
        lost = _lost(graph, stored, notes)
        computed = _computed(real, notes, lost)
        return TensorOrigins(trained, lost=lost, unnamed=computed, is_noted=True)
    declared = {value.name for value in graph.input}
    scalars = model.producer_name == "pytorch"
    trained = frozenset(
        name
        for name, item in real.items()
        if (item.shape or scalars)
        and (name in declared or not _NUMBERED.fullmatch(name))
        and not _is_buffer(name)
        and not _is_known_mask(item)
    )
    others = [n for n in real if n not in trained and not _is_buffer(n)]
    unnamed = {n: () for n in others if _may_be_parameter(real[n])}
    equal = dict(_equal(graph, real))
    copies = {name: source for name, source in equal.items() if _is_uniform(real[source])}
    shared = {n: s for n, s in equal.items() if n not in copies and s in trained}
    trained |= {name for name in copies if not _is_buffer(name)}
    return TensorOrigins(trained, copies, shared, unnamed=unnamed)


def _is_buffer(name: str) -> bool:
    return re.split(r"[./]", name)[-1] in _BUFFERS


def _is_known_mask(item: Stored) -> bool:
    return not item.is_external and len(item.shape) > 0 and is_mask(item.read())


def _may_be_parameter(item: Stored) -> bool:
    """Return whether an unnamed tensor is neither one number nor a mask."""
    if item.is_external:
        return True
    return not _is_uniform(item) and not is_mask(item.read())


def _is_uniform(item: Stored) -> bool:
    """Return whether all elements are equal; guess it of elements in another file."""
    if item.is_external:
        return len(item.shape) < 2
    array = item.read()
    return bool((array == array.ravel()[:1]).all())


def _equal(graph: GraphProto, real: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the tensors of the model that were replaced by equal ones, and their replacements."""
    sources = {name: name for name in real}
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in sources:
            name = node.output[0]
            if not _NUMBERED.fullmatch(name) and not name.startswith("/"):
                sources[name] = sources[node.input[0]]
                yield name, sources[name]


# Tensors that PyTorch's exporter has folded or replaced


def _lost(
    graph: GraphProto, stored: Mapping[str, Stored], notes: Mapping[str, Mapping[str, str]]
) -> tuple[str, ...]:
    """Return the names of tensors of the model that are missing from the file."""
    folded = {
        name
        for note in notes.values()
        for name in names_in(note.get(_FOLDED, ""))
        if "." in name and not _is_no_parameter(name)
    }
    kept = {note[_ORIGINAL] for note in notes.values() if _ORIGINAL in note}
    modules = {name.rpartition(".")[0] for name in (*stored, *folded)}
    replaced: dict[str, str] = {}
    for node in graph.node:
        note = notes_of(node)
        scopes = [*modules, *names_in(note.get(SCOPES, ""))]
        for flat in re.findall(r"%(p_\w+)", note.get(_TRACED, "")):
            if flat not in kept:
                replaced.setdefault(flat, _dotted(flat, scopes))
    known = {_flat(name) for name in folded}
    names = folded | {name for flat, name in replaced.items() if flat not in known}
    return tuple(sorted(names - set(stored), key=_natural))


def _computed(
    real: Mapping[str, Stored], notes: Mapping[str, Mapping[str, str]], lost: tuple[str, ...]
) -> dict[str, Sequence[str]]:
    """Return the tensors that the exporter has computed from tensors that are not in `lost`."""
    computed: dict[str, Sequence[str]] = {}
    for name, item in real.items():
        note = notes.get(name, {})
        sources = names_in(note.get(_FOLDED, ""))
        states = [source for source in sources if not _is_no_parameter(source)]
        if _KIND in note or not item.shape or set(sources) & set(lost):
            continue
        if states or (not sources and _may_be_parameter(item)):
            computed[name] = states
    return computed


def _is_no_parameter(name: str) -> bool:
    """Return whether a name belongs to a buffer or a result (an operator with a number)."""
    is_result = _NUMBERED.fullmatch(name) or re.sub(r"(_\d+)*$", "", name) in _OPERATIONS
    return bool(is_result) or _is_buffer(name) or ".lifted_tensor_" in name


def _flat(name: str) -> str:
    """Return the name of a parameter in PyTorch's graph."""
    return "p_" + re.sub(r"\W", "_", name.lower())


def _dotted(flat: str, modules: Iterable[str]) -> str:
    """Return the dotted name of a parameter of PyTorch's graph, by the names of modules."""
    for scope in sorted(modules, key=len, reverse=True):
        start = _flat(scope) + "_"
        if scope and flat.startswith(start):
            return f"{scope}.{flat.removeprefix(start)}"
    return flat.removeprefix("p_")


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in names by their value."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]


# Warnings


def warnings_of(
    origins: TensorOrigins, graph: GraphProto, trained: Iterable[str]
) -> tuple[str, ...]:
    """Return warnings about tensors that are not trained as the module would train them.

    Parameters
    ----------
    origins : TensorOrigins
        The origins of the tensors of the file.
    graph : GraphProto
        The graph of the file.
    trained : iterable of str
        The tensors of the file that are trained in the imported program.
    """
    warnings = []
    readers = _readers(graph)
    notes = {n: _note(sources, readers.get(n, "")) for n, sources in origins.unnamed.items()}
    if origins.lost:
        warnings.append(
            "the exporter has merged or folded at least "
            f"{_count(len(origins.lost), 'parameter')} of the model, which are not trained by "
            f"themselves: {_listed(origins.lost)}; {_REMEDY} to keep them"
        )
    if origins.unnamed:
        warnings.append(
            f"not trained: {_count(len(origins.unnamed), 'real tensor')} that the exporter has "
            f"computed or given no name of a parameter, {_listed(origins.unnamed, notes)}; if "
            f"parameters are among them, {_REMEDY}"
        )
    parted = [name for name in origins.copies if name in origins.trained]
    if parted:
        warnings.append(
            f"the exporter has merged {_count(len(parted), 'parameter')} into others of the same "
            f"constant value, and each is trained by itself again: {_listed(parted)}; if some were "
            f"shared, {_REMEDY}"
        )
    if origins.shared:
        pairs = [f"`{name}` with `{source}`" for name, source in origins.shared.items()]
        warnings.append(
            f"the exporter has merged equal parameters, which are trained as one: "
            f"{', '.join(pairs)}; if some were not shared, {_REMEDY}"
        )
    return (*warnings, *_unread(origins, set(trained)))


def _unread(origins: TensorOrigins, trained: set[str]) -> list[str]:
    """Return the warnings about parameters that are not in the program."""
    if not trained:
        return ["nothing is trained: no tensor of the file is known to be a parameter"]
    unread = sorted(origins.trained - trained, key=_natural)
    if not origins.is_noted or not unread:
        return []
    return [
        f"not trained: {_count(len(unread), 'parameter')} that no result depends on, or whose "
        f"elements the import needs, {_listed(unread)}"
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _listed(names: Iterable[str], notes: Mapping[str, str] | None = None) -> str:
    """Return names as a list; many that differ in numbers only as one with stars."""
    texts = [f"`{name}`{(notes or {}).get(name, '')}" for name in names]
    if len(texts) > WHOLE_LIST:
        patterns = Counter(re.sub(r"\d+", "*", text) for text in texts)
        texts = [text + (f" ({count})" if count > 1 else "") for text, count in patterns.items()]
    return ", ".join(texts)


def _note(sources: Sequence[str], reader: str) -> str:
    """Return the remark on a tensor: its sources, or the node that reads it."""
    if sources:
        return f" (computed from {', '.join(f'`{name}`' for name in sources)})"
    return f" (read by `{reader}`)" if reader else ""


def _readers(graph: GraphProto) -> dict[str, str]:
    """Return for each tensor the name of the first node that reads it."""
    return {name: node.name for node in reversed(graph.node) for name in node.input}

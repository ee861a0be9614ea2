"""What ONNX says of its operators: versions, defaults, and how it composes them of others."""

from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import Any

from onnx import FunctionProto, NodeProto, TypeProto, ValueInfoProto, defs

from shardwright.frontends.onnx.types import plain_name

SCOPES = "pkg.torch.onnx.name_scopes"
_DEFAULT_DOMAINS = ("", "ai.onnx")


def domain_of(domain: str) -> str:
    """Return the name of a set of operators; the default one has none."""
    return "" if domain in _DEFAULT_DOMAINS else domain


def key_of(node: NodeProto) -> str:
    """Return under which name the table holds the operator of a node."""
    domain = domain_of(node.domain)
    return f"{domain}.{node.op_type}" if domain else node.op_type


def title(node: NodeProto) -> str:
    """Return what a node is called; its first result where it has no name."""
    return node.name or (node.output[0] if node.output else node.op_type)


def folder(node: NodeProto) -> str:
    """Return the scope that the name of a node tells: ``/encoder/layer.0/MatMul``.

    PyTorch's exporter names the modules in a note instead: ``['', 'encoder.layer.0', 'linear']``.
    """
    if "/" not in node.name:
        scopes = names_in(notes_of(node).get(SCOPES, ""))
        return plain_name(scopes[-2].replace(".", "/")) if scopes[1:] and scopes[-2] else ""
    parts = node.name.replace("'", "_").replace("#", "_").strip("/").split("/")[:-1]
    return "/".join(parts)


def notes_of(proto: ValueInfoProto | NodeProto) -> dict[str, str]:
    """Return what an exporter has noted of a node or a tensor."""
    return {item.key: item.value for item in proto.metadata_props}


def names_in(text: str) -> list[str]:
    """Return the names in a list that is written as Python writes it."""
    try:
        found = literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def schema_of(node: NodeProto, opsets: Mapping[str, int]) -> defs.OpSchema | None:
    """Return what ONNX says of the operator of a node; None if it says nothing."""
    domain = domain_of(node.domain)
    try:
        return defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except defs.SchemaError:
        return None


def function_body(
    node: NodeProto, opsets: Mapping[str, int], types: Sequence[TypeProto] | None = None
) -> FunctionProto | None:
    """Return how ONNX itself composes the operator of a node of others; None if it does not.

    Parameters
    ----------
    node : NodeProto
        The node.
    opsets : mapping of str to int
        Version of each operator set.
    types : sequence of TypeProto, optional
        Types of its inputs, which some bodies depend on.
    """
    schema: Any = schema_of(node, opsets)
    if schema is None:
        return None
    version = opsets.get(domain_of(node.domain), 1)
    body = FunctionProto()
    plain, depending = (
        schema.function_opset_versions,
        schema.context_dependent_function_opset_versions,
    )
    if not plain and not depending:
        return None
    known = plain or depending
    chosen = max((v for v in known if v <= version), default=min(known))
    if plain:
        body.ParseFromString(schema.get_function_with_opset_version(chosen))
    elif types is not None:
        body.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                chosen, node.SerializeToString(), [t.SerializeToString() for t in types]
            )
        )
    return body

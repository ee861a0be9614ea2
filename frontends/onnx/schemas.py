"""The schemas of ONNX operators: versions, defaults, function bodies."""

from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import Any

from onnx import FunctionProto, NodeProto, TypeProto, ValueInfoProto, defs

from shardwright.ir.text import plain_name

SCOPES = "pkg.torch.onnx.name_scopes"
_DEFAULT_DOMAINS = ("", "ai.onnx")


def domain_of(domain: str) -> str:
    """Return the domain of an operator set; empty for the default domain."""
    return "" if domain in _DEFAULT_DOMAINS else domain


def key_of(node: NodeProto) -> str:
    """Return the key of a node's operator in the table."""
    domain = domain_of(node.domain)
    return f"{domain}.{node.op_type}" if domain else node.op_type


def title(node: NodeProto) -> str:
    """Return the name of a node; the first result if it has none."""
    return node.name or (node.output[0] if node.output else node.op_type)


def folder(node: NodeProto) -> str:
    """Return the scope in the name of a node: ``/encoder/layer.0/MatMul``.

    PyTorch's exporter names the modules in a note instead: ``['', 'encoder.layer.0', 'linear']``.
    """
    if "/" not in node.name:
        scopes = names_in(notes_of(node).get(SCOPES, ""))
        return plain_name(scopes[-2].replace(".", "/")) if scopes[1:] and scopes[-2] else ""
    parts = node.name.replace("'", "_").replace("#", "_").strip("/").split("/")[:-1]
    return "/".join(parts)


def notes_of(proto: ValueInfoProto | NodeProto) -> dict[str, str]:
    """Return the metadata of a node or tensor from the exporter."""
    return {item.key: item.value for item in proto.metadata_props}


def names_in(text: str) -> list[str]:
    """Return the names in the text of a Python list."""
    try:
        found = literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def schema_of(node: NodeProto, opsets: Mapping[str, int]) -> defs.OpSchema | None:
    """Return the schema of a node's operator; None if there is none."""
    domain = domain_of(node.domain)
    try:
        return defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except defs.SchemaError:
        return None


def function_body(
    node: NodeProto, opsets: Mapping[str, int], types: Sequence[TypeProto] | None = None
) -> FunctionProto | None:
    """Return the function body of a node's operator; None if there is none.

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

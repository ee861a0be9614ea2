"""Names in imported graphs."""

import re
from dataclasses import replace

from shardwright.ir.graph import Node
from shardwright.ir.provenance import Provenance


def plain_name(name: str) -> str:
    """Return the nearest name that the text form of a graph allows."""
    plain = re.sub(r"[^\w./-]", "_", name, flags=re.ASCII).lstrip("/.-")
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"


def renamed_result(node: Node, old: str, new: str) -> Node:
    """Return a node with one of its operands or results renamed."""
    operands = tuple(new if name == old else name for name in node.operands)
    results = tuple(replace(r, name=new) if r.name == old else r for r in node.results)
    return replace(node, operands=operands, results=results, provenance=Provenance())

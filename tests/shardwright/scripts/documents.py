"""The scripts of MindSpore's documents, where these are there.

The documents lost the indentation of their code, some also the ends of its lines. The layout of
each script is in ``tests/data/document_layouts.json``, as the numbers of words and the indentation
of its lines; the words are read from the documents.
"""

import json
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("SHARDWRIGHT_DOCUMENTS", ROOT.parent / "shared" / "seeds"))
LAYOUTS = json.loads((ROOT / "tests/data/document_layouts.json").read_text("utf-8"))


def script(document, name):
    """Return a script of a document, or skip the test where the document is absent."""
    paths = sorted(FOLDER.glob(f"{document}*"))
    if not paths:
        pytest.skip(f"the document {document} is not in {FOLDER}")
    words = paths[0].read_text("utf-8").split()
    lines = []
    for block in LAYOUTS[document][name]:
        at = block["begin"]
        for count, depth in block["lines"]:
            lines.append("    " * depth + " ".join(words[at : at + count]))
            at += count
    return "\n".join(lines) + "\n"


def ported(code):
    """Return a script whose imports are those of `shardwright.mindspore`, and nothing else."""
    return re.sub(r"(?m)^(\s*)(import|from) mindspore\b", r"\1\2 shardwright.mindspore", code)

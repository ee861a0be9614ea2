"""Plans with hostile names, and the code of what is exported."""

import ast
import json
import tomllib
from dataclasses import replace

HOSTILE = (
    'm"""\nimport os; os.abort()\n"""',
    'm\\"""\\',
    "m'''\rraise SystemExit\r'''",
    "m\u2028raise SystemExit\x85x\x0cy",
    "m\n\n[training]\nlocal_batch_size = 1",
    "m\n  $(touch owned)\n`touch owned`",
    "m {0} {summary} %s",
)


def renamed(plan, text):
    """Return a plan with a text as the name of its model, its cluster and its modules."""
    cluster = plan.document.cluster.model_copy(update={"name": text})
    document = plan.document.model_copy(update={"model": text, "cluster": cluster})
    nodes = tuple(replace(n, scope=f"{n.scope}/{text}") for n in plan.program.nodes)
    return replace(plan, document=document, program=replace(plan.program, nodes=nodes))


def code(name, text):
    """Return what a file does, without what it says of itself."""
    if name.endswith(".py"):
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                node.value = ""
        return ast.dump(tree)
    if name.endswith(".toml"):
        return tomllib.loads(text)
    if name.endswith(".json"):
        return {key: value for key, value in json.loads(text).items() if key != "_comment"}
    return [line for line in text.splitlines() if not line.startswith(("#", "//"))]

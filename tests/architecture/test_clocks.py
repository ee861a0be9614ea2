"""Plans depend on their input alone: what decides about them reads no clock."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECIDING = ("compiler", "planner", "search", "solver")
# Work that is stopped by a clock where the user asks for it, and the seconds of a report.
READING = {"solver/work.py", "compiler/driver.py", "compiler/forms.py"}
CLOCKS = {"time", "datetime", "timeit"}


def imported(path: Path) -> set[str]:
    """Return the modules outside of the package that a module imports."""
    found, source = set(), path.read_text()
    names = "|".join(CLOCKS)
    if not re.search(rf"\bimport\b.*\b({names})\b|\bfrom ({names})\b", source):
        return found  # a syntax tree takes longer
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_no_module_that_decides_about_plans_reads_a_clock():
    reading = {
        str(path.relative_to(ROOT))
        for folder in DECIDING
        for path in (ROOT / folder).rglob("*.py")
        if imported(path) & CLOCKS
    }
    assert reading == READING

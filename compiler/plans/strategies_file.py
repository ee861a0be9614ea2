"""The file of strategies: written with a plan, and read as pins."""

import json
from collections.abc import Mapping
from pathlib import Path

from shardwright.ir.errors import PlanError
from shardwright.ir.files.reading import from_json, read_bytes
from shardwright.ir.values import GivenTwiceError, given_once
from shardwright.operators.info import SplitCounts


def strategies_text(strategies: Mapping[str, SplitCounts]) -> str:
    """Return strategies as JSON, an operator a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(strategies[name])}" for name in sorted(strategies)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_strategies(path: Path) -> dict[str, SplitCounts]:
    """Read strategies: a JSON object of operator and split counts, as a plan has them.

    Raises
    ------
    PlanError
        If the file cannot be read so.
    """
    try:
        content = from_json(read_bytes(path), given_once)
    except OSError as error:
        reason = (error.strerror or "unknown").lower()
        raise PlanError(f"the strategies cannot be read: {reason}", str(path)) from error
    except GivenTwiceError as error:
        raise PlanError(str(error), str(path), "give it once") from error
    except ValueError as error:
        raise PlanError("a file of strategies must be JSON, this is not", str(path)) from error
    if not isinstance(content, dict):
        raise PlanError("a file of strategies holds an object, this does not", str(path))
    return {name: _counts(name, counts, path) for name, counts in content.items()}


def is_strategies_file(path: Path) -> bool:
    """Return whether a file holds strategies."""
    try:
        read_strategies(path)
    except PlanError:
        return False
    return True


def _counts(name: str, counts: object, path: Path) -> SplitCounts:
    """Return split counts from nested lists."""
    if isinstance(counts, list) and all(isinstance(operand, list) for operand in counts):
        split_counts = tuple(tuple(operand) for operand in counts)
        if all(type(count) is int for operand in split_counts for count in operand):
            return split_counts
    raise PlanError(
        f"the strategy of `{name}` is `{json.dumps(counts)}`, it must be a list of split counts "
        f"for each operand",
        str(path),
        f'write `"{name}": [[2, 4], [4, 1]]`',
    )

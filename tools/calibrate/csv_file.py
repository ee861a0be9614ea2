"""Reading measured operators from a CSV file: ``operator,amount,seconds``, and ``traffic``."""

import csv
import math
from pathlib import Path

from shardwright.ir.errors import ClusterError
from shardwright.ir.values import suggestion
from shardwright.operators.info import operator_names
from shardwright.tools.calibrate.fitting import Sample

_COLUMNS = ["operator", "amount", "seconds"]
_TRAFFIC = "traffic"


def of_csv(path: Path) -> dict[str, list[Sample]]:
    """Return the samples of a CSV file, by operator.

    Parameters
    ----------
    path : Path
        A line for each measurement: the operator, by our name; its work, which is flops for
        products, attention and convolutions, and bytes read and written for all others; seconds;
        in a fourth column, which may be absent, the bytes that those three move besides.

    Raises
    ------
    ClusterError
        If it cannot be read, a column is missing, an operator unknown, or a number not positive.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if list(rows.fieldnames or ()) not in (_COLUMNS, [*_COLUMNS, _TRAFFIC]):
                raise ClusterError(
                    f"the first line is `{','.join(rows.fieldnames or ())}`, expected "
                    f"`{','.join(_COLUMNS)}`",
                    str(path),
                )
            read = [(number, row) for number, row in enumerate(rows, 2)]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ClusterError(f"cannot read the file `{path}`: {reason}") from error
    found: dict[str, list[Sample]] = {}
    for number, row in read:
        where = f"{path}, line {number}"
        name = row["operator"]
        if name not in operator_names():
            hint = suggestion(name, operator_names())
            raise ClusterError(f"no operator is called `{name}`", where, hint)
        amount, seconds = (_positive(row[column], column, where) for column in _COLUMNS[1:])
        traffic = _number(row[_TRAFFIC], _TRAFFIC, where) if row.get(_TRAFFIC) else 0.0
        found.setdefault(name, []).append(Sample(1.0, amount, seconds, traffic))
    if not found:
        raise ClusterError("the file has no measurements", str(path))
    return found


def _positive(text: str | None, column: str, where: str) -> float:
    number = _number(text, column, where)
    if not number:
        raise ClusterError(f"`{column}` is `{text}`, expected a positive number", where)
    return number


def _number(text: str | None, column: str, where: str) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ClusterError(f"`{column}` is `{text or ''}`, expected a positive number", where)
    return number

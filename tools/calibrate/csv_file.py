"""Reading measured operators from a CSV file: ``operator,amount,seconds``, and more."""

import csv
import io
import math
from pathlib import Path

from shardwright.cost_model.efficiency.attained import ALIGNED, check_measured
from shardwright.ir.errors import ClusterError
from shardwright.ir.files.reading import read_text
from shardwright.ir.values import suggestion
from shardwright.operators.info import operator_names
from shardwright.tools.calibrate.fitting import Sample

_COLUMNS = ["operator", "amount", "seconds"]
_TRAFFIC, _ALIGNMENT = "traffic", "alignment"


def of_csv(path: Path) -> dict[str, list[Sample]]:
    """Return the samples of a CSV file, by operator.

    Parameters
    ----------
    path : Path
        A line for each measurement: the operator, by our name; its work, which is flops for
        products, attention and convolutions, and bytes read and written for all others; seconds;
        in further columns, which may be absent, the bytes that those three move besides, and of
        products the greatest of 1, 2, 4, 8 that divides the last dimension of every tensor.

    Raises
    ------
    ClusterError
        If it cannot be read, a column is missing, an operator unknown, or a number not positive.
    """
    try:
        with io.StringIO(read_text(path), newline="") as file:
            rows = csv.DictReader(file)
            given = list(rows.fieldnames or ())
            if (
                len(given) < len(_COLUMNS)
                or given != [*_COLUMNS, _TRAFFIC, _ALIGNMENT][: len(given)]
            ):
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
        try:
            check_measured(name)
        except ValueError as error:
            raise ClusterError(str(error), where) from error
        amount, seconds = (_positive(row[column], column, where) for column in _COLUMNS[1:])
        traffic = _number(row[_TRAFFIC], _TRAFFIC, where) if row.get(_TRAFFIC) else 0.0
        alignment = _alignment(row.get(_ALIGNMENT), where)
        found.setdefault(name, []).append(Sample(1.0, amount, seconds, traffic, alignment))
    if not found:
        raise ClusterError("the file has no measurements", str(path))
    return found


def _positive(text: str | None, column: str, where: str) -> float:
    number = _number(text, column, where)
    if not number:
        raise ClusterError(f"`{column}` is `{text}`, expected a positive number", where)
    return number


def _alignment(text: str | None, where: str) -> int:
    if not text:
        return ALIGNED
    if text not in ("1", "2", "4", "8"):
        raise ClusterError(f"`alignment` is `{text}`, expected 1, 2, 4 or 8", where)
    return int(text)


def _number(text: str | None, column: str, where: str) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ClusterError(f"`{column}` is `{text or ''}`, expected a positive number", where)
    return number

"""What `diff` prints for people."""

from collections.abc import Sequence
from typing import Any

from shardwright.ir.units import ROWS, bytes_text, seconds_text
from shardwright.tools.answers.headline import print_sentences, rate_text
from shardwright.tools.console.tables import print_line, print_table

Row = tuple[str, str, str, str]


def print_diff(document: dict[str, Any], verbose: bool = False) -> None:
    """Print what differs between two plans.

    Parameters
    ----------
    document : dict
        See `diff_document`.
    verbose : bool
        Whether to print every row of every table.
    """
    print_sentences([verdict(document), *reasons(document)])
    if document["equal"]:
        return
    for side in ("old", "new"):
        print_line(side, f"{document[side]['plan']}: {document[side]['degrees']}")
    print()
    headings = ("", "old", "new", "change")
    print_table("", headings, figures(document), right=(1, 2, 3))
    for row in document["changed"]:
        if row["what"] != "degrees":
            print_line(f"{row['what']} ", f"{row['old']} -> {row['new']}")
    print()
    _print_places("parameters stored otherwise", document["layouts"], verbose)
    _print_places("operators divided otherwise", document["strategies"], verbose)


def verdict(document: dict[str, Any]) -> str:
    """Return whether plans are equal, and else which is faster and takes less memory."""
    old, new, change = document["old"], document["new"], document["step_change"]
    if document["equal"]:
        step = seconds_text(old["step_seconds"])
        return f"the plans are equal: {step} a step, {bytes_text(old['memory_bytes_per_device'])}"
    steps = f"{seconds_text(old['step_seconds'])} -> {seconds_text(new['step_seconds'])} a step"
    speed = f"is {abs(change):.2%} {'slower' if change > 0 else 'faster'}, {steps}"
    if abs(change) < 1e-9:
        speed = f"takes as long, {seconds_text(old['step_seconds'])} a step"
    more = document["memory_change_bytes"]
    memory = "as much memory"
    if round(more):
        memory = f"{bytes_text(abs(more))} {'more' if more > 0 else 'less'} memory"
    return f"the new plan {speed}, and takes {memory}"


def reasons(document: dict[str, Any]) -> list[str]:
    """Return why a plan is faster, and whether the new one is too slow, in sentences."""
    found = []
    if document["why"]:
        found.append(f"why: {', '.join(document['why'])}")
    limit = document["max_slower"]
    if limit is not None:
        told = "too slow" if document["too_slow"] else "allowed"
        found.append(f"{told}: the step may get slower by {100 * limit:.4g}% at most")
    return found


def figures(document: dict[str, Any]) -> list[Row]:
    """Return the rows of step, memory and communication: figure, old, new, change."""
    old, new = document["old"], document["new"]
    rows = [_row("step", old["step_seconds"], new["step_seconds"], seconds_text)]
    for name, (before, later) in document["parts"].items():
        rows.append(_row(f"  {name}", before, later, seconds_text))
    before, later = (one["tokens_per_second_per_device"] for one in (old, new))
    if before is not None and later is not None:
        rows.append(_row("tokens/s a device", before, later, rate_text))
    memory = "memory_bytes_per_device"
    rows.append(_row("memory", old[memory], new[memory], bytes_text))
    for name, (before, later) in document["memory"].items():
        if round(before) or round(later):
            rows.append(_row(f"  {name}", before, later, bytes_text))
    for kind, sent in document["communication"].items():
        counts = "{:,} -> {:,}".format(*sent["count"])
        before, later = sent["bytes"]
        rows.append(_row(f"{kind} ({counts})", before, later, bytes_text))
    return rows


def _row(name: str, old: float, new: float, text: Any) -> Row:
    if old == new:
        change = ""
    elif not old:
        change = "new"
    elif new >= 10 * old:  # a multiple is read more easily than thousands of percent
        change = f"{new / old:,.0f} times"
    else:
        change = f"{new / old - 1:+.1%}"
    return name, text(old), text(new), change


def places(rows: Sequence[dict[str, Any]], verbose: bool) -> list[Row]:
    """Return the rows of layouts or strategies that differ, the first of them."""
    shown = rows if verbose else rows[:ROWS]
    found = [
        (row["name"], f"{row['count']}x" if row["count"] > 1 else "", row["old"], row["new"])
        for row in shown
    ]
    if len(rows) > len(shown):
        found.append((f"{len(rows) - len(shown)} more rows, `--verbose`", "", "", ""))
    return found


def _print_places(title: str, rows: Sequence[dict[str, Any]], verbose: bool) -> None:
    if rows:
        print_table(title, ("", "", "old", "new"), places(rows, verbose), right=(1,), shortened=0)

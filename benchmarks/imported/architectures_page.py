"""The page of what became of every architecture, `architectures.md`, from the rows of the sweep."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "architectures.md"
_STATUSES = ("right", "refused", "wrong", "not finished", "not tried")
_CAUSAL = "CAUSAL_LM"
_TEXT = """# Architectures of transformers

Written by `benchmarks/imported/architectures.py`, with transformers {transformers} and PyTorch
{torch}. Every `model_type` that an auto class of transformers has, once: {known} of them. Sizes
are made small by the names of fields, weights are random, dropout is off (`eval`). The class is
that of the first of these tasks: causal language model, sequence to sequence, image and text to
text, speech, CTC, masked language model, classification; else the base model, trained to the mean
squares of its results around fixed numbers. Inputs follow the arguments of `forward`.

*Right*: the loss differs by less than {loss:.0e} and every gradient by less than {gradient:.0e}
from autograd's in float64 on one device (a gradient relative to its largest element, or to a
millionth of the largest of all), and the parameters that are trained are those that have a
gradient in PyTorch, under their own names; where the column *4 ranks* has numbers, those of a
plan that splits the batch, too. *Not tried*: no small configuration and inputs were found with
which PyTorch itself runs the module and computes its gradients. *Not finished*: more than
{seconds} s of processor time, or {gigabytes} GiB. Shares are of the architectures that were
tried, and of all. The table of those that were not tried says what PyTorch says of the best inputs
that were found: most are sizes that do not fit each other, some need a package that is not
installed, or have no `forward`.

{counts}
{days}
Of the right ones, {assumed} are imported with `as_example=True`: their sizes or branches depend on
the elements of images, sounds or tokens, are those of the example, and are checked in every batch.
{rest}
## Right

| architecture | class | trained | loss | gradients | 4 ranks: loss, gradients | nodes | import, s |
|---|---|---|---|---|---|---|---|
{right}

## Right, as the example

| architecture | what is as in the example |
|---|---|
{lines}

## Refused, wrong, not finished

Where a module is exported transformers makes a mask that it leaves out where the module runs; the
attention of `autoformer` and of `informer` cannot take it.

| architecture | class | result | why |
|---|---|---|---|
{others}

## Not tried

| architecture | class | what PyTorch says |
|---|---|---|
{untried}
"""


def write(rows: Iterable[Any], kinds: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Write the page.

    Parameters
    ----------
    rows : iterable of Row
        What is known.
    kinds : mapping of str to (str, str)
        Head and class of all architectures.
    settings : mapping
        Versions and limits that the page names.
    """
    known = [row for row in rows if row.kind in kinds]
    missing = sorted(set(kinds) - {row.kind for row in known})
    rest = ""
    if missing:
        shown = ", ".join(f"`{kind}`" for kind in missing)
        rest = f"\nNot swept yet, {len(missing)}: {shown}.\n"
    text = _TEXT.format(
        known=len(kinds),
        counts=_counts(known),
        days=_days(known),
        assumed=sum(bool(row.assumed) for row in known if row.status == "right"),
        lines="\n".join(
            f"| {row.kind} | {'; '.join(f'`{_cell(line)}`' for line in row.assumed)} |"
            for row in known
            if row.status == "right" and row.assumed
        ),
        rest=rest,
        right="\n".join(_right(row) for row in known if row.status == "right"),
        others="\n".join(
            f"| {row.kind} | {row.name} | {row.status} | {_cell(_why(row))} |"
            for row in known
            if row.status not in ("right", "not tried")
        ),
        untried="\n".join(
            f"| {row.kind} | {row.name} | {_cell(row.said)} |"
            for row in known
            if row.status == "not tried"
        ),
        **settings,
    )
    PAGE.write_text(text)


def _days(rows: Sequence[Any]) -> str:
    """Return two sentences that say when the rows were run, and the plans for four ranks."""
    days = Counter(row.day for row in rows)
    plans = Counter(row.ranks_day or "a day before all of them" for row in rows if row.ranks)
    return f"Run {_on_days(days)}.\nNumbers of four ranks: {_on_days(plans)}.\n"


def _on_days(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} on {day}" for day, count in sorted(counts.items()))


def _counts(rows: Sequence[Any]) -> str:
    """Return the table of how many there are of each result."""
    groups = {
        "causal language models": [row for row in rows if row.head == _CAUSAL],
        "others": [row for row in rows if row.head != _CAUSAL],
        "all": rows,
    }
    lines = [f"| | {' | '.join(_STATUSES)} | right of those tried | of all |", "|---" * 8 + "|"]
    for name, group in groups.items():
        counts = [sum(row.status == status for row in group) for status in _STATUSES]
        tried, every = (100 * counts[0] / max(sum(part), 1) for part in (counts[:-1], counts))
        lines.append(f"| {name} | {' | '.join(map(str, counts))} | {tried:.1f} % | {every:.1f} % |")
    return "\n".join(lines) + "\n"


def _right(row: Any) -> str:
    ranks = ", ".join(f"{one:.0e}" for one in row.ranks)
    cells = (row.kind, row.name, row.trained, f"{row.loss:.0e}", f"{row.gradient:.0e}")
    return f"| {' | '.join(map(str, cells))} | {ranks} | {row.nodes} | {row.seconds:.1f} |"


def _why(row: Any) -> str:
    if row.status == "wrong" and row.loss + row.gradient:
        differs = f"loss differs by {row.loss:.0e}, gradients by {row.gradient:.0e}"
        return f"{differs}; {row.said}" if row.said else differs
    return str(row.said)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())

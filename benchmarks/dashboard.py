"""Write the page of all results at a glance, and its pictures, from files of JSON lines.

    python benchmarks/dashboard.py [--out benchmarks/dashboard.md]

Nothing is measured here: the scripts of the pages that it links to do that.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import inf
from pathlib import Path
from typing import Any

import whole_plans
from measurements.pictures import COLOURS, Point, picture
from whole_plans_rows import rows as runs

HERE = Path(__file__)
WIDTH, LABEL, TOTAL, BAR = 560, 180, 60, 22
"""Pixels of a whole bar, of the names at its left, of the number at its right, and of its height;
twice or half of them change the size of the pictures alone."""
GAPS = (0.001, 0.01, 0.05, 0.2)
"""Shares of a step at which classes of gaps end. Searches of the zoo aim at less than the first, by
default a search aims at the second. Other classes move runs between columns; no run is lost."""
SECONDS = (5, 10, 30, 60)
"""Seconds at which classes of searches end: ten are asked of a decoder, a minute of the largest
ones. Other classes move decoders between columns; none is lost."""

Counted = Mapping[str, Mapping[str, int]]
"""How many there are of each class, by a name: the rows and the columns of a table."""


@dataclass(frozen=True)
class Section:
    """A part of the page: a title, what it says, its numbers, and the name of their picture."""

    name: str
    title: str
    text: str
    classes: tuple[str, ...]
    counted: Counted

    def markdown(self) -> str:
        """Return the section, its picture by a link."""
        heads = ("", *self.classes, "all")
        lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
        for name, counts in self.counted.items():
            cells = [f"{counts.get(one, 0):,}" for one in self.classes]
            lines.append(f"| {name} | {' | '.join(cells)} | {sum(counts.values()):,} |")
        table = "\n".join(lines)
        link = f"![{self.title}](dashboard/{self.name}.svg)"
        return f"## {self.title}\n\n{self.text}\n\n{link}\n\n{table}\n"


def bars(classes: Sequence[str], counted: Counted) -> str:
    """Return the SVG of a bar for each name, cut by the shares of the classes."""
    height = BAR * (len(counted) + 2) + 10
    width = LABEL + WIDTH + TOTAL
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, (name, counts) in enumerate(counted.items()):
        lines += _bar(i * BAR + 5, name, [counts.get(one, 0) for one in classes])
    y = len(counted) * BAR + BAR
    step = (width - LABEL) / len(classes)
    for i, one in enumerate(classes):
        x = LABEL + i * step
        lines.append(f'<rect x="{x:.1f}" y="{y}" width="12" height="12" {_fill(i)}/>')
        lines.append(f'<text x="{x + 17:.1f}" y="{y + 10}">{escape(one)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bar(y: int, name: str, counts: Sequence[int]) -> Iterator[str]:
    """Yield what draws one bar."""
    total, left = sum(counts), float(LABEL)
    middle = y + BAR - 8
    yield f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(name)}</text>'
    for i, count in enumerate(counts):
        width = WIDTH * count / total
        if count:
            box = f'x="{left:.1f}" y="{y}" width="{width:.1f}" height="{BAR - 4}"'
            yield f"<rect {box} {_fill(i)}/>"
        if width > 8 * len(str(count)):  # pixels of a digit
            x = left + width / 2
            yield f'<text x="{x:.1f}" y="{middle}" text-anchor="middle">{count}</text>'
        left += width
    yield f'<text x="{LABEL + WIDTH + 8}" y="{middle}">{total:,}</text>'


def _fill(place: int) -> str:
    return f'fill="{COLOURS[place]}" fill-opacity="0.7"'


def lines_of(path: str) -> list[Any]:
    """Return what a file of JSON lines has, by its path below `benchmarks`."""
    return [json.loads(line) for line in (HERE.parent / path).read_text().splitlines()]


def counted(pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Count pairs of a name and a class, names in the order in which they come first."""
    found: dict[str, dict[str, int]] = {}
    for name, one in pairs:
        counts = found.setdefault(name, {})
        counts[one] = counts.get(one, 0) + 1
    return found


def gap_class(gap: float) -> str:
    """Return the class of a gap."""
    limit = next((limit for limit in GAPS if gap <= limit), None)
    return f"more than {GAPS[-1] * 100:g} %" if limit is None else f"at most {limit * 100:g} %"


def seconds_class(seconds: float) -> str:
    """Return the class of the seconds of a search."""
    limit = next((limit for limit in SECONDS if seconds <= limit), None)
    return f"more than {SECONDS[-1]} s" if limit is None else f"at most {limit} s"


def searches() -> Iterator[tuple[str, dict[str, Any], float]]:
    """Yield the devices, the figures and the fastest fitting named plan of each search.

    Searches with changed options or links are left out: others would count twice.
    """
    results = whole_plans.read(HERE.parent / "whole_plans.jsonl")
    for search, plans in whole_plans.variants(results):
        ours = results[search.key]
        if search.ablation or search.links != 1 or search.exposed or not ours.get("lower_bound"):
            continue  # or no plan fits
        named = [results[plan.key] for plan in plans]
        steps = [
            plan["overlapped_step_seconds"]
            for plan in named
            if plan.get("memory_bytes_per_device", inf) <= plan.get("memory_limit_bytes", 0)
        ]
        yield f"{runs()[search.row].devices:,} devices", ours, min(steps, default=inf)


def by_devices(named: tuple[Any, ...]) -> int:
    """Return the number of devices that the name of something begins with."""
    return int(named[0].partition(" ")[0].replace(",", ""))


def points() -> list[Point]:
    """Return the step of the fastest named plan beside that of the search, by devices."""
    found = ((name, one, ours["overlapped_step_seconds"]) for name, ours, one in searches())
    return sorted((point for point in found if point[1] < inf), key=by_devices)


def sections() -> Iterator[Section]:
    """Yield the sections whose pictures are bars."""
    classes = (*map(gap_class, GAPS), gap_class(inf))
    found = [(name, gap_class(ours["gap"])) for name, ours, _ in searches()]
    yield Section(
        "gaps",
        "How far searched plans are from the best possible",
        "The gap between the step and its lower bound, which holds for all that was searched. "
        "Each run of [whole plans](whole_plans.md) is one.",
        classes,
        counted(sorted(found, key=by_devices)),
    )
    family = [
        (f"{row['devices']:,} devices", seconds_class(row["seconds"]))
        for _, row in lines_of("presets_fit.jsonl")
        if isinstance(row, dict)  # others were left: their reason
    ]
    yield Section(
        "presets",
        "How long `fit` looks for the fastest plan of its family",
        "On two cores, for [decoders by name](presets_fit.md): until no other plan can be faster.",
        (*map(seconds_class, SECONDS), seconds_class(inf)),
        counted(sorted(family, key=by_devices)),
    )
    yield architectures()
    yield cases()
    yield mutants()


def architectures() -> Section:
    """Return the section on imported modules."""
    pairs = [
        ("causal language models" if row["head"] == "CAUSAL_LM" else "others", row["status"])
        for row in lines_of("imported/architectures.jsonl")
    ]
    return Section(
        "architectures",
        "Architectures of transformers, imported",
        "Loss and every gradient beside autograd's, of [every architecture](imported/"
        "architectures.md) that transformers has.",
        ("right", "refused", "wrong", "not finished", "not tried"),
        counted(sorted(pairs)),
    )


def cases() -> Section:
    """Return the section on MindSpore's operators."""
    pairs = [(row["kind"], row["verdict"]) for row in lines_of("oracle/compared.jsonl")]
    return Section(
        "mindspore",
        "Operators, layers and data beside MindSpore's",
        "The same expressions on the same values, [there and here](oracle/compared.md), "
        "which says what each verdict means.",
        ("equal", "float32", "differs", "not here", "only here", "neither"),
        counted(pairs),
    )


def mutants() -> Section:
    """Return the section on mutants of the source."""
    pairs = [
        (row["file"].partition("/")[0], "killed" if row["killed_by"] else "lives")
        for row in lines_of("code_mutants.jsonl")
    ]
    return Section(
        "mutants",
        "Mutants of the source",
        "[Wrong pieces of source](code_mutants.md), put in by rule: those that a test finds, by "
        "the folder of the source. One that lives may be equal to what it replaces.",
        ("killed", "lives"),
        counted(pairs),
    )


def page(parts: Sequence[Section]) -> str:
    """Return the text of the page."""
    found = points()
    faster = sum(ours <= named for _, named, ours in found)
    intro = [
        "# All results at a glance",
        "Made by `python benchmarks/dashboard.py` from the files of JSON lines beside the pages "
        "that each part links to, which say how it was measured, and when. A test compares this "
        "page and its pictures with them.",
        "## Predicted steps",
        "Steps of published runs, predicted and [measured](measurements.md).",
        "![Predicted against measured steps](measurements/time.svg)",
        "## Searched plans beside named plans",
        "The step of the plan that a search found beside that of the fastest named plan that "
        f"fits, of {len(found)} runs of [whole plans](whole_plans.md). In {faster} the searched "
        "plan is as fast or faster. The dashed lines are 10 % off.",
        "![Searched plans beside named plans](dashboard/plans.svg)",
    ]
    return "\n\n".join(intro) + "\n\n" + "\n".join(part.markdown() for part in parts)


def main() -> None:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE.with_suffix(".md"))
    out = parser.parse_args().out
    parts = list(sections())
    folder = out.with_suffix("")
    folder.mkdir(exist_ok=True)
    out.write_text(page(parts))
    text = picture(points(), "seconds", ("named plan", "searched plan"))
    (folder / "plans.svg").write_text(text)
    for part in parts:
        (folder / f"{part.name}.svg").write_text(bars(part.classes, part.counted))


if __name__ == "__main__":
    main()

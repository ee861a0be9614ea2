"""The contest's instances, and published costs: ``python benchmarks/solver.py DIR``.

DIR holds the files of the ASPLOS / EuroSys 2025 contest (`asplos-2025-iopddl-A.json.gz`, ...).
Every instance is solved for 60 s and for the contest's own limit, each in a process of its own;
the costs are those of the independent evaluation. ``--instances ST`` solves some only, and
``--results FILE`` keeps what is done for the next time. Published figures:

- best known cost and bound: from any source, among them runs of hours and a proof by Gurobi;
- contest: the cost of the winner (Staudt and Blacher) on the organisers' machine with 8 cores;
- winner: the same program on 2 cores of such a machine, for 60 s.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import machine

PAGE = Path(__file__).with_suffix(".md")

# instance: (limit in seconds, best known cost, best known bound, contest, winner on 2 cores)
PUBLISHED = {
    "A": (60, 6548553650, 6548553650, 6569457676, 6570852282),
    "B": (60, 532843, 532843, 532843, 532843),
    "C": (60, 84102392579, 84095091930, 84102445260, 86306436422),
    "D": (60, 309195190496, 308422314907, 313613524736, 315729052348),
    "G": (120, 217039, 217039, 217039, 217039),
    "K": (180, 2242635780, 2065620000, 2274276676, 4246217619),
    "L": (180, 1970127455, 1965078920, 1970993742, 2029983564),
    "M": (180, 49928157500, 49899600000, 49928460991, 49961581466),
    "N": (180, 199470115000, 193828000000, 202739586553, 234681109658),
    "P": (240, 651833115436, 651833115436, 662197407330, 662207124505),
    "Q": (240, 521938570299, 521937839385, 527715368061, 532728161386),
    "R": (240, 351826900528, 327366000000, 371899551572, 498234349647),
    "S": (240, 1511377982, 1511240135, 1534613444, 2489991601),
    "T": (240, 642049541436, 623298000000, 682895254913, 1053923204058),
    "U": (300, 2370456440, 2100800000, 2569342178, 7548785027),
    "V": (300, 1617084, 1617084, 2213404, 2213404),
}
SHORT = 60


def main() -> None:
    """Solve what is there, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the instances are")
    parser.add_argument("--instances", default="".join(PUBLISHED), help="their letters")
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--results", type=Path, help="keep results here, and do not repeat them")
    arguments = parser.parse_args()
    results = load(arguments.results)
    found = [letter for letter in arguments.instances if file_of(arguments.folder, letter).exists()]
    for limits in ([SHORT] * len(found), [PUBLISHED[letter][0] for letter in found]):
        for letter, limit in zip(found, limits, strict=True):
            key = f"{letter} {limit}"
            if key not in results:
                results[key] = solve(file_of(arguments.folder, letter), limit)
                print(key, results[key]["status"], results[key]["cost"], flush=True)
                if arguments.results:
                    arguments.results.write_text(json.dumps(results, indent=1))
            arguments.out.write_text(page(results))


def load(path: Path | None) -> dict[str, Any]:
    """Return the results that are kept in a file."""
    return json.loads(path.read_text()) if path and path.exists() else {}


def file_of(folder: Path, letter: str) -> Path:
    """Return where an instance is."""
    return folder / f"asplos-2025-iopddl-{letter}.json.gz"


def solve(path: Path, limit: int) -> dict[str, Any]:
    """Run the command on one instance; a process of its own, so that its peak of memory is seen."""
    command = [sys.executable, "-m", "shardwright", "bench", "solver", str(path), "--json"]
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen([*command, "--time-limit", str(limit)], stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"the command failed on {path}")
        out.seek(0)
        return json.load(out)[0] | {"memory": usage.ru_maxrss * 1024}


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    parts = [
        "# The solver on the contest's instances",
        f"`python benchmarks/solver.py DIR` wrote this page. {machine()}; two workers; other "
        "programs ran on the same cores. The seconds count everything from reading the file to the "
        "checked answer; the memory is the most that the process held.",
        (__doc__ or "").partition("Published figures:")[2].strip(),
        "`ratio` is our cost over the best known: below 1 is better than anything published.",
    ]
    for title, short in (("60 s for each", True), ("The contest's limits", False)):
        rows = {
            letter: results[f"{letter} {SHORT if short else PUBLISHED[letter][0]}"]
            for letter in PUBLISHED
            if f"{letter} {SHORT if short else PUBLISHED[letter][0]}" in results
        }
        if rows:
            parts += [f"## {title}", table(rows), summary(rows)]
    return "\n\n".join(parts) + "\n"


def table(rows: dict[str, Any]) -> str:
    """Return the results of one time limit as a table."""
    headings = (
        "",
        "cost",
        "bound",
        "gap",
        "seconds",
        "memory",
        "best known",
        "ratio",
        "known bound",
        "contest",
        "winner, 2 cores, 60 s",
    )
    lines = ["| " + " | ".join(headings) + " |", "|-|" + "-:|" * (len(headings) - 1)]
    for letter, row in rows.items():
        _, best, bound, contest, winner = PUBLISHED[letter]
        gap = "optimal" if row["status"] == "optimal" else f"{100 * row['gap']:.3f} %"
        cells = (
            letter,
            number(row["cost"]),
            number(row["lower_bound"]),
            gap,
            f"{row['seconds']:.1f}",
            f"{row['memory'] / 1e9:.2f} GB" if "memory" in row else "",
            number(best),
            f"{row['cost'] / best:.6f}",
            number(bound),
            number(contest),
            number(winner),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(rows: dict[str, Any]) -> str:
    """Return the means over the instances."""

    def mean(column: int, other: bool = False) -> float:
        ratios = [
            (PUBLISHED[letter][4] if other else row["cost"]) / PUBLISHED[letter][column]
            for letter, row in rows.items()
        ]
        return math.exp(sum(map(math.log, ratios)) / len(ratios))

    better = sum(row["cost"] <= PUBLISHED[letter][1] for letter, row in rows.items())
    bounds = sum(row["lower_bound"] >= PUBLISHED[letter][2] for letter, row in rows.items())
    return (
        f"Geometric mean of cost over best known: {mean(1):.5f} (the winner on 2 cores, 60 s: "
        f"{mean(1, True):.5f}); over the winner's cost in the contest: {mean(3):.5f}. At or below "
        f"the best known cost on {better} of {len(rows)}, at or above the best known bound on "
        f"{bounds}."
    )


def number(value: float) -> str:
    """Return a number in groups of three digits."""
    return f"{value:,}".replace(",", " ")


if __name__ == "__main__":
    main()

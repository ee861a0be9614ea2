"""A page with a verdict on each of many cases, and the command that writes it.

Cases that were not run keep the rows that the page has.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOLERANCE = 1e-9
Verdict = tuple[str, str]
"""RIGHT, REFUSED or WRONG, and what was measured or said."""


def refused(error: Exception) -> Verdict:
    """Return the verdict on what is refused; addresses and long numbers differ between runs."""
    return "REFUSED", re.sub(r"0x[0-9a-f]+|\d{12,}", "...", str(error))


def compared(one: float, many: Sequence[float], missing: Any) -> Verdict:
    """Return the verdict on relative differences on one rank and on several."""
    text = f"{one:.0e}, {max(many):.0e}" + f", missing {missing}" * bool(missing)
    is_right = max(one, *many) < TOLERANCE and not missing
    return "RIGHT" if is_right else "WRONG", text


@dataclass(frozen=True)
class Page:
    """A page of verdicts.

    Parameters
    ----------
    path : Path
        Where it is; the script beside it has its name.
    title : str
        Its heading.
    library : str
        What the cases are of, with its version.
    case : str
        What a case is called.
    """

    path: Path
    title: str
    library: str
    case: str

    def run(
        self, told: str | None, cases: Mapping[str, Any], judged: Callable[[Any], Verdict]
    ) -> bool:
        """Judge the cases that the command line names, or all; return whether one is wrong."""
        parser = argparse.ArgumentParser(description=told)
        parser.add_argument("names", nargs="*", choices=[*cases, []], metavar="NAME")
        parser.add_argument("--write", action="store_true")
        options = parser.parse_args()
        rows = {}
        for name in options.names or cases:
            rows[name] = judged(cases[name])
            print(f"{rows[name][0]:8}{name}: {rows[name][1]}", flush=True)
        if options.write:
            known = self.rows | rows
            self.path.write_text(self.text({n: known[n] for n in cases if n in known}))
        return any(verdict == "WRONG" for verdict, _ in rows.values())

    @property
    def rows(self) -> dict[str, Verdict]:
        """The rows that it has."""
        text = self.path.read_text() if self.path.exists() else ""
        found = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", text, re.MULTILINE)
        return {name: (verdict, told.replace("\\|", "|")) for name, verdict, told in found}

    def text(self, rows: Mapping[str, Verdict]) -> str:
        """Return the page with some rows."""
        verdicts = [verdict for verdict, _ in rows.values()]
        told = ", ".join(f"{verdicts.count(v)} {v}" for v in ("RIGHT", "REFUSED", "WRONG"))
        lines = [f"| `{n}` | {v} | {t.replace('|', chr(92) + '|')} |" for n, (v, t) in rows.items()]
        head = (
            f"# {self.title}\n\n"
            f"Written by `{self.path.stem}.py --write`. Largest relative difference of the loss "
            "and all gradients\nin float64, on one rank and on four; or the sentence that "
            f"refuses.\n\n{self.library}, {len(rows)} {self.case}s: {told}.\n\n"
            f"| {self.case} | verdict | difference, or why not |\n|---|---|---|\n"
        )
        return head + "\n".join(lines) + "\n"

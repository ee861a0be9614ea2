"""Answers against all plans of small models: ``python benchmarks/exactness.py``.

    python benchmarks/exactness.py run --first 0 --last 320
    python benchmarks/exactness.py planted
    python benchmarks/exactness.py page > benchmarks/exactness.md

The models, the plans and what is checked are in `tests/referee.py` and `tests/refereed.py`, the
errors that are put in on purpose in `tests/planted.py`.
"""

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # the tests' models and referee

from machine import machine

from tests.planted import PLANTED
from tests.referee import EXACT, MOST
from tests.refereed import asked, bests, plans_of, verdict, verdicts

MEASURED = Path(__file__).with_suffix(".jsonl")
_FOR_PLANTED = 400  # seeds that are tried for an error, until one of their answers is refused


def run(first: int, last: int) -> None:
    """Ask what the seeds ask, and append the verdicts to the measured rows."""
    known = {row["seed"] for row in _rows("seed")}
    for seed in range(first, last):
        if seed in known:
            continue
        begin, question = time.process_time(), asked(seed)
        plans = plans_of(question)
        told = [asdict(one) for one in verdicts(question, plans)] if plans else []
        seconds = time.process_time() - begin
        _append({"seed": seed, "kind": _kind(question), "verdicts": told, "seconds": seconds})
        wrong = [one["wrong"] for one in told if one["wrong"]]
        print(question.name, len(plans), "plans", wrong or "", flush=True)


def _kind(question: Any) -> str:
    one = question.forms[0]
    if len(question.forms) > 1:
        meshes = {form.mesh for form in question.forms}
        return "meshes and stages are searched" if len(meshes) > 1 else "micro-batches are searched"
    if one.groups > 1:
        return f"`{one.schedule}`"
    return "one stage"


def planted() -> None:
    """Put in each error, until the referee refuses an answer, and append what it says."""
    for name, put_in in PLANTED.items():
        told = next(_refused(put_in), None)
        tried, said = told or (_FOR_PLANTED, "nothing")
        _append({"planted": name, "answers": tried, "said": said})
        print(name, tried, said, flush=True)


def _refused(put_in: Any) -> Iterator[tuple[int, str]]:
    """Yield how many answers were asked for until one was refused, and why."""
    count = 0
    for seed in range(_FOR_PLANTED):
        question = asked(seed)
        plans = plans_of(question)
        for limit, objective, best in [*bests(question, plans)] if plans else ():
            with pytest.MonkeyPatch.context() as patch:
                put_in(patch)
                found = verdict(question, len(plans), limit, objective, best)
            count += 1
            if found.wrong:
                yield count, found.wrong[0]
            elif found.status != "not found" and not found.is_best:
                yield count, "a plan is faster than the answer"


def _append(row: Mapping[str, Any]) -> None:
    with MEASURED.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _rows(key: str) -> list[dict[str, Any]]:
    lines = MEASURED.read_text().splitlines() if MEASURED.exists() else []
    return [row for row in map(json.loads, lines) if key in row]


PAGE = """# Answers against all plans

    python benchmarks/exactness.py run
    python benchmarks/exactness.py planted

Models of one to four blocks, equal and unequal, and random programs; on 2 to 6 devices whose rates
are drawn, so that computation, links and memory matter. Of each model every plan is built: every
layout of every operator, parameter and input, every choice of what is recomputed and gathered
again, every cut. Each program is run on numpy, which tells its memory; `tests/referee.py` audits
the timeline of each answer: each node once, as long as it takes, after what it needs, one at a time
on each resource, within the bytes that are live by an account of its own. Each model is asked for
within several memory limits, of which none, some or all plans are within; of one stage for the
overlapped and for the serial step. Operators whose strategies are pinned keep plans countable;
models with more than {most} plans in one form are left out.

{table}

*None was found* claims nothing; in {false} of {missing} such answers a plan fits. No answer that is
said to be optimal is slower than another plan; the others tell a gap. An answer may be better than
all plans: its gradients are reduced together.{slower}

## Errors that were put in

Each was put in while an answer was made, after the plans were enumerated, one model after the other
until the referee refused an answer.

{planted}

Measured on {machine}.
"""
WHY = (
    "The best plan of seed 199 is cut inside of a block, where pipelines of models with two blocks "
    "a stage are not cut. That of 202 gathers a matrix in every pass, not once before all; that of "
    "40 has copies of a bias, not parts: stages are planned by the loads of resources, which do "
    "not tell when in the schedule a gather is waited for. They are programs of microseconds."
)
HEAD = (
    *("asked for", "models", "plans", "answers", "said to be optimal", "no plan fits, proven"),
    *("none was found", "the answer is the best", "claims that are wrong", "widest gap"),
)


def page() -> str:
    """Return what was measured, as Markdown."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in _rows("seed"):
        if row["verdicts"]:
            kinds.setdefault(row["kind"], []).append(row)
    lines = [_line(kind, rows) for kind, rows in sorted(kinds.items())]
    lines.append(_line("all", [row for rows in kinds.values() for row in rows]))
    errors = [(r["planted"], str(r["answers"]), r["said"]) for r in _rows("planted")]
    every = [one for row in _rows("seed") for one in row["verdicts"]]
    missing = [one for one in every if one["status"] == "not found"]
    return PAGE.format(
        table="\n".join(_table(HEAD, lines)),
        planted="\n".join(_table(("error", "caught in answer", "the referee says"), errors)),
        machine=machine(),
        missing=len(missing),
        false=sum(one["best"] < math.inf for one in missing),
        most=MOST,
        slower=_slower(every),
    )


def _slower(every: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on the answers that are slower than the best plan."""
    found = [one for one in every if one["best"] * EXACT < one["answer"] < math.inf]
    if not found:
        return ""
    most = max(one["answer"] / one["best"] - 1 for one in found)
    names = ", ".join(dict.fromkeys(f"`{one['name']}`" for one in found))
    return (
        f"\n{len(found)} answers are slower than the best plan, by at most {most:.1%}: of {names}. "
        f"{WHY}"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _line(kind: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    told = [one for row in rows for one in row["verdicts"]]
    status = Counter(one["status"] for one in told)
    found = [one for one in told if one["answer"] < math.inf]
    best = sum(one["answer"] <= one["best"] * EXACT for one in found)
    gap = max((1 - one["bound"] / one["answer"] for one in found), default=0.0)
    plans = sum(row["verdicts"][0]["plans"] for row in rows)
    wrong = sum(bool(one["wrong"]) for one in told)
    counts = (*(status[one] for one in ("optimal", "infeasible", "not found")),)
    numbers = (len(rows), f"{plans:,}", len(told), *counts, f"{best} of {len(found)}", wrong)
    return (kind, *map(str, numbers), f"{gap:.1%}")


def main() -> None:
    """Ask, put errors in, or print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "planted", "page"))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=320)
    arguments = parser.parse_args()
    if arguments.what == "run":
        run(arguments.first, arguments.last)
    elif arguments.what == "planted":
        planted()
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()

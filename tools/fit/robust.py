"""The robust choice for people and scripts, and the errors that a user states."""

from collections.abc import Mapping
from typing import Any

from shardwright.compiler.evaluation.factors import Factors
from shardwright.compiler.fit.robust import COMPUTE, OVERLAP, Error, Flip, Robust
from shardwright.cost_model.cluster import Cluster
from shardwright.ir.units import seconds_text
from shardwright.ir.values import Range, check_names, number_in
from shardwright.tools.console.arguments import UsageError
from shardwright.tools.console.tables import print_table

_ERROR = Range(least=0, below=1)
_SHARE = Range(least=0, below=1 + 1e-9)


def read_errors(text: str, cluster: Cluster, devices: int) -> Mapping[str, float]:
    """Return the errors that a text states: ``compute=0.1,pod=0.3,overlap=0.5``.

    Raises
    ------
    ShardwrightError
        If a name is no figure of the cluster, or of links that the devices do not use, or a number
        is out of range.
    """
    names = (COMPUTE, *(level.name for level in cluster.levels), OVERLAP)
    unused = {level.name for level in cluster.levels[len(cluster.levels_of(devices)) :]}
    found: dict[str, float] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise UsageError(f"`{item}` of `--errors` has no value", hint="write `compute=0.1`")
        check_names("`--errors` has no figure", [name], names)
        if name in unused:
            what = f"`--errors` gives `{name}`, and {devices} devices do not use these links"
            raise UsageError(what, hint="leave it out")
        if name in found:
            raise UsageError(f"`--errors` gives `{name}` twice", hint="give it once")
        number = number_in(value)
        (_SHARE if name == OVERLAP else _ERROR).check(f"{name} of --errors", number)
        found[name] = float(number)
    return found


def print_robust(found: Robust) -> None:
    """Print the robust plan beside the fastest, and where the choice flips."""
    choice, rows = found.choice, []
    for number in dict.fromkeys((choice.chosen, 0)):
        one = found.candidates[number]
        kind = "robust" if number == choice.chosen else "fastest as said"
        if number == choice.chosen == 0:
            kind = "robust and fastest"
        case = _case(found, found.cases[choice.worst[number]])
        plan, step = one.plan.text.replace(",", ", "), seconds_text(one.seconds)
        rows.append((kind, plan, step, f"{choice.regrets[number]:.1%}", case))
    intervals = ", ".join(_interval(error) for error in found.errors)
    title = f"worst regret over {len(found.cases)} cases of {intervals}"
    print_table(title, ("choice", "plan", "step", "regret", "in the case"), rows, right=(2, 3))
    flips = [_flip_row(flip) for flip in found.flips]
    print_table("where another plan is the fastest", ("figure", "at", "plan"), flips)


def _interval(error: Error) -> str:
    if error.name == OVERLAP:
        return f"exposed gathers {error.low:.0%} to {error.high:.0%}"
    return f"{error.name} {error.low - 1:+.0%} to {error.high - 1:+.0%}"


def _case(found: Robust, case: Factors) -> str:
    """Return what differs in a case from what is said."""
    names = [error.name for error in found.errors if error.name not in (COMPUTE, OVERLAP)]
    values = {COMPUTE: case.compute, **dict(zip(names, case.links, strict=False))}
    words = [f"{name} {value - 1:+.0%}" for name, value in values.items() if value != 1]
    if case.exposed is not None:
        words.append(f"{case.exposed:.0%} exposed")
    return ", ".join(words) or "as said"


def _flip_row(flip: Flip) -> tuple[str, str, str]:
    if flip.plan is None or flip.factor is None:
        return flip.error.name, "nowhere in its interval", ""
    at = f"{flip.factor:.0%} exposed"
    if flip.error.name != OVERLAP:
        at = f"{flip.factor - 1:+.1%} of its seconds"
    return flip.error.name, at, flip.plan.plan.text.replace(",", ", ")


def robust_document(found: Robust | None) -> dict[str, Any] | None:
    """Return the robust choice as a document."""
    if found is None:
        return None
    regrets = found.choice.regrets
    return {
        "plan": found.plan.plan.text,
        "worst_regret": regrets[found.choice.chosen],
        "fastest_plan": found.candidates[0].plan.text,
        "worst_regret_of_fastest": regrets[0],
        "intervals": {error.name: [error.low, error.high] for error in found.errors},
        "cases": len(found.cases),
        "flips": {
            flip.error.name: None
            if flip.plan is None
            else {"at": flip.factor, "plan": flip.plan.plan.text}
            for flip in found.flips
        },
    }

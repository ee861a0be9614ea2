"""How much of ONNX is imported: runs the ONNX project's own tests, and writes docs/onnx.md.

python benchmarks/imported/onnx_coverage.py            # all tests, and docs/onnx.md anew
python benchmarks/imported/onnx_coverage.py --only conv --verbose
"""

import argparse
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx_tests import (
    Outcome,
    exported_cases,
    network_cases,
    node_cases,
    outcomes,
)
from onnx_training import train_cases

MARK = "<!-- All below is written by benchmarks/imported/onnx_coverage.py. -->"
DOCUMENT = Path(__file__).parents[2] / "docs" / "onnx.md"


def counted(found: Sequence[Outcome]) -> list[tuple[str, int, int, int]]:
    """Return how many tests there are, pass on one rank, and pass on four; of all, and of ours."""
    plain = [outcome for outcome in found if outcome.is_plain]
    return [
        (title, len(group), sum(o.alone for o in group), sum(o.sharded for o in group))
        for title, group in (("all", found), ("of float, int and bool tensors", plain))
    ]


def document(
    text: str, groups: Mapping[str, Sequence[Outcome]], gradients: tuple[int, Mapping[str, str]]
) -> str:
    """Return the document with what stands behind its mark written anew."""
    nodes, exported, networks = groups["node"], groups["exported"], groups["network"]
    head = text.partition(MARK)[0]
    parts = [_numbers(nodes, exported), _known(nodes), _trained(*gradients)]
    parts += [_networks(networks), _operators(nodes)]
    return f"{head}{MARK}\n\n" + "\n".join([*parts, _rest([*nodes, *exported])])


def _numbers(nodes: Sequence[Outcome], exported: Sequence[Outcome]) -> str:
    newest = onnx.defs.onnx_opset_version()
    lines = [
        "## What passes",
        "",
        f"The tests that come inside onnx {onnx.__version__} (operator set {newest}),",
        "on one rank, and on 4 ranks (2x2) with a random legal strategy for every operator:",
        "",
        "| tests | number | on one rank | on 4 ranks |",
        "|---|---|---|---|",
    ]
    rows = counted(nodes)
    rows += [("models exported by PyTorch", *counted(exported)[0][1:])]
    for title, total, alone, sharded in rows:
        lines.append(f"| {title} | {total} | {_share(alone, total)} | {_share(sharded, total)} |")
    return "\n".join(lines) + "\n"


def _known(nodes: Sequence[Outcome]) -> str:
    """Say in how many tests inputs are known when the model is imported."""
    passed = [outcome for outcome in nodes if outcome.sharded and outcome.constants]
    real = [o for o in passed if any("float" in kind for kind in o.constants)]
    folded = [o for o in passed if o.is_folded]
    of_real = ", ".join(sorted({o.operator for o in real}))
    return (
        f"Every shape of a plan is known, and so are the inputs that say shapes, axes or positions "
        f"in {len(passed)} of the node tests that pass. In {len(real)} of them such inputs are "
        f"real numbers ({of_real}). In {len(folded)} no other input is left, so that the program "
        f"returns a constant that was computed when it was imported.\n"
    )


def _trained(count: int, wrong: Mapping[str, str]) -> str:
    different = f" Different: {', '.join(sorted(wrong))}." if wrong else ""
    return (
        f"Trained: with real inputs as parameters and a loss on the real results, {count} node "
        f"tests have gradients. On 4 ranks, with a random legal strategy for every operator and "
        f"the gradient of the partitioned program, those of {count - len(wrong)} equal those on "
        f"one rank to 1e-9 in float64.{different}\n"
    )


def _networks(networks: Sequence[Outcome]) -> str:
    lines = [
        "Well-known networks at full size, with the results that come with them: seconds to import",
        "and run one image on one rank. On 4 ranks the scores before the softmax are compared with",
        "those on one rank, to 1e-9 in float64: all weights are constant, so that all scores are",
        "equal but for rounding.",
        "",
        "| network | on one rank | on 4 ranks | seconds |",
        "|---|---|---|---|",
    ]
    for o in networks:
        said = ["equal" if passed else o.reason for passed in (o.alone, o.sharded)]
        lines.append(f"| {o.name} | {said[0]} | {said[1]} | {o.seconds:.1f} |")
    return "\n".join(lines) + "\n"


def _share(part: int, total: int) -> str:
    return f"{part} ({100 * part / total:.1f}%)"


def _operators(found: Sequence[Outcome]) -> str:
    """Return the operators all of whose tests of our kind pass, and those with some that do not."""
    groups: dict[str, list[bool]] = {}
    for outcome in found:
        if outcome.is_plain:
            groups.setdefault(outcome.operator, []).append(outcome.sharded)
    whole = sorted(name for name, passed in groups.items() if all(passed))
    partly = sorted(name for name, passed in groups.items() if any(passed) and not all(passed))
    listed = [f"{name} ({sum(groups[name])} of {len(groups[name])})" for name in partly]
    return (
        f"## Operators\n\nAll tests pass of {len(whole)}: {', '.join(whole)}.\n\n"
        f"Some pass of {len(partly)}: {', '.join(listed)}.\n"
    )


def _rest(found: Sequence[Outcome]) -> str:
    """Return the tests that do not pass, by the reason."""
    reasons: dict[str, list[str]] = {}
    for outcome in found:
        if not outcome.sharded:
            reasons.setdefault(_summary(outcome), []).append(outcome.name.removeprefix("test_"))
    lines = ["## What does not pass, and why", ""]
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"- {reason} ({len(names)}): {', '.join(sorted(names))}")
    return "\n".join(lines) + "\n"


def _summary(outcome: Outcome) -> str:
    """Return a reason without what is special to one test."""
    reason = re.sub(r" at `[^`]*`(, `[^`]*`)*( and \d+ more)?", "", outcome.reason)
    reason = reason.replace("the model has 1 operators that cannot be imported: ", "no operator ")
    reason = re.sub(r"a tensor has the shape .*", "tensors without elements", reason)
    return re.sub(r" \(nearest: `\w+`\)", "", reason)


def main() -> int:
    """Run the tests and write the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="tests whose name contains this; writes nothing")
    parser.add_argument("--verbose", action="store_true", help="print every test that fails")
    parser.add_argument("--seed", type=int, default=0, help="of the random strategies")
    parser.add_argument("--out", type=Path, default=DOCUMENT, help="the document")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    groups = {}
    nodes = node_cases()
    for kind, cases in (
        ("node", nodes),
        ("exported", exported_cases()),
        ("network", network_cases()),
    ):
        chosen = [case for case in cases if arguments.only in case.name]
        found = groups[kind] = list(outcomes(chosen, arguments.seed))
        for outcome in found if arguments.verbose else ():
            if not outcome.sharded:
                sys.stdout.write(f"{outcome.name}: {outcome.reason}\n")
        for title, total, alone, sharded in counted(found):
            said = f"{kind} tests, {title}: {total}, {alone} pass on 1 rank, {sharded} on 4"
            sys.stdout.write(f"{said}\n")
    chosen = [case for case in nodes if arguments.only in case.name]
    count, wrong = train_cases(chosen, arguments.seed)
    for name, what in wrong.items():
        sys.stdout.write(f"gradients of {name}: {what}\n")
    sys.stdout.write(f"node tests with gradients: {count}, {count - len(wrong)} equal on 4\n")
    sys.stdout.write(f"{time.perf_counter() - begin:.1f} s\n")
    if not arguments.only:
        arguments.out.write_text(document(DOCUMENT.read_text(), groups, (count, wrong)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

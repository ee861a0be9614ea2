"""Every pass on small programs, as readable files.

``tests/golden/PASS/CASE.before.ir`` names the passes in its first line, ``# pass: PASS{...}``, and
``CASE.after.ir`` holds the program that they leave. A new case is two new files, or one: ``pytest
tests/passes/test_golden.py --update-golden`` writes the second, to be reviewed.
"""

from pathlib import Path

import pytest

from shardwright.ir.text import parse, to_text
from shardwright.operators.verify import verify
from shardwright.passes.base import PASSES
from shardwright.passes.manager import PassManager
from shardwright.passes.pipeline import BUILT_IN, Pipeline, parse_pipeline

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(
    str(file.relative_to(GOLDEN))[: -len(".before.ir")] for file in GOLDEN.rglob("*.before.ir")
)
HEAD = "# pass: "


def pipeline_of(text: str) -> Pipeline:
    first = text.partition("\n")[0]
    assert first.startswith(HEAD), f"the first line has to name the passes: `{HEAD}NAME{{...}}`"
    return parse_pipeline(first.removeprefix(HEAD))


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    file = GOLDEN / f"{case}.after.ir"
    text = (GOLDEN / f"{case}.before.ir").read_text()
    monkeypatch.chdir(file.parent)  # where the files are that options name
    pipeline, before = pipeline_of(text), parse(text)
    verify(before)
    assert file.parent.name in {work.name for work in pipeline}
    after = to_text(PassManager().run_all(pipeline, before))
    if request.config.getoption("--update-golden"):
        file.write_text(after)
    assert file.exists(), "run with --update-golden to write the program after the pass, and review"
    assert after == file.read_text(), "if this is wanted, run with --update-golden and review"


def test_every_pass_has_a_case_and_every_case_a_pass() -> None:
    assert {case.partition("/")[0] for case in CASES} == {kind.name for kind in BUILT_IN}


def test_every_program_after_a_pass_has_one_before() -> None:
    after = {str(file.relative_to(GOLDEN)) for file in GOLDEN.rglob("*.after.ir")}
    assert after == {f"{case}.after.ir" for case in CASES}


def test_the_built_in_passes_are_registered() -> None:
    assert [PASSES[kind.name] for kind in BUILT_IN] == list(BUILT_IN)

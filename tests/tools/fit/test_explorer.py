"""The page of `fit`: it holds every plan, what each is made of, and what wins at other sizes."""

import json
import re
from argparse import ArgumentParser

import pytest

from shardwright.tools import fit
from shardwright.tools.answers.training import Asked
from shardwright.tools.fit import explorer
from shardwright.tools.fit.answers import Answers
from shardwright.tools.fit.explorer import explorer_document
from shardwright.tools.fit.fit_report import first_sentences
from shardwright.tools.fit.subject import Subject
from shardwright.tools.main import main
from shardwright.tools.plan_files import read_types

MODEL = "llama:layers=2,hidden=512,heads=2,kv_heads=2,inner=1024,sequence=512,vocabulary=8000"
LIMIT = 1.0  # GiB, in which micro-batches larger than those of the family fit
GIVEN = [MODEL, "--batch", "64", "--precision", "bfloat16", "--optimizer", "adam"]


@pytest.fixture(scope="module")
def answers():
    """Return what is found on two devices, where the best plan is beyond the family."""
    parser = ArgumentParser()
    fit.add_arguments(parser)
    given = parser.parse_args([*GIVEN, "--devices", "2", "--memory", str(LIMIT)])
    read_types(given)
    return Answers(Subject(given), 2)


@pytest.fixture(scope="module")
def document(answers):
    """Return what the page draws, with few points of the curves, which take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explorer, "_DEVICES", 2)
        patch.setattr(explorer, "_TIMES", (1, 2))
        return explorer_document(answers, Asked())


@pytest.mark.long
def test_a_plan_beyond_the_family_is_not_called_one_of_it(answers):
    told = " ".join(first_sentences(answers, Asked()))
    assert answers.is_beyond
    assert f"faster than all {len(answers.plans)} plans of Megatron's family" in told


@pytest.mark.long
def test_rows_are_the_plans_and_add_up(answers, document):
    assert len(document["plans"]) == len(answers.points)
    for one, row in zip(answers.points, document["plans"], strict=True):
        text, fields, seconds, memory, fits, parts, kinds, told = row
        named = dict(zip(document["fields"], fields, strict=True))
        assert (text, named["tensor"], named["zero"]) == (
            one.plan.text,
            one.plan.tensor,
            one.plan.zero,
        )
        assert sum(parts) == pytest.approx(seconds)
        assert sum(kinds) == pytest.approx(memory)
        known = answers.model.known(one.plan, 2)
        assert told == (known is not None)
        if known is None:
            assert fits == (memory <= LIMIT * 2**30)
            assert (seconds, memory) == (one.seconds, one.memory_bytes)
        else:
            assert (seconds, memory) == (known.seconds, known.memory.peak_bytes)
            assert fits == 2 * known.fits
    assert document["best"] in [row[0] for row in document["plans"]]


@pytest.mark.long
def test_curves_have_the_answer_of_the_size_that_is_asked_for(answers, document):
    curves = {curve["over"]: curve for curve in document["curves"]}
    assert list(curves) == ["devices", "batch", "sequence"]
    assert (curves["devices"]["own"], curves["batch"]["own"]) == (2, 64)
    for curve in curves.values():
        (own,) = (point for point in curve["points"] if point["size"] == curve["own"])
        assert own["plan"] == answers.fastest.plan.text
        assert own["step_seconds"] == answers.fastest.seconds


def test_page_is_written_with_its_document_and_replaces_no_other_file(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(explorer, "_DEVICES", 1)
    monkeypatch.setattr(explorer, "_TIMES", (1,))
    page = tmp_path / "fit.html"
    options = ["--devices", "2", "--memory", str(LIMIT), "--html", str(page)]
    assert main(["fit", *GIVEN, *options]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["page", str(page)]
    (text,) = re.findall(r'<script id="document"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    assert json.loads(text)["said"]
    page.write_text("notes")
    assert main(["fit", *GIVEN, *options]) == 2
    assert str(page) in capsys.readouterr().err
    assert page.read_text() == "notes"

"""Mutants of the source: which there are, and how they are switched on."""

import code_mutants
import pytest

SOURCE = '''"""A module."""

import math


def middle(values, low=0):
    if values and low < 1:
        return math.floor((len(values) - 1) / 2)
    return None
'''


@pytest.fixture
def found(tmp_path, monkeypatch):
    (tmp_path / "ir").mkdir()
    (tmp_path / "ir" / "middle.py").write_text(SOURCE)
    monkeypatch.setattr(code_mutants, "ROOT", tmp_path)
    return [site.mutant for site in code_mutants.sites("ir/middle.py")]


def test_mutants_are_made_by_rule(found):
    assert {(one.rule, one.before, one.after) for one in found} == {
        ("negated condition", "values and low < 1", "not (values and low < 1)"),
        ("swapped operands", "low < 1", "(1) < (low)"),
        ("off by one", "low < 1", "(low) <= (1)"),
        ("off by one", "1", "2"),
        ("dropped return", "math.floor((len(values) - 1) / 2)", "None"),
        ("swapped operands", "(len(values) - 1) / 2", "(2) / (len(values) - 1)"),
        ("swapped operands", "len(values) - 1", "(1) - (len(values))"),
        ("off by one", "2", "3"),
    }
    assert {one.function for one in found} == {"middle"}


@pytest.mark.parametrize(("on", "count", "middle"), [(None, 5, 2), (0, 2, 2), (1, 5, None)])
def test_one_mutant_is_on(found, tmp_path, on, count, middle):
    chosen = [
        next(one for one in found if one.after == "(2) / (len(values) - 1)"),
        next(one for one in found if one.rule == "negated condition"),
    ]
    assert code_mutants.instrument(chosen, tmp_path) == []
    text = (tmp_path / "ir" / "middle.py").read_text()
    assert len(text.splitlines()) == len(SOURCE.splitlines())
    space = {"_mutant": lambda number: number == on}
    exec(text.replace("from shardwright.ir.mutant_switch import mutant as _mutant; ", ""), space)
    assert space["middle"](range(count)) == middle


def test_a_mutant_whose_source_changed_is_lost(found, tmp_path):
    (tmp_path / "ir" / "middle.py").write_text(SOURCE.replace("low < 1", "low < 2"))
    negated, *_ = found
    assert negated.before == "values and low < 1"
    assert code_mutants.instrument([negated], tmp_path) == [0]

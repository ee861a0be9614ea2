"""Whatever text stands in a plan, what is exported runs the same code."""

import ast
import tomllib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.exports.emission.writing import literal, prose
from shardwright.exports.table import export
from tests.exports.hostile_names import HOSTILE, code, renamed
from tests.extent import first


@pytest.fixture(scope="module")
def plan():
    model = "gpt:layers=1,hidden=16,heads=2,vocabulary=16,sequence=8,batch=4"
    return sw.compile(model, 4, plan="data=2,tensor=2", optimizer="adam").plan


@pytest.mark.long
@pytest.mark.parametrize("to", ["torch", "jax", "megatron", "torchtitan", "deepspeed"])
def test_a_name_changes_no_line_of_code(plan, to):
    expected = export(renamed(plan, "m"), to).files
    for text in first(1, ["".join(HOSTILE), *HOSTILE]):
        found = export(renamed(plan, text), to).files
        assert found.keys() == expected.keys()
        for name, content in found.items():
            if isinstance(content, str):
                assert code(name, content) == code(name, expected[name]), (name, text)


@given(st.text())
def test_prose_stays_in_its_comment_and_its_docstring(text):
    said = prose(text)
    assert said.isprintable()
    (docstring,) = ast.parse(f'"""The {said}."""').body
    assert ast.literal_eval(docstring.value) == f"The {said}."
    assert ast.dump(ast.parse(f"x = 1  # {said}\ny = 2")) == ast.dump(ast.parse("x = 1\ny = 2"))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_literal_is_the_text_in_every_language(text):
    written = literal(text)
    assert ast.literal_eval(written) == text
    assert tomllib.loads(f"x = {written}") == {"x": text}
    assert yaml.safe_load(f"x: {written}") == {"x": text}

"""Wrong uses end with a sentence, and leave every file as it was.

`benchmarks/wrong_uses.py` runs all of them, each in a process of its own; here those that need no
shell run in this one.
"""

import pytest
from wrong_uses import changes, contents, place_of, prepare
from wrong_uses_list import USES

import shardwright
from shardwright.ir.errors import ShardwrightError
from shardwright.tools.main import main

QUICK = [use for use in USES if not use.shell]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("use", QUICK, ids=lambda use: use.text)
def test_a_wrong_use_gets_a_sentence_and_loses_no_file(use, prepared, monkeypatch, capsys):
    monkeypatch.setenv("SHARDWRIGHT_WORLD", "1")  # some uses change it
    with place_of(use, prepared) as folder:
        monkeypatch.chdir(folder)
        before = contents(folder)
        if use.python:
            with pytest.raises(ShardwrightError) as caught:
                exec(use.text, {"sw": shardwright})
            said = f"{caught.value}\n"
        else:
            assert main(use.text.split()) in (1, 2, 3)
            said = capsys.readouterr().err
        assert changes(before, contents(folder)) == ()
    assert said.count("\n") == 1


def test_there_are_enough_of_them():
    assert len(USES) >= 150
    assert len({(use.text, str(use.files), str(use.edits)) for use in USES}) == len(USES)

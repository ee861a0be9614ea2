"""The table of operators is true, and covers what it says."""

from pathlib import Path

import pytest

from shardwright import nn, ops
from shardwright.operators.info import operator_names
from shardwright.ops.names import cover, releases
from shardwright.tools.main import main
from shardwright.tools.operators import document, rule_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "operators.md"
ALL = sorted({name for names in releases().values() for name in names})


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text("utf-8") == document(), (
        "write it anew: shardwright operators --markdown docs/operators.md"
    )


def test_the_lists_are_whole() -> None:
    assert {release: len(set(names)) for release, names in releases().items()} == {
        "r1.0": 103,
        "2.7": 334,
    }


def test_every_operator_of_the_first_release_is_covered() -> None:
    missing = [name for name in releases()["r1.0"] if cover(name).kind == "none"]
    assert not missing


def test_what_covers_an_operator_is_there() -> None:
    for name in ALL:
        found = cover(name)
        if found.kind == "operator":
            assert found.what in operator_names(), name
        elif found.kind == "composition":
            module, _, attribute = found.what.partition(".")
            assert attribute in vars({"ops": ops, "nn": nn}[module]), name
        else:
            assert found.kind == "none" or found.what, name


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["operators", "matmul"]) == 0
    assert "m k+, k+ n -> m n" in capsys.readouterr().out
    assert main(["operators", "--coverage"]) == 0
    assert "GatherV2P" in capsys.readouterr().out
    assert main(["operators", "--markdown", str(tmp_path / "operators.md")]) == 0
    assert (tmp_path / "operators.md").read_text("utf-8") == document()
    assert main(["operators", "matmull"]) == 2
    assert "did you mean `matmul`" in capsys.readouterr().err


def test_rules_are_shown_as_they_are_written() -> None:
    assert rule_of("convolution") == "n b+ s0~, a b+ k0^ -> n a s0"
    assert rule_of("softmax") == "i0 i1^ -> i0 i1^"

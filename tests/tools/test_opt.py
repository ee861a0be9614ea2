"""``shardwright opt`` on files, and the page that it writes."""

import io
import sys
from pathlib import Path

import pytest

from shardwright.ir.text import parse
from shardwright.passes.pipeline import BUILT_IN
from shardwright.tools.main import main
from shardwright.tools.passes_document import document

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
PRODUCT = """\
graph product {
  input x: f32[8, 16]
  parameter w: f32[16, 4]
  h: f32[8, 4] = matmul(x, w)
  loss: f32[] = reduce_sum(h)
  return loss
}
"""
BROKEN = PRODUCT.replace("f32[8, 4] =", "f32[8, 5] =")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "product.ir").write_text(PRODUCT)
    (tmp_path / "broken.ir").write_text(BROKEN)
    (tmp_path / "notes.md").write_text("Notes\n=====\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    return tmp_path


def test_it_prints_the_graph_after_the_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "product.ir", "--passes", "canonicalize,differentiate{loss_scale=2}"]) == 0
    graph = parse(capsys.readouterr().out)
    assert graph.producers["loss.grad"].attributes["value"] == 2.0
    assert graph.outputs == ("loss", "w.grad")


def test_it_reads_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PRODUCT.encode())))
    assert main(["opt", "-", "--passes", ""]) == 0
    assert capsys.readouterr().out == PRODUCT


def test_it_writes_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["opt", "product.ir", "--passes", "differentiate,append_optimizer", "-o", "step.ir"]
    assert main([*line, "--dump-ir", "graphs"]) == 0
    assert capsys.readouterr().out == ""
    step = (here / "step.ir").read_text()
    assert "update w = w.next" in step
    names = ["00_differentiate.ir", "01_append_optimizer.ir"]
    assert sorted(path.name for path in (here / "graphs").iterdir()) == names
    assert (here / "graphs" / names[1]).read_text() == step
    assert main(["opt", "product.ir", "--passes", "canonicalize", "-o", "step.ir"]) == 0
    assert (here / "step.ir").read_text() == PRODUCT


@pytest.mark.usefixtures("own_operators")
def test_it_lists_the_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if line and not line.startswith(("pass ", " ", "─"))]
    assert names == [kind.name for kind in BUILT_IN]
    assert any("cluster: the name of a cluster, or a" in line for line in lines)
    assert any(line.endswith("loss_scale=1") for line in lines)


USE = "write `shardwright opt FILE --passes PASSES`, or `--list` for all passes"
WRONG = {
    "": f"FILE is missing; {USE}",
    "product.ir": f"`--passes` is missing; {USE}",
    "--passes canonicalize": f"FILE is missing; {USE}",
    "nowhere.ir --passes canonicalize": "cannot read the graph: no such file or directory (in "
    "nowhere.ir)",
    ". --passes canonicalize": "cannot read the graph: is a directory (in .)",
    "picture.png --passes canonicalize": "cannot read the graph: it is not text (in picture.png)",
    "notes.md --passes canonicalize": "a graph begins with `graph name {` and ends with `}`, this "
    "one does not (in notes.md, the text of a graph)",
    "broken.ir --passes canonicalize": "the results are f32[8, 5], expected f32[8, 4] (in "
    "broken.ir, h: f32[8, 5] = matmul(x, w))",
    "product.ir --passes magic{}": "unknown pass `magic`; expected one of ",
    "product.ir --passes partition": "pass `partition` requires `annotated`, but it has no mesh "
    "(in graph product); run `annotate` first",
    "product.ir --passes clean_up --list": "FILE has no effect with `--list`; leave one of them "
    "out",
    "--list --no-verify-each": "`--no-verify-each` has no effect with `--list`; leave one of them "
    "out",
    "--markdown passes.md": "the document shows golden files, and there is no folder "
    "`tests/golden`; run it in the repository",
    "product.ir --passes canonicalize -o notes.md": "the graph cannot be written: a file that is "
    "something else is there (in notes.md); name another file",
    "product.ir --passes canonicalize -o nowhere/x.ir": "the graph cannot be written: there is no "
    "folder `nowhere`",
    "product.ir --passes canonicalize --dump-ir notes.md": "the graphs cannot be written: a file "
    "is there (in notes.md)",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_uses(line: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in here.iterdir()}
    assert main(["opt", *line.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"shardwright: {WRONG[line]}")
    assert {path: path.read_bytes() for path in here.iterdir()} == before


@pytest.mark.usefixtures("own_operators")
def test_a_graph_that_a_pass_leaves_wrong_can_be_looked_at(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "wrong.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "from shardwright.dataflow.properties import LIVE\n"
        "from shardwright.passes.base import Pass, register_pass\n\n"
        "@register_pass\n@dataclass(frozen=True)\n"
        "class Cut(Pass):\n"
        "    '''Return the first value.'''\n\n"
        "    name = 'cut'\n    ensures = (LIVE,)\n\n"
        "    def run(self, graph):\n"
        "        return replace(graph, outputs=(graph.nodes[0].name,))\n"
    )
    line = ["opt", "product.ir", "--plugin", "wrong.py", "--passes", "cut"]
    assert main(line) == 2
    said = "pass `cut` ensures `live`, but nothing depends on `loss` (in graph product)"
    assert capsys.readouterr().err == f"shardwright: {said}\n"
    assert main([*line, "--no-verify-each"]) == 0
    assert parse(capsys.readouterr().out).outputs == ("h",)


def test_the_document_is_up_to_date() -> None:
    assert (ROOT / "docs" / "passes.md").read_text("utf-8") == document(GOLDEN), (
        "write it anew: shardwright opt --markdown docs/passes.md"
    )

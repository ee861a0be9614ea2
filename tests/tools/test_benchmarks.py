"""The scripts that write the pages of `benchmarks/` do so."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what runs a script in this process, and returns the page that it writes."""

    def written(script: str, *arguments: str) -> str:
        out = tmp_path / "page.md"
        monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the processes that it starts
        monkeypatch.setattr(sys, "argv", [script, *arguments, "--out", str(out)])
        runpy.run_path(str(ROOT / "benchmarks" / script), run_name="__main__")
        return out.read_text()

    return written


@pytest.mark.long
def test_the_zoo_is_compiled(page: Callable[..., str]) -> None:
    found = page("zoo.py", "--models", "lenet5", "--devices", "8")
    cells = [cell.strip() for cell in found.splitlines()[-1].split("|")[1:-1]]
    assert cells[:4] == ["lenet5", "61,706", "8", "256"]
    assert float(cells[-1].rstrip("%")) >= 0  # of the overlapped step
    assert 0 < float(cells[4]) < 600


@pytest.mark.long
def test_a_missing_peer_is_told_in_a_sentence(page: Callable[..., str]) -> None:
    sizes = ("--batch", "1", "--side", "32")
    found = page("resnet50.py", *sizes, "--torch", sys.executable + "-without-torch")
    assert "PyTorch is not installed here, so that there is nothing to compare with." in found
    assert "| convolution | " in found


def test_the_dashboard_is_of_the_results(page: Callable[..., str], tmp_path: Path) -> None:
    kept = ROOT / "benchmarks" / "dashboard"
    made = page("dashboard.py")
    assert made == kept.with_suffix(".md").read_text(), "run `python benchmarks/dashboard.py`"
    pictures = {path.name: path.read_text() for path in (tmp_path / "page").iterdir()}
    assert pictures == {path.name: path.read_text() for path in kept.iterdir()}
    # The pages with the same numbers were written from the same files.
    tables = [line.strip("| ").replace(",", "").split(" | ") for line in made.splitlines()]
    for path, names, order in (
        ("imported/architectures.md", ("causal language models", "others"), slice(1, -1)),
        ("oracle/compared.md", ("operators", "optimizers", "values"), slice(-1, None)),
    ):
        text = (ROOT / "benchmarks" / path).read_text()
        for name in names:
            cells = next(cells for cells in tables if cells[0] == name and len(cells) > 4)
            assert f"| {' | '.join([name, *cells[order]])} | " in text

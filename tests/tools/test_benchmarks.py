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


def test_the_zoo_is_compiled(page: Callable[..., str]) -> None:
    found = page("zoo.py", "--models", "lenet5", "--devices", "8")
    cells = [cell.strip() for cell in found.splitlines()[-1].split("|")[1:-1]]
    assert cells[:4] == ["lenet5", "61,706", "8", "256"]
    assert float(cells[-1].rstrip("%")) >= 0  # of the overlapped step
    assert 0 < float(cells[4]) < 600


def test_a_missing_peer_is_told_in_a_sentence(page: Callable[..., str]) -> None:
    sizes = ("--batch", "1", "--side", "32")
    found = page("resnet50.py", *sizes, "--torch", sys.executable + "-without-torch")
    assert "PyTorch is not installed here, so that there is nothing to compare with." in found
    assert "| convolution | " in found

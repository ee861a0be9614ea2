"""The scripts that write the pages of `benchmarks/` do so."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def page(tmp_path: Path, script: str, *arguments: str) -> str:
    out = tmp_path / "page.md"
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments, "--out", str(out)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return out.read_text()


def test_the_zoo_is_compiled(tmp_path: Path) -> None:
    found = page(tmp_path, "zoo.py", "--models", "lenet5", "--devices", "8")
    cells = [cell.strip() for cell in found.splitlines()[-1].split("|")[1:-1]]
    assert cells[:4] == ["lenet5", "61,706", "8", "256"]
    assert float(cells[-1].rstrip("%")) >= 0  # of the overlapped step
    assert 0 < float(cells[4]) < 600


def test_a_missing_peer_is_told_in_a_sentence(tmp_path: Path) -> None:
    sizes = ("--batch", "1", "--side", "32")
    found = page(tmp_path, "resnet50.py", *sizes, "--torch", sys.executable + "-without-torch")
    assert "PyTorch is not installed here, so that there is nothing to compare with." in found
    assert "| convolution | " in found

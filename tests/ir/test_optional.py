"""Optional packages are imported on first use, or an error names the extra to install."""

import json
import sys
from pathlib import Path

import pytest

from shardwright.ir.errors import PackageError
from shardwright.ir.optional import LazyModule, file_of_package, is_installed, optional


def test_an_installed_package_is_returned() -> None:
    assert optional("json", extra="fast", need="the test") is json
    assert is_installed("json")


def test_a_missing_package_is_named_with_its_extra() -> None:
    assert not is_installed("nowhere")
    with pytest.raises(PackageError) as caught:
        optional("nowhere.inside", extra="mpi", need="training over MPI")
    assert str(caught.value) == (
        "training over MPI needs `nowhere`, which is not installed; "
        "run `pip install 'shardwright[mpi]'`"
    )


def test_a_package_that_cannot_be_loaded_gives_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("raise RuntimeError('cannot load MPI library')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PackageError) as caught:
        optional("half_installed", extra="mpi", need="training over MPI")
    assert str(caught.value) == (
        "training over MPI needs `half_installed`, which cannot be loaded: "
        "cannot load MPI library; run `pip install 'shardwright[mpi]'`"
    )


def test_a_missing_module_of_ours_is_no_missing_package() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'shardwright\.nowhere'"):
        optional("shardwright.nowhere", extra="onnx", need="the test")


def test_a_lazy_module_is_imported_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    colorsys = LazyModule("colorsys")
    assert "colorsys" not in sys.modules
    assert colorsys.rgb_to_hsv(0.0, 0.0, 0.0) == (0.0, 0.0, 0.0)
    assert "colorsys" in sys.modules
    assert repr(colorsys) == "LazyModule('colorsys')"


def test_a_file_of_a_package_is_found_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "unloved" / "data").mkdir(parents=True)
    (tmp_path / "unloved" / "__init__.py").write_text("raise RuntimeError")
    (tmp_path / "unloved" / "data" / "rows.csv").write_text("1,2")
    monkeypatch.syspath_prepend(tmp_path)
    file = file_of_package("unloved", "data/rows.csv")
    assert file is not None
    assert file.read_text() == "1,2"
    assert file_of_package("unloved", "data") is None
    assert file_of_package("nowhere", "rows.csv") is None
    assert file_of_package("bisect", "rows.csv") is None

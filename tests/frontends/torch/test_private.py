"""The private names of PyTorch that the frontend needs."""

import sys
from importlib import reload

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from shardwright.frontends.torch import private  # noqa: E402
from shardwright.ir.errors import PackageError  # noqa: E402


def _told(name: str) -> str:
    return (
        f"PyTorch {torch.__version__} has no `{name}`, which the import of modules needs; "
        "install a version of PyTorch that README.md names"
    )


def test_a_version_without_a_name_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._ops, "HigherOrderOperator")
    with pytest.raises(PackageError) as error:
        reload(private)
    assert str(error.value) == _told("torch._ops.HigherOrderOperator")


def test_a_version_without_a_module_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils._pytree", None)
    monkeypatch.delattr(torch.utils, "_pytree")
    with pytest.raises(PackageError) as error:
        reload(private)
    assert str(error.value) == _told("torch.utils._pytree")

import subprocess
import sys
from pathlib import Path

import pytest

import shardwright

ROOT = Path(__file__).parents[2]


def imported_by(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_imports_nothing_else():
    modules = imported_by("import shardwright")
    assert "numpy" not in modules
    assert {name for name in modules if name.startswith("shardwright.")} == set()


def test_a_layer_is_imported_without_the_parts_for_users():
    modules = imported_by("import shardwright.ir.text")
    assert {"shardwright.nn", "shardwright.tensor"} & modules == set()


@pytest.mark.parametrize("name", sorted(shardwright.__all__))
def test_every_name_of_the_package_is_there(name):
    assert getattr(shardwright, name) is not None
    assert name in dir(shardwright)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="module `shardwright` has no attribute `tensors`"):
        _ = shardwright.tensors

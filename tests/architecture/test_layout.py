"""The folders at the top, the package list, the mapping and the links say the same."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.architecture import counts

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
# Layer name to its folder; the import name is `shardwright.` and the layer name.
LAYERS = {
    package.removeprefix("shardwright."): ROOT / folder
    for package, folder in SETUPTOOLS["package-dir"].items()
}


def packaged_folders():
    """Return every folder that must be in the wheel, with the path it has there."""
    roots = {ROOT / "shardwright": "shardwright"}
    roots |= {folder: f"shardwright/{layer}" for layer, folder in LAYERS.items()}
    found = {}
    for root, place in roots.items():
        for folder, folders, _ in os.walk(root):  # which does not follow the links
            folders[:] = [name for name in folders if name != "__pycache__"]
            found[Path(folder)] = str(Path(place, Path(folder).relative_to(root)))
    return found


def packaged_files():
    """Return the path in the wheel of every file that must be there."""
    return {
        f"{place}/{file.name}"
        for folder, place in packaged_folders().items()
        for file in folder.iterdir()
        if file.is_file()
    }


def test_every_layer_is_a_folder_at_the_top_with_a_link_in_the_package():
    assert {layer: folder.name for layer, folder in LAYERS.items()} == {
        layer: layer for layer in LAYERS
    }
    links = {
        path.name: os.readlink(path)
        for path in (ROOT / "shardwright").iterdir()
        if path.is_symlink()
    }
    if not links and (ROOT / "PKG-INFO").exists():
        pytest.skip("a source distribution has no links")
    assert links == {layer: f"../{layer}" for layer in LAYERS}


def test_every_folder_with_an_init_is_a_listed_package():
    with_init = {
        place.replace("/", ".")
        for folder, place in packaged_folders().items()
        if (folder / "__init__.py").exists()
    }
    assert with_init == set(SETUPTOOLS["packages"])


def test_every_folder_with_python_files_has_an_init():
    without_init = [
        str(folder.relative_to(ROOT))
        for folder in packaged_folders()
        if any(folder.glob("*.py")) and not (folder / "__init__.py").exists()
    ]
    assert without_init == []


def test_the_layer_contract_names_every_layer():
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = re.findall(r"shardwright\.(\w+)", " ".join(layers))
    assert set(LAYERS) <= set(named)


@pytest.mark.long
def test_the_wheel_holds_every_package_and_data_file(tmp_path):
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("building a wheel needs setuptools 77 or later")
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--wheel-dir",
            tmp_path,
            source,
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if ".dist-info/" not in name} == packaged_files()


def imported_layers():
    """Return the layers that each layer imports from; imports stand at the top of modules."""
    found = {layer: set() for layer in (*LAYERS, "shardwright")}

    def layer_of(module):
        name = module.removeprefix("shardwright.").partition(".")[0]
        return name if name in LAYERS else "shardwright"

    for module, others in counts.imports().items():
        if module != "shardwright.__main__":  # which calls the command line
            found[layer_of(module)] |= {layer_of(other) for other in others - {"shardwright"}}
    return {layer: others - {layer} for layer, others in found.items()}


def test_the_architecture_draws_the_imports():
    imports = imported_layers()

    def reached(layer):
        return imports[layer].union(*(reached(other) for other in imports[layer]))

    arrows = {
        layer: others - set().union(*(reached(other) for other in others))
        for layer, others in imports.items()
    }
    drawn = re.findall(r"^    (\w+) +→ ([\w, ]+)$", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    assert {layer: set(others.split(", ")) for layer, others in drawn} == {
        layer: others for layer, others in arrows.items() if others
    }

"""Versions outside of the tested range are warned of, and the tables of the repository agree."""

import json
import tomllib
from pathlib import Path

import pytest

from shardwright import __version__
from shardwright.ir import versions
from shardwright.ir.errors import ShardwrightWarning
from shardwright.ir.optional import optional
from shardwright.ir.versions import PACKAGES, Range, environments, release
from shardwright.ir.versions import tested as ranges

ROOT = Path(__file__).parents[2]


@pytest.fixture
def torch_2_6_to_2_15(monkeypatch, tmp_path):
    rows = [
        {"name": name, "python": "3.11.7", "versions": {"torch": torch}, "passed": 1}
        | {"failed": failed, "skipped": 0}
        for name, torch, failed in [
            ("lowest", "2.6.0", 0),
            ("constrained", "2.15.0+cpu", 0),
            ("newest", "2.16.0", 3),
        ]
    ]
    table = tmp_path / "tested_versions.json"
    table.write_text(json.dumps(rows))
    monkeypatch.setattr(versions, "TABLE", table)
    yield
    for cached in (ranges, versions.installed, versions.warn_if_untested):
        cached.cache_clear()


def _ask(monkeypatch, version):
    for cached in (ranges, versions.installed, versions.warn_if_untested):
        cached.cache_clear()
    monkeypatch.setattr(versions, "version", lambda package: version)
    assert optional("json", extra="torch", need="the test") is json


@pytest.mark.parametrize("version", ["2.5.1", "2.15.1", "2.16.0", "3.0"])
def test_a_version_outside_of_the_tested_range_is_warned_of(
    torch_2_6_to_2_15, monkeypatch, version
):
    said = (
        rf"^torch {version} was not tested with this release, "
        r"which was tested with 2\.6\.0 to 2\.15\.0\+cpu$"
    )
    with pytest.warns(ShardwrightWarning, match=said):
        _ask(monkeypatch, version)


@pytest.mark.parametrize("version", ["2.6.0", "2.6.0+cu124", "2.14.1", "2.15.0"])
def test_a_version_inside_of_it_is_not(torch_2_6_to_2_15, monkeypatch, version):
    _ask(monkeypatch, version)


def test_a_warning_is_given_once(torch_2_6_to_2_15, monkeypatch):
    with pytest.warns(ShardwrightWarning):
        _ask(monkeypatch, "3.0")
    assert optional("json", extra="torch", need="the test") is json


def test_an_environment_with_failures_is_no_part_of_the_range(torch_2_6_to_2_15):
    ranges.cache_clear()
    assert ranges() == {"torch": Range("2.6.0", "2.15.0+cpu")}


def test_releases_are_ordered_by_their_numbers():
    assert release("2.9.1") < release("2.10.0rc1") < release("2.10.1")


def test_the_lowest_tested_versions_are_the_lower_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    bounds = dict(
        line.split(">=")
        for line in [*project["dependencies"], *(one for extra in extras for one in extra)]
        if ">=" in line
    )
    (lowest,) = (one for one in environments() if one.name == "lowest")
    assert set(lowest.versions) == set(PACKAGES)
    for package, version in lowest.versions.items():
        asked = release(bounds[package])
        assert release(version)[: len(asked)] == asked, package


def test_the_constraints_are_versions_that_all_tests_passed_with():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    passed = [one for one in environments() if one.name == "constrained" and not one.failed]
    assert passed
    for one in passed:
        assert {p: v.partition("+")[0] for p, v in one.versions.items()} == {
            package: pinned[package] for package in one.versions
        }


def test_the_citation_names_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()

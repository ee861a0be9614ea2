"""What is tried in environments of their own, and the table that comes of it."""

from pathlib import Path

import pytest

from shardwright.ir.errors import OptionError
from shardwright.ir.versions import PACKAGES, Environment, environments
from shardwright.tools import try_versions
from shardwright.tools.try_versions import lower_bounds, markdown, readme_with, with_result

ROOT = Path(__file__).parents[3]
OLD = Environment("lowest", "3.11.7", {"torch": "2.6.0", "numpy": "2.0.0"}, 10, 2, 1)
NEW = Environment("newest", "3.11.7", {"torch": "2.15.0", "numpy": "2.4.6"}, 12, 0, 1)


def test_lower_bounds_are_those_of_the_core_and_of_all_extras():
    project = {
        "dependencies": ["numpy>=2.0", "rich>=13.0"],
        "optional-dependencies": {"torch": ["torch>=2.6"], "all": ["numpy>=2.0", "types-x"]},
    }
    assert [*lower_bounds(project)] == ["numpy==2.0", "rich==13.0", "torch==2.6"]


def test_a_result_replaces_the_one_of_its_name_and_python():
    again = OLD._replace(python="3.11.9", failed=0)
    other = OLD._replace(python="3.13.0")
    assert with_result((NEW, OLD), again) == (again, NEW)
    assert with_result((NEW, OLD), other) == (OLD, other, NEW)


def test_a_row_tells_versions_and_failures():
    rows = markdown([OLD, NEW]).splitlines()
    names = " | ".join(PACKAGES)
    assert rows[0] == f"| | Python | {names} | tests |"
    assert (
        rows[2]
        == "| lowest | 3.11.7 | 2.6.0 | - | - | - | 2.0.0 | - | - | - | 10 passed, 2 failed |"
    )
    assert rows[3] == "| newest | 3.11.7 | 2.15.0 | - | - | - | 2.4.6 | - | - | - | 12 passed |"


def test_the_readme_quotes_the_results():
    readme = (ROOT / "README.md").read_text()
    assert readme_with(readme, environments()) == readme


def test_tests_that_end_without_a_count_are_an_error():
    with pytest.raises(OptionError) as caught:
        try_versions._counts("collected\n3 errors in 0.1s\n")
    assert str(caught.value) == "the tests ended with `3 errors in 0.1s`, expected numbers of tests"


def test_counts_are_read_off_the_last_line():
    assert try_versions._counts("..\n2 failed, 30 passed, 4 skipped, 1 error in 3s\n") == (30, 3, 4)


def test_a_name_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        try_versions.main(["oldest", "--folder", "x"])
    assert "invalid choice: 'oldest'" in capsys.readouterr().err

"""Plugins as the command line loads them: files of ``--plugin``, and installed packages."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from shardwright import plugins
from shardwright.tools.main import main

OPERATOR = Path(__file__).parents[2] / "examples" / "own_operator.py"


@pytest.fixture(autouse=True)
def _forgotten(own_operators):
    pass


def said(capsys):
    return capsys.readouterr().err


def test_a_file_that_is_not_there(capsys):
    assert main(["compile", "mlp", "--devices", "2", "--plugin", "nowhere.py"]) == 2
    assert said(capsys) == (
        "shardwright: there is no file `nowhere.py`; name a Python file that registers "
        "operators, passes, searches or cost profiles\n"
    )


def test_a_file_that_fails(tmp_path, capsys):
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    assert main(["operators", "--plugin", str(broken)]) == 2
    assert said(capsys) == (
        "shardwright: ModuleNotFoundError: No module named 'nothing_of_this_name' "
        f"(in {broken}, line 1)\n"
    )


def test_a_file_that_is_no_python_file(tmp_path, capsys):
    text = tmp_path / "notes.txt"
    text.write_text("mine\n")
    assert main(["operators", "--plugin", str(text)]) == 2
    assert f"it is no Python file (in {text}); name a file that ends in `.py`" in said(capsys)


def test_an_operator_of_a_plugin_is_listed(capsys):
    assert main(["operators", "--plugin", str(OPERATOR)]) == 0
    assert "outer_product_mean" in capsys.readouterr().out


def test_two_plugins_cannot_register_one_name(tmp_path, capsys):
    copy = tmp_path / "copy.py"
    copy.write_text(OPERATOR.read_text())
    assert main(["operators", "--plugin", str(OPERATOR), "--plugin", str(copy)]) == 2
    assert "`outer_product_mean`" in said(capsys)


def test_installed_packages_are_loaded(monkeypatch, tmp_path, capsys):
    (tmp_path / "my_operators.py").write_text(OPERATOR.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("mine", "my_operators", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    assert main(["operators"]) == 0
    assert "outer_product_mean" in capsys.readouterr().out


def test_an_installed_package_that_fails_is_named(monkeypatch, capsys):
    point = EntryPoint("mine", "nothing_of_this_name", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    assert main(["operators"]) == 2
    assert said(capsys).startswith(
        "shardwright: the plugin `mine` of the package nothing_of_this_name cannot be imported: "
    )


def test_a_file_that_ends_the_program(tmp_path, capsys):
    ending = tmp_path / "ending.py"
    ending.write_text("import sys\nsys.exit(0)\n")
    assert main(["operators", "--plugin", str(ending)]) == 2
    assert said(capsys) == (
        f"shardwright: it ends the program (in {ending}); leave out `sys.exit`\n"
    )


def test_a_pass_that_fails_is_named_with_its_line(tmp_path, capsys):
    plugin = tmp_path / "failing.py"
    plugin.write_text(
        "from dataclasses import dataclass\n"
        "from shardwright.passes.base import Pass, register_pass\n"
        "@register_pass\n"
        "@dataclass(frozen=True)\n"
        "class Failing(Pass):\n"
        "    name = 'failing'\n"
        "    def run(self, graph):\n"
        "        return 1 / 0\n"
    )
    program = tmp_path / "program.ir"
    program.write_text("graph g {\n  input x: f32[4]\n  return x\n}\n")
    arguments = ["opt", str(program), "--plugin", str(plugin), "--passes", "failing"]
    assert main(arguments) == 2
    assert said(capsys) == (
        "shardwright: pass `failing` fails: ZeroDivisionError: division by zero "
        f"(in {plugin}, line 8)\n"
    )

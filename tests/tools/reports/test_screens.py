"""The script that makes the screens of the documents."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "screens.py"


@pytest.fixture(scope="module")
def screens():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("screens", SCRIPT)
    module = sys.modules["screens"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEXT = """# A page

<!-- screen -->

    $ shardwright compile two_matmul --devices \\
        2 --cluster cpu --out plan

    $ shardwright diff plan plan
    what was printed before

After it.

    $ shardwright compile this is no screen
"""


@pytest.mark.long
def test_screens_are_made_anew_and_nothing_else_changes(screens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = screens.remade(TEXT)
    head, rest = found.split("    two_matmul on 2 devices of cpu", 1)
    assert head == TEXT[: TEXT.index("\n    $ shardwright diff")]
    assert "\n    $ shardwright diff plan plan\n    the plans are equal: " in rest
    assert "what was printed before" not in found
    assert found.endswith("\n\nAfter it.\n\n    $ shardwright compile this is no screen\n")
    assert screens.remade(found) == found


def test_a_screen_that_is_not_as_printed_is_told(screens, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(screens, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- screen -->\n\n    $ shardwright diff nowhere nowhere\n")
    assert screens.main([str(page)]) == 1
    assert "page.md: differs from what is printed now" in capsys.readouterr().out
    assert screens.main(["--write", str(page)]) == 0
    assert "    shardwright: there is no such plan (in nowhere)" in page.read_text()
    assert screens.main([str(page)]) == 0


PAGE = """# A page

<!-- first: sizes = [3, 4] -->
```python
total = sum(sizes)
print(total)
```

```text
7
```

```ir
# small.ir
graph small {
  input x: f32[4]
  return x
}
```

<!-- not run: there is no such thing -->
```sh
command-that-is-not-there
```

```
$ shardwright opt small.ir --passes canonicalize
graph small {
...
}
```

<!-- needs: no_such_module -->
<!-- heavy: it would take long -->
```python
import no_such_module
```
"""


@pytest.fixture
def ran(screens, tmp_path, monkeypatch):
    """Return a function that tells what is wrong in a page."""
    monkeypatch.chdir(tmp_path)
    return lambda text, is_heavy=False: screens.problems(text, is_heavy)


def test_code_of_a_page_runs(ran):
    assert ran(PAGE) == []
    assert ran(PAGE, is_heavy=True) == []  # the module is still not there


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("\n7\n", "\n8\n", "`the block` prints\n7\n"),
        ("sum(sizes)", "sum(size)", "NameError: name 'size' is not defined"),
        ("graph small {\n...", "graph large {\n...", "but the page shows\ngraph large {"),
        ("<!-- not run: there is no such thing -->\n", "", "ends with exit code 127"),
        ("--passes canonicalize\ngraph small {\n...\n}", "--passes none", "exit code 2"),
        ("<!-- needs: no_such_module -->\n", "", ""),  # heavy, so left out
    ],
)
def test_what_is_wrong_in_a_page_is_told(ran, old, new, told):
    assert PAGE.count(old) == 1
    problems = ran(PAGE.replace(old, new))
    assert len(problems) == bool(told)
    assert told in "".join(problems)


def test_what_is_left_out_says_why(screens):
    blocks = screens.fences(PAGE)
    assert [b.left_out(False) for b in blocks if b.is_code and b.left_out(False)] == [
        "there is no such thing",
        "heavy: it would take long",
    ]
    assert blocks[-1].left_out(True) == "needs no_such_module"


def test_an_unknown_comment_is_refused(screens):
    with pytest.raises(ValueError, match="unknown comment before a block: `not runn`"):
        screens.fences("<!-- not runn: x -->\n```python\n1\n```\n")


def test_the_lines_of_a_part_stand_in_its_file(screens, tmp_path, monkeypatch):
    monkeypatch.setattr(screens, "ROOT", tmp_path)
    (tmp_path / "whole.py").write_text("import os\n\ndef f(x):\n    return x  # as it is\n")
    page = "<!-- part of: whole.py -->\n```python\ndef f(x): ...\n{}\n```\n"
    assert screens.problems(page.format("    return x  # the same"), False) == []
    for line in ("return y", "import os"):  # the latter stands before
        told = [f"2: `whole.py` has no line `{line}`"]
        assert screens.problems(page.format(line), False) == told


def test_reasons_name_what_there_is(screens):
    for path in screens.documents():
        for block in screens.fences(path.read_text()):
            for name in re.findall(r"`([\w.]+/[\w./]+)`", block.left_out(False)):
                assert (screens.ROOT / name).exists(), f"{path.name}:{block.line}: {name}"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_page_runs_ends_with_the_script(end, tmp_path):
    told = tmp_path / "told"
    page = tmp_path / "page.md"
    page.write_text(
        f"```python\nimport os\nopen({str(told)!r}, 'w').write(f'{{os.getpid()}} ')\n```\n\n"
        f"```\n$ echo $$ >> {told}; exec sleep 600\n```\n"
    )
    root = SCRIPT.parents[1]
    command = [sys.executable, str(SCRIPT), str(page)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(root)}) as script:
        while not told.exists() or len(told.read_text().split()) < 2:
            assert script.poll() is None
            time.sleep(0.05)
        script.send_signal(end)
    processes = [int(process) for process in told.read_text().split()]
    for _ in range(400):  # twenty seconds, where it takes some hundredths
        if not any(map(is_running, processes)):
            return
        time.sleep(0.05)
    for process in filter(is_running, processes):
        os.kill(process, signal.SIGKILL)
    pytest.fail("what the page runs goes on")


def is_running(process):
    """Return whether a process is there that is not a dead one nobody has waited for."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"

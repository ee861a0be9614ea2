"""Two plans: equal, different, slower; kept plans of earlier versions; the example for CI."""

import json
import re
import shlex
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.tools.diff.diff_document import diff_document
from shardwright.tools.diff.sides import Side
from shardwright.tools.main import main

ROOT = Path(__file__).parents[3]
KEPT = sorted((ROOT / "tests" / "data" / "plans").iterdir())
GPT = "gpt:layers=2,hidden=32,heads=4,batch=8,sequence=16,vocabulary=64"
SLOW = "tensor=2,zero=3,recompute=full,micro_batch=1"


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Return a searched plan, and a named one of the same model that is slower."""
    folder = tmp_path_factory.mktemp("plans")
    sw.compile(GPT, 4).write(folder / "fast")
    sw.compile(GPT, 4, plan=SLOW).write(folder / "slow")
    return folder


@pytest.fixture(autouse=True)
def here(plans, monkeypatch):
    monkeypatch.chdir(plans)


def told(capsys, *arguments):
    """Return the exit code of a command, and what it prints."""
    code = main(["diff", *arguments])
    return code, capsys.readouterr().out


def document(*sides):
    return diff_document(*(Side(str(one), sw.read_plan(one)) for one in sides))


def test_equal_plans_are_equal(capsys):
    code, text = told(capsys, "fast", "fast")
    assert code == 0
    assert re.fullmatch(r"the plans are equal: \S+ .s a step, \S+ KiB\n\n", text)
    found = json.loads(told(capsys, "fast", "fast", "--json")[1])
    assert found["equal"]
    assert (found["step_change"], found["why"], found["changed"]) == (0.0, [], [])
    assert found["layouts"] == found["strategies"] == []


def test_what_changed_adds_up_to_the_change_of_the_step(plans):
    found = document("fast", "slow")
    assert not found["equal"]
    before, later = (found[side]["step_seconds"] for side in ("old", "new"))
    assert sum(old for old, _ in found["parts"].values()) == pytest.approx(before)
    assert sum(new for _, new in found["parts"].values()) == pytest.approx(later)
    assert found["step_change"] == pytest.approx(later / before - 1)
    assert found["parts"]["computing again"][0] == 0.0 < found["parts"]["computing again"][1]
    memory = [sum(sizes) for sizes in zip(*found["memory"].values(), strict=True)]
    peaks = [found[side]["memory_bytes_per_device"] for side in ("old", "new")]
    assert memory == pytest.approx(peaks)
    assert found["communication"]["all_gather"]["count"][1] > 0
    other = document("slow", "fast")
    assert other["step_change"] == pytest.approx(before / later - 1)
    assert [one.replace("more", "less") for one in found["why"]] == [
        one.replace("more", "less") for one in other["why"]
    ]


def test_layers_with_equal_changes_are_one_row():
    found = document("fast", "slow")
    query = [row for row in found["layouts"] if "query_key_value.weight" in row["name"]]
    assert [row["count"] for row in query] == [2]
    assert {"search", "degrees", "mesh"} <= {row["what"] for row in found["changed"]}
    assert found["new"]["degrees"].endswith(
        ": tensor parallel over 2, FSDP over 2, 4 micro-batches of 1 sample, full recomputation of "
        "all 2 layers"
    )


def test_axes_that_are_alike_have_one_name(tmp_path):
    """The same plan on a mesh whose axes are called otherwise differs in no layout."""
    names = ("data=2,model=2", "x=2,y=2")
    for name in names:
        sw.compile(GPT, 4, mesh=name, search="data_parallel").write(tmp_path / name[0])
    found = document(*(tmp_path / name[0] for name in names))
    assert not found["equal"]
    assert found["layouts"] == found["strategies"] == []
    assert found["step_change"] == 0.0


@pytest.mark.parametrize(
    ("old", "new", "limit", "code"),
    [
        ("fast", "fast", "0%", 0),
        ("slow", "fast", "0%", 0),
        ("fast", "slow", "1%", 1),
        ("fast", "slow", "100000%", 0),
        ("fast", "slow", None, 1),
        ("slow", "fast", None, 1),
    ],
)
def test_the_exit_code(old, new, limit, code, capsys):
    given = [old, new] if limit is None else [old, new, "--max-slower", limit]
    assert told(capsys, *given)[0] == code
    assert told(capsys, *given, "--json")[0] == code


def test_the_limit_is_of_the_change_itself():
    old, new = (Side(name, sw.read_plan(name)) for name in ("fast", "slow"))
    change = new.timeline.step_seconds / old.timeline.step_seconds - 1
    assert not diff_document(old, new, change)["too_slow"]
    assert diff_document(old, new, 0.999 * change)["too_slow"]


@pytest.mark.parametrize("wrong", ["1", "one", "-1%", "1%%", ""])
def test_a_limit_is_a_percentage(wrong, capsys):
    assert main(["diff", "fast", "slow", f"--max-slower={wrong}"]) == 2
    said = f"`--max-slower` is the text `{wrong}`, expected a percentage such as `1%`"
    assert capsys.readouterr().err == f"shardwright: {said}\n"


def test_what_is_no_plan_is_an_error(capsys):
    assert main(["diff", "fast", "nowhere"]) == 2
    said = "there is no such plan (in nowhere); compile the model first"
    assert capsys.readouterr().err == f"shardwright: {said}\n"


def test_the_page_is_written_beside_the_new_plan(capsys, plans):
    code, text = told(capsys, "fast", "slow", "--html")
    assert (code, text.splitlines()[-1]) == (1, "page      slow/diff.html")
    page = (plans / "slow" / "diff.html").read_text()
    assert page.startswith("<!doctype html>\n<!-- a page of shardwright -->\n")
    assert "FSDP over 2" in page
    assert "<script" not in page
    (plans / "letter.html").write_text("dear")
    assert main(["diff", "fast", "slow", "--html", "letter.html"]) == 2
    assert (plans / "letter.html").read_text() == "dear"


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.name)
def test_plans_of_earlier_versions_are_read(kept):
    plan = sw.read_plan(kept)
    assert sw.prove(plan).proven
    found = document(kept, KEPT[-1])
    assert found["equal"] == (kept != KEPT[0])  # the first one computes all on both devices
    assert found["old"]["model"] == found["new"]["model"]


def test_the_example_fails_on_a_plan_that_was_made_slower(tmp_path, capsys):
    """Run the commands of the script, of which the shell has nothing else."""
    script = (ROOT / "examples" / "kept_plan" / "check.sh").read_text()
    words = {"$here": str(ROOT / "examples" / "kept_plan"), "$new": str(tmp_path)}
    for name, value in words.items():
        script = script.replace(name, value)
    commands = [shlex.split(line)[1:] for line in script.splitlines() if "shardwright " in line]
    make, compare = (command for command in commands if "Fails" not in command)
    for given, code in ([], 0), (["--search", "data_parallel"], 1):
        assert main([*make[:-1], *given]) == 0
        assert main(compare) == code
    assert "too slow: the step may get slower by 1% at most" in capsys.readouterr().out

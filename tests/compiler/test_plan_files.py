"""A plan is written without losing anything that the user has."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwright.api import compile
from shardwright.compiler.plans import files
from shardwright.compiler.plans.files import read_plan, write_plan
from shardwright.ir.errors import OutputError, PlanError
from tests.extent import ANY_PLAN
from tests.told import without_untested

ROOT = Path(__file__).parents[2]
MLP = "mlp:batch=4,hidden=8"


@pytest.fixture(scope="module")
def plans():
    """Return plans of different models for 2, 4 and 8 ranks."""
    sizes = {devices: f"{MLP},inputs={16 * devices}" for devices in (2, 4, 8)}
    return {devices: compile(size, devices, **ANY_PLAN).plan for devices, size in sizes.items()}


def contents(directory):
    """Return every file below a directory with what it holds."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_what_the_user_has_in_the_folder_stays(plans, tmp_path):
    where = tmp_path / "plan"
    write_plan(where, plans[4])
    for name in ("notes.txt", "state.npz", "src/main.py", ".git/HEAD", "logs/rank.0/stdout"):
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(f"content of {name}")
    mine = {name: text for name, text in contents(where).items() if text.startswith(b"content")}
    write_plan(where, plans[2])
    found = contents(where)
    assert len(mine) == 5
    assert mine.items() <= found.items()
    written = {*read_plan(where).document.files}
    assert set(found) - set(mine) == written
    assert "rank_00003.ir" not in found  # of the plan before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan"]


def edit_program(where):
    with (where / "program.ir").open("a") as file:
        file.write("# looked at this\n")
    return "`program.ir` was changed after the plan was written, it is not overwritten"


def edit_listing(where):
    (where / "rank_00003.ir").write_text("mine")
    return "`rank_00003.ir` was changed after the plan was written, it is not overwritten"


def edit_document(where):
    text = (where / "plan.json").read_text()
    (where / "plan.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    return "`plan.json` was changed after the plan was written, it is not overwritten"


def add_listing(where):
    (where / "rank_00004.ir").write_text("mine")
    return "`rank_00004.ir` is not of the plan that is there, it is not overwritten"


def link_program(where):
    (where / "program.ir").rename(where.parent / "elsewhere.ir")
    (where / "program.ir").symlink_to(where.parent / "elsewhere.ir")
    return "`program.ir` was changed after the plan was written, it is not overwritten"


def folder_for_program(where):
    (where / "program.ir").unlink()
    (where / "program.ir").mkdir()
    (where / "program.ir" / "mine").write_text("mine")
    return "`program.ir` was changed after the plan was written, it is not overwritten"


def other_document(where):
    (where / "plan.json").write_text('{"resources": []}')
    return "this file is not a plan: expected the format `shardwright plan`"


def no_json(where):
    (where / "plan.json").write_text("resources: none")
    return "`plan.json` is not of a plan"


def lists_a_file_elsewhere(where):
    text = (where / "plan.json").read_text()
    (where / "plan.json").write_text(text.replace('"rank_00003.ir"', '"../mine"'))
    return "`plan.json` is not of a plan"


def lists_a_file_of_the_user(where):
    text = (where / "plan.json").read_text()
    (where / "plan.json").write_text(text.replace('"rank_00003.ir"', '"main.py"'))
    return "`plan.json` is not of a plan"


@pytest.mark.parametrize(
    "change",
    [
        edit_program,
        edit_listing,
        edit_document,
        add_listing,
        link_program,
        folder_for_program,
        other_document,
        no_json,
        lists_a_file_elsewhere,
        lists_a_file_of_the_user,
    ],
)
def test_what_the_user_has_changed_is_not_overwritten(change, plans, tmp_path):
    where = tmp_path / "plan"
    write_plan(where, plans[4])
    expected = change(where)
    before = contents(tmp_path)
    with pytest.raises((OutputError, PlanError)) as caught:
        write_plan(where, plans[8])
    assert caught.value.what.startswith(expected)
    assert contents(tmp_path) == before


def test_a_listing_that_is_asked_for(plans, tmp_path):
    write_plan(tmp_path, plans[4], ranks=[3])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"plan.json", "model.ir", "program.ir", "strategies.json", "rank_00003.ir"}


def test_what_the_user_has_deleted_is_written_again(plans, tmp_path):
    write_plan(tmp_path, plans[2])
    (tmp_path / "program.ir").unlink()
    write_plan(tmp_path, plans[2])
    assert read_plan(tmp_path).program == plans[2].program


def test_a_link_to_a_folder_is_followed(plans, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_plan(tmp_path / "link", plans[2])
    assert (tmp_path / "link").is_symlink()
    assert read_plan(tmp_path / "real").program == plans[2].program


def test_a_folder_that_holds_a_repository_is_no_plan(plans, tmp_path):
    (tmp_path / ".git").mkdir()
    with pytest.raises(OutputError, match="holds something that is no plan"):
        write_plan(tmp_path, plans[2])
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("name", ["", "plan", "deep/plan"])
def test_a_folder_that_may_not_be_written_to(name, plans, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not tmp_path.samefile(path))
    with pytest.raises(OutputError) as caught:
        write_plan(tmp_path / name, plans[2])
    assert caught.value.what == "the plan cannot be written: permission denied"
    assert list(tmp_path.iterdir()) == []


# Failures on the way


class Stopped(BaseException):
    """Stands for an interrupt."""


@pytest.mark.long
@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), Stopped()])
@pytest.mark.parametrize("place", range(40))
def test_a_plan_is_replaced_whole_or_not_at_all(place, stop, plans, tmp_path, monkeypatch):
    where = tmp_path / "deep" / "plan"
    old = place % 2 == 0
    if old:
        write_plan(where, plans[4])
        (where / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    count = 0

    def failing(function):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == place // 2 + 1:
                raise stop
            return function(*arguments, **options)

        return call

    for name in ("mkdir", "rename", "replace", "unlink", "rmdir", "open"):
        monkeypatch.setattr(Path, name, failing(getattr(Path, name)))
    try:
        write_plan(where, plans[2])
    except (OutputError, Stopped):
        monkeypatch.undo()
        if where.exists() and read_plan(where).program == plans[2].program:
            write_plan(where, plans[2])  # what is left is completed first
        else:
            assert contents(tmp_path) == before
            assert (tmp_path / "deep").exists() == old
    else:
        monkeypatch.undo()
        assert read_plan(where).program == plans[2].program
    assert not [path for path in tmp_path.rglob(".*")]


@pytest.mark.long
def test_a_full_disk(plans, tmp_path):
    """Write under a limit on the size of files, which the kernel enforces."""
    write_plan(tmp_path / "plan", plans[4])
    before = contents(tmp_path)
    code = (
        "import resource, signal, sys\n"
        "from shardwright.tools.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "plan = ['--devices', '2', '--mode', 'data_parallel', '--out']\n"
        "codes = {main(['compile', 'mlp', *plan, where]) for where in sys.argv[1:]}\n"
        "sys.exit(codes.pop() if len(codes) == 1 else 1)\n"
    )
    folders = [str(tmp_path / name) for name in ("plan", "other")]
    # -B: bytecode of the modules that it imports would be cut off, for all later processes.
    command = [sys.executable, "-B", "-c", code, *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    said = "shardwright: the plan cannot be written: file too large"
    told = without_untested(done.stderr).splitlines()
    assert told == [f"{said} (in {folder})" for folder in folders]
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_plans_of_before_have_no_digest_of_their_document(plans, tmp_path):
    where = tmp_path / "plan"
    write_plan(where, plans[4])
    text = (where / "plan.json").read_text()
    lines = [line for line in text.splitlines() if not line.startswith('  "plan.json": ')]
    (where / "plan.json").write_text("\n".join(lines))
    assert len(lines) == len(text.splitlines()) - 1
    assert read_plan(where).program == plans[4].program
    write_plan(where, plans[2])
    assert read_plan(where).program == plans[2].program


def test_a_listing_that_cannot_be_read_is_told(plans, tmp_path):
    where = tmp_path / "plan"
    write_plan(where, plans[2])
    os.truncate(where / "rank_00001.ir", 2**40)
    with pytest.raises(OutputError) as caught:
        write_plan(where, plans[2])
    assert str(caught.value) == (
        f"the plan cannot be written: it has more than 268,435,456 bytes (in {where})"
    )


def test_weights_are_bounded_by_the_parameters(plans, tmp_path, monkeypatch):
    where, parameters = tmp_path / "plan", plans[4].model.parameters
    values = {p.name: np.ones(p.value.type.shape, np.float32) for p in parameters}
    weights = sum(array.nbytes for array in values.values())
    read, heads = files.read_member, 2**12

    def read_member(folder, name, most):
        return read(
            folder, name, most - files.MOST_BYTES + heads if name == "initial.npz" else most
        )

    monkeypatch.setattr(files, "read_member", read_member)
    write_plan(where, replace(plans[4], initial=values))
    assert (where / "initial.npz").stat().st_size > max(weights, heads)
    found = read_plan(where).initial
    assert all(np.array_equal(found[name], array) for name, array in values.items())
    write_plan(where, plans[2])  # over one with weights, which are unchanged
    write_plan(where, replace(plans[4], initial=values))
    os.truncate(where / "initial.npz", weights + 2 * heads)
    with pytest.raises(PlanError) as caught:
        read_plan(where)
    assert caught.value.what == (
        f"`initial.npz` cannot be read: it has more than {weights + heads:,} bytes"
    )

"""Fronts that are kept are those that a search finds; anything else in their files is ignored."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import ShardwrightWarning
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.models import load_model
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.planner import cache
from shardwright.planner.fronts.kept import BlockFront, fronts_of
from shardwright.planner.fronts.site import Site
from shardwright.solver.work import Budget
from tests.extent import first, long_after
from tests.small_sites import CASES, MODELS, site

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of what is kept, empty at first."""
    cache._warn.cache_clear()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def searched(monkeypatch):
    """The fronts that are searched."""
    found, plans = [], BlockFront.plans.func

    def noted(front):
        found.append(front)
        return plans(front)

    monkeypatch.setattr(BlockFront, "plans", property(noted))
    return found


def small(model="gpt", passes=1):
    """Return the blocks of a model on two devices."""
    return replace(site(model, passes), mesh=Mesh((MeshAxis("x", 2, 0),)))


def told(fronts):
    """Return all that fronts say."""
    return [
        [
            (one.decisions, one.seconds.tolist(), one.held_bytes, one.own_bytes, one.after_bytes)
            for one in plans
        ]
        for plans in fronts
    ]


def searched_anew(where, **options):
    """Return a site like another, of which nothing is searched yet."""
    return replace(
        where,
        options=replace(where.options, **options),
        budget=Budget(),
        _emissions={},
        _problems={},
        _requests={},
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """What the fronts of the small model say, and the file that keeps them, made once."""
    place = tmp_path_factory.mktemp("once")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.VARIABLE, str(place))
        fronts = told(fronts_of(searched_anew(small())))
    (file,) = files(place)
    return fronts, file.relative_to(place), file.read_bytes()


@pytest.fixture
def written(kept, folder):
    """The file of the fronts of the small model, as a search has left it."""
    place = folder / kept[1]
    place.parent.mkdir(parents=True)
    place.write_bytes(kept[2])
    return place


def files(folder):
    return sorted(folder.glob("*/*"))


@pytest.mark.long
@pytest.mark.parametrize(("model", "passes"), first(2, CASES))
def test_kept_fronts_are_those_of_a_search_and_cost_as_much(model, passes, folder, searched):
    without, first, second = (
        searched_anew(small(model, passes), cache=kept) for kept in (False, True, True)
    )
    fronts = told(fronts_of(without))
    assert not folder.exists()
    assert told(fronts_of(first)) == fronts
    searched.clear()
    assert told(fronts_of(second)) == fronts
    assert not searched
    assert without.budget.spent == first.budget.spent == second.budget.spent > 0
    assert len(files(folder)) == 1


@pytest.mark.long
def test_a_deeper_model_of_the_same_layers_has_the_same_fronts(kept, written, searched):
    shallow = kept[0]
    deep = fronts_of(of_layers(6))
    assert not searched
    assert told(deep)[0][0][1:] == shallow[0][0][1:]
    assert told(deep) == told(fronts_of(of_layers(6, cache=False)))


def of_layers(count, **options):
    """Return the blocks of a GPT of so many layers."""
    where = small()
    graph = load_model(MODELS["gpt"].replace("layers=3", f"layers={count}")).graph
    source = Canonicalize().run(graph)
    given = replace(where.options, **options)
    return Site.of(source, where.cluster, where.mesh, given, Budget())


@pytest.mark.long
@pytest.mark.parametrize(
    "other",
    [
        {"optimizer": Optimizer("sgd")},
        {"memory_limit": 1e6},
        {"recompute": "none"},
        {"precision": "bfloat16"},
    ],
)
def test_other_options_have_other_fronts(other, written, searched):
    fronts_of(searched_anew(small()))
    assert not searched
    fronts_of(searched_anew(small(), **other))
    assert searched


def test_another_cluster_has_other_fronts(written, searched):
    fronts_of(replace(searched_anew(small()), cluster=cluster("h100-pod:figures=datasheet")))
    assert searched


def spoil_key(whole):
    whole["key"] = "front of blocks of something else"


def spoil_content(whole):
    whole["content"] = whole["content"].replace("1", "2", 1)


def spoil_type(whole):
    whole["content"] = '{"work_seconds": 0, "plans": [[1]]}'
    whole["digest"] = cache._digest(whole["content"])


SPOILT = {
    "empty": lambda content: b"",
    "cut off": lambda content: content[: len(content) // 2],
    "of another program": lambda content: b"[1, 2]",
    "a pickle": lambda content: pickle.dumps(os.getcwd),
    **{
        one.__name__: lambda content, one=one: changed(content, one)
        for one in (spoil_key, spoil_content, spoil_type)
    },
}


def changed(content, change):
    whole = json.loads(content)
    change(whole)
    return json.dumps(whole).encode()


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_what_is_no_value_that_was_kept_is_not_read(spoil, folder):
    numbers = cache.Kept("number", TypeAdapter(int))
    numbers.write("one", 1)
    (file,) = files(folder)
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.warns(ShardwrightWarning) as warned:
        assert numbers.read("one") is None
    assert [str(one.message) for one in warned] == [
        f"the file {file} is no number that was kept; it is ignored"
    ]


@pytest.mark.parametrize("spoil", long_after(1, [spoil_content, spoil_type]))
def test_a_file_that_holds_something_else_is_ignored_and_replaced(spoil, kept, written, searched):
    fronts, _, content = kept
    written.write_bytes(changed(content, spoil))
    with pytest.warns(ShardwrightWarning) as warned:
        assert told(fronts_of(searched_anew(small()))) == fronts
    assert searched
    assert [str(one.message) for one in warned] == [
        f"the file {written} is no front of blocks that was kept; it is ignored"
    ]
    assert written.read_bytes() == content


def test_where_nothing_can_be_written_the_search_goes_on(kept, tmp_path, monkeypatch):
    cache._warn.cache_clear()
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    with pytest.warns(ShardwrightWarning, match=r"^nothing is kept in .*: Not a directory$"):
        assert told(fronts_of(searched_anew(small()))) == kept[0]


def test_the_folder_is_that_of_the_user(tmp_path, monkeypatch):
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder().parent == tmp_path / "shardwright"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder().parent == tmp_path / ".cache" / "shardwright"
    monkeypatch.setenv(cache.VARIABLE, "")
    assert cache.folder() is None


def test_of_many_versions_and_files_the_last_ones_are_kept(folder, monkeypatch):
    for number in range(6):
        old = folder / f"{number:016x}"
        old.mkdir(parents=True)
        os.utime(old, (number, number))
    monkeypatch.setattr(cache, "_MOST_FILES", 2)
    kept = cache.Kept("number", TypeAdapter(int))
    for number in range(3):
        kept.write(str(number), number)
    assert sorted(one.name for one in folder.iterdir())[:3] == [f"{n:016x}" for n in (3, 4, 5)]
    assert len(files(folder)) == 1
    assert kept.read("2") == 2
    assert kept.read("0") is None


WRITER = """
from tests.planner.fronts.test_kept import fronts_of, searched_anew, small, told
print(told(fronts_of(searched_anew(small()))))
"""


@pytest.mark.long
def test_several_processes_write_and_read_at_once(folder):
    several = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(2)
    ]
    written = [one.communicate(timeout=300) for one in several]
    assert written[0] == written[1]
    assert written[0][1] == ""
    assert len(files(folder)) == 1  # the key is the same whatever the seed of hashes

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.ir.errors import OutputError, PlanError
from shardwright.ir.text import parse
from shardwright.runtime import LocalCommunicator, assemble, initialize
from shardwright.runtime.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    Progress,
    Writing,
    begin_writing,
    load_slices,
    newest,
    open_checkpoint,
    reshard,
    writing,
)
from shardwright.runtime.checkpoints.reading import checkpoints_in
from shardwright.runtime.checkpoints.resharding import whole
from shardwright.runtime.checkpoints.slices import blocks_of
from tests.extent import first
from tests.stopping import in_child, killed, stopping

safetensors = pytest.importorskip("safetensors.numpy")

MESHES = ("x=2 y=2", "x=4", "x=3 y=2", "x=1")


def layouts(mesh):
    """Return some layouts of the two parameters on a mesh, even and uneven ones."""
    names = [part.split("=")[0] for part in mesh.split()]
    first, last = names[0], names[-1]
    rows = ["*", first, last, *(["@".join(names)] if len(names) > 1 else [])]
    columns = ["*"] if len(names) == 1 else ["*", last]
    return [(mesh, a, b) for a in rows for b in columns if b == "*" or b not in a.split("@")]


def typed(mesh, row, column):
    def cut(size, axes):
        return f"{size}" if axes == "*" else f"{size}@{axes}"

    return parse(
        f"""graph g on {mesh} {{
          parameter w: f32[{cut(12, row)}, {cut(7, column)}]
          parameter b: bf16[{cut(13, row)}]
          parameter count: i64[]* {{initializer='constant(3)'}}
          return
        }}"""
    )


GRAPHS = [typed(*layout) for mesh in MESHES for layout in layouts(mesh)]
PLAIN = typed("x=2 y=2", "x", "y")


def state_of(graph, seed=1):
    return initialize(graph, seed, LocalCommunicator(graph.mesh))


def written(graph, folder, step=5, seed=1, **how):
    communicator = LocalCommunicator(graph.mesh)
    writer = begin_writing(folder, graph, communicator, **how)
    writer.save(state_of(graph, seed), Progress(step=step))
    writer.settle()
    return open_checkpoint(folder)


def wholes(graph, state):
    names = [parameter.name for parameter in graph.parameters]
    return {name: assemble(graph, name, state[name]).tobytes() for name in names}


@settings(max_examples=len(first(12, range(25))), deadline=None)
@given(st.sampled_from(GRAPHS), st.sampled_from(GRAPHS), st.integers(1, 99))
def test_any_layouts_read_what_any_other_wrote(tmp_path_factory, source, target, block):
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoint = written(source, folder / "a")
    expected = wholes(source, state_of(source))
    communicator = LocalCommunicator(target.mesh)
    assert wholes(target, load_slices(checkpoint, target, communicator)) == expected
    again = open_checkpoint(reshard(checkpoint, target, folder / "b", block))
    again.check()
    assert wholes(target, load_slices(again, target, communicator)) == expected
    merged = open_checkpoint(reshard(again, None, folder / "c", block))
    assert (
        wholes(whole(merged), load_slices(merged, whole(merged), LocalCommunicator())) == expected
    )
    back = open_checkpoint(reshard(merged, source, folder / "d", block))
    assert wholes(source, load_slices(back, source, LocalCommunicator(source.mesh))) == expected
    for file in back.manifest.files:  # each holds what the ranks wrote first
        if file.endswith(".safetensors"):
            mine, theirs = (safetensors.load_file(c.path / file) for c in (back, checkpoint))
            assert {n: a.tobytes() for n, a in mine.items()} == {
                n: a.tobytes() for n, a in theirs.items()
            }


@given(st.lists(st.integers(1, 6), max_size=3), st.integers(1, 40))
def test_blocks_are_small_and_in_order(shape, limit):
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    blocks = [numbers[part] for part in blocks_of(tuple(slice(0, n) for n in shape), 4, limit)]
    assert np.concatenate([b.reshape(-1) for b in blocks]).tolist() == numbers.reshape(-1).tolist()
    assert all(4 * block.size <= max(4, limit) for block in blocks)


def test_every_rank_writes_its_own_slices_once(tmp_path):
    checkpoint = written(PLAIN, tmp_path)
    sizes = {}
    for rank in range(4):
        found = safetensors.load_file(checkpoint.path / f"rank.{rank}.safetensors")
        sizes[rank] = {name: array.shape for name, array in found.items()}
    assert sizes == {
        0: {"w": (6, 4), "b": (7,), "count": ()},
        1: {"w": (6, 3)},
        2: {"w": (6, 4), "b": (6,)},
        3: {"w": (6, 3)},
    }
    strategy = json.loads((checkpoint.path / "strategy.json").read_text())
    assert strategy["parallel_layout_item"]["count"]["tensor_map"] == []
    assert strategy["not_expressible"] == ["w", "b"]  # slices of two sizes
    even = json.loads(
        (written(typed("x=2 y=2", "x@y", "*"), tmp_path / "e").path / "strategy.json").read_text()
    )
    assert even["parallel_layout_item"]["w"]["dev_matrix"] == [4]
    assert even["parallel_layout_item"]["w"]["tensor_map"] == [0, -1]


def test_the_newest_stay_and_files_of_others_too(tmp_path):
    communicator = LocalCommunicator(PLAIN.mesh)
    writer = begin_writing(tmp_path, PLAIN, communicator, keep=2)
    state = state_of(PLAIN)
    for step in range(1, 5):
        if step == 2:
            writer.settle()
            (tmp_path / "step-1" / "mine.txt").write_text("")
            (tmp_path / "step-1-copy").mkdir()
        writer.save(state, Progress(step=step))
    writer.settle()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lease",
        "step-1",
        "step-1-copy",
        "step-3",
        "step-4",
    ]
    assert [path.name for path in (tmp_path / "step-1").iterdir()] == ["mine.txt"]
    assert newest(tmp_path) == tmp_path / "step-4" == writer.latest
    with pytest.raises(OutputError, match="those of another training run are there"):
        begin_writing(tmp_path, PLAIN, communicator)
    resumed = open_checkpoint(tmp_path)
    writer = begin_writing(tmp_path, PLAIN, communicator, keep=2, resumed=resumed)
    writer.save(state, Progress(step=5))
    writer.settle()
    assert not (tmp_path / "step-3").exists()


def test_no_run_rotates_checkpoints_of_its_future(tmp_path):
    communicator, state = LocalCommunicator(PLAIN.mesh), state_of(PLAIN)
    writer = begin_writing(tmp_path, PLAIN, communicator, keep=0)
    for step in (1, 2, 3):
        writer.save(state, Progress(step=step))
    writer.settle()
    writer = begin_writing(tmp_path, PLAIN, communicator, keep=1, run=writer.how.run)
    writer.save(state, Progress(step=2))
    writer.settle()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-2", "step-3"]


def test_what_a_killed_run_left_is_removed_by_its_next_start(tmp_path):
    checkpoint = written(PLAIN, tmp_path)
    run = checkpoint.manifest.run
    (tmp_path / f".step-9.{run}-0123").mkdir()
    (tmp_path / f".step-9.{run}-0123" / "rank.0.safetensors").write_bytes(b"half")
    (tmp_path / ".step-9.0000000000000000-0123").mkdir()
    begin_writing(tmp_path, PLAIN, LocalCommunicator(PLAIN.mesh), resumed=checkpoint)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lease",
        ".step-9.0000000000000000-0123",
        "step-5",
    ]


def test_a_checkpoint_is_found_while_an_older_one_is_rotated_away(tmp_path, monkeypatch):
    written(PLAIN, tmp_path, step=1)
    listed = Path.iterdir

    def rotated(folder):
        paths = list(listed(folder))
        if (folder / "step-1").exists():
            (folder / "step-1").rename(folder / "step-2")  # as if it came, and the old one went
        return iter(paths)

    monkeypatch.setattr(Path, "iterdir", rotated)
    assert checkpoints_in(tmp_path) == [(2, tmp_path / "step-2")]


def test_a_checkpoint_without_its_manifest_is_none(tmp_path):
    written(PLAIN, tmp_path, keep=0)
    (tmp_path / "step-7").mkdir()
    assert open_checkpoint(tmp_path).path.name == "step-5"
    (tmp_path / "step-5" / "manifest.json").unlink()
    with pytest.raises(PlanError) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value) == (
        f"there is no checkpoint: `manifest.json` is missing (in {tmp_path}); "
        f"it is written last; name a checkpoint that has one"
    )


def damage(data, random):
    """Return damaged bytes: cut short, or with one bit flipped."""
    place = int(random.integers(len(data)))
    if random.integers(3) == 0:
        return data[:place]
    flipped = bytearray(data)
    flipped[place] ^= 1 << int(random.integers(8))
    return bytes(flipped)


def test_damaged_files_are_refused_by_name(tmp_path):
    checkpoint, random = written(PLAIN, tmp_path), np.random.default_rng(0)
    communicator = LocalCommunicator(PLAIN.mesh)
    files = sorted(checkpoint.path.iterdir())
    for _ in range(60):
        path = files[int(random.integers(len(files)))]
        before = path.read_bytes()
        path.write_bytes(damage(before, random))
        with pytest.raises(PlanError) as caught:
            open_checkpoint(tmp_path).check()
        assert caught.value.where == str(path)
        if path.suffix == ".safetensors":
            with pytest.raises(PlanError) as caught:
                load_slices(open_checkpoint(tmp_path), PLAIN, communicator)
            assert caught.value.where == str(path)
        path.write_bytes(before)
    load_slices(open_checkpoint(tmp_path), PLAIN, communicator)


def test_a_missing_file_is_named(tmp_path):
    checkpoint = written(PLAIN, tmp_path)
    (checkpoint.path / "rank.2.safetensors").unlink()
    with pytest.raises(PlanError) as caught:
        load_slices(checkpoint, PLAIN, LocalCommunicator(PLAIN.mesh))
    assert str(caught.value) == (
        f"a file of the checkpoint is missing (in {checkpoint.path / 'rank.2.safetensors'})"
    )


ONE = """graph g {
  parameter w: f32[12, 7]
  parameter b: bf16[13]
  parameter count: i64[]
  return
}"""


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("f32[12, 7]", "f32[12, 8]", "`w` has the shape (12, 7), expected (12, 8)"),
        ("i64[]", "f32[]", "`count` has elements of type int64, expected float32"),
        ("parameter b", "parameter c", "the checkpoint lacks the parameters ['c'] and has ['b']"),
    ],
)
def test_other_programs_are_refused(old, new, what, tmp_path):
    checkpoint, other = written(PLAIN, tmp_path), parse(ONE.replace(old, new))
    with pytest.raises(PlanError) as caught:
        load_slices(checkpoint, other, LocalCommunicator())
    assert caught.value.what.startswith(what)
    with pytest.raises(PlanError) as caught:
        reshard(checkpoint, other, tmp_path / "other")
    assert caught.value.what.startswith(what)


def test_ranks_with_tensors_of_their_own(tmp_path):
    graph = parse("graph g on x=2 {\n parameter w: f32[3]\n return\n}")
    one = parse("graph g {\n parameter w: f32[3]\n return\n}")
    communicator = LocalCommunicator(graph.mesh)
    for folder, equal in (("a", True), ("b", False)):
        state = {"w": {0: np.ones(3, np.float32), 1: np.full(3, 1 if equal else 2, np.float32)}}
        writer = begin_writing(tmp_path / folder, graph, communicator)
        writer.save(state, Progress(step=1))
        writer.settle()
        checkpoint = open_checkpoint(tmp_path / folder)
        loaded = load_slices(checkpoint, graph, communicator)
        assert {r: a.tolist() for r, a in loaded["w"].items()} == {
            r: a.tolist() for r, a in state["w"].items()
        }
        if equal:
            assert load_slices(checkpoint, one, LocalCommunicator())["w"][0].tolist() == [1, 1, 1]
            continue
        with pytest.raises(PlanError, match="`w` differs between the ranks 0 and 1"):
            load_slices(checkpoint, one, LocalCommunicator())
        with pytest.raises(PlanError, match="`w` differs between the ranks 0 and 1"):
            reshard(checkpoint, None, tmp_path / "merged")
        assert [path.name for path in (tmp_path / "merged").iterdir()] == []
        again = open_checkpoint(reshard(checkpoint, graph, tmp_path / "again"))
        assert load_slices(again, graph, communicator)["w"][1].tolist() == [2, 2, 2]


def test_the_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    communicator = LocalCommunicator(PLAIN.mesh)
    writer = begin_writing(tmp_path, PLAIN, communicator)
    state, may_write = state_of(PLAIN), threading.Event()
    expected = wholes(PLAIN, state)
    write = writing.write_tensors

    def slow(*arguments):
        may_write.wait(60)
        return write(*arguments)

    monkeypatch.setattr(writing, "write_tensors", slow)
    writer.save(state, Progress(step=1))
    for part in state["w"].values():
        part += 1  # the next step
    may_write.set()
    writer.settle()
    loaded = load_slices(open_checkpoint(tmp_path), PLAIN, communicator)
    assert wholes(PLAIN, loaded) == expected


def test_errors_of_the_writing_thread_are_raised_later(tmp_path, monkeypatch):
    writer = begin_writing(tmp_path, PLAIN, LocalCommunicator(PLAIN.mesh))

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_tensors", full)
    writer.save(state_of(PLAIN), Progress(step=1))
    with pytest.raises(OutputError) as caught:
        writer.settle()
    assert str(caught.value) == (
        f"the checkpoint cannot be written: no space left on device (in {tmp_path / 'step-1'})"
    )
    writer.settle()
    assert newest(tmp_path) is None


class OneOfTwo:
    """The communicator of a process whose neighbor never comes."""

    def __init__(self, mesh):
        self.mesh, self.ranks = mesh, (0,)


def test_slices_of_another_process_that_never_come(tmp_path):
    graph = parse("graph g on x=2 {\n parameter w: f32[4@x]\n return\n}")
    how = Writing(tmp_path, asynchronous=False, timeout=0.2)
    writer = CheckpointWriter(how, graph, OneOfTwo(graph.mesh))
    with pytest.raises(OutputError) as caught:
        writer.save({"w": {0: np.ones(2, np.float32)}}, Progress(step=3))
    assert str(caught.value) == (
        "the checkpoint cannot be completed: rank 1 has not written its slices within 0.2 s "
        f"(in {tmp_path}); all processes must see one folder"
    )
    assert newest(tmp_path) is None


def test_a_manifest_that_lists_files_elsewhere_is_refused(tmp_path):
    checkpoint = written(PLAIN, tmp_path)
    manifest = checkpoint.manifest
    sums = {"../other": next(iter(manifest.files.values())), **manifest.files}
    text = manifest.model_copy(update={"files": sums}).to_text()
    (checkpoint.path / "manifest.json").write_text(text)
    with pytest.raises(PlanError) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.what == "the file is damaged: it lists the file `../other`"
    assert isinstance(checkpoint, Checkpoint)


def complaint_of(checkpoint, change):
    """Return what is said of a checkpoint with a manifest that was changed, with its own sum."""
    manifest = change(checkpoint.manifest)
    (checkpoint.path / "manifest.json").write_text(manifest.to_text())
    with pytest.raises(PlanError) as caught:
        open_checkpoint(checkpoint.path.parent)
    return caught.value.what


@pytest.mark.parametrize("place", ["step", "epoch", "batch"])
@pytest.mark.parametrize("count", [-1, 10**9, 2**70])
def test_no_training_has_run_so_far(tmp_path, place, count):
    def far(manifest):
        return manifest.model_copy(
            update={"progress": manifest.progress.model_copy(update={place: count})}
        )

    assert complaint_of(written(PLAIN, tmp_path), far).startswith(
        f"the file is damaged: `progress.{place}`: input should be "
    )


def test_the_name_of_a_run_leads_nowhere(tmp_path):
    said = complaint_of(
        written(PLAIN, tmp_path), lambda manifest: manifest.model_copy(update={"run": "../../x"})
    )
    assert said.startswith("the file is damaged: `run`: string should match pattern")


def test_slices_are_not_read_elsewhere(tmp_path):
    checkpoint = written(PLAIN, tmp_path / "saved")
    name = next(iter(checkpoint.manifest.files))
    moved = (checkpoint.path / name).rename(tmp_path / "elsewhere")
    (checkpoint.path / name).symlink_to(moved)
    with pytest.raises(PlanError) as caught:
        open_checkpoint(checkpoint.path.parent).region("w", (slice(0, 1), slice(0, 1)), 0)
    assert caught.value.what == (
        "the file cannot be read: it is a link that leads out of its folder"
    )


@pytest.mark.long
def test_a_run_that_is_killed_while_it_replaces_checkpoints_goes_on(tmp_path):
    communicator, state, ends = LocalCommunicator(PLAIN.mesh), state_of(PLAIN), []
    for place in range(1, 100):
        folder = tmp_path / f"{place}"
        checkpoint = written(PLAIN, folder, step=1)

        def work(folder=folder, place=place, resumed=checkpoint):
            writer = begin_writing(folder, PLAIN, communicator, keep=1, resumed=resumed)
            stopping(folder, place, killed)
            writer.save(state, Progress(step=2))
            writer.settle()

        ends.append(in_child(work))
        kept = open_checkpoint(folder)
        writer = begin_writing(folder, PLAIN, communicator, keep=1, resumed=kept)
        for step in (2, 3):
            writer.save(state, Progress(step=step))
        writer.settle()
        assert sorted(path.name for path in folder.iterdir()) == [".lease", "step-3"]
        if not ends[-1]:
            break
    assert len(ends) > 10


@pytest.mark.long
def test_a_checkpoint_of_the_same_step_takes_the_place_at_once(tmp_path):
    communicator, states = LocalCommunicator(PLAIN.mesh), []
    sums = [wholes(PLAIN, state_of(PLAIN, seed)) for seed in (1, 2)]
    for place in range(1, 100):
        folder = tmp_path / f"{place}"
        resumed = written(PLAIN, folder, step=1)

        def work(folder=folder, place=place, resumed=resumed):
            writer = begin_writing(folder, PLAIN, communicator, resumed=resumed)
            stopping(folder, place, killed)
            writer.save(state_of(PLAIN, 2), Progress(step=1))
            writer.settle()

        end = in_child(work)
        found = open_checkpoint(folder)
        states.append(sums.index(wholes(PLAIN, load_slices(found, PLAIN, communicator))))
        begin_writing(folder, PLAIN, communicator, resumed=found)
        assert sorted(path.name for path in folder.iterdir()) == [".lease", "step-1"]
        if not end:
            break
    assert end == 0
    assert states == sorted(states)  # the old one, then the new one


def test_a_checkpoint_in_which_the_user_keeps_a_file_stays(tmp_path):
    checkpoint = written(PLAIN, tmp_path)
    (tmp_path / "step-5" / "notes.txt").write_text("mine")
    writer = begin_writing(tmp_path, PLAIN, LocalCommunicator(PLAIN.mesh), resumed=checkpoint)
    writer.save(state_of(PLAIN, 2), Progress(step=5))
    with pytest.raises(OutputError) as caught:
        writer.settle()
    assert str(caught.value) == (
        "the checkpoint cannot be written: `notes.txt`, which is no file of a checkpoint, is there "
        f"(in {tmp_path / 'step-5'}); move it, or name another folder"
    )
    open_checkpoint(tmp_path / "step-5").check()


def test_a_folder_without_a_manifest_is_told_from_another_run(tmp_path):
    checkpoint = written(PLAIN, tmp_path)
    (tmp_path / "step-6").mkdir()
    writer = begin_writing(tmp_path, PLAIN, LocalCommunicator(PLAIN.mesh), resumed=checkpoint)
    writer.save(state_of(PLAIN), Progress(step=6))
    with pytest.raises(OutputError) as caught:
        writer.settle()
    assert str(caught.value) == (
        "the checkpoint cannot be written: a folder without a manifest is there (in "
        f"{tmp_path / 'step-6'}); remove it, or name another folder"
    )

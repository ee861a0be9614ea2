import pickle
from pathlib import Path

import numpy as np
import pytest

from shardwright.ir.errors import ExecutionError, OutputError, PlanError
from shardwright.ir.text import parse
from shardwright.runtime import (
    LocalCommunicator,
    assemble,
    initialize,
    load_checkpoint,
    save_checkpoint,
)


def program(mesh: str, w: str, dtype: str = "f32"):
    return parse(
        f"""graph g on {mesh} {{
          parameter file: {dtype}{w}
          parameter layer/count: i64[]* {{initializer='constant(3)'}}
          return
        }}"""
    )


SPLIT = program("x=2 y=2", "[8@x, 4@y]")


def saved(path: Path) -> np.ndarray:
    communicator = LocalCommunicator(SPLIT.mesh)
    state = initialize(SPLIT, 1, communicator)
    save_checkpoint(path, SPLIT, state, communicator)
    return assemble(SPLIT, "file", state["file"])


def test_another_layout_reads_the_same_state(tmp_path: Path):
    path = tmp_path / "state.npz"
    whole = saved(path)
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]
    other = program("z=4", "[8@z, 4]")
    state = load_checkpoint(path, other, LocalCommunicator(other.mesh))
    np.testing.assert_array_equal(assemble(other, "file", state["file"]), whole)
    assert state["file"][2].shape == (2, 4)
    assert state["layer/count"][3] == 3
    wide = load_checkpoint(path, other, LocalCommunicator(other.mesh), "float64")
    assert wide["file"][0].dtype == np.float64


def test_arrays_of_other_processes_keep_their_types(tmp_path: Path):
    communicator = LocalCommunicator(SPLIT.mesh)
    state = pickle.loads(pickle.dumps(initialize(SPLIT, 1, communicator, None, "float64")))
    save_checkpoint(tmp_path / "state.npz", SPLIT, state, communicator)
    loaded = load_checkpoint(tmp_path / "state.npz", SPLIT, communicator, "float64")
    for name, parts in state.items():
        assert all(np.array_equal(loaded[name][rank], part) for rank, part in parts.items())
        assert loaded[name][0].dtype == parts[0].dtype


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "is corrupt"),
        (lambda data: b"hello", "is corrupt"),
        (lambda data: data[: len(data) // 2], "is corrupt"),
        (lambda data: data[:90] + bytes([data[90] ^ 255]) + data[91:], "is corrupt"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage, message: str):
    path = tmp_path / "state.npz"
    saved(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PlanError, match=message):
        load_checkpoint(path, SPLIT, LocalCommunicator(SPLIT.mesh))


def test_other_files_are_refused(tmp_path: Path):
    path = tmp_path / "state.npz"
    communicator = LocalCommunicator(SPLIT.mesh)
    with pytest.raises(PlanError, match="there is no such checkpoint"):
        load_checkpoint(path, SPLIT, communicator)
    np.savez(path, w=np.ones(2))
    with pytest.raises(PlanError, match="has no version, expected version 1"):
        load_checkpoint(path, SPLIT, communicator)
    np.save(tmp_path / "one.npy", np.ones(2))
    with pytest.raises(PlanError, match="is corrupt or is not"):
        load_checkpoint(tmp_path / "one.npy", SPLIT, communicator)


def test_another_program_is_refused(tmp_path: Path):
    path = tmp_path / "state.npz"
    saved(path)
    small = program("x=2", "[4@x, 4]")
    with pytest.raises(PlanError, match=r"an array of shape \(8, 4\), expected \(4, 4\)"):
        load_checkpoint(path, small, LocalCommunicator(small.mesh))
    named = parse("graph other {\nparameter v: f32[2]\nreturn\n}")
    with pytest.raises(PlanError, match=r"lacks the parameters \['v'\] and has \['file'"):
        load_checkpoint(path, named, LocalCommunicator())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "state.npz"
    saved(path)
    before = path.read_bytes()
    communicator = LocalCommunicator(SPLIT.mesh)
    state = initialize(SPLIT, 2, communicator)
    state["layer/count"][3] = np.array(4)
    with pytest.raises(ExecutionError, match="ranks 0 and 3 should hold equal copies"):
        save_checkpoint(path, SPLIT, state, communicator)
    assert path.read_bytes() == before
    with pytest.raises(OutputError, match="cannot be written"):
        save_checkpoint(
            tmp_path / "nowhere" / "s.npz", SPLIT, initialize(SPLIT, 2, communicator), communicator
        )
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]

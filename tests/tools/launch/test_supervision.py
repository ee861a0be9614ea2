import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardwright.runtime.faults import Board, Phase, board_path, note_signal
from shardwright.runtime.faults import board as board_module
from shardwright.runtime.faults.standing import Standing
from shardwright.tools.launch.supervision import MPI_LAUNCHER, Supervisor
from tests.extent import first, long_after


class Ranks:
    """Boards of some ranks, whose processes are this one or a sleeping one."""

    def __init__(self, folder, count, timeout=0.0):
        self.supervisor = Supervisor(folder, range(count), timeout)
        self.supervisor.begin()
        self.boards = [Board(board_path(folder, rank), writes=True) for rank in range(count)]
        self.children = []

    def child(self, rank):
        """Give a rank a process of its own."""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
        self.children.append(child)
        self.boards[rank]._numbers[board_module._PID] = child.pid
        return child


@pytest.fixture
def ranks(tmp_path):
    made = []

    def make(*arguments):
        made.append(Ranks(tmp_path / "boards", *arguments))
        return made[-1]

    yield make
    for child in (child for item in made for child in item.children):
        child.kill()
        child.wait()


def test_what_a_rank_notes_is_read_by_others(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_BOARD", str(tmp_path))
    standing = Standing()
    standing.fail("before it is open")
    standing.open(3)
    board = Board(board_path(tmp_path, 3))
    assert (board.pid, board.phase, board.place, board.error) == (os.getpid(), 0, "", "")
    standing.value = "w.grad"
    with standing.step():
        standing.wait("all_reduce", (0, 1, 3))
        assert board.is_in_step
        assert board.waits
        assert board.place == "`all_reduce` of `w.grad` with the ranks 0, 1, 3"
        standing.go_on()
    assert (board.steps, board.is_in_step, board.waits) == (1, False, False)
    standing.fail(ValueError("two\nlines"))
    standing.fail("a later one")
    assert (board.phase, board.error) == (Phase.FAILED, "ValueError: two lines")
    beats = board.beats
    time.sleep(1.2 * board_module.WATCH)
    assert board.beats > beats


def test_nothing_is_noted_where_nobody_watches(tmp_path):
    standing = Standing()
    standing.open(0)
    with standing.step():
        standing.wait("all_reduce", (0,))
        standing.go_on()
    assert not standing.is_watched


def test_a_text_is_cut_to_its_room(tmp_path):
    board = Board(board_path(tmp_path, 0), writes=True)
    board.fail("é" * 2000)
    assert set(board.error[:-1]) == {"é"}


def test_a_dead_rank_is_named_with_its_place(ranks, tmp_path):
    found = ranks(2, 60.0)
    child = found.child(1)
    for board in found.boards:
        board.set_phase(Phase.RUNNING)
    found.boards[1].count_steps(16)
    found.boards[1].begin_step()
    found.boards[1].wait("`all_gather` of `w` with the ranks 0, 1")
    assert found.supervisor.look() is None
    child.kill()
    child.wait()
    place = "in step 17, where it waits in `all_gather` of `w` with the ranks 0, 1"
    assert found.supervisor.fault(None, {}) == f"rank 1 died {place}"
    assert found.supervisor.fault(None, {1: -9}) == f"rank 1 died by signal 9 (SIGKILL) {place}"
    log = tmp_path / "log"
    log.write_text(f"=   PID {child.pid} RUNNING AT here\n=   EXIT CODE: 11\n")
    assert (
        found.supervisor.fault(log, {MPI_LAUNCHER: 11})
        == f"rank 1 died by signal 11 (SIGSEGV) {place}"
    )


def test_ranks_are_asked_to_end_once_when_they_are_seen(ranks, monkeypatch):
    found, asked = ranks(2, 60.0), []
    children = [found.child(rank) for rank in range(2)]
    found.supervisor.ask_to_end()
    found.supervisor.look()
    real = os.kill
    monkeypatch.setattr(
        os, "kill", lambda pid, number: asked.append(pid) if number else real(pid, 0)
    )
    found.supervisor.ask_to_end()
    found.supervisor.ask_to_end()
    assert asked == [child.pid for child in children]


def test_the_rank_whose_parent_has_noted_its_death_is_named(ranks, tmp_path):
    found = ranks(3, 60.0)
    children = [found.child(rank) for rank in range(3)]
    found.boards[1].wait("`MPI_Init` with all ranks")
    found.supervisor.look()
    for child in children:
        child.kill()
        child.wait()
    # Since the other one has died.
    note_signal(board_path(tmp_path / "boards", 2), children[2].pid, 11, 2_000)
    note_signal(board_path(tmp_path / "boards", 1), children[1].pid, 9, 1_000)
    log = tmp_path / "log"
    log.write_text(f"=   PID {children[0].pid} RUNNING AT here\n=   EXIT CODE: 9\n")
    assert found.supervisor.fault(log, {MPI_LAUNCHER: 9}) == (
        "rank 1 died by signal 9 (SIGKILL) before its first step, where it waits in `MPI_Init` "
        "with all ranks"
    )


CHILD = """
import os, sys, time
from pathlib import Path
from shardwright.runtime.faults import Board
from shardwright.tools.launch.watcher import run_under_parent
path = Path(sys.argv[1])
print(os.getpid(), flush=True)
run_under_parent(path)
Board(path, writes=True)
WHAT
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a rank has a parent on Linux alone")
@pytest.mark.parametrize(
    ("what", "code", "noted"),
    long_after(
        1,
        first(
            3,
            [
                ("os.kill(os.getpid(), 9)", -9, 9),
                ("sys.exit(3)", 3, 0),
                ("", 0, 0),
                ("os.kill(os.getpid(), 11)", -11, 11),
                ("raise ValueError", 1, 0),
            ],
        ),
    ),
)
def test_the_parent_of_a_rank_ends_as_it_does(what, code, noted, tmp_path):
    path = board_path(tmp_path, 0)
    command = [sys.executable, "-c", CHILD.replace("WHAT", what), str(path)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == code
    assert Board(path).signal == noted
    assert bool(Board(path).moment) == bool(noted)


@pytest.mark.skipif(sys.platform != "linux", reason="a rank has a parent on Linux alone")
def test_a_rank_that_dies_before_it_has_a_board_is_named(tmp_path):
    supervisor = Supervisor(tmp_path, [0, 1], 60.0)
    supervisor.begin()
    Board(board_path(tmp_path, 0), writes=True)
    code = CHILD.partition("Board(path")[0] + "os.kill(os.getpid(), 11)"
    command = [sys.executable, "-c", code, str(board_path(tmp_path, 1))]
    subprocess.run(command, capture_output=True, check=False)
    supervisor.look()
    what = "rank 1 died by signal 11 (SIGSEGV) before its first step"
    assert supervisor.fault(None, {MPI_LAUNCHER: 11}) == what


@pytest.mark.skipif(sys.platform != "linux", reason="a rank has a parent on Linux alone")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_ends_with_its_parent(number, tmp_path):
    path = board_path(tmp_path, 0)
    command = [sys.executable, "-c", CHILD.replace("WHAT", "time.sleep(99)"), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while not path.exists():
            time.sleep(0.01)
        rank = Board(path).pid
        assert rank != process.pid
        process.send_signal(number)
        assert process.wait() == -number
        deadline = time.monotonic() + 20
        while Path(f"/proc/{rank}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not Path(f"/proc/{rank}").exists()


def test_no_rank_is_blamed_while_mpi_starts(ranks, tmp_path):
    found = ranks(2, 60.0)
    children = [found.child(0), found.child(1)]
    found.boards[0].wait("`MPI_Init` with all ranks")
    found.supervisor.look()
    for child in children:
        child.kill()
        child.wait()
    log = tmp_path / "log"
    log.write_text(f"=   PID {children[0].pid} RUNNING AT here\n=   EXIT CODE: 9\n")
    said = found.supervisor.fault(log, {MPI_LAUNCHER: 9})
    assert said == "one of the ranks 0, 1 died while MPI started on all ranks"


def test_the_launcher_of_mpi_is_no_rank(ranks, tmp_path):
    found = ranks(2, 60.0)
    found.supervisor.look()
    log = tmp_path / "log"
    log.write_text("")
    told = found.supervisor.fault(log, {MPI_LAUNCHER: -9})
    assert told == "the launcher of MPI died by signal 9 (SIGKILL)"


def test_the_parent_of_a_rank_stands_for_it(ranks, tmp_path):
    found = ranks(2, 60.0)
    children = [found.child(rank) for rank in range(2)]
    for board in found.boards:
        board.set_phase(Phase.RUNNING)
    found.supervisor.look()
    for child in children:
        child.kill()
        child.wait()
    log = tmp_path / "log"
    log.write_text(f"=   PID {os.getpid()} RUNNING AT here\n=   EXIT CODE: 9\n")
    told = found.supervisor.fault(log, {MPI_LAUNCHER: 9})
    assert told.startswith("ranks 0, 1 died by signal 9 (SIGKILL)")  # both are its children
    log.write_text("")
    assert "rank -1" not in found.supervisor.fault(log, {MPI_LAUNCHER: 9})


def test_an_error_of_a_rank_is_told(ranks):
    found = ranks(2, 60.0)
    found.boards[1].count_steps(4)
    found.supervisor.look()
    found.boards[1].fail("ValueError: no such thing")
    assert found.supervisor.fault(None, {0: -15, 1: 1}) != ""
    expected = "rank 1 failed after step 4: ValueError: no such thing"
    assert found.supervisor.fault(None, {1: 1}) == expected


def test_a_rank_that_stops_is_told_from_those_that_wait_for_it(ranks, monkeypatch):
    found, now = ranks(2, 10.0), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    found.boards[0].wait("`all_reduce` of `g` with the ranks 0, 1")
    found.boards[1].go_on()
    for now[0] in (0.0, 6.0, 11.0):
        found.boards[0]._numbers[board_module._BEATS] += 1
        found.boards[1]._numbers[board_module._BEATS] = 1
        said = found.supervisor.look()
    assert said == (
        "rank 1 did not answer for 10 s, as if the process were stopped: rank 1 stands before its "
        "first step"
    )


def test_a_rank_does_not_answer_while_mpi_starts(ranks, monkeypatch):
    found, now = ranks(2, 10.0), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    found.boards[0].wait("`MPI_Init` with all ranks")
    child = found.child(1)
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    for board in found.boards:
        board._numbers[board_module._BEATS] = 1
    found.supervisor.look()
    now[0] = 11.0
    assert found.supervisor.look() == (
        "rank 1 did not answer for 10 s, as if the process were stopped: rank 1 stands before its "
        "first step (its process is stopped)"
    )


def test_ranks_that_all_stand_still(ranks, monkeypatch):
    found, now = ranks(3, 10.0), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def look(until):
        for _ in range(3):
            for board in found.boards:
                board._numbers[board_module._BEATS] += 1
            now[0] += until / 3
            said = found.supervisor.look()
        return said

    found.boards[2].begin_step()
    assert look(30) is None  # all compute, or do not train yet
    found.boards[0].begin_step()
    found.boards[0].wait("`barrier` with the ranks 0, 1, 2")
    assert look(9) is None
    found.boards[1].set_phase(Phase.ENDED)
    assert look(12) == (
        "no rank went on for 10 s: rank 1 stands after the end of its script, after step 0; "
        "rank 2 stands in step 1; rank 0 stands in step 1, where it waits in `barrier` with the "
        "ranks 0, 1, 2"
    )


def test_what_is_left_is_killed(ranks):
    found = ranks(2, 60.0)
    child = found.child(0)
    found.child(1)
    os.kill(child.pid, signal.SIGSTOP)
    found.supervisor.look()
    found.supervisor.kill()
    assert [child.wait(5) for child in found.children] == [-9, -9]


def test_the_newest_checkpoint_is_remembered_over_a_restart(ranks, tmp_path):
    found = ranks(1, 60.0)
    found.boards[0].note_checkpoint(tmp_path / "step-7")
    found.supervisor.look()
    found.supervisor.begin()
    assert found.supervisor.look() is None
    assert found.supervisor.checkpoint == str(tmp_path / "step-7")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyboardInterrupt(), "it was interrupted"),
        (ValueError("two\nlines"), "ValueError: two lines"),
        (AssertionError(), "AssertionError"),
        ("the script ended with 3", "the script ended with 3"),
    ],
)
def test_what_a_rank_ends_with_is_told(error, told, tmp_path, monkeypatch):
    monkeypatch.setenv(board_module.BOARD_VARIABLE, str(tmp_path))
    standing = Standing()
    standing.open(0)
    standing.fail(error)
    assert Board(board_path(tmp_path, 0)).error == told

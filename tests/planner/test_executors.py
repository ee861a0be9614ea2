"""Tasks of a search on processes, over MPI, and on a Dask cluster; workers that fail."""

import os
import pickle
import re
import time
from pathlib import Path

import pytest

import shardwright
from shardwright.ir.errors import NotFoundError, OptionError, ShardwrightWarning
from shardwright.planner.choice.questions import NotFasterError
from shardwright.planner.executors.tasks import Tasks
from shardwright.planner.executors.workers import Forked

ROOT = Path(__file__).parents[2]
TEXT = "number {}".format


def double(number):
    if number < 0:
        raise NotFoundError("negative")
    if number == 13:
        raise ZeroDivisionError("a fault of the program")
    return 2 * number


def tasks_of(run, workers, is_answer=lambda task, answer: isinstance(answer, int)):
    return Tasks(run, Forked(run, workers) if workers > 1 else None, TEXT, is_answer)


def answers_to(run, numbers, workers=2):
    """Return what workers answer, in the order of the numbers."""
    tasks = tasks_of(run, workers)
    try:
        submitted = [tasks.submit(number) for number in numbers]
        return [tasks.answer(number) for number in submitted]
    finally:
        tasks.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_are_those_of_the_tasks_in_any_order(workers):
    tasks = tasks_of(double, workers)
    try:
        numbers = [tasks.submit(number) for number in (5, -1, 7, 8, 9)]
        answers = {number: tasks.answer(number) for number in (3, 0, 1, 4, 2)}
    finally:
        tasks.close()
    assert numbers == [0, 1, 2, 3, 4]
    assert [answers[number] for number in (0, 2, 3, 4)] == [10, 14, 16, 18]
    assert isinstance(answers[1], NotFoundError)


@pytest.mark.parametrize("each", [1, 2])
def test_what_is_awaited_is_begun_before_what_waits(tmp_path, each):
    begun = tmp_path / "begun"

    def run(number):
        with begun.open("a") as file:
            file.write(f"{number} ")
        return 2 * number

    tasks = Tasks(run, Forked(run, 1), TEXT, each=each)
    try:
        numbers = [tasks.submit(number) for number in range(5)]
        assert tasks.answer(numbers[4]) == 8
        assert [tasks.answer(number) for number in numbers[:4]] == [0, 2, 4, 6]
    finally:
        tasks.close()
    first = [str(number) for number in range(each)]
    assert begun.read_text().split() == [*first, "4", *map(str, range(each, 4))]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.filterwarnings("ignore:the process of number 13 failed")
def test_a_fault_of_the_program_is_raised(workers):
    with pytest.raises(ZeroDivisionError):
        answers_to(double, [13], workers)


def once(folder, number, fault):
    """Return a task that goes wrong in the first process that runs it, for one number."""

    def run(asked):
        mark = folder / str(asked)
        if asked == number and not mark.exists():
            mark.touch()
            return fault(asked)
        return 2 * asked

    return run


@pytest.mark.parametrize(
    "death", [lambda _: os._exit(1), lambda _: os.kill(os.getpid(), 9)], ids=["exit", "kill"]
)
def test_the_tasks_of_a_process_that_dies_are_done_again(death, tmp_path):
    with pytest.warns(ShardwrightWarning) as told:
        answers = answers_to(once(tmp_path, 99, death), [99, 4, 5])
    assert answers == [198, 8, 10]
    assert str(told[0].message) == (
        "the process of number 99 ended before its answer; it is done again"
    )


def test_a_task_whose_process_dies_twice_is_an_error_that_names_it():
    def mortal(number):
        if number == 99:
            os._exit(1)
        return 2 * number

    with pytest.warns(ShardwrightWarning):
        answers = answers_to(mortal, [99, 4, 5])
    assert str(answers[0]) == (
        "the process of number 99 ended before its answer, and so did one on its own; "
        "allow it more memory"
    )
    assert answers[1:] == [8, 10]


def test_a_process_that_dies_while_it_is_idle_is_replaced(tmp_path):
    pids = []
    tasks = tasks_of(lambda _: os.getpid(), 2)
    try:
        pids.append(tasks.answer(tasks.submit(0)))
        os.kill(pids[0], 9)
        while any(process.pid == pids[0] for process in tasks._workers._pool._processes.values()):
            time.sleep(0.01)
            if tasks._workers._pool._broken:
                break
        assert tasks.answer(tasks.submit(1)) not in (pids[0], os.getpid())
    finally:
        tasks.close()


@pytest.mark.parametrize("nonsense", [lambda _: "words", lambda _: None, lambda _: 1.5])
def test_a_worker_that_answers_nonsense_is_named_and_its_task_done_again(nonsense, tmp_path):
    with pytest.warns(ShardwrightWarning) as told:
        answers = answers_to(once(tmp_path, 99, nonsense), [99, 4])
    assert answers == [198, 8]
    assert [str(one.message) for one in told] == [
        "the process of number 99 answered something else; it is done again"
    ]


def test_a_worker_that_answers_another_task_is_named(monkeypatch):
    monkeypatch.setattr(Forked, "read", lambda _, result: (result[0] + 1, result[1]))
    with pytest.warns(ShardwrightWarning, match="number 4 answered something else"):
        assert answers_to(double, [4]) == [8]


def test_what_cannot_be_sent_back_is_done_again(tmp_path):
    with pytest.warns(ShardwrightWarning, match="number 7 failed with"):
        assert answers_to(once(tmp_path, 7, lambda _: lambda: 0), [7, 8]) == [14, 16]


def test_processes_end_whatever_they_do():
    tasks = tasks_of(lambda _: time.sleep(600), 2)
    tasks.submit(1)
    begin = time.monotonic()
    tasks.close()
    assert time.monotonic() - begin < 60


# The option


@pytest.mark.parametrize("value", ["", "threads", "dask://", "dask://host", "dask://:1", 3, None])
def test_what_is_no_executor_is_refused(value):
    with pytest.raises(OptionError) as error:
        shardwright.compile("mlp", 2, executor=value)
    assert str(error.value) == (
        f"`executor` is {value!r}, expected `processes`, `mpi` or `dask://HOST:PORT`; "
        "the last one is the address of a Dask scheduler"
    )


def test_the_number_of_processes_is_that_of_this_machine():
    with pytest.raises(OptionError) as error:
        shardwright.compile("mlp", 2, executor="mpi", workers=2)
    assert str(error.value) == (
        "`workers` has no effect with the executor `mpi`, which has its own; leave one of them out"
    )


def test_an_executor_without_a_task_is_told():
    text = (
        "one configuration is searched, in this process: the executor `dask://localhost:1` has no "
        "task; `--mesh search` and `--stages search` have tasks for it"
    )
    with pytest.warns(ShardwrightWarning, match=f"^{re.escape(text)}$"):
        shardwright.compile("mlp", 2, cluster="cpu", mesh="2", executor="dask://localhost:1")


def test_that_no_plan_is_faster_is_told_between_processes_with_what_it_takes() -> None:
    told = pickle.loads(pickle.dumps(NotFasterError(1.5, 1.6)))
    assert (str(told), told.seconds) == ("no plan of blocks is expected below 1.5 s", 1.6)

"""Tasks of an outer search, answered by processes."""

import os
import time

import pytest

from shardwright.compiler.outer.processes import answering
from shardwright.ir.errors import NotFoundError, ShardwrightWarning

TEXT = "number {}".format


def _double(number):
    if number < 0:
        raise NotFoundError("negative")
    if number == 13:
        raise ZeroDivisionError("a fault of the program")
    return 2 * number


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_are_those_of_the_tasks_in_any_order(workers):
    tasks = answering(_double, workers, TEXT)
    try:
        numbers = [tasks.submit(number) for number in (5, -1, 7, 8, 9)]
        answers = {number: tasks.answer(number) for number in (3, 0, 1, 4, 2)}
    finally:
        tasks.close()
    assert numbers == [0, 1, 2, 3, 4]
    assert [answers[number] for number in (0, 2, 3, 4)] == [10, 14, 16, 18]
    assert isinstance(answers[1], NotFoundError)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fault_of_the_program_is_raised(workers):
    tasks = answering(_double, workers, TEXT)
    try:
        number = tasks.submit(13)
        with pytest.raises(ZeroDivisionError):
            tasks.answer(number)
    finally:
        tasks.close()


def test_the_task_of_a_process_that_dies_is_done_again(tmp_path):
    def double(number):
        mark = tmp_path / str(number)
        if number == 99 and not mark.exists():
            mark.touch()
            os._exit(1)
        return 2 * number

    tasks = answering(double, 2, TEXT)
    try:
        numbers = [tasks.submit(number) for number in (99, 4, 5)]
        with pytest.warns(ShardwrightWarning) as told:
            answers = [tasks.answer(number) for number in numbers]
    finally:
        tasks.close()
    assert answers == [198, 8, 10]
    assert [str(one.message) for one in told] == [
        "the process of number 99 ended before its answer; it is done again"
    ]


def test_a_task_whose_process_dies_twice_is_an_error_that_names_it():
    def double(number):
        if number == 99:
            os._exit(1)
        return 2 * number

    tasks = answering(double, 2, TEXT)
    try:
        numbers = [tasks.submit(number) for number in (99, 4, 5)]
        with pytest.warns(ShardwrightWarning, match="number 99"):
            answers = [tasks.answer(number) for number in numbers]
    finally:
        tasks.close()
    assert str(answers[0]) == (
        "the process of number 99 ended before its answer, and so did a second one; "
        "allow it more memory"
    )
    assert answers[1:] == [8, 10]


def test_a_slow_answer_is_waited_for():
    def slow(number):
        time.sleep(0.2)
        return number

    tasks = answering(slow, 2, TEXT)
    try:
        assert [tasks.answer(tasks.submit(number)) for number in (1, 2)] == [1, 2]
    finally:
        tasks.close()

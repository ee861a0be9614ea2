"""Tasks of an outer search, answered by processes."""

import os
import time

import pytest

from shardwright.compiler.outer.processes import Inline, OutOfTimeError, answering
from shardwright.ir.errors import NotFoundError


def _double(number):
    if number < 0:
        raise NotFoundError("negative")
    if number == 13:
        raise ZeroDivisionError("a fault of the program")
    if number == 99:
        os._exit(1)
    return 2 * number


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_are_those_of_the_tasks_in_any_order(workers):
    tasks = answering(_double, workers, time.perf_counter() + 60)
    try:
        numbers = [tasks.submit(number) for number in (5, -1, 7, 8, 9)]
        answers = {number: tasks.answer(number) for number in (3, 0, 1, 4, 2)}
    finally:
        tasks.close()
    assert numbers == [0, 1, 2, 3, 4]
    assert [answers[number] for number in (0, 2, 3, 4)] == [10, 14, 16, 18]
    assert isinstance(answers[1], NotFoundError)


def test_an_answer_that_has_come_is_told():
    tasks = answering(_double, 2, time.perf_counter() + 60)
    try:
        one, two = tasks.submit(5), tasks.submit(6)
        tasks.answer(two)
        while not tasks.is_answered(one):
            time.sleep(0.01)
        assert tasks.answer(one) == 10
        assert not tasks.is_answered(two)
    finally:
        tasks.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fault_of_the_program_is_raised(workers):
    tasks = answering(_double, workers, time.perf_counter() + 60)
    try:
        number = tasks.submit(13)
        with pytest.raises(ZeroDivisionError):
            tasks.answer(number)
    finally:
        tasks.close()


def test_a_process_that_dies_is_replaced():
    tasks = answering(_double, 2, time.perf_counter() + 60)
    try:
        numbers = [tasks.submit(number) for number in (99, 4, 5)]
        answers = [tasks.answer(number) for number in numbers]
    finally:
        tasks.close()
    assert "ended before its answer" in str(answers[0])
    assert answers[1:] == [8, 10]


def test_no_task_begins_after_the_deadline():
    tasks = Inline(_double, time.perf_counter() - 1)
    number = tasks.submit(1)
    with pytest.raises(OutOfTimeError):
        tasks.answer(number)

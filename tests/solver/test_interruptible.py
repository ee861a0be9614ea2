"""An interrupt ends CP-SAT and is raised."""

import os
import random
import signal
import threading

import pytest
from ortools.sat.python import cp_model

from shardwright.solver.interruptible import solve_model


def hard_model():
    """Return a model that takes long, and is solved a little at once."""
    random.seed(1)
    model = cp_model.CpModel()
    chosen = [model.new_bool_var(str(i)) for i in range(400)]
    for _ in range(300):
        items = random.sample(chosen, 20)
        sizes = [random.randint(1, 1000) for _ in items]
        model.add(cp_model.LinearExpr.weighted_sum(items, sizes) <= sum(sizes) // 3)
    gains = [random.randint(1, 1000) for _ in chosen]
    model.maximize(cp_model.LinearExpr.weighted_sum(chosen, gains))
    return model


class Interrupt(cp_model.CpSolverSolutionCallback):
    """Interrupts the process at the first solution."""

    def __init__(self):
        super().__init__()
        self.sent = threading.Event()

    def on_solution_callback(self):
        if not self.sent.is_set():
            self.sent.set()
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_is_raised():
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 2
    solver.parameters.max_time_in_seconds = 300
    callback = Interrupt()
    with pytest.raises(KeyboardInterrupt):
        solve_model(solver, hard_model(), callback)
    assert callback.sent.is_set()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("begins", [True, False])
def test_an_interrupt_while_the_search_starts_is_raised(begins, monkeypatch):
    started = []

    def interrupted(thread):
        started.append(thread)
        if begins:
            start(thread)
        raise KeyboardInterrupt

    start = threading.Thread.start
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 300
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            solve_model(solver, hard_model())
    (search,) = started
    if not begins:
        start(search)  # too late: nothing is searched
    search.join(100)
    assert not search.is_alive()


def test_an_error_of_the_solver_is_raised():
    with pytest.raises(AttributeError):
        solve_model(cp_model.CpSolver(), "no model")


def test_the_answer_is_that_of_the_solver():
    model = cp_model.CpModel()
    item = model.new_bool_var("item")
    model.maximize(item)
    solver = cp_model.CpSolver()
    assert solve_model(solver, model) == cp_model.OPTIMAL
    assert solver.boolean_value(item)

"""Runs CP-SAT so that an interrupt ends the search at once and is raised.

OR-Tools would catch the signal itself: the search would end as at its time limit, the program would
continue, and later interrupts would kill it.
"""

from concurrent.futures import Future, wait
from threading import Thread

from ortools.sat.python import cp_model

from shardwright.ir.files.waiting import LOOK


def solve_model(
    solver: cp_model.CpSolver,
    model: cp_model.CpModel,
    callback: cp_model.CpSolverSolutionCallback | None = None,
) -> cp_model.CpSolverStatus:
    """Solve a model in a thread, so that the calling thread receives interrupts."""
    solver.parameters.catch_sigint_signal = False
    result: Future[cp_model.CpSolverStatus] = Future()

    def solve() -> None:
        if result.set_running_or_notify_cancel():
            try:
                result.set_result(solver.solve(model, callback))
            except BaseException as error:  # raised by the calling thread
                result.set_exception(error)

    try:
        Thread(target=solve).start()  # which an interrupt may end, too
        while not wait([result], LOOK).done:
            pass  # a waiting thread does not receive a signal that another thread got
    except BaseException:
        while not (result.cancel() or result.done()):
            solver.stop_search()  # a search that is just starting ignores the first stop
            wait([result], LOOK)
        raise
    return result.result()

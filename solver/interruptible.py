"""Runs CP-SAT so that an interrupt ends the search at once and is not lost.

OR-Tools would catch the signal itself: the search would end as if its time were up, the program
would go on, and later interrupts would kill it.
"""

from concurrent.futures import ThreadPoolExecutor, wait

from ortools.sat.python import cp_model

_WAKING = 0.1  # seconds


def solve_model(
    solver: cp_model.CpSolver,
    model: cp_model.CpModel,
    callback: cp_model.CpSolverSolutionCallback | None = None,
) -> cp_model.CpSolverStatus:
    """Solve a model in a thread, so that this one hears of interrupts."""
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(solver.solve, model, callback)
        try:
            while not wait([answer], _WAKING).done:
                pass  # a thread that only waits may not hear of a signal that another one got
        except BaseException:
            while not answer.done():  # a search that is just beginning does not hear the first
                solver.stop_search()
                wait([answer], _WAKING)
            raise
        return answer.result()

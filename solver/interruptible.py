"""Runs CP-SAT so that an interrupt ends the search at once and is raised.

OR-Tools would catch the signal itself: the search would end as at its time limit, the program would
continue, and later interrupts would kill it.
"""

from concurrent.futures import ThreadPoolExecutor, wait

from ortools.sat.python import cp_model

_WAKING = 0.1  # seconds


def solve_model(
    solver: cp_model.CpSolver,
    model: cp_model.CpModel,
    callback: cp_model.CpSolverSolutionCallback | None = None,
) -> cp_model.CpSolverStatus:
    """Solve a model in a thread, so that the calling thread receives interrupts."""
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(solver.solve, model, callback)
        try:
            while not wait([result], _WAKING).done:
                pass  # a waiting thread does not receive a signal that another thread got
        except BaseException:
            while not result.done():  # a search that is just starting ignores the first stop
                solver.stop_search()
                wait([result], _WAKING)
            raise
        return result.result()

"""Runs CP-SAT so that an interrupt ends the search at once and is not lost.

OR-Tools would catch the signal itself: the search would end as if its time were up, the program
would go on, and later interrupts would kill it.
"""

from concurrent.futures import ThreadPoolExecutor

from ortools.sat.python import cp_model


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
            return answer.result()
        except BaseException:
            solver.stop_search()
            raise

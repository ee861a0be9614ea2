"""The assignment problem and its solvers; independent of graphs of operators.

`problem` states the problem, `evaluate` judges answers, `solve` returns one with a bound. `exact`
searches graphs of small tree width to a proof, `anytime` those of any size within a
budget (`work`), `formats` reads instances.

Choose a strategy x_v for every variable v (`problem.Problem`, `evaluate.evaluate`):

    minimise  sum_v c_v(x_v) + sum_(u,v) T_uv(x_u, x_v)                                       (1)
    such that sum_v m_v,t(x_v) <= limit                                at every time t        (2)

Presolve keeps an optimum (`presolve.drop_dominated`; `anytime.reductions`, `anytime.dominance`,
`anytime.graph`):

    T(a, b) = f(a) + g(b)                          moves into c           `reductions.normalised`
    T(a, b) < inf for one b = f(a) only            x_v = f(x_u)           `reductions.contracted`
    c(b) - c(a) + sum_T max_y (T(b,y) - T(a,y)) <= 0,  m_t(b) <= m_t(a)
                                                   a is dominated         `dominance.undominated`
    m_v,t(a) + sum_(u != v) min m_u,t > limit      a never fits           `graph.affordable`
    rows t whose live uses another row has too     are covered            `memory_rows.uncovered`

Lower bounds. With a price p_t >= 0 on every row, (2) moves into the costs (Lagrangian relaxation):

    L(p) = min_x [ (1) + sum_t p_t sum_v m_v,t(x_v) ] - p . limit  <=  optimum                (3)

    `exact.dual.Dual` for narrow graphs (the minimum is exact, by `elimination.Elimination`),
    `anytime.dual_ascent.DualAscent` for wide ones (the minimum is bounded by (4)).

Messages M(u to v) reparametrise (1), whatever their values (`anytime.message_passing.Messages`):

    D_v(a) = c_v(a) + sum_u M(u to v)(a)
    T'_uv(a, b) = T_uv(a, b) - M(v to u)(a) - M(u to v)(b)
    (1) = sum_v D_v(x_v) + sum_uv T'_uv(x_u, x_v)  >=  sum_v min D_v + sum_uv min T'_uv       (4)

    a sweep (TRW-S) improves chains of pairs at once (`Messages.sweep`); `diffuse` raises (4).

Fixing. With (4) as the bound and U the cost of the incumbent, strategy a of v is fixed out if

    bound + D_v(a) - min D_v >= U                               `exact`, `anytime.gap_closing`   (5)

    With any U' <= U in its place, an assignment better than U costs U' or more, or remains:
    a bound on the rest bounds all, up to U'             `LargeNeighbourhoods.search_likely`

    With exact elimination the left side is the marginal of the strategy: the least cost of all
    assignments that choose a                                    `marginals.options_below`

Gap closing. In units of 1 / scale all of (4) is whole, and the memory left is s_t = limit - use_t:

    cost(x) = bound + sum_v D_v + sum_uv T'_uv + sum_t p_t s_t,  all terms >= 0               (6)

    `exact.frontier.Frontier` searches it by Pareto fronts, `anytime.cpsat_finish.GraphModel` by
    CP-SAT: either an assignment cheaper than U is found, or it is proven that there is none.
"""

from shardwright.solver.brute_force import brute_force
from shardwright.solver.evaluate import Evaluation, evaluate
from shardwright.solver.exact.dynamic_programming import dynamic_programming
from shardwright.solver.exact.least_memory import minimize_memory
from shardwright.solver.methods import METHODS, SolveOptions, register_method
from shardwright.solver.problem import FORBIDDEN, Identity, MemoryUse, Pair, Problem, Variable
from shardwright.solver.solution import Solution
from shardwright.solver.solve import solve
from shardwright.solver.work import Budget, Clock

__all__ = [
    "FORBIDDEN",
    "METHODS",
    "Budget",
    "Clock",
    "Evaluation",
    "Identity",
    "MemoryUse",
    "Pair",
    "Problem",
    "Solution",
    "SolveOptions",
    "Variable",
    "brute_force",
    "dynamic_programming",
    "evaluate",
    "minimize_memory",
    "register_method",
    "solve",
]

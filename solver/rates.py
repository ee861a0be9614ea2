"""What counted work takes, in seconds of a reference core: the rates by which searches charge it.

All rates were fitted together to processor seconds of searches of two large models
(`benchmarks/work.md`, which compares their sums with processor seconds); of CP-SAT it is the unit
that OR-Tools calls deterministic time. Those of additions are in `shardwright.solver.elimination`.

With all rates twice as high, a search does half as much for the same effort, and the gap that is
left is that of half the effort; with half of them, it takes twice the processor time. With one of
them twice as high, what it prices gets half of its share before the budget is spent. An answer that
is proven stays the same.
"""

from typing import NamedTuple


class Rates(NamedTuple):
    """Seconds of work for one unit of what is counted.

    Parameters
    ----------
    block_node : float
        An operator of a program that is cut into blocks.
    pass_node : float
        A node that a pass leaves.
    simulated_node : float
        A node whose step is simulated.
    step : float
        An operator, a parameter or a result that is added to a problem.
    strategy : float
        A strategy of an operator that is priced.
    pair_entry : float
        An entry of a table between two choices that is priced.
    network : float
        A variable or a pair of a problem, to make the network that is searched.
    difference : float
        An entry of a table that is compared with that of another strategy.
    message : float
        A message of an elimination, besides its additions.
    state : float
        A state of a Pareto front that a join makes.
    partial : float
        A partial assignment of a search in order.
    cpsat_unit : float
        A unit of CP-SAT's deterministic time.
    flat_entry : float
        An entry of a table, in a round of presolve of message passing.
    swept_entry : float
        An entry of a table, in a step of dual ascent.
    decoded_entry : float
        An entry of a table, where a decoded assignment is improved.
    model_entry : float
        An entry of a table, to build the model for CP-SAT.
    exchange : float
        A variable whose strategy is exchanged in a local search.
    """

    block_node: float = 5e-5
    pass_node: float = 1.5e-5
    simulated_node: float = 9e-5
    step: float = 1.5e-4
    strategy: float = 2e-5
    pair_entry: float = 1e-7
    network: float = 6e-5
    difference: float = 1e-9
    message: float = 6e-5
    state: float = 4e-7
    partial: float = 1e-4
    cpsat_unit: float = 1.0
    flat_entry: float = 1e-7
    swept_entry: float = 2e-9
    decoded_entry: float = 1e-8
    model_entry: float = 2e-5
    exchange: float = 1e-5


SECONDS_OF = Rates()

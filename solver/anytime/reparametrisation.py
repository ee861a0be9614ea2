"""Reparametrisation: the same costs split anew, so that a bound stands apart and the rest is >= 0.

Prices and messages are rounded to multiples of 1 / scale; any values are valid, so that

    cost(x)  =  floor + ( sum of D_v(x_v) + sum of T_uv(x_u, x_v) + sum of price_t s_t ) / scale
    s_t      =  capacity_t - use_t(x)  >=  0        the memory left in each row with a price

holds exactly, in integers, with D, T >= 0. A term that is larger than the gap between the best cost
and the floor cannot be in a better assignment: strategies and pairs with such a D or T are out, and
no more memory may be left than the gap over the price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shardwright.solver.anytime.dual_ascent import priced_unary
from shardwright.solver.anytime.graph import Graph, Rows
from shardwright.solver.anytime.message_passing import Messages, diffuse
from shardwright.solver.problem import Array

DIFFUSIONS = 300
"""Rounds in which costs are spread evenly over the tables."""

REACH = 2.0**58
"""No integer here is larger; an entry of this is forbidden."""


@dataclass
class Reparametrisation:
    """The same costs split anew: `floor` is a bound, the rest is not negative.

    All are integers in units of 1 / scale; an entry of at least `REACH` is forbidden.
    """

    scale: int
    floor: int
    prices: Array
    unary: Array
    tables: list[Array]


def reparametrise(
    graph: Graph, rows: Rows, prices: Array, messages: Messages | None, gap: float
) -> Reparametrisation:
    """Split the costs by messages that are good at these prices; without messages, as they are."""
    scale = 1 if messages is None else _scale(graph, rows, prices, gap)
    whole_prices = np.round(prices * scale).astype(np.int64)
    unary = _priced(graph, rows, whole_prices, scale)
    if messages is not None:
        diffuse(graph, priced_unary(graph, rows, whole_prices / scale), messages.pieces, DIFFUSIONS)
    limits = zip(whole_prices.tolist(), rows.capacity.tolist(), strict=True)
    floor = -sum(price * limit for price, limit in limits)
    tables = []
    for e in range(len(graph.first)):
        table, forbidden = _scaled_table(graph, e, scale)
        if messages is not None:
            _move_messages(graph, messages, e, scale, table, unary)
        least = int(table[~forbidden].min()) if not forbidden.all() else 0
        floor += least
        tables.append(np.where(forbidden, int(REACH), table - least).ravel())
    forbidden = graph.unary >= graph.big
    unary[forbidden] = int(REACH)
    lowest = np.minimum.reduceat(unary, graph.offset[:-1])
    floor += sum(lowest.tolist())
    unary = np.where(forbidden, int(REACH), unary - np.repeat(lowest, graph.size))
    return Reparametrisation(scale, floor, whole_prices, unary, tables)


def _scaled_table(graph: Graph, e: int, scale: int) -> tuple[Array, Array]:
    """Return the table of a pair in units of 1 / scale, and a mask of its forbidden entries."""
    shape = graph.size[graph.first[e]], graph.size[graph.second[e]]
    entries = graph.tables[graph.place[e] : graph.place[e] + shape[0] * shape[1]].reshape(shape)
    forbidden = entries >= graph.big
    return np.where(forbidden, 0, entries).astype(np.int64) * scale, forbidden


def _move_messages(
    graph: Graph, messages: Messages, e: int, scale: int, table: Array, unary: Array
) -> None:
    """Move the messages of a pair from its table into the vectors of its variables."""
    to_first, to_second = (_rounded(part, scale) for part in messages.of_pair(e))
    table -= to_first[:, None] + to_second
    u, v = graph.first[e], graph.second[e]
    unary[graph.offset[u] : graph.offset[u + 1]] += to_first
    unary[graph.offset[v] : graph.offset[v + 1]] += to_second


def _priced(graph: Graph, rows: Rows, prices: Array, scale: int) -> Array:
    """Return the costs of the variables and of their memory, in units of 1 / scale."""
    total = np.where(graph.unary >= graph.big, 0, graph.unary).astype(np.int64) * scale
    until = np.concatenate([[0], np.cumsum(prices)])
    for k in np.flatnonzero(until[rows.last] > until[rows.first]).tolist():
        v = rows.owner[k]
        amounts = rows.amount[rows.place[k] : rows.place[k] + graph.size[v]]
        total[graph.offset[v] : graph.offset[v + 1]] += amounts * (
            until[rows.last[k]] - until[rows.first[k]]
        )
    return total


def _scale(graph: Graph, rows: Rows, prices: Array, gap: float) -> int:
    """Return a power of two that keeps prices fine and all sums within 64 bits."""
    entries = int((graph.size[graph.first] * graph.size[graph.second]).sum())
    terms = len(graph.unary) + entries + len(prices) + 1  # CP-SAT adds up all of them
    wanted = 4.0
    if (prices > 0).any():
        wanted = max(wanted, 2.0**10 / float(np.median(prices[prices > 0])))
    priced = priced_unary(graph, rows, prices)[graph.unary < graph.big]
    tables = graph.tables[graph.tables < graph.big]
    largest = max(float(np.abs(part).max(initial=1.0)) for part in (priced, tables))
    most = min(REACH / (16 * largest), REACH / (max(gap, 1.0) * terms))
    return int(2.0 ** math.floor(math.log2(max(min(wanted, most), 1.0))))


def _rounded(messages: Array, scale: int) -> Array:
    """Return messages in units of 1 / scale; any values are valid, so large ones are clipped."""
    most = REACH / 64
    return np.clip(np.round(messages * scale), -most, most).astype(np.int64)

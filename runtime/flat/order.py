"""The order of the nodes of a rank whose reductions run while it computes.

What only the end of the step needs waits until the computation is done: updates of parameters, and
whatever else reads a reduction and leads to outputs alone. Those whose reduction started first come
first, since it ends first.
"""

from collections.abc import Mapping, Sequence, Set

from shardwright.operators.views import buffer_roots
from shardwright.runtime.instructions import Instruction


def with_late_nodes_last(
    program: Sequence[Instruction], started: Set[str]
) -> tuple[Instruction, ...]:
    """Return the nodes of a program, those last that only the end of the step needs.

    Parameters
    ----------
    program : sequence of Instruction
        The nodes of a step.
    started : set of str
        The nodes that start a reduction, which ends later.
    """
    late = _late(program, started)
    now = [item for item in program if item.node.name not in late]
    return (*now, *(item for item in program if item.node.name in late))


def in_order_of_arrival(
    program: Sequence[Instruction], starts: Mapping[str, int]
) -> tuple[Instruction, ...]:
    """Return the nodes of a program, the last of them in the order in which reductions start.

    Parameters
    ----------
    program : sequence of Instruction
        The nodes, with the late ones last.
    starts : mapping of str to int
        For each node that takes part in a reduction, the position of the start.
    """
    late = _late(program, starts.keys())
    arrival = _arrivals(program, starts, late)
    count = len(program) - len(late)
    end = sorted(program[count:], key=lambda item: arrival[item.node.name])
    return (*program[:count], *end)


def _late(program: Sequence[Instruction], started: Set[str]) -> frozenset[str]:
    """Return the nodes that read a reduction, at one remove or more, and lead to outputs alone.

    A node stays where it is if another one that stays reads its results, or overwrites what it
    reads.
    """
    roots = buffer_roots([item.node for item in program])
    makers = {local.name: item.node.name for item in program for local in item.results}
    waiting: set[str] = set()
    for item in program:
        sources = {makers.get(name, "") for name in item.node.operands}
        if item.node.name not in started and sources & (started | waiting):
            waiting.add(item.node.name)
    needed, overwritten, late = set[str](), set[str](), set[str]()
    for item in reversed(program):
        read = {roots.get(name, name) for name in item.node.operands}
        if item.node.name in waiting - needed and not read & overwritten:
            late.add(item.node.name)
            continue
        needed |= {makers.get(name, "") for name in item.node.operands}
        replaced = [item.node.operands[i] for i in item.replaced]
        overwritten |= {roots.get(name, name) for name in replaced}
    return frozenset(late)


def _arrivals(
    program: Sequence[Instruction], starts: Mapping[str, int], late: Set[str]
) -> Mapping[str, int]:
    """Return for each late node the start of the last reduction that it waits for.

    A node that overwrites a buffer waits for what the other readers of the buffer wait for.
    """
    roots = buffer_roots([item.node for item in program])
    made = {local.name: item.node.name for item in program for local in item.results}
    readers: dict[str, list[str]] = {}
    found: dict[str, int] = {}
    for item in program:
        if item.node.name not in late:
            continue
        before = [made.get(name, "") for name in item.node.operands]
        for i in item.replaced:
            name = item.node.operands[i]
            before += readers.get(roots.get(name, name), [])
        found[item.node.name] = max((starts.get(n, found.get(n, -1)) for n in before), default=-1)
        for name in item.node.operands:
            readers.setdefault(roots.get(name, name), []).append(item.node.name)
    return found

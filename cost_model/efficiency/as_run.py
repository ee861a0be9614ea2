"""A step as a training software runs it: operators in line, launched by a host.

A host time only delays tasks, so a step with it is no shorter than the same tasks without, and a
lower bound of those holds. Shares of communication that a software hides are figures of the
software, no result of a schedule: where they are below 1, bounds of a search do not speak of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.fused import Kernel, kernels
from shardwright.cost_model.efficiency.software import Software
from shardwright.cost_model.efficiency.work import Work, work_seconds
from shardwright.cost_model.roofline import operator_work, seconds_of_nodes
from shardwright.cost_model.streams import Placement, Task
from shardwright.ir.graph import Graph, Node, value_bytes
from shardwright.ir.mesh import Mesh
from shardwright.operators.attention.scaled_dot_product import Attention
from shardwright.operators.info import info_of, operator_class

_TOGETHER = 4  # matrices of scores that a fused kernel takes at once


def seconds_as_run(graph: Graph, cluster: Cluster, placed: Sequence[Placement]) -> list[float]:
    """Return the seconds of every node; software moves parameters and gradients in buckets."""
    seconds = seconds_of_nodes(graph, cluster)
    if cluster.software is None:
        return seconds
    buckets = seconds_of_nodes(graph, cluster.without_latencies())
    triples = zip(placed, buckets, seconds, strict=True)
    found = [bucket if where.is_deferrable else alone for where, bucket, alone in triples]
    for kernel in kernels(graph):
        first, *rest = kernel.positions
        found[first] = work_seconds(kernel_work(graph, kernel), cluster)
        for position in rest:
            found[position] = 0.0
    return found


def kernel_work(graph: Graph, kernel: Kernel) -> Work:
    """Return the work of element-wise operators that run as one kernel."""
    mesh, values = graph.mesh or Mesh(()), graph.values
    names = (*kernel.read, *kernel.written)
    moved = sum(value_bytes(values[name], mesh) for name in names)
    clamped = sum(value_bytes(values[name], mesh) for name in kernel.clamped)
    node = graph.nodes[kernel.positions[0]]
    name, dtype = node.operator, node.results[0].type.dtype
    return Work("pointwise", dtype, 0.0, moved, operator=name, clamped=clamped)


def in_line(tasks: Sequence[Task]) -> list[float]:
    """Return when each task starts, where all run in program order.

    As a software runs them, a task waits for the host, and communication of which a share is
    exposed holds up the tasks after it for that share alone; its links serve one at a time.
    """
    if all(not task.host and task.exposed == 1 for task in tasks):
        return list(accumulate((task.seconds for task in tasks), initial=0.0))[:-1]
    starts, now, launched = [], 0.0, 0.0
    free: dict[str, float] = {}
    for task in tasks:
        launched += task.host
        start = max(now, launched) if task.host else now
        if task.exposed < 1:
            links = task.placement.levels
            start = max([start, *(free.get(link, 0.0) for link in links)])
            free.update(dict.fromkeys(links, start + task.seconds))
        starts.append(start)
        now = start + task.seconds * task.exposed
    return starts


def softmax_seconds(work: Work, software: Software) -> float:
    """Return the seconds in which the host launches what fused softmax kernels do not apply to."""
    if work.kind != "attention" or software.attention != "separate":
        return 0.0
    scores = work.products[0].count
    return software.softmax.value * software.host.value if scores % _TOGETHER else 0.0


def launch_seconds(node: Node, graph: Graph, software: Software | None) -> float:
    """Return the host seconds of a node beside those of its own launch."""
    if software is None or not issubclass(operator_class(node.operator), Attention):
        return 0.0
    values, count = [*graph.operand_values(node), *node.results], len(node.operands)
    layouts = [value.known_layout for value in values]
    mesh = graph.mesh or Mesh(())
    work = operator_work(info_of(graph, node), layouts[:count], layouts[count:], mesh)
    return softmax_seconds(work, software)


def run_by(software: Software, tasks: Sequence[Task], in_passes: bool) -> Task:
    """Return a task as a software runs it, and after it others in the same place.

    Communication that computation waits for takes its exposed share, and so do reductions after
    the loop over micro-batches, which hide behind the last of them. Communication of parameters
    elsewhere runs concurrently with computation; it is in buckets, so latencies do not count. What
    runs once in a step beside the loop is launched ahead.

    Parameters
    ----------
    software : Software
        The profile.
    tasks : sequence of Task
        The task, and those after it; their host time is what they take beside their own launch.
    in_passes : bool
        Whether the program has a loop over micro-batches.
    """
    first, *others = (_run_by(software, task, in_passes) for task in tasks)
    if not others:
        return first
    return replace(
        first,
        seconds=first.seconds + sum(task.seconds for task in others),
        computing=first.computing + sum(task.computing for task in others),
        host=first.host + sum(task.host for task in others),
    )


def _run_by(software: Software, task: Task, in_passes: bool) -> Task:
    where = task.placement
    if not where.levels:
        repeats = task.in_loop or not in_passes
        launches = task.seconds > 0 and where.queue == "compute" and repeats
        return task.lasting(task.seconds, task.host + software.host.value) if launches else task
    if where.queue == "blocking":
        sent = task.seconds - task.computing  # a ring computes too
        seconds = task.computing + sent * software.exposed_activations.value
        host = software.host.value + software.collective.value
        return task.lasting(seconds, host)
    share = software.exposed_parameters.value
    if in_passes and not task.in_loop:
        return task.lasting(task.seconds * share, task.host)
    return task.lasting(task.seconds, task.host, share)

"""The memory of a step as a training software keeps it.

It is the account of the program with other sizes of some buffers. Within repeated blocks a software
saves more or less for backward than the program; at the loss it holds other copies of the logits;
it may save what it gathers over tensor ranks, where the program gathers it again; it may add the
gradient of a weight to its sum inside the product, or keep all gradients from step to step. Then
there are the workspaces of libraries, as large as on the device, and what its allocator reserves
beside tensors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardwright.cost_model.buffers import Buffers, MemoryUseReport, buffer_kinds, buffers
from shardwright.cost_model.cluster import Device
from shardwright.cost_model.efficiency.fused import Kernel, kernels
from shardwright.cost_model.efficiency.quantized_copies import quantized_sizes
from shardwright.cost_model.efficiency.software import Software
from shardwright.cost_model.efficiency.unread import block_of
from shardwright.cost_model.memory import peak_memory
from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.graph import Graph, Node, value_bytes
from shardwright.ir.liveness import Loop, loop_of
from shardwright.ir.mesh import Mesh, StageMap
from shardwright.ir.types import item_bytes
from shardwright.operators.models.precision import LOSSES

_CONVERTS = ("convert", "cast")
_REDUCED = ("gradient_redistribution", "fusion")
GRADIENT = float(item_bytes("float32"))
"""Bytes of a gradient that is kept whole."""
WORKSPACE, RESERVE = "workspace", "reserve"
"""Kinds of memory of a software beside those of a program."""


def memory_as_run(graph: Graph, software: Software, device: Device) -> MemoryUseReport:
    """Return the peak memory of one rank as a software keeps it.

    Parameters
    ----------
    graph : Graph
        The program, lowered to collectives.
    software : Software
        The software, with an account of its memory.
    device : Device
        The device, with the workspaces of libraries on it.
    """
    kept = software.memory
    assert kept is not None
    workspace = workspace_bytes(graph, software, device)
    report = peak_memory(graph, buffers_as_run(graph, software, device))
    whole = _whole_gradients(graph) if kept.gradients == "whole" else 0.0
    if kept.gradients == "parts":
        whole = _part_gradients(graph, report.peak_bytes)
    added = whole + workspace
    peak = (report.peak_bytes + added) * kept.reserved.value
    by_kind = dict(report.by_kind)
    by_kind["gradients"] += whole
    by_kind |= {
        WORKSPACE: workspace,
        RESERVE: peak - report.peak_bytes - added,
    }
    groups = tuple((group + added) * kept.reserved.value for group in report.by_group)
    return replace(report, peak_bytes=peak, by_kind=by_kind, by_group=groups)


def workspace_bytes(graph: Graph, software: Software, device: Device) -> float:
    """Return the bytes of libraries, and of the buffer of scores, on a rank."""
    kept = software.memory
    assert kept is not None
    each = 0.0 if kept.score_buffer is None else kept.score_buffer.value
    scores = max((nbytes for _, nbytes in _scores(graph, each)), default=0.0)
    libraries = sum(
        count * device.workspaces[name].value
        for name, count in kept.libraries.items()
        if name in device.workspaces
    )
    return kept.workspace.value + libraries + scores


def buffers_as_run(graph: Graph, software: Software, device: Device) -> Buffers:
    """Return the buffers of a program with the sizes that they have in a software.

    Without workspaces, and what is reserved.
    """
    kept = software.memory
    assert kept is not None
    held = buffers(graph)
    sizes, roots = dict(held.sizes), held.live.roots
    logits, kinds = _logits(graph), buffer_kinds(graph)
    for node in graph.nodes:
        for name in (result.name for result in node.results):
            if kinds[name] == "activations" and block_of(node) and name not in logits:
                sizes[name] *= kept.activations.value
    for kernel in kernels(graph):
        sizes |= _made_again(kernel, sizes, held)
    if software.attention == "separate":
        for name, nbytes in _scores(graph, kept.scores.value):
            sizes[roots.get(name, name)] += nbytes
    if kept.gathered == "saved":
        for saved, results in _gathered_again(graph):
            whole = held.sizes[results[0]]
            sizes |= {**dict.fromkeys(results, 0.0), roots.get(saved, saved): whole}
    if software.casts == "kept":
        sizes |= quantized_sizes(graph, sizes, roots, device.float8_layouts)
    if kept.accumulation == "in_products" or kept.gradients == "whole":
        sizes |= dict.fromkeys(_unreduced(graph), 0.0)
    scale = _logit_scale(graph, held, logits, kept.logits.value)
    sizes |= {name: sizes[name] * scale for name in logits}
    return replace(held, sizes=sizes)


def _made_again(kernel: Kernel, sizes: Mapping[str, float], held: Buffers) -> dict[str, float]:
    """Return the sizes of the values inside a kernel of experts: it keeps what it reads instead.

    What it reads then lasts as long as what is made again of it, so its bytes count there.
    """
    inside = {held.live.roots.get(name, name) for name in kernel.made_again}
    saved = sum(sizes[name] for name in inside)
    kept_for = {held.live.roots.get(name, name) for name in kernel.kept}
    kept = sum(sizes[name] for name in kept_for - held.live.lasting)
    share = min(1.0, kept / saved) if saved else 1.0
    return {name: sizes[name] * share for name in inside}


def _logits(graph: Graph) -> set[str]:
    """Return the values of the shape of logits."""
    shapes = {
        graph.values[node.operands[0]].type.shape
        for node in graph.nodes
        if node.operator in LOSSES and node.operands
    }
    results = (result for node in graph.nodes for result in node.results)
    return {result.name for result in results if result.type.shape in shapes and shapes}


def _logit_scale(graph: Graph, held: Buffers, logits: set[str], each: float) -> float:
    """Return the factor by which the program's bytes for each logit become those of a software."""
    mesh, live, most = graph.mesh or Mesh(()), 0.0, 0.0
    dies = held.live.freed_after
    for position, node in enumerate(graph.nodes):
        live += sum(held.sizes[r.name] for r in node.results if r.name in logits)
        most = max(most, live)
        live -= sum(held.sizes[name] for name in dies.get(position, ()) if name in logits)
    counts = (
        value_bytes(graph.values[name], mesh) / item_bytes(graph.values[name].type.dtype)
        for name in logits
    )
    return each * max(counts, default=0.0) / most if most else 1.0


def _scores(graph: Graph, each: float) -> Iterator[tuple[str, float]]:
    """Yield queries of attention, and the bytes of their scores on a rank at so many for each."""
    mesh = graph.mesh or Mesh(())
    for node in graph.nodes:
        if node.operator == "scaled_dot_product_attention":
            queries, keys = (graph.values[name] for name in node.operands[:2])
            rows = value_bytes(queries, mesh) / item_bytes(queries.type.dtype)
            yield queries.name, each * rows / queries.type.shape[-1] * keys.type.shape[-2]


def _gathered_again(graph: Graph) -> Iterator[tuple[str, list[str]]]:
    """Yield what is gathered for forward and again for backward, with the results."""
    results: dict[str, dict[str, list[str]]] = {}
    parameters = {parameter.name for parameter in graph.parameters}
    for node in graph.nodes:
        if node.operator == "all_gather" and node.operands[0] not in parameters:
            by_role = results.setdefault(node.operands[0], {})
            by_role.setdefault(node.provenance.role, []).append(node.name)
    casts = {n.name for n in graph.nodes if n.operator == "cast" and n.operands[0] in parameters}
    for source, by_role in results.items():
        if source not in casts and {"redistribution", "recompute"} <= set(by_role):
            yield source, [*by_role["redistribution"], *by_role["recompute"]]


def _unreduced(graph: Graph) -> set[str]:
    """Return the gradients of weights, as products make them and until they are added up."""
    loop = loop_of(graph)
    accumulated = frozenset(loop.accumulated) if loop is not None else frozenset[str]()
    made = {n.name: n for n in graph.nodes if n.name not in accumulated}
    ends = [graph.producers[name] for name in accumulated if name in graph.producers]
    names = (gradient_name(p.name) for p in graph.parameters if p.role != "state")
    ends += [graph.producers[name] for name in names if name in graph.producers]
    found: set[str] = set()
    for end in ends:
        found.update(_chain(end, made))
    return found - accumulated


def _chain(end: Node, made: dict[str, Node]) -> Iterator[str]:
    """Yield what a gradient is made as, last first: by its operator, then converted and reduced."""
    while True:
        if end.name in made:
            yield end.name
        passes_on = end.operator in _CONVERTS or end.provenance.role in _REDUCED
        before = made.get(end.operands[0]) if end.operands else None
        if before is None or not passes_on:
            return
        end = before


def lasting_bytes(graph: Graph, software: Software, device: Device) -> tuple[float, ...]:
    """Return the bytes that a rank of each device group keeps between steps.

    Parameters
    ----------
    graph, software, device
        As of `memory_as_run`.
    """
    kept = software.memory
    assert kept is not None
    sizes = buffers(graph).sizes
    gradients = _lasting_gradients(graph) if kept.gradients == "whole" else {}
    if kept.gradients == "parts":
        gradients = _lasting_copies(graph, loop_of(graph))
    where = StageMap(1) if graph.mesh is None else graph.mesh.stage_map
    found = [workspace_bytes(graph, software, device)] * where.groups
    for parameter in graph.parameters:
        layout = graph.values[parameter.name].layout
        stage = None if layout is None else layout.stage
        for group in range(where.groups) if stage is None else (where.group(stage),):
            found[group] += sizes[parameter.name] + gradients.get(parameter.name, 0.0)
    return tuple(found)


def _lasting_gradients(graph: Graph) -> dict[str, float]:
    """Return the bytes of the gradient of each weight, and of its copy in a lower type.

    They are those of what the program accumulates over micro-batches, and in float32 where it
    accumulates nothing.
    """
    loop, mesh = loop_of(graph), graph.mesh or Mesh(())
    accumulated = frozenset(loop.accumulated) if loop is not None else frozenset[str]()
    made = {node.name: node for node in graph.nodes}
    copies, found = _lasting_copies(graph, loop), {}
    for name, elements in _used_elements(graph).items():
        chain = _chain(graph.producers[gradient_name(name)], made)
        summed = next((graph.values[one] for one in chain if one in accumulated), None)
        nbytes = GRADIENT * elements if summed is None else value_bytes(summed, mesh)
        found[name] = copies.get(name, 0.0) + nbytes
    return found


def _lasting_copies(graph: Graph, loop: Loop | None) -> dict[str, float]:
    """Return the bytes of the copy of each weight that all micro-batches read."""
    mesh, found = graph.mesh or Mesh(()), dict[str, float]()
    source = {parameter.name: parameter.name for parameter in graph.parameters}
    for node in graph.nodes[: None if loop is None else loop.start]:
        parameter = source.get(node.operands[0]) if node.operands else None
        if parameter is not None and node.operator in ("cast", "all_gather"):
            source[node.name] = parameter
            nbytes = value_bytes(graph.values[node.name], mesh)
            found[parameter] = max(found.get(parameter, 0.0), nbytes)
    return found


def _whole_gradients(graph: Graph) -> float:
    """Return the bytes of all gradients in float32, where the program does not accumulate them."""
    loop = loop_of(graph)
    if loop is not None and loop.accumulated:
        return 0.0
    return GRADIENT * sum(_used_elements(graph).values())


def _part_gradients(graph: Graph, peak: float) -> float:
    """Return the bytes by which gradients of parts exceed a program's peak.

    Until the step, a rank keeps the gradients of its parts in the type of the copies. At the step
    it keeps those, the parameters, their states and copies, a flat copy of the gradients, and one
    in float32: ``self.flatten(self.averaged_gradients[i]).to(fp32)`` of DeepSpeed's
    ``runtime/zero/stage_1_and_2.py``.
    """
    loop, sizes, mesh = loop_of(graph), buffers(graph).sizes, graph.mesh or Mesh(())
    copies = _lasting_copies(graph, loop)
    kinds = (graph.values[node.name].type.dtype for node in graph.nodes if node.operator == "cast")
    low = min((item_bytes(kind) for kind in kinds if kind.endswith("float16")), default=GRADIENT)
    elements = 0.0
    for parameter in graph.parameters:
        if gradient_name(parameter.name) in graph.producers and parameter.role != "state":
            value = parameter.value
            elements += value_bytes(value, mesh) / item_bytes(value.type.dtype)
    stored = sum(sizes[parameter.name] for parameter in graph.parameters)
    at_step = stored + sum(copies.values()) + (2 * low + GRADIENT) * elements
    is_accumulated = loop is not None and bool(loop.accumulated)
    return max(0.0 if is_accumulated else low * elements, at_step - peak)


def _used_elements(graph: Graph) -> dict[str, float]:
    """Return the elements of each weight on a rank, as operators use it."""
    made, mesh = {node.name: node for node in graph.nodes}, graph.mesh or Mesh(())
    found = {}
    for parameter in graph.parameters:
        end = graph.producers.get(gradient_name(parameter.name))
        if parameter.role != "state" and end is not None:
            firsts = (graph.values[name] for name in _firsts(end, made))
            found[parameter.name] = max(
                value_bytes(first, mesh) / item_bytes(first.type.dtype) for first in firsts
            )
    return found


def _firsts(end: Node, made: dict[str, Node]) -> Iterator[str]:
    """Yield what a gradient is first made as: the parts, where several readers' are added."""
    *_, last = _chain(end, made)
    node = made[last]
    parts = [made[name] for name in node.operands if name in made]
    if node.provenance.role != "accumulation" or not parts:
        yield last
    else:
        for part in parts:
            yield from _firsts(part, made)

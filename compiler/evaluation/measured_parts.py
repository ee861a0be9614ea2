"""What the parts of a model take on some ranks, told by the program of few of its layers."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import cache, cached_property, reduce
from itertools import chain
from operator import add
from sys import float_info

from shardwright.compiler.evaluation.parts import Kind, Lanes, Part, Parts, Peaks
from shardwright.compiler.evaluation.times import Sent, Times
from shardwright.cost_model.buffers import buffer_kinds, buffers
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.pipelines.beside import lane_of
from shardwright.cost_model.roofline import node_axes
from shardwright.cost_model.streams import Task
from shardwright.cost_model.tasks import TaskMaker
from shardwright.dataflow.deferrable import parameter_tensors
from shardwright.dataflow.schedules import BACKWARD, FORWARD, PARTS, WEIGHTS
from shardwright.dataflow.segments import block_of
from shardwright.ir.graph import Graph, Node, Value, value_bytes
from shardwright.ir.liveness import loop_of
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.planner.evaluation.tiles import Shortened
from shardwright.search.heuristics.tensor_ranks import weights_of_experts
from shardwright.search.plan_axes import PlanAxes
from shardwright.search.plan_dimensions import ZERO_STAGES, Held, Words, held_by
from shardwright.search.space.casts import parameter_casts

_NOT_SAVED = ("parameters", "optimizer states", "gradients")  # kinds of memory that last
_OF_PASS = "activations"  # the kind of memory that a pass makes and frees
_ADDED = "added"  # what adds gradients to those of earlier passes
_NOTHING: Peaks = (0.0, 0.0, 0.0, 0.0)
_FIRST, _LAST = "before all layers", "after them"


def parts_of(
    program: Graph,
    source: Graph,
    standing: Collection[tuple[str, ...]],
    cluster: Cluster,
    words: Words = (),
) -> Parts:
    """Return the parts of a model.

    Parameters
    ----------
    program : Graph
        The program of some tensor and expert ranks, of few layers where equal ones were left out.
    source : Graph
        The model that it trains.
    standing : collection of (tuple of str)
        For each layer of the whole model the layers of this one that stand for it.
    cluster : Cluster
        The devices, as a training software runs programs on them if there is one.
    words : tuple of (str, value), optional
        Words of plans that say how parameters are held.
    """
    return _Program(program, source, cluster, words).parts(standing)


def standing_for(whole: Graph, few: Shortened | None = None) -> list[tuple[str, ...]]:
    """Return for each layer of a model the layers of few that are equal to it; else itself."""
    scopes = {node.name: block_of(node.scope) for node in whole.nodes}
    found: dict[str, tuple[str, ...]] = {block: (block,) for block in scopes.values() if block}
    for first, *layers, last in chain(*(() if few is None else few.levels)):
        for one, *others, other in zip(first, *layers, last, strict=True):
            ends = scopes.get(one, ""), scopes.get(other, "")
            for name in others if all(ends) else ():
                found[scopes[name]] = tuple(
                    {**dict.fromkeys(found[ends[0]]), **dict.fromkeys(found[ends[1]])}
                )
    return list(found.values())


class _Program:
    """A program, of each of whose nodes the part is known: a layer by its name, or an end."""

    def __init__(self, program: Graph, source: Graph, cluster: Cluster, words: Words) -> None:
        self.program, self.source, self.cluster, self.words = program, source, cluster, words
        self.levels = {level.name: i for i, level in enumerate(cluster.levels)}
        inside = [i for i, node in enumerate(source.nodes) if block_of(node.scope)]
        self.last, self.order = inside[-1], {n.name: i for i, n in enumerate(source.nodes)}
        self.where = [self._part_of(node) for node in program.nodes]

    def _part_of(self, node: Node) -> str:
        if block_of(node.scope):
            return block_of(node.scope)
        return _LAST if self.order.get(node.provenance.operator, -1) > self.last else _FIRST

    def parts(self, layers: Collection[tuple[str, ...]]) -> Parts:
        """Return the parts, of each layer by the names of those that are equal to it."""
        tasks, (elements, frozen) = self._tasks(), self._elements()
        late, saved = self._late_by, self._saved_by
        peaks = self._peaks(saved), self._peaks({**saved, **late}, self._put_off)
        of_pass = self._held(saved), self._held(late)
        received = [self._received(forward) for forward in (True, False)]

        @cache
        def part(where: str) -> Part:
            forward, backward, weights, added = (
                self._times(tasks.get((where, which), ())) for which in (*PARTS, _ADDED)
            )
            saved, late = (nbytes.get(where, 0.0) for nbytes in of_pass)
            peak, early = (nbytes.get(where, _NOTHING) for nbytes in peaks)
            times, own = (forward, backward, weights, added), elements.get(where, {})
            both = received[0].get(where, 0.0), received[1].get(where, 0.0)
            held, lanes = frozen.get(where, 0.0), self._lanes.get(where)
            return Part(*times, own, saved, peak, late, early, held, both, lanes)

        @cache
        def layer(names: tuple[str, ...]) -> Part:
            return reduce(Part.least, map(part, names))

        return Parts(tuple(map(layer, layers)), part(_FIRST), part(_LAST))

    def _times(self, tasks: Iterable[tuple[Task, Task]]) -> Times:
        """Return what some tasks take, of each also the one on links that take no time."""
        compute, merged, host, links = 0.0, 0.0, 0.0, [Sent()] * len(self.levels)
        for task, alone in tasks:
            host += task.host
            if not task.placement.levels:
                compute += alone.seconds
                merged += task.seconds - alone.seconds
                continue
            started = task.exposed * alone.seconds
            rest = task.exposed * (task.seconds - alone.seconds)
            sent = Sent(started, 0.0, rest) if task.computing else Sent(started, rest)
            level = self.levels[task.placement.levels[-1]]
            links[level] = Sent(*map(add, links[level], sent))
        return Times(compute, merged, tuple(links), host)

    def _tasks(self) -> dict[tuple[str, str], list[tuple[Task, Task]]]:
        """Return what a pass runs in line in each part, by the part of a schedule.

        Of each task also the one on links that take no time.
        What is made of parameters alone is left out, since with ZeRO that is of parts of them. What
        adds to gradients stands apart, and what converts them after their reduction, for the same
        reason.
        """
        program, order = self.program, [(position, 0) for position in self._body]
        # Without any time the bandwidth would be no number.
        no_time = self.cluster.with_links_slower_by([float_info.epsilon] * len(self.levels))
        tasks, alone = self._of_body, TaskMaker(program, no_time).tasks(order)
        live = buffers(program).live
        stored = self._of_parameters
        found: dict[tuple[str, str], list[tuple[Task, Task]]] = {}
        for (position, _), task, other in zip(order, tasks, alone, strict=True):
            node = program.nodes[position]
            of_parameter = node.provenance.tensor in stored
            sums = of_parameter and node.provenance.role == "accumulation"
            added = sums or live.is_accumulator(node.name) or node.name in self._converted
            if task.in_line and node.name not in stored:
                which = WEIGHTS if node.name in self._put_off else BACKWARD
                which = FORWARD if node.provenance.phase == "forward" else which
                if added and which != WEIGHTS:
                    continue
                which = _ADDED if added else which
                found.setdefault((self.where[position], which), []).append((task, other))
        return found

    @cached_property
    def _of_body(self) -> tuple[Task, ...]:
        """The tasks of a pass."""
        order = [(position, 0) for position in self._body]
        return TaskMaker(self.program, self.cluster).tasks(order)

    @cached_property
    def _lanes(self) -> dict[str, Lanes]:
        """The tasks of parts in passes that may run beside each other.

        What sums over data ranks in a pass, as balance losses do, takes longer on more of them: a
        part that does has none.
        """
        software, program = self.cluster.software, self.program
        if software is None or software.pairs != "beside" or loop_of(program) is None:
            return {}
        data = {*PlanAxes.of(program.mesh or Mesh(())).data}
        found: dict[str, tuple[list[Task], list[Task]]] = {}
        sums: set[str] = set()
        for position, task in zip(self._body, self._of_body, strict=True):
            node, where = program.nodes[position], self.where[position]
            forward, backward = found.setdefault(where, ([], []))
            (forward if node.provenance.phase == "forward" else backward).append(task)
            moves = task.placement.levels and node.operator != "all_to_all"
            if moves and not data.isdisjoint(node_axes(node, program)):
                sums.add(where)
        lanes = ((where, both) for where, both in found.items() if where not in sums)
        return {where: ((lane_of(one),), (lane_of(two),)) for where, (one, two) in lanes}

    def _elements(self) -> tuple[dict[str, dict[Kind, float]], dict[str, float]]:
        """Return trained elements of the parts on a rank, and frozen bytes."""
        program, mesh = self.program, self.program.mesh or Mesh(())
        of_experts = weights_of_experts(self.source)
        part: dict[str, str] = {}
        for node, where in zip(program.nodes, self.where, strict=True):
            for name in node.operands:
                part.setdefault(name, where)
        found: dict[str, dict[Kind, float]] = {}
        frozen: dict[str, float] = {}
        for parameter in program.parameters:
            value = parameter.value
            where, nbytes = part.get(value.name, _FIRST), value_bytes(value, mesh)
            if parameter.trainable:
                for at in dict.fromkeys((where, *self._ends_that_read(value.name))):
                    again = (value.name, at) in self._read_again
                    held = self._held_by_stages(value)
                    kind = Kind(value.name in of_experts, held, again, at != where)
                    own = found.setdefault(at, {})
                    own[kind] = own.get(kind, 0.0) + nbytes / item_bytes(value.type.dtype)
            elif parameter.role == "buffer":
                frozen[where] = frozen.get(where, 0.0) + nbytes
        return found, frozen

    def _held_by_stages(self, parameter: Value) -> tuple[Held, ...]:
        """Return how a parameter is held by each stage of ZeRO.

        One that several operators read is gathered once for all of them.
        """
        found = (held_by(zero, self.words, parameter) for zero in range(len(ZERO_STAGES)))
        if len(self._readers_of(parameter.name)) == 1:
            return tuple(found)
        return tuple(Held(held.divided) for held in found)

    def _readers_of(self, parameter: str) -> Sequence[Node]:
        """Return the operators of the model that read a parameter, or its copy in another type."""
        cast = self._casts.get(parameter)
        uses = self.source.uses[parameter if cast is None else cast.name]
        return [node for node, _ in uses]

    @cached_property
    def _casts(self) -> Mapping[str, Node]:
        return parameter_casts(self.source)

    def _ends_that_read(self, parameter: str) -> Iterable[str]:
        """Yield the parts outside of all layers that read a parameter."""
        for node in self._readers_of(parameter):
            if not block_of(node.scope):
                yield _LAST if self.order[node.name] > self.last else _FIRST

    def _received(self, forward: bool) -> dict[str, float]:
        """Return the bytes that layers read in a pass of what the layer before them makes in it.

        In the backward pass that is the layer behind them.
        """
        program, mesh = self.program, self.program.mesh or Mesh(())
        nodes = [
            (program.nodes[position], self.where[position])
            for position in self._body
            if (program.nodes[position].provenance.phase == "forward") == forward
            and self.where[position] not in (_FIRST, _LAST)
        ]
        layers = list(dict.fromkeys(where for _, where in nodes))
        before = dict(zip(layers[1:], layers, strict=False))
        made = {result.name: where for node, where in nodes for result in node.results}
        read = {
            (where, name)
            for node, where in nodes
            for name in node.operands
            if name in made and made[name] == before.get(where)
        }
        found: dict[str, float] = {}
        for where, name in sorted(read):
            found[where] = found.get(where, 0.0) + value_bytes(program.values[name], mesh)
        return found

    @cached_property
    def _read_again(self) -> set[tuple[str, str]]:
        """The parameters of which parts read copies in the backward pass, made before, and where.

        Of a weight that two parts share, each may be in a stage of its own.
        """
        nodes = self.program.nodes
        of_parameter = {p.name: p.name for p in self.program.parameters}
        copies = parameter_tensors(nodes, of_parameter) - of_parameter.keys()
        for node in nodes:
            if node.name in copies:
                of_parameter[node.name] = of_parameter[node.operands[0]]
        pairs = zip(nodes, self.where, strict=True)
        backward = ((node, where) for node, where in pairs if node.provenance.phase == "backward")
        return {
            (of_parameter[name], where)
            for node, where in backward
            for name in copies.intersection(node.operands)
        }

    @cached_property
    def _of_parameters(self) -> Set[str]:
        """The parameters, and what is made of them alone: one copy for all passes."""
        names = (parameter.name for parameter in self.program.parameters)
        return parameter_tensors(self.program.nodes, names)

    @cached_property
    def _saved_by(self) -> dict[str, str]:
        """For each tensor that is saved for the gradient, the part whose stage holds it.

        It is the one that made it, if its own backward pass reads it. What only later parts read
        is sent to the stage of these, and where they are in another one it is held there alone.
        """
        held, turn, kinds_of = buffers(self.program), self._turn, buffer_kinds(self.program)
        position = {r.name: i for i, node in enumerate(self.program.nodes) for r in node.results}
        found: dict[str, str] = {}
        for name, uses in held.live.freed():
            made = position.get(name, turn)
            lasts = kinds_of[name] in _NOT_SAVED or name in self._of_parameters
            if made < turn <= uses[-1] and not lasts:
                readers = [self.where[use] for use in uses if use >= turn]
                own = self.where[made]
                found[name] = own if own in readers else readers[0]
        return found

    def _held(self, holders: Mapping[str, str]) -> dict[str, float]:
        """Return the bytes that parts hold of some tensors."""
        sizes, found = buffers(self.program).sizes, dict[str, float]()
        for name, where in holders.items():
            found[where] = found.get(where, 0.0) + sizes[name]
        return found

    def _peaks(self, holders: Mapping[str, str], without: Collection[str] = ()) -> dict[str, Peaks]:
        """Return the most bytes that a part makes or saves and that are live in its backward pass.

        Nodes that are left out by name run later, and what they read lives on until then.

        What is after all layers has its forward pass right before: both count.
        """
        program, held = self.program, buffers(self.program)
        kinds, dies = buffer_kinds(program), held.live.freed_after
        gathered = self._gathered(without)
        live: dict[str, float] = {}
        peaks: dict[str, Peaks] = {}
        made: dict[str, str] = {}
        for position in self._body:
            node, where = program.nodes[position], self.where[position]
            if node.name in without:
                continue
            counted = () if node.name in self._converted else node.results
            for name in (result.name for result in counted):
                lasts = held.live.is_accumulator(name) or name in self._of_parameters
                if kinds[name] == _OF_PASS and not lasts:
                    holder = made[name] = holders.get(name, where)
                    live[holder] = live.get(holder, 0.0) + held.sizes[name]
            if where == _LAST or node.provenance.phase != "forward":
                own = live.get(where, 0.0) + held.workspaces.get(node.name, 0.0)
                dense, experts = gathered.get(position, (0.0, 0.0))
                each = own, own + dense, own + experts, own + dense + experts
                peaks[where] = tuple(map(max, peaks.get(where, _NOTHING), each))
            for name in dies.get(position, ()):
                if name in made:
                    live[made[name]] -= held.sizes[name]
        return peaks

    def _gathered(self, without: Collection[str]) -> dict[int, tuple[float, float]]:
        """Return the bytes of weights that ZeRO-3 has gathered at each operator of backward passes.

        They are those of dense weights, and of the weights of experts. The backward pass of a part
        gathers what it reads, and holds it from its first reader to its last; nodes that are left
        out by name are none.
        """
        nodes, found = self.program.nodes, dict[int, tuple[float, float]]()
        of_experts = weights_of_experts(self.source)
        read: dict[tuple[str, str], list[int]] = {}
        for position in self._body:
            node = nodes[position]
            if node.provenance.phase == "backward" and node.name not in without:
                for name in self._gathered_names.keys() & node.operands:
                    read.setdefault((self.where[position], name), []).append(position)
        for (_, name), positions in read.items():
            nbytes = value_bytes(self.program.values[name], self.program.mesh or Mesh(()))
            is_expert = self._gathered_names[name] in of_experts
            for position in range(positions[0], positions[-1] + 1):
                dense, experts = found.get(position, (0.0, 0.0))
                more = (dense, experts + nbytes) if is_expert else (dense + nbytes, experts)
                found[position] = more
        return found

    @cached_property
    def _gathered_names(self) -> dict[str, str]:
        """The parameters that ZeRO-3 gathers in passes, by their names and those of their casts."""
        values = (p.value for p in self.program.parameters if p.trainable)
        held = (x.name for x in values if self._held_by_stages(x)[-1].in_passes)
        found = {name: name for name in held}
        casts = (node for node in self.program.nodes if node.operator == "cast")
        return found | {n.name: n.operands[0] for n in casts if n.operands[0] in found}

    @cached_property
    def _converted(self) -> set[str]:
        """The gradients that are converted after their reduction, by name: with ZeRO, of parts."""
        return {
            node.name
            for node in self.program.nodes
            if node.operator == "convert" and node.provenance.role == "gradient_redistribution"
        }

    @cached_property
    def _put_off(self) -> set[str]:
        """The backward nodes that no earlier part waits for, by name."""
        nodes = [(self.program.nodes[i], self.where[i]) for i in self._body]
        made = {result.name: where for node, where in nodes for result in node.results}
        awaited = {
            name for node, where in nodes for name in node.operands if made.get(name) != where
        }
        found: set[str] = set()
        for node, _ in reversed(nodes):
            if node.provenance.phase == "forward" or any(r.name in awaited for r in node.results):
                awaited.update(node.operands)
            else:
                found.add(node.name)
        return found

    @cached_property
    def _late_by(self) -> dict[str, str]:
        """For each tensor that other nodes of a pass make for these, the part that holds it.

        It is the part that saves it, or else the one where these nodes are: it is sent there.
        """
        held, kinds, readers = buffers(self.program), buffer_kinds(self.program), dict[str, str]()
        made: set[str] = set()
        for position in self._body:
            node = self.program.nodes[position]
            if node.name in self._put_off:
                roots = (held.live.roots.get(name, name) for name in node.operands)
                readers |= dict.fromkeys(roots, self.where[position])
            else:
                made.update(result.name for result in node.results)
        names = (name for name in sorted(readers.keys() & made) if kinds[name] == _OF_PASS)
        return {name: self._saved_by.get(name, readers[name]) for name in names}

    @property
    def _body(self) -> range:
        """The positions of a pass."""
        loop = loop_of(self.program)
        return range(len(self.program)) if loop is None else range(loop.start, loop.stop)

    @property
    def _turn(self) -> int:
        """The position of the first gradient of an operator in a pass."""
        loop, roles = loop_of(self.program), [n.provenance.role for n in self.program.nodes]
        begin = 0 if loop is None else loop.start
        return begin + [*roles[begin:], "backward"].index("backward")

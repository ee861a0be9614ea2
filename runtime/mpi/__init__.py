"""One process per rank, over MPI.

A reduction adds the members of a group in their order, as the local communicator does, so both give
the same bits: every member reduces one slice, received from all others (all-to-all), and the slices
are gathered. It sends as much as a ring. With ``deterministic=False`` MPI's own reductions run
instead; their order differs, and so do the last digits (1e-12 relative in float64).

mpi4py is imported with the first communicator, since the import starts MPI.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any

import numpy as np

from shardwright.ir.errors import ExecutionError, ShardwrightError
from shardwright.ir.files.waiting import ANSWER
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication, Groups
from shardwright.operators.communication.rings import Turns
from shardwright.operators.halo import deal
from shardwright.operators.info import Array
from shardwright.operators.windows.halo_exchange import HaloExchange, HaloSum
from shardwright.runtime.agreement import (
    end_all,
    failing_processes,
    failure_messages,
    tell_trace,
    told_once,
)
from shardwright.runtime.communicator import ONE_DEVICE, Parts
from shardwright.runtime.encrypted import messaging
from shardwright.runtime.faults import STANDING
from shardwright.runtime.flat.ordered import OrderedReduction
from shardwright.runtime.mpi.allocation import keep_freed_memory
from shardwright.runtime.mpi.buffers import (
    Exchange,
    buffer_of,
    exchanging,
    gathered_at,
    gathering,
    is_even,
    is_native,
    joined,
    neighbours,
    new_results,
    parts_of_all,
    received_from,
    reduced,
    reducing,
    scattering,
    sent_to_all,
    stacked,
    stacked_shape,
)
from shardwright.runtime.mpi.rows import exchanging_rows, moves_rows
from shardwright.runtime.under_way import Request


@dataclass
class _Reducing:
    """A copy of a group for the messages of its reductions, and how many have started."""

    group: Any
    started: int = 0


class MpiCommunicator:
    """The communicator of this process, one of those started by ``mpiexec``.

    As a context manager it ends all processes when one fails, so that none hangs.

    Parameters
    ----------
    mesh : Mesh, optional
        The mesh, with one rank per process.
    deterministic : bool
        Reduce in the order of the members.

    Raises
    ------
    PackageError
        If there is no MPI.
    ExecutionError
        On rank 0, if the number of processes differs from the mesh. The others exit.
    """

    def __init__(self, mesh: Mesh | None = None, *, deterministic: bool = True) -> None:
        self.mesh = mesh or ONE_DEVICE
        self._mpi = messaging()
        self.deterministic = deterministic or getattr(self._mpi, "adds_in_order", False)
        self._world = self._mpi.COMM_WORLD
        if self._world.size != self.mesh.size:
            if self._world.rank:  # rank 0 raises for all
                raise SystemExit(0)
            processes = "one process" if self._world.size == 1 else f"{self._world.size} processes"
            raise ExecutionError(
                f"the mesh {self.mesh} has {self.mesh.size} ranks, MPI runs {processes}",
                hint=f"start it with `mpiexec -n {self.mesh.size}`",
            )
        failure_messages()
        keep_freed_memory()
        mpi = self._mpi
        self._operations = {"sum": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN, "prod": mpi.PROD}
        self.ranks: tuple[int, ...] = (self._world.rank,)
        self._groups: dict[tuple[int, ...], Any] = {}
        self._places: dict[tuple[tuple[str, ...], Groups], tuple[Any, tuple[int, ...]]] = {}
        self._reducing: dict[tuple[int, ...], _Reducing] = {}  # for reductions that run meanwhile
        self._sends: list[tuple[Any, Array]] = []
        self._collectives: dict[str, Callable[[Any, Communication, Array], Array]] = {
            "all_reduce": self._all_reduce,
            "all_to_all_v": self._all_to_all_v,
            "barrier": self._barrier,
            "broadcast": self._broadcast,
            "collective_gather": self._collective_gather,
            "collective_scatter": self._collective_scatter,
            "reduce": self._reduce,
        }
        self._of_even = {
            "all_gather": self._all_gather,
            "all_to_all": self._all_to_all,
            "reduce_scatter": self._reduce_scatter,
        }

    def __enter__(self) -> "MpiCommunicator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every process if this one fails; the first one that fails tells the error."""
        if error is None or isinstance(error, SystemExit) or self._world.size == 1:
            return
        if isinstance(error, ShardwrightError):
            failing = failing_processes()
            if len(failing) == self._world.size:
                with told_once():
                    raise error
            if failing[0] != self.ranks[0]:
                time.sleep(ANSWER)  # in which the process that tells it ends this one
            sys.stderr.write(f"shardwright: rank {self.ranks[0]}: {error}\n")
        elif not isinstance(error, KeyboardInterrupt):
            tell_trace(error)
        end_all(2 if isinstance(error, ShardwrightError) else 1)

    def exchange(
        self, operator: Communication, axes: tuple[str, ...], parts: Parts
    ) -> dict[int, Array]:
        """Run one communication operator in this rank's group along `axes`."""
        rank, (group, _) = self.ranks[0], self._place(operator, axes)

        def run(part: Array) -> Array:
            even = group.size == 1 or is_even(group, operator, part.shape, known=False)
            return self._way(operator, axes, part.shape, even=even)(part)

        part = np.asarray(parts[rank], order="C")
        return {rank: self._watched(run, operator, axes)(part)}

    def exchange_even(
        self, operator: Communication, axes: tuple[str, ...], parts: Parts
    ) -> dict[int, Array]:
        """Run one where all members are known to hold parts of one shape: none has to ask."""
        rank = self.ranks[0]
        part = np.asarray(parts[rank], order="C")
        return {rank: self.bound(operator, axes, part.shape)(part)}

    def bound(
        self, operator: Communication, axes: tuple[str, ...], shape: tuple[int, ...]
    ) -> Exchange:
        """Return the call of an operator where all members are known to hold parts of one shape.

        It takes the part of this rank and returns its result; no member has to ask another.
        """
        group, _ = self._place(operator, axes)
        even = is_even(group, operator, shape, known=True)
        run = self._way(operator, axes, shape, even=even)
        return self._watched(run, operator, axes)

    def _watched(self, run: Exchange, operator: Communication, axes: tuple[str, ...]) -> Exchange:
        """Return the call, which notes that it waits where a launcher watches this process."""
        if not STANDING.is_watched:
            return run
        members = self._members(axes, operator.groups)

        def watched(part: Array) -> Array:
            with STANDING.waiting(operator.name, members):
                return run(part)

        return watched

    def _way(
        self, operator: Communication, axes: tuple[str, ...], shape: tuple[int, ...], *, even: bool
    ) -> Exchange:
        """Return what moves the part of this rank: a call of MPI for each kind of operator."""
        group, extents = self._place(operator, axes)
        if group.size == 1:
            return lambda part: operator.exchange([part], extents)[0]
        if operator.forwards_parts and operator.name not in self._collectives:
            return partial(self._move, group, operator, extents)
        if isinstance(operator, HaloExchange):
            return partial(self._halo_exchange, group, operator, extents)
        if isinstance(operator, HaloSum):
            return partial(self._halo_sum, group, operator, extents)
        if operator.name in self._of_even and even:
            return self._of_even[operator.name](group, operator, shape)
        if operator.name == "all_reduce" and not self.deterministic:
            operation = self._operations[operator.attributes["reduction"]]
            in_order = partial(self._all_reduce, group, operator)
            return reducing(group, operation, in_order, new_results(self._mpi, shape))
        if operator.name in self._collectives:
            return partial(self._collectives[operator.name], group, operator)
        return lambda part: operator.exchange(parts_of_all(group, part), extents)[group.rank]

    def start(
        self, operator: Communication, axes: tuple[str, ...], parts: Parts
    ) -> tuple[Any, dict[int, Array]] | None:
        """Start a reduction, where the order of its sums does not matter.

        Returns the request, and the array that holds the result when it has ended; None if the
        operator is another one, or runs in the order of the members.
        """
        rank = self.ranks[0]
        group, part = self._group(axes, operator.groups), np.asarray(parts[rank], order="C")
        plain = operator.name == "all_reduce" and is_native(part)
        if self.deterministic or not plain or group.size == 1:
            return None
        kind = operator.attributes["reduction"]
        result = new_results(self._mpi, part.shape)(part)
        return group.Iallreduce(part, result, op=self._operations[kind]), {rank: result}

    def starts(self, operator: Communication, axes: tuple[str, ...]) -> bool:
        """Return whether an operator is a reduction that can run while this rank computes."""
        if operator.name != "all_reduce":
            return False
        members = self._members(axes, operator.groups)
        if len(members) > 1 and members not in self._reducing:
            self._reducing[members] = _Reducing(self._group(axes, operator.groups).Dup())
        return len(members) > 1

    def reducer(self, operator: Communication, axes: tuple[str, ...]) -> Callable[[Array], Request]:
        """Return what starts to reduce a buffer, which holds the result when that has ended."""
        members, kind = self._members(axes, operator.groups), operator.attributes["reduction"]
        group, own = self._group(axes, operator.groups), self._reducing[members]
        fast, operation, place = not self.deterministic, self._operations[kind], self._mpi.IN_PLACE

        def reduce(buffer: Array) -> Request:
            if fast and is_native(buffer):
                request: Request = group.Iallreduce(place, buffer, op=operation)
                return request
            own.started += 1
            tag = self._tag(2 * own.started)
            return OrderedReduction(own.group, self._mpi.Request, buffer, kind, tag)

        return reduce

    def take_turns(
        self, axes: tuple[str, ...], members: Mapping[int, Turns]
    ) -> dict[int, tuple[Array, ...]]:
        """Run the turns of this rank: messages are sent as it goes on computing."""
        rank, group = self.ranks[0], self._group(axes)
        turns, sends = members[rank], list[Any]()
        if STANDING.is_watched:
            STANDING.wait("ring", self._members(axes))
        try:
            exchange = next(turns)
            for tag in count():
                sends += sent_to_all(group, exchange.sends, tag)
                exchange = turns.send(partial(received_from, group, exchange.sources, tag))
        except StopIteration as end:
            self._mpi.Request.Waitall([request for request, _ in sends])
            STANDING.go_on()
            return {rank: end.value}
        raise AssertionError("unreachable")

    def collect(self, parts: Parts) -> dict[int, Array]:
        """Return the slices of all ranks that hold a value, in every process."""
        with STANDING.waiting("collect"):
            everything = parts_of_all(self._world, parts.get(self.ranks[0]))
        return {rank: part for rank, part in enumerate(everything) if part is not None}

    # Messages between pipeline stages

    def send(self, tag: int, pairs: Sequence[tuple[int, int]], parts: Parts) -> None:
        """Start to send; the request keeps the buffer until it has left."""
        for source, target in pairs:
            part = np.array(parts[source], order="C")
            request = self._world.Isend(buffer_of(part), dest=target, tag=self._tag(tag))
            self._sends.append((request, part))
        self._sends = [(request, part) for request, part in self._sends if not request.Test()]

    def receive(
        self,
        tag: int,
        pairs: Sequence[tuple[int, int]],
        shapes: Mapping[int, tuple[int, ...]],
        dtype: "np.dtype[np.generic]",
    ) -> dict[int, Array]:
        """Wait for the slice of this rank."""
        found = {}
        for source, target in pairs:
            found[target] = np.empty(shapes[target], dtype)
            STANDING.wait("receive", (source, target))
            self._world.Recv(buffer_of(found[target]), source=source, tag=self._tag(tag))
            STANDING.go_on()
        return found

    def complete_sends(self) -> None:
        """Wait until everything that was sent has left."""
        with STANDING.waiting("send"):
            self._mpi.Request.Waitall([request for request, _ in self._sends])
        self._sends.clear()

    def _tag(self, tag: int) -> int:
        """Return a tag that MPI allows: messages of one tag arrive in the order of their sends."""
        return tag % (int(self._world.Get_attr(self._mpi.TAG_UB)) // 2 * 2)

    def _place(self, operator: Communication, axes: tuple[str, ...]) -> tuple[Any, tuple[int, ...]]:
        """Return the group of an operator, and the sizes along which it is split."""
        key = axes, operator.groups
        if key not in self._places:
            _, extents = operator.place(self.ranks[0], axes, self.mesh)
            self._places[key] = self._group(*key), extents
        return self._places[key]

    def _members(self, axes: tuple[str, ...], groups: Groups = ()) -> tuple[int, ...]:
        rank = self.ranks[0]
        return next((g for g in groups if rank in g), ()) or self.mesh.group(rank, axes)

    def _group(self, axes: tuple[str, ...], groups: Groups = ()) -> Any:
        members = self._members(axes, groups)
        if members not in self._groups:
            chosen = self._world.Get_group().Incl(members)
            self._groups[members] = self._world.Create_group(chosen)
        return self._groups[members]

    # Collectives, on buffers of bytes for every element type

    def _all_gather(self, group: Any, operator: Communication, shape: tuple[int, ...]) -> Exchange:
        dimension = operator.attributes["dimension"]
        if not dimension:
            return gathering(self._mpi, group, shape)
        gather = gathering(self._mpi, group, (1, *shape))
        return lambda part: joined(gather(part), dimension)

    def _all_to_all(self, group: Any, operator: Communication, shape: tuple[int, ...]) -> Exchange:
        split, concat = (operator.attributes[f"{way}_dimension"] for way in ("split", "concat"))
        count = group.size
        exchanging_of = exchanging_rows if moves_rows(operator) else exchanging
        exchange = exchanging_of(self._mpi, group, stacked_shape(shape, count, split))
        return lambda part: joined(exchange(stacked(part, count, split)), concat)

    def _reduce_scatter(
        self, group: Any, operator: Communication, shape: tuple[int, ...]
    ) -> Exchange:
        kind = operator.attributes["reduction"]
        operation = None if self.deterministic else self._operations[kind]
        return scattering(
            self._mpi, group, shape, operator.attributes["dimension"], kind, operation
        )

    def _all_reduce(self, group: Any, operator: Communication, part: Array) -> Array:
        """Reduce in the order of the members."""
        kind = operator.attributes["reduction"]
        length = -(-part.size // group.size)
        padded = np.zeros(length * group.size, part.dtype)
        padded[: part.size] = part.reshape(-1)
        pieces = padded.reshape(group.size, length)
        own = reduced(exchanging(self._mpi, group, pieces.shape)(pieces), kind)
        return gathering(self._mpi, group, own.shape)(own)[: part.size].reshape(part.shape)

    def _broadcast(self, group: Any, operator: Communication, part: Array) -> Array:
        result = np.array(part, order="C")
        group.Bcast(buffer_of(result), root=operator.attributes["root"])
        return result

    def _reduce(self, group: Any, operator: Communication, part: Array) -> Array:
        """Reduce at the root, in the order of the members."""
        kind, root = operator.attributes["reduction"], operator.attributes["root"]
        result = np.zeros_like(part)
        if not self.deterministic and is_native(part):
            group.Reduce(part, result, op=self._operations[kind], root=root)
            return result
        parts = gathered_at(group, part, root)
        return reduced(parts, kind) if group.rank == root else result

    def _collective_gather(self, group: Any, operator: Communication, part: Array) -> Array:
        parts = gathered_at(group, part, operator.attributes["root"])
        return np.concatenate(parts, axis=operator.attributes["dimension"])

    def _collective_scatter(self, group: Any, operator: Communication, part: Array) -> Array:
        pieces = np.stack(np.split(part, group.size, axis=operator.attributes["dimension"]))
        result = np.empty_like(pieces[0])
        group.Scatter(buffer_of(pieces), buffer_of(result), root=operator.attributes["root"])
        return result

    def _all_to_all_v(self, group: Any, operator: Communication, part: Array) -> Array:
        counts = np.array(operator.attributes["counts"])
        row = part.nbytes // max(len(part), 1)  # bytes
        sent, received = counts[group.rank] * row, counts[:, group.rank] * row
        own = counts[:, group.rank].sum()
        result = np.empty((counts.sum(axis=0).max(), *part.shape[1:]), part.dtype)
        result[own:] = 0
        byte = self._mpi.BYTE
        group.Alltoallv([buffer_of(part), sent, byte], [buffer_of(result), received, byte])
        return result

    def _barrier(self, group: Any, operator: Communication, part: Array) -> Array:
        group.Barrier()
        return part

    def _move(
        self,
        group: Any,
        operator: Communication,
        extents: Sequence[int],
        part: Array,
    ) -> Array:
        """Send parts point to point; the sources come from `exchange` on markers."""
        markers = [np.array(i + 1) for i in range(group.size)]
        sources = [int(marker) - 1 for marker in operator.exchange(markers, extents)]
        source, me = sources[group.rank], group.rank
        sends = [
            group.Isend(buffer_of(part), dest=member)
            for member, wanted in enumerate(sources)
            if wanted == me != member
        ]
        if source == me:
            result = part
        elif source < 0:  # no sender: zeros
            result = np.zeros_like(part)
        else:
            result = np.empty_like(part)
            group.Recv(buffer_of(result), source=source)
        self._mpi.Request.Waitall(sends)
        return result

    # Halos: pieces are sent to neighbours and received from them

    def _halo_exchange(
        self, group: Any, operator: HaloExchange, extents: Sequence[int], part: Array
    ) -> Array:
        halo, me = operator.halo, group.rank
        sends = [
            self._sent(group, part[operator.along(piece.start, piece.length)], member)
            for member in neighbours(group)
            for piece in halo.pieces(extents, member)
            if piece.owner == me
        ]
        run = np.zeros(operator.with_size(part.shape, halo.length(group.size)), part.dtype)
        for piece in halo.pieces(extents, me):
            place = operator.along(piece.place, piece.length)
            if piece.owner == me:
                run[place] = part[operator.along(piece.start, piece.length)]
            else:
                run[place] = self._received(group, run[place], piece.owner)
        self._mpi.Request.Waitall(sends)
        return run

    def _halo_sum(self, group: Any, operator: HaloSum, extents: Sequence[int], run: Array) -> Array:
        """Sum in the order of the members, as the local communicator does."""
        halo, me = operator.halo, group.rank
        sends = [
            self._sent(group, run[operator.along(piece.place, piece.length)], piece.owner)
            for piece in halo.pieces(extents, me)
            if piece.owner != me
        ]
        size = deal(halo.size, tuple(extents))[me][1]
        total = np.zeros(operator.with_size(run.shape, size), run.dtype)
        for member in sorted({me, *neighbours(group)}):
            for piece in halo.pieces(extents, member):
                if piece.owner != me:
                    continue
                place = operator.along(piece.start, piece.length)
                own = member == me
                total[place] += (
                    run[operator.along(piece.place, piece.length)]
                    if own
                    else self._received(group, total[place], member)
                )
        self._mpi.Request.Waitall(sends)
        return total

    def _sent(self, group: Any, part: Array, member: int) -> Any:
        """Start a send; the request keeps the buffer alive."""
        return group.Isend(buffer_of(np.ascontiguousarray(part)), dest=member)

    def _received(self, group: Any, like: Array, member: int) -> Array:
        found = np.empty(like.shape, like.dtype)
        group.Recv(buffer_of(found), source=member)
        return found

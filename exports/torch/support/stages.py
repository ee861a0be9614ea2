"""Plans with pipeline stages: messages between device groups, and a trainer for their parameters.

Processes of the same place in two stages send to each other. A send does not wait; a receive waits
for its message. Each channel, which connects a pass of one stage with a pass of another, is a
process group of its own, so that messages of one never wait for those of another: with NCCL, which
has no tags, two processes that send to each other before they receive would otherwise wait for each
other for ever.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from . import mesh, trainer
from .mesh import Totals

__all__ = ["Mesh", "Totals", "Trainer"]

_STAGE = "stage"
Passes = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class _Channel:
    """A process group, the other process, and from which pass of which group to which it goes."""

    handle: Any
    other: int
    source: int
    target: int
    begin: str
    end: str


@dataclass(frozen=True)
class _Sent:
    """A tensor on its way to a pass over a micro-batch, and the place of the pass in its order."""

    work: Any
    part: Tensor
    channel: _Channel
    micro_batch: int
    place: int | None

    def is_before(self, source: _Channel, micro_batch: int, place: int) -> bool:
        """Return whether it has arrived where a message of a channel comes.

        The group that sends that has run what its order has before. Where it is of a backward pass,
        all forward passes over the micro-batch have ended, and those over earlier ones.
        """
        if self.place is None:
            return False
        if self.channel.target == source.source and self.place < place:
            return True
        turned = self.channel.end.startswith("F") and not source.begin.startswith("F")
        return turned and self.micro_batch <= micro_batch


class Mesh(mesh.Mesh):
    """The ranks of a plan with stages; their first axis is that of the device groups.

    Parameters
    ----------
    sizes, micro_batches, groups
        Those of `mesh.Mesh`.
    channels : mapping of str to (int, int)
        From which device group to which a channel goes.
    orders : sequence of (sequence of str)
        The order of the passes of each device group: `F1.0`, `B1.0`.
    device : device
        Where messages are received.

    Attributes
    ----------
    group : int
        The device group of this process.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        micro_batches: Mapping[str, int],
        groups: Sequence[mesh.Axes],
        channels: Mapping[str, tuple[int, int]],
        orders: Sequence[Sequence[str]],
        device: torch.device,
    ) -> None:
        super().__init__(sizes, micro_batches, groups)
        self.group, self._device = self.coordinate(_STAGE), device
        self._sends: list[_Sent] = []
        self._places = [{action: i for i, action in enumerate(order)} for order in orders]
        # Every process makes all channels, in this order, and tries them: the first message of a
        # channel makes NCCL wait for the other side, which later may wait for something else.
        self._channels = {name: self._open(name, *pair) for name, pair in channels.items()}

    def at(self, group: int) -> int:
        """Return the rank at the place of this one in a device group."""
        return self.rank + (group - self.group) * self._stride(_STAGE)

    def _open(self, name: str, source: int, target: int) -> "_Channel":
        """Return a channel, which has carried its first message."""
        size = self._stride(_STAGE)
        members = [group * size + place for group in (source, target) for place in range(size)]
        handle = dist.new_group(members)
        other = self.at(target if self.group == source else source)
        if self.group in (source, target):
            message = torch.zeros(1, device=self._device)
            if self.group == source:
                dist.send(message, other, group=handle)
            else:
                dist.recv(message, other, group=handle)
        begin, _, end = name.partition(" -> ")
        return _Channel(handle, other, source, target, begin, end)

    # The schedule

    def run(self, order: Sequence[str], micro_batch: Passes) -> None:
        """Run the passes of all micro-batches in an order.

        Parameters
        ----------
        order : sequence of str
            Passes with their micro-batches: `F1.0`, `B1.0`.
        micro_batch : function
            Runs the passes of a micro-batch in turn; yields the name of each when it ends.
        """
        left = Counter(action.partition(".")[2] for action in order)
        begun: dict[str, Iterator[str]] = {}
        for action in order:
            wanted, _, number = action.partition(".")
            self.micro_batch = int(number)
            if number not in begun:
                begun[number] = micro_batch()
            if (ended := next(begun[number])) != wanted:
                raise RuntimeError(f"the order has `{action}` where `{ended}` is next")
            left[number] -= 1
            if not left[number]:
                del begun[number]
        self.micro_batch = 0

    # Messages

    def send(self, part: Tensor, *channels: str) -> None:
        """Begin to send a tensor; it is kept until it has left."""
        self.count("transfer", part)
        part = part.contiguous()
        for name in channels:
            channel = self._channels[name]
            work = dist.isend(part, channel.other, group=channel.handle)
            place = self._place(channel.target, channel.end)
            self._sends.append(_Sent(work, part, channel, self.micro_batch, place))

    def receive(self, channel: str, shape: Sequence[int], dtype: str) -> Tensor:
        """Return the next tensor of a channel."""
        own = self._channels[channel]
        part = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=self._device)
        dist.recv(part, own.other, group=own.handle)
        self._release(own)
        return part

    def _place(self, group: int, passed: str) -> int | None:
        """Return the place of a pass in the order of a group; None outside of the passes."""
        return self._places[group].get(f"{passed}.{self.micro_batch}")

    def _release(self, channel: _Channel) -> None:
        """Free what has arrived where a message of a channel comes.

        Works of gloo do not tell that they have ended; these need no waiting.
        """
        place = self._place(channel.source, channel.begin)
        if place is None:
            return
        left = []
        for sent in self._sends:
            if sent.is_before(channel, self.micro_batch, place):
                sent.work.wait()
            else:
                left.append(sent)
        self._sends = left

    def complete(self) -> None:
        """Wait until everything that was sent has left."""
        for sent in self._sends:
            sent.work.wait()
        self._sends.clear()

    def on_every_stage(self, whole: Tensor | None, group: int, shape: Any, dtype: str) -> Tensor:
        """Return on every process a tensor that those of one device group have."""
        if whole is None:
            whole = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)
        found = whole.contiguous()
        if (handle := self._group((_STAGE,)).handle) is not None:
            dist.broadcast(found, self.at(group), group=handle)
        return found


class Trainer(trainer.Trainer):
    """A training step of a plan with stages, with the parameters of the stages of this process.

    Parameters
    ----------
    module : Module or mapping of str to Tensor
        The module that was compiled, or whole tensors by the names of `program.PARAMETERS`. Those
        of other stages than those of this process may be on the device `meta`.
    device : str
        Where the slices are, and where the program runs.
    compile : bool
        Whether `torch.compile` compiles the program, each of its equal layers once.
    """

    mesh: Mesh

    def _make_mesh(self) -> Mesh:
        program = self.program
        axes = program.MESH, program.MICRO_BATCHES, program.GROUPS
        orders = [getattr(group, "ORDER", ()) for group in program.DEVICE_GROUPS]
        return Mesh(*axes, program.CHANNELS, orders, self.device)

    def _has(self, name: str) -> bool:
        return bool(self.program.HOMES.get(name, self.mesh.group) == self.mesh.group)

    @property
    def _functions(self) -> Any:
        return self.program.DEVICE_GROUPS[self.mesh.group]

    def _whole_output(self, name: str, part: Tensor | None) -> Tensor:
        if name not in self.program.HOMES:
            return super()._whole_output(name, part)
        whole = super()._whole_output(name, part) if self._has(name) else None
        dtype, shape, _ = self.program.OUTPUTS[name]
        return self.mesh.on_every_stage(whole, self.program.HOMES[name], shape, dtype)

    def whole(self, name: str, part: Tensor | None = None) -> Tensor:
        """Return a whole parameter, buffer or state; every process calls it.

        Or a tensor in the layout of one, such as a gradient: the processes that have it call it.
        """
        if part is not None or name not in self.program.HOMES:
            return super().whole(name, part)
        whole = super().whole(name) if self._has(name) else None
        dtype, shape, *_ = self.program.PARAMETERS[name]
        return self.mesh.on_every_stage(whole, self.program.HOMES[name], shape, dtype)

    @cached_property
    def _device_mesh(self) -> DeviceMesh | None:
        _, *axes = self.program.MESH
        found = trainer.device_mesh_of(self.device, self.program.MESH)
        return found[tuple(axes)] if axes else None

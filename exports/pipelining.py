"""Stages and schedule of a plan for `torch.distributed.pipelining`.

PyTorch traces the user's module and splits it where a module begins; a stage of the plan begins at
its first block. Processes of a stage that have samples of their own share it by `fully_shard`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.degrees.readings import forward_nodes, readings
from shardwright.exports.degrees.text import optimizer_notes
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.writing import (
    Code,
    code,
    fixed,
    identifier,
    in_parentheses,
    lines,
    listed,
    literal,
    prose,
)
from shardwright.exports.parallelize.axes import Axes, DataRanks, refused
from shardwright.exports.parallelize.blocks import Blocks
from shardwright.exports.torch.torch_program import TF32_SWITCH
from shardwright.ir.graph import Graph, Node
from shardwright.operators.models.precision import PRECISIONS

_SCHEDULES: Final = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero_bubble": "ScheduleInterleavedZeroBubble",
}
_OF_ONE_STAGE: Final = ("ScheduleGPipe", "Schedule1F1B")
_ELSE: Final = "export `torch`, which writes the program of each stage, an operator a line"
_NOT_TORCH: Final = "export `megatron` or `torchtitan`, the nearest plan that they can say"
_FILE: Final = '''"""For PyTorch: a plan of {model} in {stages} stages on {devices} devices.

On each of {devices} processes, `step(make_schedule(module, loss, example), inputs, targets)`.
"""

from collections.abc import Callable
{partial}from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
{imports}

STAGES, GROUPS, MICRO_BATCHES = {stages}, {groups}, {passes}
# The first module of each stage but the first; a group of processes runs every {groups}th stage.
BEGINS = {begins}
{again}

def make_schedule(
    module: nn.Module,
    loss: Callable[[Any, Any], torch.Tensor],
    example: tuple[Any, ...],
    device: str = "{device}",
) -> {schedule}:
    """Return the schedule of the plan, with the stages of this process.

    `module(*inputs)` is what `loss(outputs, targets)` takes, which is a mean over samples;
    `example` are inputs of one micro-batch of a process. Optimizers take `parameters(schedule)`.
    """
    mesh = init_device_mesh(device, {sizes}, mesh_dim_names={names})
    group = mesh["stage"].get_group()
    pipe = pipeline(module, example, split_spec=dict.fromkeys(BEGINS, SplitPoint.BEGINNING))
    own = range(dist.get_rank(group), STAGES, GROUPS)
    stages = [pipe.build_stage(number, torch.device(device), group) for number in own]
{prepared}    return {schedule}({given}, n_microbatches=MICRO_BATCHES, loss_fn=loss)


def step(schedule: {schedule}, inputs: tuple[Any, ...], targets: Any) -> torch.Tensor | None:
    """Run all micro-batches of a step, and return the loss on processes of the last stage."""
    stages = {all_stages}
    losses: list[torch.Tensor] = []
    given = inputs if any(stage.is_first for stage in stages) else ()
    is_last = any(stage.is_last for stage in stages)
{before}    if is_last:
        schedule.step(*given, target=targets, losses=losses)
    else:
        schedule.step(*given)
{after}    return torch.stack(losses).mean() if is_last else None


def parameters(schedule: {schedule}) -> dict[str, nn.Parameter]:
    """Return the parameters of the stages of this process, by their names in the module."""
    stages = {all_stages}
    return {{name: p for stage in stages for name, p in stage.submod.named_parameters()}}
{functions}'''
_SHARED: Final = '''

# Of each stage, the parameters of which another stage has a copy, with that stage.
_shared: dict[int, list[tuple[str, int]]] = {}


def _share(pipe: Any, stages: list[Any]) -> None:
    """Note which parameters are copied, and remove those that a stage does not read."""
    _shared.clear()
    for names in pipe.replicated_params:
        read = {int(module.rpartition("_")[2]): name for module, name in names.items()}
        (first, last) = read
        for stage in stages:
            number = stage.stage_index
            if number in read:
                other = last if number == first else first
                _shared.setdefault(number, []).append((read[number], other))
            for name in {*read.values()} - {read.get(number)}:
                owner, _, own = name.rpartition(".")
                try:
                    stage.submod.get_submodule(owner)._parameters.pop(own, None)
                except AttributeError:  # the stage has no such module
                    continue


def _gradients(stages: list[Any]) -> list[Any]:
    """Return the gradients of parameters that are copied."""
    return [
        stage.submod.get_parameter(name).grad
        for stage in stages
        for name, _ in _shared.get(stage.stage_index, ())
    ]


def _add_shared(stages: list[Any]) -> None:
    """Add the gradients of both copies of a parameter, on both stages."""
    others = [(stage, other) for stage in stages for _, other in _shared.get(stage.stage_index, ())]
    parts = [getattr(gradient, "_local_tensor", gradient) for gradient in _gradients(stages)]
    received = [torch.empty_like(part) for part in parts]
    operations = []
    for (stage, other), part, room in zip(others, parts, received, strict=True):
        peer = dist.get_global_rank(stage.group, other % GROUPS)
        operations.append(dist.P2POp(dist.isend, part, peer, stage.group))
        operations.append(dist.P2POp(dist.irecv, room, peer, stage.group))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    for part, room in zip(parts, received, strict=True):
        part += room
'''
_BEFORE: Final = """    if any(gradient is not None for gradient in _gradients(stages)):
        raise RuntimeError("there are gradients already, that would be added again: zero them")
"""

_RECOMPUTED: Final = """    for stage in stages:
        for name, block in stage.submod.named_modules():
            if name in COMPUTED_AGAIN:
                again = partial(checkpoint, block.forward, use_reentrant=False)
                block.forward = again"""
_EMPTY: Final = fixed("")


def _column(names: Iterable[str]) -> Code:
    """Return a tuple of strings, one a line."""
    return code("(\n{})", lines([*(code("    {},", literal(one)) for one in names), _EMPTY]))


def export(plan: Plan) -> Exported:
    """Return ``pipelining.py``.

    Raises
    ------
    PlanError
        If the plan has one stage, or a stage or a schedule that PyTorch has no form for.
    """
    pipeline = _Pipeline(plan)
    pipeline.check()
    return Exported({"pipelining.py": pipeline.text()}, tuple(pipeline.notes()))


@dataclass(frozen=True)
class _Pipeline:
    """A plan with stages.

    Parameters
    ----------
    plan : Plan
        The plan.
    """

    plan: Plan

    def check(self) -> None:
        """Refuse what PyTorch's stages and schedules do not do."""
        groups, passes = self.plan.mesh.stages, self.plan.mesh.passes
        if self.program.stages < 2:
            raise refused(
                "the plan has one stage, `export --to pipelining` writes plans of several",
                "compile it with `--stages`, or export `parallelize`",
            )
        if any(value.layout is None for value in self.program.values.values()):
            raise refused("the plan is of a program that calls collectives itself", _NOT_TORCH)
        if self.axes.tensor:
            raise refused(
                f"the ranks of a stage divide layers (over {', '.join(self.axes.tensor)}), and "
                "stages are traced from whole modules",
                _ELSE,
            )
        if self.program.offloaded:
            raise refused(f"`{self.program.offloaded[0]}` is kept in host memory", _NOT_TORCH)
        ranks = DataRanks(self.program, self.plan.model, self.axes.data)
        ranks.check()
        if passes > 1:
            ranks.check_mean()
        self.blocks.check()
        if self.plan.mesh.stage_map.in_v:
            raise refused(
                f"`{self.program.schedule}` has two stages in a row on one group of processes, and "
                "PyTorch's stages begin with a message to each neighbour, here to itself",
                _ELSE,
            )
        if (self.program.schedule or "1f1b") not in _SCHEDULES:
            raise refused(f"PyTorch has no schedule `{self.program.schedule}`", _ELSE)
        if self.blocks.recomputed and self.schedule == _SCHEDULES["zero_bubble"]:
            raise refused(
                f"`{self.blocks.recomputed[0]}` is computed again for the gradient, and "
                "`zero_bubble` of PyTorch goes back through a stage in two parts",
                _ELSE,
            )
        rounds = max(passes // groups, 1)
        if self.schedule not in _OF_ONE_STAGE and passes % rounds:
            raise refused(
                f"`{self.schedule}` of PyTorch runs {passes} micro-batches on {groups} groups in "
                f"{rounds} rounds, which do not divide them",
                "choose a number of micro-batches that the groups divide",
            )
        self._check_values()

    @property
    def program(self) -> Graph:
        """The program of the plan."""
        return self.plan.program

    @cached_property
    def axes(self) -> Axes:
        """The axes of the ranks of a stage."""
        return Axes.of(self.plan)

    @cached_property
    def _constants(self) -> frozenset[str]:
        return DataRanks(self.program, self.plan.model, self.axes.data).constants

    @cached_property
    def blocks(self) -> Blocks:
        """The repeated blocks of the model."""
        return Blocks(self.program, self._constants)

    @property
    def schedule(self) -> str:
        """PyTorch's name of the schedule."""
        return _SCHEDULES[self.program.schedule or "1f1b"]

    # ---- stages

    def _stage(self, node: Node) -> int:
        """The stage of a node; the first for what every stage has."""
        return self.program.stage_of(node) or 0

    @cached_property
    def _activations(self) -> tuple[Node, ...]:
        """The nodes of the forward pass that compute with the inputs, but no transfers."""
        return tuple(
            node
            for node in forward_nodes(self.program)
            if node.name not in self._constants and not self.program.changes_stage(node)
        )

    @cached_property
    def begins(self) -> tuple[str, ...]:
        """The first module of each stage but the first.

        Raises
        ------
        PlanError
            If a stage begins or ends inside of a module.
        """
        found = []
        for stage in range(1, self.program.stages):
            first = next(node for node in self._activations if self._stage(node) == stage)
            module = self._module(first)
            if not module:
                raise refused(
                    f"stage {stage} begins at `{first.operator}` in `{first.scope or first.name}`, "
                    "and PyTorch splits where a module begins",
                    "choose stages that begin at blocks",
                )
            found.append(module)
        return tuple(found)

    def _module(self, first: Node) -> str:
        """The outermost module that begins with a node, all of whose nodes are of its stage."""
        parts = first.scope.split("/") if first.scope else []
        for count in range(1, len(parts) + 1):
            scope = "/".join(parts[:count])
            inside = [n for n in self._activations if f"{n.scope}/".startswith(f"{scope}/")]
            stages = {self._stage(node) for node in inside}
            if inside[0] is first and stages == {self._stage(first)}:
                return scope.replace("/", ".")
        return ""

    def _check_values(self) -> None:
        """Check that stages have parameters of their own, and inputs for the first or the loss."""
        last, group_of = self.program.stages - 1, self.plan.mesh.stage_map.group
        for weight, places in self.shared.items():
            numbers = sorted(places)
            if len(numbers) > 2 or group_of(numbers[0]) == group_of(numbers[1]):
                raise refused(
                    f"`{weight}` is read in stages {', '.join(map(str, numbers))}, and copies of a "
                    "parameter are kept equal between two groups of processes alone",
                    _ELSE,
                )
        for name, stages in (*self._read["buffer"].items(), *self._handed_on.items()):
            if max(stages) - min(stages) > 1:
                raise refused(
                    f"`{name}` is made or read in stages {min(stages)} to {max(stages)}, and "
                    "PyTorch's stages hand on to the next alone",
                    _ELSE,
                )
        for name, stages in self._read["input"].items():
            if stages - {0} and stages - {last}:
                raise refused(
                    f"the input `{name}` is read in stages "
                    f"{', '.join(map(str, sorted(stages)))}, and PyTorch gives inputs to the first "
                    "and targets to the last",
                    _ELSE,
                )

    @cached_property
    def shared(self) -> dict[str, set[int]]:
        """The parameters that several stages read, with these."""
        found: dict[str, set[int]] = {}
        for reading in readings(self.program):
            found.setdefault(reading.weight, set()).add(self._stage(reading.node))
        return {weight: stages for weight, stages in found.items() if len(stages) > 1}

    @cached_property
    def _read(self) -> dict[str, dict[str, set[int]]]:
        """The stages that read an input or a buffer, themselves or what every stage makes of it."""
        buffers = {p.name for p in self.program.parameters if p.role == "buffer"}
        inputs = {value.name for value in self.program.inputs}
        origins = {name: {name} for name in (*inputs, *buffers)}
        found: dict[str, set[int]] = {name: set() for name in origins}
        for node in forward_nodes(self.program):
            stage = self.program.stage_of(node)
            come = {name for operand in node.operands for name in origins.get(operand, ())}
            if stage is None:
                origins.update({result.name: come for result in node.results})
                continue
            for name in come:
                found[name].add(stage)
        read = {name: stages for name, stages in found.items() if stages}
        return {
            "buffer": {name: stages for name, stages in read.items() if name in buffers},
            "input": {name: stages for name, stages in read.items() if name in inputs},
        }

    @cached_property
    def _handed_on(self) -> dict[str, set[int]]:
        """What stages hand on, with the stages that make it or read it."""
        origins: dict[str, str] = {}
        found: dict[str, set[int]] = {}
        for node in forward_nodes(self.program):
            if self.program.changes_stage(node):
                source = node.operands[0]
                name = origins.get(source, source)
                if name in self.shared:  # PyTorch copies parameters
                    continue
                origins[node.name] = name
                maker = self.program.producers.get(name)
                found.setdefault(name, {0 if maker is None else self._stage(maker)})
                continue
            for operand in node.operands:
                if operand in origins:
                    found[origins[operand]].add(self._stage(node))
        return found

    # ---- the file

    def text(self) -> Code:
        """Return the file."""
        document, mesh = self.plan.document, self.plan.mesh
        sizes, names = [mesh.stages], ["stage"]
        for name, axes in (("replicate", self.axes.replicate), ("shard", self.axes.shard)):
            if self.axes.data and (axes or name == "shard"):
                sizes.append(mesh.of_ranks.extent(axes))
                names.append(name)
        several = self.schedule not in _OF_ONE_STAGE
        partial = fixed("from functools import partial\n")
        return code(
            _FILE,
            model=prose(document.model),
            devices=document.devices,
            device=code("cpu" if document.cluster.name == "cpu" else "cuda"),
            stages=self.program.stages,
            groups=mesh.stages,
            passes=mesh.passes,
            begins=_column(self.begins),
            again=self._again(),
            partial=partial if self.blocks.recomputed else _EMPTY,
            schedule=identifier(self.schedule),
            sizes=tuple(sizes),
            names=in_parentheses(map(literal, names)),
            imports=lines(self._imports()),
            prepared=lines([*self._prepared(names[1:]), _EMPTY]),
            before=fixed(_BEFORE) if self.shared else _EMPTY,
            after=fixed("    _add_shared(stages)\n") if self.shared else _EMPTY,
            functions=fixed(_SHARED) if self.shared else _EMPTY,
            given=fixed("stages") if several else fixed("stages[0]"),
            all_stages=fixed("schedule._stages") if several else fixed("[schedule._stage]"),
        )

    def _again(self) -> Code:
        """Return the line with the blocks that are computed again, if there are some."""
        if not self.blocks.recomputed:
            return _EMPTY
        return code("COMPUTED_AGAIN = {}\n", _column(self.blocks.recomputed))

    def _imports(self) -> Iterator[Code]:
        if self.axes.data:
            yield fixed("from torch.distributed.fsdp import fully_shard")
        names = listed(map(identifier, sorted([self.schedule, "SplitPoint", "pipeline"])))
        yield code("from torch.distributed.pipelining import {}", names)
        if self.blocks.recomputed:
            yield fixed("from torch.utils.checkpoint import checkpoint")
        if PRECISIONS[self.plan.document.precision].products:
            yield code("\n{}", TF32_SWITCH)

    def _prepared(self, names: list[str]) -> Iterator[Code]:
        """Yield the lines that prepare the stages."""
        if self.shared:
            yield fixed("    _share(pipe, stages)")
        if self.blocks.recomputed:
            yield fixed(_RECOMPUTED)
        if not self.axes.data:
            return
        yield fixed("    for stage in stages:")
        yield code(
            "        fully_shard(stage.submod, mesh=mesh[{}], reshard_after_forward={})",
            listed(map(literal, names)),
            self.blocks.regathers,
        )

    def notes(self) -> Iterator[str]:
        """Yield what a person must know."""
        count = self.plan.mesh.size
        yield (
            f"start the {count} processes with `torchrun --nproc-per-node {count}`; give the "
            "module without its loss, and the loss as a function of what it returns"
        )
        yield (
            f"a step has {self.plan.mesh.passes} micro-batches, whose losses and gradients are "
            "averaged: equal to the plan's where all have as many labels that count"
        )
        for weight, stages in self.shared.items():
            first, last = sorted(stages)
            yield (
                f"`{weight}` has a copy on stage {first} and one on stage {last}; `step` adds the "
                "gradients of both, so zero them before each step"
            )
        if self.program.stages > 2:
            yield (
                "what the module computes once for all blocks, such as angles of rotary "
                "embeddings, PyTorch hands on to the next stage alone, and refuses others"
            )
        if PRECISIONS[self.plan.document.precision].is_mixed:
            yield (
                f"the stages compute in the types of the module, the plan in "
                f"{self.plan.document.precision}"
            )
        yield from optimizer_notes(self.plan, "PyTorch")

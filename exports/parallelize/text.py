"""The text of ``parallelize.py``."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.degrees.text import optimizer_notes
from shardwright.exports.parallelize.axes import Axes, layout_of
from shardwright.exports.parallelize.blocks import Blocks
from shardwright.exports.parallelize.styles import Styles, placement_text
from shardwright.exports.readings import merged, weights_of
from shardwright.exports.writing import literal, prose
from shardwright.operators.models.precision import MASTER

_WIDTH: Final = 98  # columns
_HEAD = '''"""{title}
{said}
Call `parallelize(module, make_mesh(){example})` on each of {count} processes;
{samples}
"""
'''
_MESH = '''

def make_mesh(device: str = "{device}") -> DeviceMesh:
    """Return the mesh of the plan: {axes}."""
{call}
'''
_CHECKS = '''

def _check(module: nn.Module, styles: Collection[str]) -> None:
    """Check that the module has what has a style."""
    names = [name for name, _ in module.named_modules()]
    for pattern in styles:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no module is called `{pattern}`: give the module that was compiled")


def _taken(module: nn.Module, styles: dict[str, ParallelStyle], example: Example) -> Taken:
    """Return what the layers that are divided by rows take, in a forward pass."""
    rows = [pattern for pattern, style in styles.items() if isinstance(style, RowwiseParallel)]
    taken, hooks = Taken(), []
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and any(_is_named(name, row) for row in rows):
            keep = partial(lambda name, _, given: taken.update({name: given[0].detach()}), name)
            hooks.append(layer.register_forward_pre_hook(keep, prepend=True))
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        module(**example) if isinstance(example, dict) else module(*example)
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    for hook in hooks:
        hook.remove()
    return taken


def _is_named(name: str, pattern: str) -> bool:
    parts = name.split("."), pattern.split(".")
    same = len(parts[0]) == len(parts[1])
    return same and all(map(fnmatch.fnmatch, *parts))


def _compare(whole: Taken, parts: Taken, mesh: DeviceMesh) -> None:
    """Check that the module's code computes on parts what it computes on whole layers."""
    for name, part in parts.items():
        part = part.to_local() if isinstance(part, DTensor) else part
        right = whole[name].chunk(mesh.size(), -1)[mesh.get_local_rank()]
        near = 0.1 if part.dtype.itemsize == 2 else 1e-3
        if part.shape != right.shape or (part - right).abs().max() > near * right.abs().max():
            raise ValueError(
                f"before `{name}` the code of the module computes something else on parts of "
                "layers: it takes sizes, such as a number of heads, from elsewhere than its tensors"
            )
'''
_DOCSTRING = '''    """Parallelize a module with whole parameters, by the plan.

    `example` has the inputs of a forward pass, the same on processes that share samples: a dict by
    name, or a tuple. Code between the layers runs on parts of them; the pass is run before and
    after, and values that differ are an error. None leaves that out, for a module without memory.
    """
'''
_DIFFERENCE = '''

def difference(module: nn.Module, mesh: DeviceMesh, *args: Any, **inputs: Any) -> dict[str, float]:
    """Return how far loss and gradients are from those of the module on one device.

    Every process gives the whole module, with the same weights, and all samples; the module stays
    as it is. A gradient is compared relative to its largest element, or to a millionth of the
    largest of all. Large numbers show code that takes numbers of heads or of features from
    elsewhere than its tensors, and losses that are no mean over equal samples.
    """
    alone = deepcopy(module)
    shared = parallelize(deepcopy(module), mesh{example})
    ranks, number = {ranks}

    def own(x: Any) -> Any:
        has_samples = isinstance(x, torch.Tensor) and x.shape[:1] == ({batch},)
        return x.chunk(ranks)[number] if has_samples else x

    mine = tree_map(own, (args, inputs))
    right, found = _loss(alone(*args, **inputs)), _loss(shared(*mine[0], **mine[1]))
    right.backward()
    found.backward()
    mean = found.detach().clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    far = {{"loss": float(abs(mean - right.detach()) / abs(right.detach()))}}
    wanted = dict(alone.named_parameters())
    least = 1e-6 * max(float(p.grad.abs().max()) for p in wanted.values() if p.grad is not None)
    for name, parameter in shared.named_parameters():
        gradient, expected = parameter.grad, wanted[name].grad
        if gradient is None or expected is None:
            continue
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        scale = max(float(expected.abs().max()), least)
        far[name] = float((whole - expected).abs().max()) / scale
    return far


def _loss(outputs: Any) -> torch.Tensor:
    return next(x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor))
'''


@dataclass(frozen=True)
class Writer:
    """Writes the file of a plan.

    Parameters
    ----------
    plan : Plan
        A plan that has such a form.
    axes : Axes
        What its axes divide.
    styles : Styles
        The styles of its modules.
    blocks : Blocks
        Its repeated blocks.
    """

    plan: Plan
    axes: Axes
    styles: Styles
    blocks: Blocks

    def text(self, said: tuple[str, ...] = ()) -> str:
        """Return the file, with what a person must know of the plan at its head."""
        body = self._mesh() + self._parallelize() + self._rest()
        return self._head(said) + self._imports(body) + body

    # ---- the mesh

    @property
    def _is_sharded(self) -> bool:
        """Whether `fully_shard` is called: for samples of ranks, or for a lower precision."""
        return bool(self.axes.data) or self.plan.document.precision != MASTER

    @cached_property
    def _groups(self) -> dict[str, tuple[str, ...]]:
        """The dimensions of the mesh, with the axes of the plan."""
        found = {"replicate": self.axes.replicate, "shard": self.axes.shard}
        if not self._is_sharded:
            found = {}
        elif not self.axes.replicate:
            found.pop("replicate")
        return found | ({"tensor": self.axes.tensor} if self.axes.tensor else {})

    def _mesh(self) -> str:
        mesh, groups = self.plan.mesh.of_ranks, self._groups
        sizes = tuple(mesh.extent(axes) for axes in groups.values()) or (1,)
        names = tuple(groups) or ("shard",)
        order = [axis for axes in groups.values() for axis in axes]
        if order == list(mesh.names):
            call = f"init_device_mesh(device, {sizes}, mesh_dim_names={_tuple(names)})"
        else:
            places = tuple(mesh.names.index(axis) for axis in order)
            ranks = f"torch.arange({mesh.size}).reshape({mesh.shape}).permute{places}"
            call = f"DeviceMesh(device, {ranks}.reshape({sizes}), mesh_dim_names={_tuple(names)})"
        axes = ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
        device = "cpu" if self.plan.document.cluster.name == "cpu" else "cuda"
        return _MESH.format(device=device, axes=axes, call=wrapped(f"    return {call}"))

    # ---- the function

    def _parallelize(self) -> str:
        lines = ["", "", *self._signature()]
        lines += self._style_lines()
        lines += self._checkpoint_lines()
        lines += self._shard_lines() if self._is_sharded else []
        return "\n".join([*lines, "    return module", ""])

    def _style_lines(self) -> Iterator[str]:
        """Yield the calls of `parallelize_module`, modules that agree in one line."""
        if not self._calls:
            return
        owners = dict.fromkeys(name.rpartition(".")[0] for name in weights_of(self.plan.program))
        head, tail = self._comparison_lines()
        for title, calls in (("styles", self._calls), ("results", self._output_calls)):
            if not calls:
                continue
            every = merged({**dict.fromkeys([*owners, *calls], ""), **calls})
            yield f"    {title}: dict[str, ParallelStyle] = {{"
            for name, call in every.items():
                if call:
                    yield wrapped(f"        {literal(name)}: {call},")
            yield "    }"
            yield f"    _check(module, {title})"
            yield from head if title == "styles" else ()
            yield f'    parallelize_module(module, mesh["tensor"], {title})'
        yield from tail

    @property
    def _has_rows(self) -> bool:
        """Whether layers are divided by rows, so that code of the module runs on parts before."""
        return any(
            style.kind == "RowwiseParallel" and style.inputs is None
            for style in self.styles.modules.values()
        )

    def _signature(self) -> Iterator[str]:
        if not self._has_rows:
            yield "def parallelize(module: nn.Module, mesh: DeviceMesh) -> nn.Module:"
            yield '    """Parallelize a module with whole parameters, by the plan."""'
            return
        yield "def parallelize("
        yield "    module: nn.Module, mesh: DeviceMesh, example: Example | None"
        yield ") -> nn.Module:"
        yield from _DOCSTRING.splitlines()

    def _comparison_lines(self) -> tuple[list[str], list[str]]:
        """Return the lines that compare a forward pass before and after layers are divided."""
        if not self._has_rows:
            return [], []
        head = ["    whole = None if example is None else _taken(module, styles, example)"]
        tail = ["    if whole is not None and example is not None:"]
        tail += ['        _compare(whole, _taken(module, styles, example), mesh["tensor"])']
        return head, tail

    def _checkpoint_lines(self) -> Iterator[str]:
        """Yield what computes blocks again: all of a list, or some."""
        again = {*self.blocks.recomputed}
        for name in self.blocks.lists:
            numbers = self.blocks.numbers(name)
            mine = [number for number in numbers if f"{name}.{number}" in again]
            if not mine:
                continue
            children = f"module.{name}.children()"
            if mine != numbers:
                children = (
                    f"list({children})[{numbers.index(mine[0])} : {numbers.index(mine[-1]) + 1}]"
                )
            yield f"    for block in {children}:"
            yield "        block.forward = partial(checkpoint, block.forward, use_reentrant=False)"

    @cached_property
    def _calls(self) -> dict[str, str]:
        return {name: style.call for name, style in self.styles.modules.items()}

    @cached_property
    def _output_calls(self) -> dict[str, str]:
        return {
            name: f"PrepareModuleOutput(output_layouts={placement_text(placement)}, "
            "desired_output_layouts=Replicate(), use_local_output=False)"
            for name, placement in self.styles.outputs.items()
        }

    def _shard_lines(self) -> Iterator[str]:
        """Yield the calls of `fully_shard`: of each block, then of what is left."""
        names = [name for name in ("replicate", "shard") if name in self._groups]
        dims = names[0] if len(names) == 1 else tuple(names)
        options = [f"mesh=mesh[{_quoted(dims)}]", f"reshard_after_forward={self.blocks.regathers}"]
        dimensions = dict(self._shard_dimensions())
        if dimensions:
            yield "    dimensions = {"
            yield from (f"        {literal(name)}: {d}," for name, d in dimensions.items())
            yield "    }"
            yield "    places = {"
            yield "        parameter: Shard(dimensions.get(name, 0))"
            yield "        for name, parameter in module.named_parameters()"
            yield "    }"
            options.append("shard_placement_fn=places.get")
        if self.plan.document.precision != MASTER:
            low = self.plan.document.precision
            high = low if self.plan.document.reduce_type == "lower" else MASTER
            yield "    policy = MixedPrecisionPolicy("
            yield f"        param_dtype=torch.{low}, reduce_dtype=torch.{high}"
            yield "    )"
            options.append("mp_policy=policy")
        yield f"    options: dict[str, Any] = dict({', '.join(options)})"
        for name in self.blocks.lists:
            yield f"    for block in module.{name}.children():"
            yield "        if any(True for _ in block.parameters()):"
            yield "            fully_shard(block, **options)"
        yield "    fully_shard(module, **options)"

    def _shard_dimensions(self) -> Iterator[tuple[str, int]]:
        """Yield the parameters that are divided over the data ranks, but not in dimension 0."""
        for name in weights_of(self.plan.program):
            for dimension, axes in enumerate(layout_of(self.plan.program.value(name)).splits):
                if dimension and {*axes} & {*self.axes.shard}:
                    yield name, dimension

    # ---- the head, and what compares

    def _head(self, said: tuple[str, ...]) -> str:
        document = self.plan.document
        title = (
            f"For PyTorch: a plan of {prose(document.model)} on {document.devices} devices of "
            f"{prose(document.cluster.name)}."
        )
        return _HEAD.format(
            title=title,
            said="".join(f"\n{_sentence(one)}" for one in said) + "\n" * bool(said),
            count=self.plan.mesh.size,
            samples=self._samples,
            example=", example" * self._has_rows,
        )

    @property
    def _samples(self) -> str:
        ranks = self.plan.mesh.of_ranks.extent(self.axes.data)
        if ranks == 1:
            return "each has all samples."
        return (
            f"those of a place on the axes of data, of {ranks}, have their own part of the samples."
        )

    def _imports(self, words: str) -> str:
        """Return the imports of what the words of the file name."""
        styles = [
            name
            for name in ("ColwiseParallel", "PrepareModuleOutput", "RowwiseParallel")
            if f"{name}(" in words
        ]
        styles += ["SequenceParallel"] * ("SequenceParallel(" in words)
        lines = [""]
        if self._calls:
            lines += ["import fnmatch", "from collections.abc import Collection"]
        lines.append("from copy import deepcopy")
        lines += ["from functools import partial"] * ("partial(" in words)
        lines += ["from typing import Any", "", "import torch", "import torch.distributed as dist"]
        lines += ["from torch import nn"]
        makers = ", ".join(n for n in ("DeviceMesh", "init_device_mesh") if n in words)
        lines.append(f"from torch.distributed.device_mesh import {makers}")
        if self._is_sharded:
            policy = "MixedPrecisionPolicy, " * ("MixedPrecisionPolicy" in words)
            lines.append(f"from torch.distributed.fsdp import {policy}fully_shard")
        kinds = ["DTensor", *(n for n in ("Replicate", "Shard") if f"{n}(" in words)]
        lines.append(f"from torch.distributed.tensor import {', '.join(kinds)}")
        if self._calls:
            lines.append("from torch.distributed.tensor.parallel import (")
            lines += [f"    {name}," for name in [*styles, "parallelize_module"]]
            lines.append(")")
            lines.append("from torch.distributed.tensor.parallel.style import ParallelStyle")
        lines.append("from torch.utils._pytree import tree_leaves, tree_map")
        lines += ["from torch.utils.checkpoint import checkpoint"] * bool(self.blocks.recomputed)
        if self._has_rows:
            lines += ["", "Example = dict[str, Any] | tuple[Any, ...]"]
            lines += ["Taken = dict[str, torch.Tensor]"]
        return "\n".join(lines) + "\n"

    def _rest(self) -> str:
        checks = _CHECKS if self._has_rows else _CHECKS[: _CHECKS.index("\n\n\ndef _taken")] + "\n"
        return (checks if self._calls else "") + self._comparison()

    def _comparison(self) -> str:
        names = [name for name in ("replicate", "shard") if name in self._groups]
        sizes = [self.plan.mesh.of_ranks.extent(self._groups[name]) for name in names]
        places = [f'mesh.get_local_rank("{name}")' for name in names]
        number = places[-1] if places else "0"
        if len(places) > 1:
            number = f"{places[0]} * {sizes[1]} + {places[1]}"
        return _DIFFERENCE.format(
            ranks=f"{prod(sizes)}, {number}",
            batch=self._batch,
            example=", None" * self._has_rows,
        )

    @property
    def _batch(self) -> int:
        """The samples of a step, by the first input that has several."""
        shapes = (value.type.shape for value in self.plan.program.inputs)
        return next((shape[0] for shape in shapes if shape), 1)

    # ---- notes

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person must know."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        count, example = self.plan.mesh.size, ", example" * self._has_rows
        yield (
            f"start the {count} process{'es' * (count > 1)} with `torchrun --nproc-per-node "
            f"{count}`; `parallelize(module, make_mesh(){example})` of `parallelize.py` is the "
            "module"
        )
        if self.axes.tensor:
            yield (
                "the code of the module runs on parts of its layers, so it must take sizes from "
                "its tensors (`-1`, not a number of heads): `parallelize` compares an example, "
                "`difference` of the file a step with one device"
            )
        if self.axes.data:
            yield (
                "the loss of a process is the mean of its own samples: equal where all have as "
                "many labels that count"
            )
        if self.plan.mesh.passes > 1:
            yield (
                f"a step has {self.plan.mesh.passes} micro-batches here: divide each loss by that, "
                "and call `set_requires_gradient_sync(False)` before all but the last to reduce "
                "gradients once"
            )
        if self.styles.scores:
            yield (
                f"what `{self.styles.scores}` returns is gathered before the loss, here it stays "
                "divided"
            )
        yield from optimizer_notes(self.plan, "PyTorch")


def _sentence(said: str) -> str:
    """Return a note as a sentence of a docstring."""
    sentence = prose(f"{said[0].upper()}{said[1:]}.")
    return textwrap.fill(sentence, _WIDTH, break_on_hyphens=False)


def _quoted(names: str | tuple[str, ...]) -> str:
    return ", ".join(map(literal, [names] if isinstance(names, str) else names))


def _tuple(names: tuple[str, ...]) -> str:
    return f"({_quoted(names)}{',' * (len(names) == 1)})"


def wrapped(line: str) -> str:
    """Return a line of a call; one that is long with its arguments on a line of their own.

    Examples
    --------
    >>> wrapped("x = f(1, 2)")
    'x = f(1, 2)'
    """
    if len(line) <= _WIDTH:
        return line
    start, _, rest = line.partition("(")
    arguments, _, end = rest.rpartition(")")
    space = " " * (len(line) - len(line.lstrip()))
    return f"{start}(\n{space}    {arguments}\n{space}){end}"

"""The text of ``parallelize.py``."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.degrees.readings import merged, weights_of
from shardwright.exports.degrees.text import optimizer_notes
from shardwright.exports.emission.writing import (
    Code,
    code,
    fixed,
    identifier,
    in_parentheses,
    lines,
    listed,
    literal,
    paragraph,
    prose,
    word,
    wrapped,
)
from shardwright.exports.parallelize.axes import Axes
from shardwright.exports.parallelize.blocks import Blocks
from shardwright.exports.parallelize.styles import Styles, placement_text
from shardwright.exports.torch.torch_program import TF32_SWITCH
from shardwright.operators.models.precision import MASTER, PRECISIONS, Precision

_EMPTY: Final = code("")
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
'''
_COMPARE = '''

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
    """'''
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


_PLACES = """    }
    places = {
        parameter: Shard(dimensions.get(name, 0))
        for name, parameter in module.named_parameters()
    }"""
_ALWAYS = """from typing import Any

import torch
import torch.distributed as dist
from torch import nn"""


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

    def text(self, said: tuple[str, ...] = ()) -> Code:
        """Return the file, with what a person must know of the plan at its head."""
        body = code("{}{}{}", self._mesh(), self._parallelize(), self._rest())
        switch = code("\n{}", TF32_SWITCH) if self._precision.products else _EMPTY
        return code("{}{}{}{}", self._head(said), self._imports(body), switch, body)

    # ---- the mesh

    @property
    def _is_sharded(self) -> bool:
        """Whether `fully_shard` is called: for samples of ranks, or for a lower precision."""
        return bool(self.axes.data) or self._precision.is_mixed

    @property
    def _precision(self) -> Precision:
        return PRECISIONS[self.plan.document.precision]

    @cached_property
    def _groups(self) -> dict[str, tuple[str, ...]]:
        """The dimensions of the mesh, with the axes of the plan."""
        found = {"replicate": self.axes.replicate, "shard": self.axes.shard}
        if not self._is_sharded:
            found = {}
        elif not self.axes.replicate:
            found.pop("replicate")
        return found | ({"tensor": self.axes.tensor} if self.axes.tensor else {})

    def _mesh(self) -> Code:
        mesh, groups = self.plan.mesh.of_ranks, self._groups
        sizes = tuple(mesh.extent(axes) for axes in groups.values()) or (1,)
        names = tuple(groups) or ("shard",)
        order = [axis for axes in groups.values() for axis in axes]
        if order == list(mesh.names):
            call = code("init_device_mesh(device, {}, mesh_dim_names={})", sizes, _tuple(names))
        else:
            places = tuple(mesh.names.index(axis) for axis in order)
            ranks = code("torch.arange({}).reshape({}).permute{}", mesh.size, mesh.shape, places)
            call = code(
                "DeviceMesh(device, {}.reshape({}), mesh_dim_names={})", ranks, sizes, _tuple(names)
            )
        pairs = zip(map(word, names), sizes, strict=True)
        axes = listed(code("{} {}", axis, size) for axis, size in pairs)
        device = code("cpu" if self.plan.document.cluster.name == "cpu" else "cuda")
        return code(_MESH, device=device, axes=axes, call=wrapped(code("    return {}", call)))

    # ---- the function

    def _parallelize(self) -> Code:
        found = [_EMPTY, _EMPTY, *self._signature()]
        found += self._style_lines()
        found += self._checkpoint_lines()
        found += self._shard_lines() if self._is_sharded else []
        return lines([*found, code("    return module"), _EMPTY])

    def _style_lines(self) -> Iterator[Code]:
        """Yield the calls of `parallelize_module`, modules that agree in one line."""
        if not self._calls:
            return
        owners = dict.fromkeys(one.rpartition(".")[0] for one in weights_of(self.plan.program))
        head, tail = self._comparison_lines()
        for title, calls in (("styles", self._calls), ("results", self._output_calls)):
            if not calls:
                continue
            every = merged({**dict.fromkeys([*owners, *calls], _EMPTY), **calls})
            table = identifier(title)
            yield code("    {}: dict[str, ParallelStyle] = {{", table)
            for pattern, call in every.items():
                if call:
                    yield wrapped(code("        {}: {},", literal(pattern), call))
            yield code("    }}")
            yield code("    _check(module, {})", table)
            yield from head if title == "styles" else ()
            yield code('    parallelize_module(module, mesh["tensor"], {})', table)
        yield from tail

    @property
    def _has_rows(self) -> bool:
        """Whether layers are divided by rows, so that code of the module runs on parts before."""
        return any(
            style.kind == "RowwiseParallel" and style.inputs is None
            for style in self.styles.modules.values()
        )

    def _signature(self) -> Iterator[Code]:
        if not self._has_rows:
            yield code("def parallelize(module: nn.Module, mesh: DeviceMesh) -> nn.Module:")
            yield code('    """Parallelize a module with whole parameters, by the plan."""')
            return
        yield code("def parallelize(")
        yield code("    module: nn.Module, mesh: DeviceMesh, example: Example | None")
        yield code(") -> nn.Module:")
        yield fixed(_DOCSTRING)

    def _comparison_lines(self) -> tuple[list[Code], list[Code]]:
        """Return the lines that compare a forward pass before and after layers are divided."""
        if not self._has_rows:
            return [], []
        head = code("    whole = None if example is None else _taken(module, styles, example)")
        tail = [code("    if whole is not None and example is not None:")]
        tail += [code('        _compare(whole, _taken(module, styles, example), mesh["tensor"])')]
        return [head], tail

    def _checkpoint_lines(self) -> Iterator[Code]:
        """Yield what computes blocks again: all of a list, or some."""
        again = {*self.blocks.recomputed}
        for module in self.blocks.lists:
            numbers = self.blocks.numbers(module)
            mine = [number for number in numbers if f"{module}.{number}" in again]
            if not mine:
                continue
            children = code("module.{}.children()", identifier(module))
            if mine != numbers:
                first, last = numbers.index(mine[0]), numbers.index(mine[-1])
                children = code("list({})[{} : {}]", children, first, last + 1)
            yield code("    for block in {}:", children)
            yield code(
                "        block.forward = partial(checkpoint, block.forward, use_reentrant=False)"
            )

    @cached_property
    def _calls(self) -> dict[str, Code]:
        return {module: style.call for module, style in self.styles.modules.items()}

    @cached_property
    def _output_calls(self) -> dict[str, Code]:
        return {
            module: code(
                "PrepareModuleOutput(output_layouts={}, "
                "desired_output_layouts=Replicate(), use_local_output=False)",
                placement_text(placement),
            )
            for module, placement in self.styles.outputs.items()
        }

    def _shard_lines(self) -> Iterator[Code]:
        """Yield the calls of `fully_shard`: of each block, then of what is left."""
        dims = listed(map(literal, (one for one in ("replicate", "shard") if one in self._groups)))
        options = [code("mesh=mesh[{}]", dims)]
        options += [code("reshard_after_forward={}", self.blocks.regathers)]
        dimensions = dict(self._shard_dimensions())
        if dimensions:
            yield code("    dimensions = {{")
            rows = ((literal(one), dimension) for one, dimension in dimensions.items())
            yield from (code("        {}: {},", *row) for row in rows)
            yield fixed(_PLACES)
            options.append(code("shard_placement_fn=places.get"))
        if self._precision.is_mixed:
            low = self._precision.compute
            high = low if self.plan.document.reduce_type == "lower" else MASTER
            yield code("    policy = MixedPrecisionPolicy(")
            yield code(
                "        param_dtype=torch.{}, reduce_dtype=torch.{}",
                identifier(low),
                identifier(high),
            )
            yield code("    )")
            options.append(code("mp_policy=policy"))
        yield code("    options: dict[str, Any] = dict({})", listed(options))
        for module in self.blocks.lists:
            yield code("    for block in module.{}.children():", identifier(module))
            yield code("        if any(True for _ in block.parameters()):")
            yield code("            fully_shard(block, **options)")
        yield code("    fully_shard(module, **options)")

    def _shard_dimensions(self) -> Iterator[tuple[str, int]]:
        """Yield the parameters that are divided over the data ranks, but not in dimension 0."""
        for weight in weights_of(self.plan.program):
            for dimension, axes in enumerate(self.plan.program.value(weight).known_layout.splits):
                if dimension and {*axes} & {*self.axes.shard}:
                    yield weight, dimension

    # ---- the head, and what compares

    def _head(self, said: tuple[str, ...]) -> Code:
        document = self.plan.document
        title = (
            f"For PyTorch: a plan of {document.model} on {document.devices} devices of "
            f"{document.cluster.name}."
        )
        told = [_EMPTY, *map(_sentence, said), _EMPTY] if said else []
        return code(
            _HEAD,
            title=prose(title),
            said=lines(told),
            count=self.plan.mesh.size,
            samples=prose(self._samples),
            example=code(", example") if self._has_rows else _EMPTY,
        )

    @property
    def _samples(self) -> str:
        ranks = self.plan.mesh.of_ranks.extent(self.axes.data)
        if ranks == 1:
            return "each has all samples."
        return (
            f"those of a place on the axes of data, of {ranks}, have their own part of the samples."
        )

    def _imports(self, words: Code) -> Code:
        """Return the imports of what the words of the file name."""
        kinds = ("ColwiseParallel", "PrepareModuleOutput", "RowwiseParallel", "SequenceParallel")
        styles = [identifier(kind) for kind in kinds if f"{kind}(" in words]
        found = [_EMPTY]
        if self._calls:
            found += [code("import fnmatch"), code("from collections.abc import Collection")]
        found.append(code("from copy import deepcopy"))
        found += [code("from functools import partial")] * ("partial(" in words)
        found.append(fixed(_ALWAYS))
        makers = [identifier(n) for n in ("DeviceMesh", "init_device_mesh") if n in words]
        found.append(code("from torch.distributed.device_mesh import {}", listed(makers)))
        if self._is_sharded:
            policy = [code("MixedPrecisionPolicy")] * ("MixedPrecisionPolicy" in words)
            names = listed([*policy, code("fully_shard")])
            found.append(code("from torch.distributed.fsdp import {}", names))
        placements = ["DTensor", *(n for n in ("Replicate", "Shard") if f"{n}(" in words)]
        found.append(
            code("from torch.distributed.tensor import {}", listed(map(identifier, placements)))
        )
        if self._calls:
            found.append(code("from torch.distributed.tensor.parallel import ("))
            found += [code("    {},", n) for n in [*styles, code("parallelize_module")]]
            found.append(code(")"))
            found.append(code("from torch.distributed.tensor.parallel.style import ParallelStyle"))
        found.append(code("from torch.utils._pytree import tree_leaves, tree_map"))
        if self.blocks.recomputed:
            found.append(code("from torch.utils.checkpoint import checkpoint"))
        if self._has_rows:
            found += [_EMPTY, code("Example = dict[str, Any] | tuple[Any, ...]")]
            found.append(code("Taken = dict[str, torch.Tensor]"))
        return lines([*found, _EMPTY])

    def _rest(self) -> Code:
        checks = code("{}{}", fixed(_CHECKS), fixed(_COMPARE) if self._has_rows else _EMPTY)
        return code("{}{}", checks if self._calls else _EMPTY, self._comparison())

    def _comparison(self) -> Code:
        names = [n for n in ("replicate", "shard") if n in self._groups]
        sizes = [self.plan.mesh.of_ranks.extent(self._groups[n]) for n in names]
        places = [code("mesh.get_local_rank({})", literal(n)) for n in names]
        number = places[-1] if places else code("0")
        if len(places) > 1:
            number = code("{} * {} + {}", places[0], sizes[1], places[1])
        return code(
            _DIFFERENCE,
            ranks=code("{}, {}", prod(sizes), number),
            batch=self._batch,
            example=code(", None") if self._has_rows else _EMPTY,
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


def _sentence(said: str) -> Code:
    """Return a note as a sentence of a docstring."""
    return paragraph(f"{said[0].upper()}{said[1:]}.")


def _tuple(names: tuple[str, ...]) -> Code:
    return in_parentheses(map(literal, names))

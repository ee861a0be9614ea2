"""Cells: the building blocks of a network."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from typing import Any, ClassVar, Protocol, Self

from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.units import shortened
from shardwright.ir.values import (
    NOT_NEGATIVE_INTEGER,
    check_choice,
    check_flag,
    check_names,
    wrong_value,
)
from shardwright.ops.sharding import shard
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, computed, tensors_in
from shardwright.tracer import Tracer, current_tracer, is_tracing

_REAL = ("float16", "bfloat16", "float32")
_FLAGS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
BY_HAND = "skip_auto_parallel_compile"  # the flag of a cell that no search splits
_RECOMPUTE = (
    "mp_comm_recompute",
    "parallel_optimizer_comm_recompute",
    "recompute_slice_activation",
)


_ONLY_TOLD: ContextVar[bool] = ContextVar("only_told", default=False)


@contextmanager
def only_told_cells_train() -> Iterator[None]:
    """Let no cell train that `set_train` has not told to, in a training step either."""
    token = _ONLY_TOLD.set(True)
    try:
        yield
    finally:
        _ONLY_TOLD.reset(token)


class Runner(Protocol):
    """Runs cells outside of a trace."""

    def run(self, cell: "Cell", inputs: Sequence[Any]) -> Any:
        """Return what a cell returns; None where this process computes it alone."""

    def compile(self, cell: "Cell", inputs: Sequence[Any]) -> None:
        """Compile a cell for some inputs, where it is not computed by this process alone."""


class Cell:
    """A building block of a network: parameters, inner cells, and a computation.

    A subclass creates cells and parameters as attributes, which name them, and overrides
    `construct`. Nothing needs to be registered.

    Examples
    --------
    >>> class Shift(Cell):
    ...     def __init__(self):
    ...         self.offset = Parameter("zeros", shape=(4,))
    ...     def construct(self, x):
    ...         return x + self.offset
    >>> [name for name, _ in Shift().parameters_and_names()]
    ['offset']
    """

    _auto_prefix = True  # a subclass need not call `__init__`
    _recomputed = False
    _offloaded = False
    _told: Mapping[str, bool] = {}  # by `add_flags`
    _reads_as: str | None = None  # the element type that the cell computes in, if it has one
    _pipeline_stage: int | None = None
    _pin: Callable[[Tracer, int], None] | None = None  # pins what was traced from a node on
    _strategies: tuple[Any, Any] | None = None  # of inputs and results, by `shard`
    runner: ClassVar["Runner | None"] = None  # of cells outside of a trace, on several ranks
    _inputs: tuple[Any, ...] = ()  # what `set_inputs` says
    wraps: str | None = None  # the attribute that has the network, of a cell that is round it
    precision = ""  # of a whole network, by `amp.auto_mixed_precision`
    training: bool | None = None  # None: where the program is a training step
    parameter_layout_dict: Mapping[str, Any] = {}  # of a cell that was compiled alone
    micro_batches = 1  # of a whole network, by `nn.GradAccumulation`

    def __init__(self, auto_prefix: bool = True, flags: None = None) -> None:
        """Set how the parameters of inner cells are named.

        Parameters
        ----------
        auto_prefix : bool
            Whether their names begin with the name of the inner cell.
        flags : None
            Must be left out: MindSpore's flags have no meaning here.

        Raises
        ------
        OptionError
            If `auto_prefix` is no truth value, or flags are given.
        """
        check_flag("auto_prefix", auto_prefix)
        if flags is not None:
            raise wrong_value("flags", flags, "none")
        self._auto_prefix = auto_prefix

    def construct(self, *inputs: Any) -> Any:
        """Apply the cell to tensors; a subclass overrides it."""
        raise ModelError(f"the cell `{type(self).__name__}` has no method `construct`")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Apply the cell, with its nodes in its own scope; outside of a trace, compute it."""
        if named:
            bound = signature(self.construct).bind(*inputs, **named)
            bound.apply_defaults()
            inputs = bound.args
        if not is_tracing():
            found = None if Cell.runner is None else Cell.runner.run(self, inputs)
            return self._computed(inputs) if found is None else found
        tracer = current_tracer()
        begin = len(tracer.nodes)
        for described, item in zip(self._inputs, inputs, strict=False):
            if described is not None:
                described.check(item)
        with tracer.inside(self), tracer.reading_as(self._reads_as):
            split = self._strategies
            construct = self.construct if split is None else shard(self.construct, *split)
            results = construct(*map(self._as_read, inputs))
        if self._pin is not None:
            self._pin(tracer, begin)
        if self._pipeline_stage is not None:
            tracer.place(begin, self._pipeline_stage)
        if self._recomputed:
            tracer.recompute(begin, {tensor.value(tracer).name for tensor in tensors_in(results)})
        if self._offloaded:
            tracer.offload(begin)
        return results

    def _computed(self, inputs: Sequence[Any]) -> Any:
        """Return the value of the cell on one device; the parameters stay as they are."""
        scopes = {id(cell): path.replace(".", "/") for path, cell in self.cells_and_names()}
        parameters = dict(self.parameters_and_names())
        names = {id(parameter): name for name, parameter in parameters.items()}
        tracer = Tracer(1, scopes, names, training=self.training is True)
        return computed(tracer, lambda: self(*inputs), parameters)

    def _as_read(self, item: Any) -> Any:
        """Return an input in the element type that the cell computes in."""
        if self._reads_as is not None and isinstance(item, Tensor):
            return item.of_real_type(self._reads_as)
        return type(item)(map(self._as_read, item)) if type(item) in (tuple, list) else item

    def __repr__(self) -> str:
        cells, parameters = len(self.name_cells()), len(list(self.get_parameters()))
        return f"<{type(self).__name__}: {cells} cells, {parameters} parameters>"

    # Contents

    def name_cells(self) -> dict[str, "Cell"]:
        """Return the cells among the attributes, by name."""
        return {name: item for name, item in vars(self).items() if isinstance(item, Cell)}

    @property
    def trains(self) -> bool:
        """Whether the cell trains in the program that is traced."""
        if self.training is None:
            return current_tracer().training and not _ONLY_TOLD.get()
        return self.training

    def cells(self) -> Iterator["Cell"]:
        """Return the cells among the attributes."""
        return iter(self.name_cells().values())

    def cells_and_names(self, prefix: str = "") -> Iterator[tuple[str, "Cell"]]:
        """Return this cell and all below it with their paths: ``layer1.attention``."""
        yield prefix, self
        for name, cell in self.name_cells().items():
            inner = f"{prefix}.{name}" if prefix else name
            yield from cell.cells_and_names(inner if self._auto_prefix else prefix)

    def parameters_and_names(self) -> Iterator[tuple[str, Parameter]]:
        """Return every parameter once, with its path: ``layer1.weight``.

        Those that a tuple or list of a cell has alone come last: ``layer1.weights.0``.
        """
        seen: set[int] = set()
        later = []
        for path, cell in self.cells_and_names():
            for name, item in vars(cell).items():
                if isinstance(item, Parameter) and id(item) not in seen:
                    seen.add(id(item))
                    yield item.named(path, name), item
                elif isinstance(item, tuple | list):
                    later += [(path, f"{name}.{i}", each) for i, each in enumerate(item)]
        for path, name, item in later:
            if isinstance(item, Parameter) and id(item) not in seen:
                seen.add(id(item))
                yield item.named(path, name), item

    def get_parameters(self) -> Iterator[Parameter]:
        """Return every parameter once."""
        return (parameter for _, parameter in self.parameters_and_names())

    def trainable_params(self) -> list[Parameter]:
        """Return the parameters that are trained."""
        return [parameter for parameter in self.get_parameters() if parameter.requires_grad]

    def untrainable_params(self) -> list[Parameter]:
        """Return the parameters that are not trained."""
        return [parameter for parameter in self.get_parameters() if not parameter.requires_grad]

    # Settings

    def to_float(self, dst_type: str) -> "Cell":
        """Let the cell and all below it compute in an element type; return the cell.

        Real inputs and parameters are cast to it where they are read; parameters are kept and
        trained in their own types.

        Parameters
        ----------
        dst_type : str
            ``float16``, ``bfloat16`` or ``float32``.
        """
        check_choice("dst_type", dst_type, _REAL)
        for _, cell in self.cells_and_names():
            cell._reads_as = dst_type
        return self

    def add_flags(self, **flags: bool) -> "Cell":
        """Set flags of MindSpore's compiler; return the cell.

        Parameters
        ----------
        **flags
            ``fp16``, ``bf16`` or ``fp32``, as `to_float`, which False undoes; ``defer_inline``,
            which changes nothing: cells are traced whole; ``skip_auto_parallel_compile`` of a cell
            whose communication is written by hand.

        Raises
        ------
        OptionError
            If there is no such flag, or it is no truth value.
        """
        check_names("a cell has no flag", flags, (*_FLAGS, "defer_inline", BY_HAND))
        self._told = {**self._told, **flags}
        for name, value in flags.items():
            check_flag(name, value)
            if value and name in _FLAGS:
                self.to_float(_FLAGS[name])
            for _, cell in self.cells_and_names():
                if not value and cell._reads_as == _FLAGS.get(name, ""):
                    cell._reads_as = None
        return self

    add_flags_recursive = add_flags

    def get_flags(self) -> Mapping[str, bool]:
        """Return the flags that `add_flags` set."""
        return self._told

    def set_auto_parallel(self) -> None:
        """Do nothing: whether a network is partitioned is said where it is compiled."""

    @property
    def pipeline_stage(self) -> int | None:
        """The pipeline stage of the cell, from 0; None where it is that of what comes before.

        An inner cell may have a later one. Stages are in program order.
        """
        return self._pipeline_stage

    @pipeline_stage.setter
    def pipeline_stage(self, stage: int) -> None:
        NOT_NEGATIVE_INTEGER.check("pipeline_stage", stage)
        self._pipeline_stage = stage

    def set_comm_fusion(self, fusion_type: int) -> "Cell":
        """Set the fusion id of all parameters: gradients with one id share an all-reduce."""
        for parameter in self.get_parameters():
            parameter.comm_fusion = fusion_type
        return self

    def set_param_ps(self, recurse: bool = True, init_in_server: bool = False) -> None:
        """Put the parameters of the cell on parameter servers.

        Parameters
        ----------
        recurse : bool
            Whether those of inner cells are, too.
        init_in_server : bool
            Has no effect: a server draws initial values itself wherever it can.
        """
        check_flag("recurse", recurse)
        items = self.get_parameters() if recurse else vars(self).values()
        for item in items:
            if isinstance(item, Parameter):
                item.set_param_ps(init_in_server)

    def recompute(
        self,
        *values: object,
        mp_comm_recompute: bool = True,
        parallel_optimizer_comm_recompute: bool = False,
        recompute_slice_activation: bool = False,
        **others: object,
    ) -> "Cell":
        """Compute the operators of the cell again for the gradient, instead of saving results.

        What the cell returns is saved.

        Parameters
        ----------
        *values
            None: arguments are given by name.
        mp_comm_recompute : bool
            Must be True: tensors that are communicated between operators are communicated again.
        parallel_optimizer_comm_recompute, recompute_slice_activation : bool
            Must be False: the search decides how parameters are gathered and activations are split.
        **others
            None: there are no other arguments.

        Raises
        ------
        OptionError
            If an argument has another value, or is unknown.
        """
        if values:
            raise OptionError(
                f"`recompute` takes its arguments by name, found `{', '.join(map(repr, values))}`",
                hint="write `recompute()` to recompute the cell, and leave the call out not to",
            )
        check_names("`recompute` has no argument", others, _RECOMPUTE)
        check_flag("mp_comm_recompute", mp_comm_recompute)
        check_flag("parallel_optimizer_comm_recompute", parallel_optimizer_comm_recompute)
        check_flag("recompute_slice_activation", recompute_slice_activation)
        if not mp_comm_recompute:
            hint = "leave it out: what a recomputed operator reads is communicated again"
            raise wrong_value("mp_comm_recompute", False, "True", hint)
        for name, value in (
            ("parallel_optimizer_comm_recompute", parallel_optimizer_comm_recompute),
            ("recompute_slice_activation", recompute_slice_activation),
        ):
            if value:
                raise wrong_value(name, True, "False", "leave it out: the search decides it")
        self._recomputed = True
        return self

    def offload(self, backward_prefetch: str = "Auto") -> "Cell":
        """Save what the operators of the cell compute in host memory until the gradient reads it.

        What is recomputed is not saved, so of a cell that is recomputed the results are moved.

        Parameters
        ----------
        backward_prefetch : str
            Must be ``Auto``: results are copied back as early as the memory allows.

        Raises
        ------
        OptionError
            If the argument has another value.
        """
        if backward_prefetch != "Auto":
            hint = "leave it out: results are copied back as early as the memory allows"
            raise wrong_value("backward_prefetch", backward_prefetch, "`Auto`", hint)
        self._offloaded = True
        return self

    def compile(self, *inputs: Any) -> None:
        """Compile the cell for some inputs, where it runs on several ranks."""
        if Cell.runner is not None:
            Cell.runner.compile(self, inputs)

    def set_inputs(self, *inputs: Any) -> None:
        """Say of what shapes the inputs are: a program is made for each that they have.

        Parameters
        ----------
        *inputs : Tensor
            Tensors without data, made with a ``shape``; sizes of None are any.
        """
        for item in inputs:
            if not isinstance(item, Tensor):
                raise wrong_value("inputs", item, "tensors")
        self._inputs = inputs

    def get_inputs(self) -> tuple[Any, ...]:
        """Return what `set_inputs` said."""
        return self._inputs

    def shard(
        self,
        in_strategy: Any,
        out_strategy: Any = None,
        parameter_plan: Mapping[str, Sequence[int]] | None = None,
    ) -> Self:
        """Let the inputs and results of the cell be split in a way, and return it.

        What is in the cell is split as the search chooses; see `ops.shard`.

        Parameters
        ----------
        in_strategy, out_strategy
            For each input, or result, the slices of each dimension; None for one that the search
            splits.
        parameter_plan : mapping of str to sequence of int, optional
            The slices of each dimension of parameters, by name: ``self.dense.weight``.

        Raises
        ------
        ModelError
            If the cell has no such parameter, or slices do not divide it.
        OptionError
            If the plan does not map names to tuples.
        """
        own = dict(self.parameters_and_names())
        for name, counts in (parameter_plan or {}).items():
            if not isinstance(name, str) or not isinstance(counts, tuple | list):
                expected = (
                    "names and slices: For 'Shard', the type of each key and value in "
                    "'parameter_plan' must be str and tuple"
                )
                raise wrong_value("parameter_plan", {name: counts}, expected)
            found = [path for path in own if f".{name}".endswith(f".{path}")]
            if not found:
                raise ModelError(
                    f"`parameter_plan` names `{name}`, the cell has {shortened(', '.join(own))}"
                )
            own[max(found, key=len)].set_strategy(tuple(counts))
        shard(self.construct, in_strategy, out_strategy)  # which refuses what are no strategies
        self._strategies = (in_strategy, out_strategy)
        return self

    def set_train(self, mode: bool = True) -> "Cell":
        """Set whether the cell and all below it train; return the cell.

        Of a training step all cells train but those that are told not to: their dropout drops
        nothing, and their normalizations over the batch use the moving statistics. Of a network
        that is run outside of one, all do not but those that are told to.
        """
        check_flag("mode", mode)
        for _, cell in self.cells_and_names():
            cell.training = mode
        return self


class SequentialCell(Cell):
    """Cells applied in sequence."""

    def __init__(self, *cells: Cell | Sequence[Cell]) -> None:
        self._cells = _flat(cells)

    def name_cells(self) -> dict[str, Cell]:
        """Return the cells, by their number."""
        return {str(i): cell for i, cell in enumerate(self._cells)}

    def append(self, cell: Cell) -> None:
        """Add a cell at the end."""
        self._cells.append(cell)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, index: int) -> Cell:
        return self._cells[index]

    def construct(self, x: Tensor, *others: Tensor) -> Tensor:
        """Apply the cells, each to what the one before makes; all of them read the others."""
        for cell in self._cells:
            x = cell(x, *others)
        return x


class CellList(SequentialCell):
    """A list of cells whose parameters are registered; apply its cells one by one."""

    def construct(self, x: Tensor, *others: Tensor) -> Tensor:
        """Refuse."""
        raise ModelError(
            "a `CellList` is applied, but it is a list",
            hint="apply its cells in turn, or use `nn.SequentialCell`",
        )


def _flat(cells: Sequence[Cell | Sequence[Cell]]) -> list[Cell]:
    """Return the cells of arguments: several cells, or one list of them."""
    if len(cells) == 1 and not isinstance(cells[0], Cell):
        return list(cells[0])
    flat = [cell for cell in cells if isinstance(cell, Cell)]
    if len(flat) != len(cells):
        raise ModelError("a sequence of cells contains an item that is not a cell")
    return flat

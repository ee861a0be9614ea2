"""Checkpoints of networks: files of whole tensors by the names of parameters.

The files are those of `shardwright.runtime` or MindSpore's, whatever their names end in; both are
read. In several processes every one takes part where a parameter is split over them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardwright.communication import processes
from shardwright.eager import drawn
from shardwright.ir.errors import OptionError
from shardwright.ir.values import (
    NOT_NEGATIVE,
    NOT_NEGATIVE_INTEGER,
    check_choice,
    check_flag,
    wrong_value,
)
from shardwright.nn.cell import Cell
from shardwright.operators.info import Array
from shardwright.parameter import Parameter
from shardwright.runtime.agreement import from_first
from shardwright.runtime.checkpoint import read_arrays, write_arrays
from shardwright.tensor import Tensor
from shardwright.train.callbacks import Callback, RunContext
from shardwright.train.ckpt_files import is_ckpt, read_ckpt, write_ckpt

_ENDING = ".ckpt"
_WRITERS = {"npz": write_arrays, "ckpt": write_ckpt}


def save_checkpoint(
    save_obj: Cell | Mapping[str, Any] | Sequence[Mapping[str, Any]],
    ckpt_file_name: str | Path,
    integrated_save: bool = True,
    async_save: bool = False,
    append_dict: Mapping[str, Any] | None = None,
    choice_func: Callable[[str], bool] | None = None,
    format: str = "npz",
) -> None:
    """Write parameters to a file; its name gets the ending ``.ckpt``.

    Parameters
    ----------
    save_obj : Cell, mapping, or sequence of mapping
        A network; or parameters by name; or mappings with ``name`` and ``data``.
    ckpt_file_name : path
        The file.
    integrated_save : bool
        Must be True: the file has whole tensors.
    async_save : bool
        Must be False: the file is there when the call returns.
    append_dict : mapping, optional
        Numbers to write too.
    choice_func : callable, optional
        Says of each name whether to write it.
    format : str
        ``npz``, numpy's archive, or ``ckpt``, MindSpore's messages.

    Raises
    ------
    OptionError
        If an argument has a value that is not allowed.
    OutputError
        If the file cannot be written, or would replace one that is no checkpoint.
    """
    check_choice("format", format, tuple(_WRITERS))
    if integrated_save is not True:
        raise wrong_value("integrated_save", integrated_save, "True")
    if async_save is not False:
        raise wrong_value("async_save", async_save, "False")
    arrays = _arrays_of(save_obj)
    arrays |= {name: np.asarray(value) for name, value in (append_dict or {}).items()}
    if choice_func is not None:
        arrays = {name: array for name, array in arrays.items() if choice_func(name)}
    _WRITERS[format](_with_ending(ckpt_file_name), arrays)


def load_checkpoint(
    ckpt_file_name: str | Path,
    net: Cell | None = None,
    strict_load: bool = False,
    filter_prefix: str | Sequence[str] | None = None,
) -> dict[str, Parameter]:
    """Return the parameters in a file, and load them into a network if one is given.

    Parameters
    ----------
    ckpt_file_name : path
        The file.
    net : Cell, optional
        The network.
    strict_load : bool
        As in `load_param_into_net`.
    filter_prefix : str or sequence of str, optional
        Beginnings of names to leave out.

    Raises
    ------
    PlanError
        If the file is missing or corrupt.
    """
    prefixes = (filter_prefix,) if isinstance(filter_prefix, str) else tuple(filter_prefix or ())
    path = _with_ending(ckpt_file_name)
    arrays = read_ckpt(path) if path.is_file() and is_ckpt(path) else read_arrays(path)
    parameters = {
        name: Parameter(Tensor(array), name=name)
        for name, array in arrays.items()
        if not name.startswith(prefixes)
    }
    if net is not None:
        load_param_into_net(net, parameters, strict_load)
    return parameters


def load_param_into_net(
    net: Cell, parameter_dict: Mapping[str, Parameter], strict_load: bool = False
) -> tuple[list[str], list[str]]:
    """Give the parameters of a network the values of others, by name.

    Returns the names of the network that got none, and the names that the network does not have.

    Parameters
    ----------
    net : Cell
        The network.
    parameter_dict : mapping of str to Parameter
        The values.
    strict_load : bool
        Must be False: names that differ by a prefix are different names.

    Raises
    ------
    ModelError
        If a value has another shape than its parameter.
    """
    check_flag("strict_load", strict_load)
    if not isinstance(net, Cell):
        raise wrong_value("net", net, "a cell")
    own = dict(net.parameters_and_names())
    for name, parameter in own.items():
        if name in parameter_dict:
            parameter.set_data(parameter_dict[name])
    missing = [name for name in own if name not in parameter_dict]
    return missing, [name for name in parameter_dict if name not in own]


def _arrays_of(item: Any) -> dict[str, Array]:
    """Return whole values by name.

    Raises
    ------
    OptionError
        If the object has no parameters.
    """
    if isinstance(item, Cell):
        named = dict(item.parameters_and_names())
        return {name: _value(name, parameter) for name, parameter in named.items()}
    if isinstance(item, Mapping):
        return {name: _value(name, value) for name, value in item.items()}
    if isinstance(item, Sequence) and all(isinstance(entry, Mapping) for entry in item):
        return {entry["name"]: _value(entry["name"], entry["data"]) for entry in item}
    raise wrong_value("save_obj", item, "a network, a mapping, or a list of mappings")


def _value(name: str, item: Any) -> Array:
    if isinstance(item, Parameter) and not item.has_value:
        return drawn(name, item.initializer, item.type)
    return np.asarray(item.asnumpy() if isinstance(item, Tensor) else item)


def _with_ending(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == _ENDING else path.with_name(path.name + _ENDING)


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept.

    Parameters
    ----------
    save_checkpoint_steps : int
        Steps from one to the next; 0: not by steps.
    save_checkpoint_seconds : float
        Seconds from one to the next; 0: not by time. Steps have no effect then.
    keep_checkpoint_max : int
        How many are kept, the newest; 0: all.
    keep_checkpoint_per_n_minutes : int
        Must be 0.
    integrated_save : bool
        Whether files have whole tensors; else each process writes what its rank has of them.
    async_save : bool
        Must be False.
    saved_network : Cell, optional
        The network that is written; by default the whole state of the training, its optimizer's
        included.
    append_info : sequence, optional
        ``epoch_num`` and ``step_num``, or mappings of numbers, to write too.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    save_checkpoint_steps: int = 1
    save_checkpoint_seconds: float = 0
    keep_checkpoint_max: int = 5
    keep_checkpoint_per_n_minutes: int = 0
    integrated_save: bool = True
    async_save: bool = False
    saved_network: Cell | None = None
    append_info: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        NOT_NEGATIVE_INTEGER.check("save_checkpoint_steps", self.save_checkpoint_steps)
        NOT_NEGATIVE.check("save_checkpoint_seconds", self.save_checkpoint_seconds)
        NOT_NEGATIVE_INTEGER.check("keep_checkpoint_max", self.keep_checkpoint_max)
        if self.keep_checkpoint_per_n_minutes != 0:
            hint = "use `keep_checkpoint_max`"
            value = self.keep_checkpoint_per_n_minutes
            raise wrong_value("keep_checkpoint_per_n_minutes", value, "0", hint)
        check_flag("integrated_save", self.integrated_save)
        if self.saved_network is not None and not self.integrated_save:
            raise wrong_value("integrated_save", False, "True, with `saved_network`")
        if self.async_save is not False:
            raise wrong_value("async_save", self.async_save, "False")
        if not (self.save_checkpoint_steps or self.save_checkpoint_seconds):
            raise OptionError("checkpoints are to be written after neither steps nor seconds")
        for info in self.append_info or ():
            if not isinstance(info, Mapping) and info not in ("epoch_num", "step_num"):
                raise wrong_value("append_info", info, "`epoch_num`, `step_num` or a mapping")


class ModelCheckpoint(Callback):
    """Writes checkpoints of a model in training: ``PREFIX-EPOCH_STEP.ckpt``.

    Parameters
    ----------
    prefix : str
        Begin of the names of the files.
    directory : path, optional
        Their folder; by default the one in which the script runs.
    config : CheckpointConfig, optional
        When they are written.

    Attributes
    ----------
    format : str
        The form of the files; see `save_checkpoint`.
    """

    format: ClassVar[str] = "npz"

    def __init__(
        self,
        prefix: str = "CKP",
        directory: str | Path | None = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        if not isinstance(prefix, str) or "/" in prefix:
            raise wrong_value("prefix", prefix, "the begin of a file's name")
        self.prefix = prefix
        self.directory = Path(directory or ".")
        self.config = config or CheckpointConfig()
        self._files: list[Path] = []
        self._saved = 0
        self._time = time.monotonic()

    @property
    def latest_ckpt_file_name(self) -> str:
        """The newest file; empty if there is none."""
        return str(self._files[-1]) if self._files else ""

    def step_end(self, run_context: RunContext) -> None:
        """Write a checkpoint, if it is time."""
        config, arguments = self.config, run_context.arguments
        if arguments.mode != "train":
            return
        if config.save_checkpoint_seconds:
            late = time.monotonic() - self._time >= config.save_checkpoint_seconds
            due = late if processes() is None else from_first(lambda: late)
        else:
            due = run_context.total_steps % config.save_checkpoint_steps == 0
        if due:
            self._save(run_context)

    def end(self, run_context: RunContext) -> None:
        """Write the last checkpoint."""
        if run_context.arguments.mode == "train" and self._saved < run_context.total_steps:
            self._save(run_context)

    def _save(self, run_context: RunContext) -> None:
        arguments = run_context.arguments
        name = f"{self.prefix}-{run_context.epoch}_{run_context.step}{_ENDING}"
        network = self.config.saved_network
        session = arguments.session
        state = session.values if self.config.integrated_save else session.parts
        arrays = state() if network is None else _arrays_of(network)
        for info in self.config.append_info or ():
            known = {"epoch_num": run_context.epoch, "step_num": run_context.total_steps}
            more = info if isinstance(info, Mapping) else {info: known[info]}
            arrays |= {key: np.asarray(number) for key, number in more.items()}
        path = self.directory / name
        self.directory.mkdir(parents=True, exist_ok=True)
        _WRITERS[self.format](path, arrays)  # by every process: each may have a folder of its own
        if path in self._files:
            self._files.remove(path)
        self._files.append(path)
        self._forget()
        self._saved, self._time = run_context.total_steps, time.monotonic()

    def _forget(self) -> None:
        """Remove the oldest files that this object wrote, beyond those that are kept."""
        while 0 < self.config.keep_checkpoint_max < len(self._files):
            self._files.pop(0).unlink(missing_ok=True)

"""The document of a plan: the content and version of ``plan.json``.

It holds no compile times, so that compiling twice gives the same bytes.
"""

import json
import shlex
from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from shardwright.cost_model.cluster import cluster as cluster_named
from shardwright.cost_model.cluster import preset_names
from shardwright.cost_model.efficiency.lines import DATASHEET
from shardwright.cost_model.pipelines.mixed import AnyCluster, groups_on
from shardwright.cost_model.pipelines.step import MemoryLimit
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import PlanError
from shardwright.ir.files.reading import from_json
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse_type
from shardwright.ir.types import TensorType
from shardwright.ir.units import bytes_text, gap_text, html_table, seconds_text, shortened
from shardwright.ir.values import given_once, in_words
from shardwright.operators.models.optimizer import Kind, Optimizer
from shardwright.operators.models.precision import MASTER, GradientType

FORMAT: Final = "shardwright plan"
_Shape = Annotated[str, Field(pattern=r"^([1-9]\d*(x[1-9]\d*)*)?$")]  # empty: of one device
JsonAttribute = bool | int | float | str | None


class _Part(BaseModel):
    """Base class of the parts: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AxisDocument(_Part):
    """One axis of the mesh; see `MeshAxis`."""

    name: str
    size: int
    level: int
    in_time: bool = False
    of_stages: bool = False
    in_v: bool = False

    @model_serializer(mode="wrap")
    def _without_default(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what an axis of ranks does not say."""
        content: dict[str, Any] = serialize(self)
        return {k: v for k, v in content.items() if v is not False}


class InputDocument(_Part):
    """One input of the model.

    Parameters
    ----------
    name : str
        Name of the input.
    type : str
        Its whole type: ``f32[32, 784]``.
    high : int or None
        Exclusive upper bound of an integer input.
    """

    name: str
    type: str
    high: int | None = None

    @property
    def tensor(self) -> TensorType:
        """The type as an object."""
        return parse_type(self.type)[0]


class OptimizerDocument(_Part):
    """The update of the parameters; see `Optimizer`."""

    kind: Kind
    settings: dict[str, JsonAttribute | tuple[float, ...]]
    overrides: dict[str, dict[str, JsonAttribute | tuple[float, ...]]] = {}

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer as an object."""
        overrides: dict[str, dict[str, Attribute]]
        overrides = {name: dict(own) for name, own in self.overrides.items()}
        return Optimizer(self.kind, dict(self.settings), overrides)


class StrategyDocument(_Part):
    """The strategy of one operator.

    Parameters
    ----------
    split_counts : tuple of tuple of int
        Slices of each dimension of each operand: MindSpore's form.
    factors : dict of str to tuple of str
        Mesh axes of each factor of the operator's rule.
    """

    split_counts: tuple[tuple[int, ...], ...]
    factors: dict[str, tuple[str, ...]]


class ParameterDocument(_Part):
    """The layout of one parameter or optimizer state.

    Parameters
    ----------
    type : str
        Its whole type.
    layout : str
        The axes that split each dimension, ``*`` for none.
    slice_shape : tuple of int
        Shape of the slice of one rank.
    """

    type: str
    layout: str
    slice_shape: tuple[int, ...]


class VolumeDocument(_Part):
    """Number of collectives of one kind in a step, and bytes that a device sends for them."""

    count: int
    bytes: float


_UNUSED = ("by_group", "limit_by_group", "host_bytes")


class MemoryDocument(_Part):
    """Bytes on one device at peak memory; see `MemoryUseReport`.

    Parameters
    ----------
    limit : float or None
        Memory limit in bytes; None without a limit.
    by_group : tuple of float
        Peak memory of each device group of a pipeline; empty without stages.
    limit_by_group : tuple of float
        Memory limit of each device group, where they are of several kinds of devices; `limit` is
        then the least.
    host_bytes : float
        Peak bytes in host memory.
    window_bytes : float or None
        Of the overlapped step, bytes that gathers ahead may take, and as many the gradients that
        wait to be reduced; None for the program in its order.
    """

    peak_bytes: float
    by_kind: dict[str, float]
    at: str
    limit: float | None = None
    by_group: tuple[float, ...] = ()
    limit_by_group: tuple[float, ...] = ()
    host_bytes: float = 0.0
    window_bytes: float | None = None

    @model_serializer(mode="wrap")
    def _without_unused(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out device groups, bytes in host memory, and a window, where there are none."""
        content: dict[str, Any] = serialize(self)
        unused = {name for name in _UNUSED if not getattr(self, name)}
        unused |= {"window_bytes"} if self.window_bytes is None else set()
        return {name: item for name, item in content.items() if name not in unused}

    def fits(self, limit: MemoryLimit) -> bool:
        """Return whether every device group is within its memory limit."""
        taken = self.by_group or (self.peak_bytes,)
        if not isinstance(limit, tuple):
            return self.peak_bytes <= limit
        return all(one <= most for one, most in zip(taken, limit, strict=True))


class PlanDocument(_Part):
    """The content of ``plan.json``.

    Parameters
    ----------
    format, schema_version
        Kind and version of the file.
    model : str
        Name of the model.
    devices, mesh, cluster
        The devices.
    mode, search, cost_model, precision, reduce_type, accumulate_type, loss_scale, gradients_mean
        Options of the compilation.
    seed : int
        Seed of the initial values.
    inputs, optimizer
        Inputs and update rule of the training step.
    status, how, objective, objective_is, lower_bound, gap
        The certificate: what was minimised, its lower bound, relative gap, and the methods that
        proved it.
    predicted_step_seconds, memory, communication
        Predicted cost of a step.
    buckets
        How gradients are reduced together.
    strategies, parameters
        The decisions.
    pins, pin_prices
        Strategies pinned by the user, and the cost of each pin.
    meshes_tried, micro_batches_tried : tuple
        The meshes, and the numbers of micro-batches, that the bound covers, where the compiler
        chose one.
    micro_batch_statistics : tuple of str
        Tensors of the model that are statistics of a batch, and here of each micro-batch.
    files : dict of str to str
        Every other file of the plan with its SHA-256.
    """

    format: Literal["shardwright plan"] = FORMAT
    schema_version: Literal[1] = 1
    model: str
    devices: int
    mesh: tuple[AxisDocument, ...]
    cluster: AnyCluster
    mode: str
    search: str
    cost_model: str
    precision: str = MASTER
    reduce_type: GradientType = "lower"
    accumulate_type: GradientType = "lower"
    loss_scale: float | str
    gradients_mean: bool
    seed: int
    inputs: tuple[InputDocument, ...]
    optimizer: OptimizerDocument
    status: str
    how: str
    objective: float
    objective_is: Literal["overlapped step", "cost"] = "cost"
    lower_bound: float
    gap: float
    predicted_step_seconds: float
    memory: MemoryDocument
    communication: dict[str, VolumeDocument]
    buckets: str = "each gradient alone"
    strategies: dict[str, StrategyDocument]
    parameters: dict[str, ParameterDocument]
    pins: dict[str, tuple[tuple[int, ...], ...]] = {}
    pin_prices: dict[str, float] = {}
    meshes_tried: tuple[_Shape, ...] = ()
    micro_batches_tried: tuple[int, ...] = ()
    micro_batch_statistics: tuple[str, ...] = ()
    files: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<PlanDocument {self.summary}>"

    @property
    def summary(self) -> str:
        """One line: model, devices, step, certificate and peak memory."""
        devices = f"{self.devices} device{'s' if self.devices > 1 else ''}"
        return (
            f"{shortened(self.model)} on {devices}: {seconds_text(self._certified_seconds)}, "
            f"{self.certificate}, {bytes_text(self.memory.peak_bytes)}"
        )

    @property
    def _certified_seconds(self) -> float:
        """The step that the certificate is of, where what was minimised is one."""
        return self.objective if self.cost_model == "time" else self.predicted_step_seconds

    @property
    def certificate(self) -> str:
        """How good the plan is, in words: proven optimal, or the gap to the lower bound."""
        if self.status == "optimal":
            return "proven optimal"
        if self.lower_bound <= 0:
            return "no lower bound"
        return f"gap {gap_text(self.gap)}"

    @property
    def table(self) -> dict[str, str]:
        """The facts that a notebook shows."""
        kinds = self.memory.by_kind.items()
        memory = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in kinds if round(size))
        sent = ", ".join(f"{volume.count} {kind}" for kind, volume in self.communication.items())
        is_step = self.objective_is == "overlapped step"
        return {
            "model": self.model,
            "devices": f"{self.devices} of {self.cluster.name}, mesh {self.device_mesh}",
            "mode": f"{self.mode}, search {self.search}",
            self.objective_is if is_step else "serial step": seconds_text(self._certified_seconds),
            "plan": f"{self.certificate} ({self.how})",
            "peak memory": f"{bytes_text(self.memory.peak_bytes)}: {memory}",
            "collectives": sent or "none",
        }

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        return html_table("plan", self.table.items())

    @property
    def device_mesh(self) -> Mesh:
        """The mesh as an object."""
        return Mesh(tuple(MeshAxis(**dict(axis)) for axis in self.mesh))

    @property
    def device_by_group(self) -> tuple[str, ...]:
        """The device of each device group; empty where all are of one kind."""
        groups = groups_on(self.cluster, self.device_mesh)
        return tuple(c.device.name for c in groups.clusters) if groups.is_mixed else ()

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches of a step."""
        return self.device_mesh.passes

    @property
    def bound_covers(self) -> str:
        """The plans that the lower bound covers: those on this mesh, or on all that were tried.

        Of pipelines, it covers those that send no partial sums between stages.
        """
        mesh = self.device_mesh
        shape = "x".join(str(axis.size) for axis in mesh.of_ranks.axes)
        place = f"on mesh {shape}" if shape else "on one device"
        if self.meshes_tried:
            place = f"on mesh {in_words([shape or '1' for shape in self.meshes_tried])}"
        if len(self._groups_tried) > 1:
            place += f" of {in_words([*map(str, self._groups_tried)])} device groups"
        elif mesh.of_stages:
            place += f" for each of {mesh.stages} device groups"
        if self.micro_batches_tried:
            place += f" in {in_words([*map(str, self.micro_batches_tried)])} micro-batches"
        elif mesh.passes > 1:
            place += f" in {mesh.passes} micro-batches"
        if self.lower_bound > 0 and (mesh.of_stages or len(self._groups_tried) > 1):
            place += ", of plans that send no partial sums between stages"
        return place

    @property
    def _groups_tried(self) -> list[int]:
        """The numbers of device groups on whose meshes plans were searched, if several."""
        sizes = {prod(map(int, (shape or "1").split("x"))) for shape in self.meshes_tried}
        return sorted(self.devices // size for size in sizes)

    def to_text(self) -> str:
        """Return the document as JSON with sorted keys."""
        content = self.model_dump(mode="json")
        for name in ("meshes_tried", "micro_batches_tried", "micro_batch_statistics"):
            if not content[name]:
                del content[name]
        for name in ("reduce_type", "accumulate_type"):
            if content[name] == "lower":
                del content[name]
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_text(cls, text: str, where: str) -> Self:
        """Read the document.

        Raises
        ------
        PlanError
            If it is not the document of a plan, or of another version.
        """
        try:
            content = from_json(text, given_once)
        except ValueError as error:
            line = getattr(error, "lineno", None)
            reason = f"line {line} is not" if line else str(error)
            what = f"a plan must be JSON, but {reason}"
            raise PlanError(what, where, "compile the model again") from None
        _check_version(content, where)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            said = first["msg"][:1].lower() + first["msg"][1:]
            hint = f"compile the model again: `{command_of(content)}`"
            raise PlanError(f"`{place}` of the plan: {said}", where, hint) from None


def command_of(content: Mapping[str, Any]) -> str:
    """Return the command that makes a plan anew, from the document of any version.

    Examples
    --------
    >>> command_of({"model": "mlp", "devices": 4, "cluster": {"name": "cpu"}, "search": "exact"})
    'shardwright compile mlp --devices 4 --cluster cpu'
    """
    cluster, optimizer = content.get("cluster"), content.get("optimizer")
    options = {
        "devices": content.get("devices"),
        "cluster": cluster.get("name") if isinstance(cluster, dict) else None,
        "figures": _figures_of(cluster) if isinstance(cluster, dict) else None,
        "mode": content.get("mode"),
        "search": content.get("search"),
        "cost-model": content.get("cost_model"),
        "precision": content.get("precision"),
        "optimizer": optimizer.get("kind") if isinstance(optimizer, dict) else None,
    }
    if options["search"] == _BY_NAME:
        options |= {"search": None, "plan": content.get("how")}
    given = {
        name: value
        for name, value in options.items()
        if value is not None and value != _USUAL.get(name)
    }
    words = [f"--{name} {shlex.quote(str(value))}" for name, value in given.items()]
    return " ".join(["shardwright compile", shlex.quote(str(content.get("model"))), *words])


def _figures_of(described: Mapping[str, Any]) -> str | None:
    """Return that a preset was taken by its data sheet, where it was; None where it is as known."""
    device, name = described.get("device"), described.get("name")
    if not isinstance(device, dict) or device.get("efficiency") or name not in preset_names():
        return None
    return DATASHEET if cluster_named(str(name)).device.efficiency is not None else None


_BY_NAME = "named_plan"
_USUAL = {"mode": "auto_parallel", "search": "exact", "cost-model": "time"}


def check_format(content: Any, where: str) -> None:
    """Check that JSON is the document of a plan, of any version.

    Raises
    ------
    PlanError
        If it is something else.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PlanError(f"this file is not a plan: expected the format `{FORMAT}`", where)


def _check_version(content: Any, where: str) -> None:
    check_format(content, where)
    version = content.get("schema_version")
    expected = PlanDocument.model_fields["schema_version"].default
    if version != expected:
        raise PlanError(
            f"the plan has schema version {version}, expected {expected}",
            where,
            f"compile the model again: `{command_of(content)}`",
        )

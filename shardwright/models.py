"""The model of a compilation, given by its name or as a definition."""

from typing import Any

from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.values import wrong_value
from shardwright.tracing import Definition
from shardwright.zoo import (
    assumed_batch,
    from_jax,
    from_torch,
    is_jax_function,
    is_torch_module,
    load,
)


def with_batch(model: str, batch: int | None) -> str:
    """Return the name of a model with its size ``batch`` set, unless `batch` is None.

    Raises
    ------
    ModelError
        If the name sets that size already.
    """
    return with_new_size(model, "batch", batch)


def batch_on(model: object, batch: int | None, devices: int) -> int | None:
    """Return the batch on a number of devices: the given one, or the one that is assumed.

    None stands for the model's own; see `shardwright.zoo.assumed_batch`.
    """
    return assumed_batch(model, devices) if batch is None and isinstance(model, str) else batch


def with_new_size(model: str, size: str, value: int | None) -> str:
    """Return the name of a model with a size set that it does not set itself; as it is for None.

    Raises
    ------
    ModelError
        If the name sets that size already.
    """
    if value is not None and size in _sizes(model)[2]:
        raise ModelError(f"the size `{size}` of `{model}` is given twice", hint="give it once")
    return with_size(model, size, value)


def with_size(model: str, size: str, value: int | None) -> str:
    """Return the name of a model with a size set, whatever the name says; or as it is for None.

    Examples
    --------
    >>> with_size("gpt:layers=2,sequence=64", "sequence", 32), with_size("a.py:f", "batch", 4)
    ('gpt:layers=2,sequence=32', 'a.py:f:batch=4')
    """
    if value is None:
        return model
    name, given, names = _sizes(model)
    changed = [
        f"{size}={value}" if one == size else item for item, one in zip(given, names, strict=True)
    ]
    return f"{name}:{','.join(changed if size in names else [*given, f'{size}={value}'])}"


def _sizes(model: str) -> tuple[str, list[str], list[str]]:
    """Return the name of a model without sizes, its sizes, and their names."""
    base, dot, rest = model.rpartition(".py:")
    name, colon, sizes = rest.partition(":")
    given = sizes.split(",") if colon else []
    return f"{base}{dot}{name}", given, [item.partition("=")[0].strip() for item in given]


def imported_definition(
    model: Any, example_inputs: Any, loss: str | None, as_example: bool = False
) -> Any:
    """Return the definition of a module of PyTorch or function of JAX; other models as they are.

    Raises
    ------
    OptionError
        If a module lacks inputs, or another model has inputs or a loss of a module.
    """
    if is_torch_module(model):
        if example_inputs is None:
            raise wrong_value("example_inputs", None, "the inputs of the module of PyTorch")
        return from_torch(model, example_inputs, loss, as_example)
    if as_example:
        raise wrong_value("as_example", True, "False: it belongs to a module of PyTorch")
    if is_jax_function(model, example_inputs):
        return from_jax(model, example_inputs, loss)
    for name, value in {"example_inputs": example_inputs, "loss": loss}.items():
        if value is not None:
            raise OptionError(
                f"`{name}` is given, and the model is {type(model).__name__}",
                hint=f"`{name}` belongs to a module of PyTorch or a function of JAX",
            )
    return model


def load_model(model: str, batch: int | None = None, ranks: int = 1) -> Definition:
    """Return the definition of a model by its name; see `shardwright.zoo.load`."""
    return load(with_batch(model, batch), ranks)


def training_definition(
    model: str | Definition, batch: int | None, world: int
) -> tuple[Definition, str]:
    """Return a definition that can be trained on `world` ranks, and its name.

    Raises
    ------
    ModelError
        If the model is traced for another number of ranks, or returns no loss.
    """
    if isinstance(model, Definition):
        if model.world != world:
            raise ModelError(
                f"the model is traced for {model.world} ranks, expected {world}",
                hint="trace it inside `shardwright.communication.world`",
            )
        return model, model.graph.name
    definition = load_model(model, batch, world)
    if definition.loss is None:
        first = definition.graph.values[definition.graph.outputs[0]]
        raise ModelError(
            f"the first output `{first.name}` of the model is {first.type}, expected a real scalar",
            hint="a model that is trained returns its loss first",
        )
    return definition, with_batch(model, batch)


def reference_graph(model: str | Definition, batch: int | None) -> Graph:
    """Return the program of one device that a hand-written parallel program implements.

    Raises
    ------
    ModelError
        If the model is a definition, which cannot be traced again.
    """
    if isinstance(model, Definition):
        raise ModelError(
            "a hand-written parallel program is compiled by its name, so that it can be traced "
            "for one device too",
            hint="write `file.py:function`",
        )
    return load_model(model, batch).graph


def check_batch(definition: Definition, ranks: int) -> None:
    """Refuse a batch that cannot be split over all ranks.

    Raises
    ------
    ModelError
        If the number of ranks does not divide it.
    """
    for value in definition.graph.inputs:
        if value.type.rank and value.type.shape[0] % ranks:
            raise ModelError(
                f"`{value.name}` has a batch of {value.type.shape[0]}, it cannot be split over "
                f"{ranks} devices",
                hint=f"use a batch that {ranks} divides",
            )

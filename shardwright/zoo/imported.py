"""Models of others: ONNX files, ``model.onnx:batch=8``, modules of PyTorch, functions of JAX."""

import sys
import warnings
from pathlib import Path
from typing import Any

from shardwright.frontends import configs
from shardwright.frontends.configs import Reading
from shardwright.ir.errors import ModelError, ShardwrightWarning
from shardwright.ir.optional import optional
from shardwright.ir.versions import warn_if_untested
from shardwright.tracing import Definition, InputSpec


def from_onnx(path: Path, sizes: str = "") -> Definition:
    """Return the definition of the model in an ONNX file.

    Parameters
    ----------
    path : Path
        The file.
    sizes : str
        Sizes of the dimensions that the model leaves open, and the loss that is appended to its
        first output: ``batch=8,sequence=128,loss=cross_entropy``. The loss is ``cross_entropy`` of
        scores, ``mse``, ``mean``, or ``none``; by default the loss that fits the output, and
        none where the output is a loss already. ``class_axis=1`` says which dimension of the scores
        the classes are.

    Raises
    ------
    ModelError
        If the file cannot be read, or the model cannot be imported.
    PackageError
        If the package `onnx` is not installed.
    """
    onnx = optional("shardwright.frontends.onnx", extra="onnx", need=f"reading `{path}`")
    texts = _given(path, sizes)
    loss = texts.pop("loss", "auto")
    class_axis = _axis(texts.pop("class_axis", None))
    numbers = {name: _number(name, text) for name, text in texts.items()}
    model = onnx.import_model(
        onnx.read_model(path),
        folder=path.parent,
        sizes=numbers,
        loss=loss,
        class_axis=class_axis,
    )
    return _definition(model, f"`{path}`")


def _definition(model: Any, title: str) -> Definition:
    """Return the definition of an imported model, and warn of what the import warns of."""
    for sentence in model.warnings:
        warnings.warn(f"{title}: {sentence}", ShardwrightWarning, stacklevel=3)
    specs = tuple(
        InputSpec(value.name, value.type, model.highs.get(value.name))
        for value in model.graph.inputs
    )
    return Definition(model.graph, specs, initial=model.initial)


def is_torch_module(item: object) -> bool:
    """Return whether an object is a module of PyTorch; PyTorch is not imported."""
    kinds = ((kind.__module__, kind.__name__) for kind in type(item).__mro__)
    return ("torch.nn.modules.module", "Module") in kinds


def from_torch(
    module: Any, example_inputs: Any, loss: str | None = None, as_example: bool = False
) -> Definition:
    """Return the definition of a module of PyTorch.

    Parameters
    ----------
    module : torch.nn.Module
        The module; what it is initialized with is what its parameters begin with.
    example_inputs : tuple or dict of Tensor
        Positional or named inputs, whose shapes the program has.
    loss : str, optional
        The loss that is appended to the first output: ``cross_entropy``, ``mse``, ``mean``; none
        where the module returns its loss first.
    as_example : bool
        Whether branches and sizes that depend on the elements of inputs are those of the example,
        which the program checks: the loss is infinite for a batch that differs there.

    Raises
    ------
    ModelError
        If the module cannot be imported.
    PackageError
        If PyTorch is too old or cannot be loaded.
    """
    title = f"`{type(module).__name__}`"
    frontend = optional("shardwright.frontends.torch", extra="torch", need=f"importing {title}")
    if "transformers" in sys.modules:
        warn_if_untested("transformers")
    imported = frontend.import_module(
        module, example_inputs, loss=loss or "none", as_example=as_example
    )
    return _trained_definition(imported, title)


def from_transformers(
    reading: Reading, batch: int = 8, sequence: int = 4096, dtype: str = "float32"
) -> Definition:
    """Return the definition of the module that transformers has for the fields of a config.json.

    The module is made on the device `meta`, without elements. Code that comes with a checkpoint is
    never run.

    Parameters
    ----------
    reading : Reading
        What the file says.
    batch, sequence : int
        The shape of the tokens.
    dtype : str
        Element type of the parameters.

    Raises
    ------
    ModelError
        If transformers has no such architecture, or its module cannot be made or imported.
    PackageError
        If transformers is not installed.
    """
    fields = dict(reading.fields or {})
    kind = fields.pop("model_type")
    need = f"the model `{kind}`, which is none of the zoo,"
    transformers = optional("transformers", extra="transformers", need=need)
    torch = optional("torch", extra="torch", need=need)
    version = transformers.__version__
    if kind not in transformers.CONFIG_MAPPING:
        own = "; code that comes with a checkpoint is never run" if "auto_map" in fields else ""
        raise reading.error(
            f"`model_type` is `{kind}`, of which neither the zoo nor transformers {version} has a "
            f"model{own}",
            f"models of the zoo are {configs.known_architectures()}",
        )
    try:
        config = transformers.AutoConfig.for_model(kind, **{**fields, "use_cache": False})
        with torch.device("meta"):
            module = transformers.AutoModelForCausalLM.from_config(config)
    except Exception as error:  # whatever a constructor raises for its fields
        first = str(error).partition("\n")[0]
        raise reading.error(
            f"transformers {version} makes no model of words of the type `{kind}`: {first}"
        ) from error
    tokens = torch.zeros(batch, sequence, dtype=torch.int64)
    module = module.to(getattr(torch, dtype)).eval()
    return from_torch(module, {"input_ids": tokens, "labels": tokens})


def is_jax_function(item: object, arguments: object) -> bool:
    """Return whether an object is a function whose arguments have arrays of JAX, or their shapes.

    JAX is not imported: who has its arrays has imported it.
    """
    if "jax" not in sys.modules or not callable(item):
        return False
    kinds = {
        (kind.__module__.partition(".")[0], kind.__name__)
        for leaf in sys.modules["jax"].tree.leaves(arguments)
        for kind in type(leaf).__mro__
    }
    return any(module in ("jax", "jaxlib") for module, _ in kinds)


def from_jax(function: Any, example_inputs: Any, loss: str | None = None) -> Definition:
    """Return the definition of a function of JAX.

    Parameters
    ----------
    function : callable
        The function; its first argument is the tree of parameters.
    example_inputs : tuple
        Its arguments: trees of arrays, or of `jax.ShapeDtypeStruct` to plan without elements.
    loss : str, optional
        The loss that is appended to the first output: ``cross_entropy``, ``mse``, ``mean``; none
        where the function returns its loss first.

    Raises
    ------
    ModelError
        If the function cannot be imported.
    PackageError
        If JAX cannot be loaded.
    """
    title = f"`{getattr(function, '__name__', type(function).__name__)}`"
    frontend = optional("shardwright.frontends.jax", extra="jax", need=f"importing {title}")
    if "flax" in sys.modules:
        warn_if_untested("flax")
    imported = frontend.import_function(function, example_inputs, loss=loss or "none")
    return _trained_definition(imported, title)


def _trained_definition(imported: Any, title: str) -> Definition:
    """Return the definition of an imported model, whose first output is a loss."""
    definition = _definition(imported, title)
    if definition.loss is None:
        first = definition.graph.values[definition.graph.outputs[0]]
        raise ModelError(
            f"the first output of {title} is {first.type}, expected a real scalar",
            hint='return the loss first, or append one: `loss="cross_entropy"`, `mse`, `mean`',
        )
    return definition


def _given(path: Path, sizes: str) -> dict[str, str]:
    texts = {}
    for item in sizes.split(",") if sizes else ():
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise ModelError(f"`{item}` is not a size of `{path}`", hint="write `size=value`")
        if name in texts:
            raise ModelError(f"`{name}` of `{path}` is given twice", hint="give it once")
        texts[name] = value
    return texts


def _axis(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.removeprefix("-").isdecimal():
        raise ModelError(
            f"`class_axis` is `{text}`, expected an integer",
            hint="give the position of the classes among the dimensions of the output, from 0",
        )
    return int(text)


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ModelError(f"the size `{name}` is `{text}`, expected an integer of at least 1")
    return int(text)

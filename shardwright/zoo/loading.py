"""Models by name: ``gpt:layers=2,hidden=64``, ``file.py:function`` or ``file.onnx``."""

import difflib
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from shardwright.communication import world
from shardwright.frontends import configs
from shardwright.frontends.common.errors import MOST_REPEATED
from shardwright.frontends.configs.architecture import Architecture
from shardwright.ir.errors import ModelError, ShardwrightWarning
from shardwright.nn.cell import Cell
from shardwright.operators.models.optimizer import Optimizer
from shardwright.tracing import Definition, trace
from shardwright.user_files import guarded, imported
from shardwright.zoo.bert import bert
from shardwright.zoo.decoder import decoder
from shardwright.zoo.gpt import gpt
from shardwright.zoo.imported import (
    from_jax,
    from_onnx,
    from_torch,
    from_transformers,
    is_jax_function,
    is_torch_module,
)
from shardwright.zoo.lenet import lenet5
from shardwright.zoo.llama import llama, mixtral
from shardwright.zoo.mlp import mlp, two_matmul
from shardwright.zoo.presets import presets, read
from shardwright.zoo.recommendation import dlrm, feature_hash, wide_deep
from shardwright.zoo.resnet import resnet
from shardwright.zoo.tuning.freezing import frozen, taken_out
from shardwright.zoo.tuning.pretrained import ADAPTER, WEIGHTS, Pretrained
from shardwright.zoo.tuning.sizes import Tuning
from shardwright.zoo.unet import unet
from shardwright.zoo.vgg import vgg16
from shardwright.zoo.vit import vit

MODELS: Mapping[str, Callable[..., Definition]] = {
    "bert": bert,
    "dlrm": dlrm,
    "feature_hash": feature_hash,
    "gpt": gpt,
    "lenet5": lenet5,
    "llama": llama,
    "mixtral": mixtral,
    "mlp": mlp,
    "resnet": resnet,
    "two_matmul": two_matmul,
    "unet": unet,
    "vgg16": vgg16,
    "vit": vit,
    "wide_deep": wide_deep,
}
# Named sizes: the model, and its sizes.
PRESETS: Mapping[str, tuple[str, str]] = {
    "bert-base": ("bert", "vocabulary=30522"),
    "bert-large": ("bert", "layers=24,hidden=1024,heads=16,vocabulary=30522"),
    "gpt2": ("gpt", "vocabulary=50257"),
    "gpt2-medium": ("gpt", "layers=24,hidden=1024,heads=16,vocabulary=50257"),
    "gpt2-large": ("gpt", "layers=36,hidden=1280,heads=20,vocabulary=50257"),
    "gpt2-xl": ("gpt", "layers=48,hidden=1600,heads=25,vocabulary=50257"),
    "gpt3-175b": ("gpt", "layers=96,hidden=12288,heads=96,sequence=2048,vocabulary=50257"),
    "megatron-22b": ("gpt", "layers=48,hidden=6144,heads=64,sequence=2048,vocabulary=51200"),
    "megatron-530b": ("gpt", "layers=105,hidden=20480,heads=128,sequence=2048,vocabulary=51200"),
    "megatron-1t": ("gpt", "layers=128,hidden=25600,heads=160,sequence=2048,vocabulary=51200"),
    "mixtral-8x7b": ("mixtral", "capacity=0"),
    "resnet18": ("resnet", "layers=18"),
    "resnet18-cifar": ("resnet", "layers=18,small=true,side=32,classes=10,batch=128"),
    "resnet50": ("resnet", "layers=50"),
    "resnet50-cifar": ("resnet", "layers=50,small=true,side=32,classes=10,batch=128"),
    "resnet50-32k": ("resnet", "layers=50,classes=32768"),
    "vit-b16": ("vit", ""),
}
_LANGUAGE = ("bert", "gpt", "llama", "mixtral")
# Language models, by sizes or as presets, which are trained by Adam in mixed precision.
LANGUAGE_MODELS = (
    *_LANGUAGE,
    *(name for name, (model, _) in PRESETS.items() if model in _LANGUAGE),
)
_ADAM, _PRECISION = Optimizer("adam", {}), "bfloat16"
# Sizes that no file of a decoder has as a field.
_OF_DECODERS = (
    *("batch", "sequence", "dtype", "mtp", "mtp_weight", "mtp_repeated"),
    *(item.name for item in fields(Tuning)),
)
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def load(model: str, ranks: int = 1) -> Definition:
    """Return the definition of the model called `model`.

    Parameters
    ----------
    model : str
        A model of the zoo or one of its presets, ``name`` or ``name:size=value,size=value``; or
        ``file.py:function`` with sizes in the same way, a function that returns a `Definition` or
        the arguments of `trace`: ``(network, inputs)`` or ``(network, inputs, loss_fn)``, or those
        of `from_torch` and `from_jax`: ``(module, example_inputs)`` or ``(module, example_inputs,
        loss)``; or an ONNX file, ``file.onnx``, with the sizes of `from_onnx`; or a ``config.json``
        of Hugging Face, a script of Megatron or a TOML file of torchtitan, with the sizes of the
        model of the zoo that it describes. A language model comes with Adam and a precision; see
        `assumed_precision`. Every model has the size ``freeze``; see `frozen`.
    ranks : int
        Number of ranks that a hand-written parallel program is traced for.

    Raises
    ------
    ModelError
        If there is no such model or size, or it cannot be traced.
    """
    model, patterns = taken_out(model)
    return frozen(_load(model, ranks), patterns)


def _load(model: str, ranks: int) -> Definition:
    with world(ranks):
        path, dot, rest = model.partition(".py:")
        if dot:
            name, _, sizes = rest.partition(":")
            return _from_file(Path(path + ".py"), name, sizes)
        if model.endswith(".py"):
            raise ModelError(
                f"`{model}` names no function",
                hint=f"write `{model}:function`",
            )
        path, dot, rest = model.partition(".onnx")
        if dot and not rest.partition(":")[0]:
            return from_onnx(Path(path + ".onnx"), rest[1:])
        name, _, sizes = model.partition(":")
        if is_decoder(name):
            return _from_config(name, sizes)
        base, own = PRESETS.get(name, (name, ""))
        if base not in MODELS:
            raise ModelError(f"no model is called `{name}`", hint=_known(name))
        definition: Definition = _called(MODELS[base], name, sizes, own)
        precision = assumed_precision(model)
        if precision is None:
            return definition
        return replace(definition, optimizer=_ADAM, precision=precision)


def assumed_precision(model: str) -> str | None:
    """Return the precision that is assumed for a model by its name; None where none is.

    A language model is trained by Adam in bfloat16, with float32 parameters, unless its name says
    the element type of all parameters, ``dtype``. A file of another system says it.
    """
    name, _, sizes = model.partition(":")
    keys = {item.partition("=")[0].strip() for item in sizes.split(",")}
    if is_decoder(name):
        found = str(read(name, {}).options["precision"])
        return None if "dtype" in keys and name in presets() else found
    return _PRECISION if name in LANGUAGE_MODELS and "dtype" not in keys else None


def assumed_batch(model: str, devices: int) -> int | None:
    """Return the batch of a language model whose name gives none; None for the model's own.

    It is the model's own, or as many more samples as it takes for the devices to divide them.

    Parameters
    ----------
    model : str
        The name of a model.
    devices : int
        Number of devices.

    Examples
    --------
    >>> assumed_batch("llama3-8b", 64), assumed_batch("llama3-8b", 4), assumed_batch("mlp", 64)
    (64, None, None)
    """
    name, _, sizes = model.partition(":")
    base = PRESETS.get(name, (name, ""))[0]
    given = [item.partition("=")[0].strip() for item in sizes.split(",")]
    if is_decoder(name):
        found = read(name, {})
        base, given = found.model, [*given, *found.sizes]
    if base not in (*_LANGUAGE, "decoder", "transformers") or "batch" in given:
        return None
    function = MODELS.get(base, decoder)
    own: int = inspect.signature(function).parameters["batch"].default
    return -(-own // devices) * devices if own % devices else None


def _from_config(name: str, sizes: str) -> Definition:
    """Return the model that a file of another system describes."""
    given = _items(name, sizes)
    folders = {key: given.pop(key) for key in (WEIGHTS, ADAPTER) if key in given}
    own = {key: text for key, text in given.items() if key not in _OF_DECODERS}
    found = read(name, own)
    begins = _pretrained(found.architecture, folders, given)
    if begins is not None:
        given |= begins.sizes
    for sentence in found.told(given):
        warnings.warn(f"`{name}`: {sentence}", ShardwrightWarning, stacklevel=2)
    function: Callable[..., Definition]
    if found.architecture is None and found.fields is None:
        function = MODELS[found.model]
    else:
        function = partial(from_transformers, found)
        if found.architecture is not None:
            function = partial(decoder, found.architecture)
        sizes = ",".join(f"{key}={text}" for key, text in given.items() if key in _OF_DECODERS)
    definition: Definition = _called(function, name, sizes, found.sizes_text)
    if begins is not None:
        definition = begins.begun(definition)
    if "dtype" in given and name in presets():  # of all parameters: nothing else is assumed
        return definition
    return replace(definition, optimizer=_ADAM, precision=found.options["precision"])


def _pretrained(
    architecture: Architecture | None, folders: Mapping[str, str], sizes: Mapping[str, str]
) -> Pretrained | None:
    """Return what a decoder begins with, if folders are given."""
    if not folders:
        return None
    if architecture is None:
        raise ModelError(f"`{WEIGHTS}` and `{ADAPTER}` are of decoders of the zoo, this is none")
    if WEIGHTS not in folders:
        raise ModelError(
            f"`{ADAPTER}` is given without the weights that it was trained on",
            hint=f"add `{WEIGHTS}=FOLDER`",
        )
    beside = next((key for key in sizes if key.startswith("mtp")), None)
    if ADAPTER in folders:
        known = ("lora", "lora_alpha", "lora_targets")
        beside = beside or next((key for key in sizes if key in known), None)
    if beside is not None:
        which = WEIGHTS if beside.startswith("mtp") else ADAPTER
        raise ModelError(
            f"`{beside}` is given, and `{which}` says or has none", hint="leave one out"
        )
    adapter = Path(folders[ADAPTER]) if ADAPTER in folders else None
    return Pretrained(architecture, Path(folders[WEIGHTS]), adapter)


def pretrained(model: str) -> tuple[Pretrained, int]:
    """Return what a model with adapters begins with, and their alpha; 0 stands for their rank.

    Parameters
    ----------
    model : str
        The name of a decoder with a rank or an adapter, and the folder of its weights.

    Raises
    ------
    ModelError
        If the name has none of these.
    """
    name, _, sizes = taken_out(model)[0].partition(":")
    given = _items(name, sizes)
    folders = {key: given.pop(key) for key in (WEIGHTS, ADAPTER) if key in given}
    if not is_decoder(name) or WEIGHTS not in folders or not {"lora", ADAPTER} & {*given, *folders}:
        raise ModelError(
            f"`{model}` has no adapters beside weights of a folder, of which files have the names",
            hint=f"compile a decoder with `{WEIGHTS}=FOLDER,lora=16`",
        )
    own = {key: text for key, text in given.items() if key not in _OF_DECODERS}
    begins = _pretrained(read(name, own).architecture, folders, given)
    assert begins is not None
    return begins, int({**given, **begins.sizes}.get("lora_alpha", 0))


def is_decoder(name: str) -> bool:
    """Return whether a name is a decoder of the table of presets, or a file of another system."""
    return name not in MODELS and (configs.is_model(name) or name in presets())


def _known(name: str) -> str:
    """Return the hint of a name that no model has."""
    if (Path(name) / configs.CONFIG).is_file():
        return f"for the folder, write `./{name}`"
    return _nearest(name, {**MODELS, **PRESETS, **presets()})


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"


def _called(function: Callable[..., Any], name: str, sizes: str, own: str = "") -> Any:
    """Call a function with sizes from text, each read as its default's type.

    Parameters
    ----------
    function, name
        The function of the model, and its name in messages.
    sizes : str
        The sizes of the user.
    own : str
        The sizes of the preset, which the user's override.
    """
    known = dict(inspect.signature(function).parameters)
    of_tuning = inspect.signature(Tuning).parameters if known.pop("tuning", None) else {}
    known |= of_tuning
    values = {**_read_sizes(known, name, own), **_read_sizes(known, name, sizes)}
    if of_tuning:
        values["tuning"] = Tuning(**{key: values.pop(key) for key in of_tuning if key in values})
    return function(**values)


def _read_sizes(known: Mapping[str, inspect.Parameter], name: str, sizes: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, text in _items(name, sizes).items():
        if key not in known:
            raise ModelError(f"`{name}` has no size `{key}`", hint=_nearest(key, known))
        values[key] = _value(name, key, text, known[key].default)
    return values


def _items(name: str, sizes: str) -> dict[str, str]:
    """Return sizes as text, by their names."""
    found: dict[str, str] = {}
    for item in sizes.split(",") if sizes else ():
        key, equals, text = (part.strip() for part in item.partition("="))
        if not equals and next(reversed(found), "") == "lora_targets":  # names after a comma
            found["lora_targets"] += f"+{key}"
            continue
        if not equals:
            raise ModelError(f"`{item}` is not a size of `{name}`", hint="write `size=value`")
        if key in found:
            raise ModelError(f"the size `{key}` of `{name}` is given twice", hint="give it once")
        found[key] = text
    return found


def _value(name: str, key: str, text: str, default: object) -> Any:
    kind: type[Any] = int if default is inspect.Parameter.empty else type(default)
    try:
        if kind is bool:
            return _TRUTH[text.lower()]
        value = kind(text)
    except (KeyError, ValueError):
        raise ModelError(
            f"`{key}` of `{name}` is `{text}`, expected type {kind.__name__}"
        ) from None
    if isinstance(value, int) and value < 1:
        raise ModelError(f"`{key}` of `{name}` is {value}, expected at least 1")
    if key == "layers" and value > MOST_REPEATED:
        raise ModelError(f"`{key}` of `{name}` is {value:,}, expected at most {MOST_REPEATED:,}")
    if isinstance(value, float) and not isfinite(value):
        raise ModelError(f"`{key}` of `{name}` is {value}, expected a finite number")
    return value


# Models in files


def _from_file(path: Path, name: str, sizes: str) -> Definition:
    if not path.is_file():
        raise ModelError(f"there is no file `{path}`", hint="write `path/to/file.py:function`")
    with imported(path) as module:
        function = vars(module).get(name)
        if not callable(function):
            functions = {key: item for key, item in vars(module).items() if callable(item)}
            raise ModelError(
                f"`{path}` has no function `{name}`", hint=_nearest(name, functions) or None
            )
        made = guarded(lambda: _called(function, name, sizes), path)
        if isinstance(made, Definition):
            return made
        if not isinstance(made, tuple) or not 2 <= len(made) <= 3 or not _is_network(made[0]):
            raise ModelError(
                f"`{name}` returns {type(made).__name__}, expected a `Definition`, "
                f"`(network, inputs)` or `(network, inputs, loss_fn)`",
                str(path),
            )
        network, inputs, *loss_fn = made
        if is_torch_module(network):
            return from_torch(network, inputs, *loss_fn)
        if is_jax_function(network, inputs):
            return from_jax(network, inputs, *loss_fn)
        return trace(network, inputs, loss_fn=loss_fn[0] if loss_fn else None)


def _is_network(item: object) -> bool:
    return isinstance(item, Cell) or callable(item)

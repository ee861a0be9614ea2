"""Weights of Hugging Face folders, and adapters in the files of peft, for decoders of the zoo."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shardwright.frontends.configs.architecture import Architecture
from shardwright.frontends.configs.weights import Source, modules, sources
from shardwright.ir.errors import ModelError, PlanError, ShardwrightWarning
from shardwright.ir.files.folders import is_name
from shardwright.ir.files.reading import from_json, read_text
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.info import Array
from shardwright.operators.linear.nf4 import quantized
from shardwright.runtime.checkpoints.tensor_file import TensorFile, tensors_content
from shardwright.tracing import Definition

WEIGHTS, ADAPTER = "weights", "adapter"
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_ROOT = "base_model.model."  # of every name in files of peft
_HALVES = {"lora_a": "lora_A", "lora_b": "lora_B"}
_PACKED = ("codes", "scales", "nested", "offset")
_DATA = "data"  # the initializer of what the model itself gives
# Fields of an adapter by which it computes something else, and the values by which it does not.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_rslora": (False,),
    "use_dora": (False,),
    "lora_bias": (False,),
    "modules_to_save": (None, []),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "layer_replication": (None,),
    "use_qalora": (False,),
}


class Tensors(Mapping[str, Array]):
    """The tensors of files of safetensors, read when they are asked for.

    Parameters
    ----------
    folder : Path
        Their folder.
    names : iterable of str
        The files.

    Raises
    ------
    ModelError
        If one cannot be read.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._files: dict[str, TensorFile] = {}
        for path in (folder / name for name in names):
            try:
                file = TensorFile(path)
            except PlanError as error:
                raise ModelError(f"`{path}` is no file of safetensors: {error.what}") from None
            self._files |= dict.fromkeys(file.names, file)

    def __getitem__(self, name: str) -> Array:
        return self._files[name].whole(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)


@dataclass(frozen=True)
class Pretrained:
    """What a decoder begins with.

    Parameters
    ----------
    architecture : Architecture
        The decoder.
    weights : Path
        A folder with the weights that transformers has written.
    adapter : Path, optional
        A folder with an adapter that peft has written.
    """

    architecture: Architecture
    weights: Path
    adapter: Path | None = None

    @cached_property
    def _tensors(self) -> Tensors:
        names, index = [_WHOLE], self.weights / _INDEX
        if index.is_file():
            table = _read(index).get("weight_map")
            names = sorted(set(table.values())) if isinstance(table, dict) else []
            if not names or not all(isinstance(name, str) and is_name(name) for name in names):
                raise ModelError(f"`{index}` has no `weight_map` of names of files")
        elif not (self.weights / _WHOLE).is_file():
            raise ModelError(
                f"there is neither `{_WHOLE}` nor `{_INDEX}` in `{self.weights}`",
                hint=f"give a folder of `save_pretrained` as `{WEIGHTS}`",
            )
        return Tensors(self.weights, names)

    @cached_property
    def _sources(self) -> Mapping[str, Source]:
        return sources(self._tensors, self.architecture)

    # The way in

    @cached_property
    def sizes(self) -> Mapping[str, str]:
        """The sizes of the adapter: its rank, alpha and targets.

        Raises
        ------
        ModelError
            If it has a form that the zoo has not.
        """
        if self.adapter is None:
            return {}
        fields = _read(self.adapter / CONFIG)
        for name, values in _PLAIN.items():
            if name in fields and fields[name] not in values:
                raise ModelError(
                    f"`{name}` of the adapter in `{self.adapter}` is {json.dumps(fields[name])}, "
                    f"expected {json.dumps(values[0])}"
                )
        if fields.get("lora_dropout"):
            what = f"`lora_dropout` of the adapter in `{self.adapter}` is left out"
            warnings.warn(what, ShardwrightWarning, stacklevel=2)
        rank, alpha = fields.get("r"), fields.get("lora_alpha")
        for name, value in (("r", rank), ("lora_alpha", alpha)):
            if not isinstance(value, int) or value < 1:
                raise ModelError(
                    f"`{name}` of the adapter in `{self.adapter}` is {json.dumps(value)}, expected "
                    "a positive integer"
                )
        products = {name.split(".", 2)[2].rpartition(".lora_")[0] for name in self._halves}
        targets = "+".join(sorted(products))
        return {"lora": str(rank), "lora_alpha": str(alpha), "lora_targets": targets}

    @cached_property
    def _halves(self) -> Mapping[str, Array]:
        """The parameters of the adapter, by the names of the zoo."""
        assert self.adapter is not None
        tensors, found = Tensors(self.adapter, (TENSORS,)), dict[str, Array]()
        own = {module: product for product, module in modules(self._sources)}
        named = {
            f"{_ROOT}{module}.{theirs}.weight": f"{product}.{ours}.weight"
            for module, product in own.items()
            for ours, theirs in _HALVES.items()
        }
        for name in tensors:
            if name not in named:
                raise ModelError(
                    f"the tensor `{name}` of the adapter in `{self.adapter}` is of no product that "
                    "the decoder has by itself"
                )
            found[named[name]] = tensors[name]
        if not found:
            raise ModelError(f"the adapter in `{self.adapter}` has no tensors")
        return found

    def begun(self, definition: Definition) -> Definition:
        """Return the definition of the decoder with these weights.

        Raises
        ------
        ModelError
            If one is missing, is left over, or has another shape.
        """
        types = {p.name: p.value.type for p in definition.graph.parameters}
        found = dict(self._begun_weights(types))
        adapters = {name for name in types if ".lora_" in name}
        if self.adapter is not None:
            if odd := adapters ^ self._halves.keys():
                where = "the adapter has no" if min(odd) in adapters else "only the adapter has a"
                raise ModelError(f"{where} `{min(odd)}`: one product of a kind has one, and others")
            found |= {name: _fitting(name, x, types) for name, x in self._halves.items()}
        drawn = (
            p.name
            for p in definition.graph.parameters
            if p.attributes.get("initializer") != _DATA and p.name not in adapters
        )
        missing = next((name for name in drawn if name not in found), None)
        if missing is not None:
            raise ModelError(f"the weights in `{self.weights}` have no `{missing}` of the decoder")
        return replace(definition, initial={**definition.initial, **found})

    def _begun_weights(self, types: Mapping[str, TensorType]) -> Iterator[tuple[str, Array]]:
        for name, source in self._sources.items():
            packed = f"{name.removesuffix('.weight')}.packed"
            if f"{packed}.codes" in types:
                parts = vars(quantized(source.of(self._tensors)))
                for part in _PACKED:
                    yield f"{packed}.{part}", _fitting(f"{packed}.{part}", parts[part], types)
            elif name not in types:
                raise ModelError(f"the decoder has no `{name}`, which the weights have")
            else:
                yield name, _fitting(name, source.of(self._tensors), types)

    # The way out

    def adapter_files(self, trained: Mapping[str, Array], alpha: int) -> dict[str, bytes]:
        """Return the files of peft for adapters that were trained.

        Parameters
        ----------
        trained : mapping of str to array
            Their parameters, by the names of the zoo.
        alpha : int
            What is added is multiplied by alpha / rank; 0 stands for the rank.

        Raises
        ------
        ModelError
            If a product that has one is no module of transformers: experts of one tensor, a part of
            a product of several.
        """
        own, tensors = dict(modules(self._sources)), dict[str, Array]()
        for name in sorted(trained):
            product, _, half = name.removesuffix(".weight").rpartition(".")
            if product not in own:
                raise ModelError(
                    f"`{product}` is no module of the weights in `{self.weights}` by itself, and "
                    "files of peft have no adapter for it",
                    hint="train others, by `lora_targets`",
                )
            tensors[f"{_ROOT}{own[product]}.{_HALVES[half]}.weight"] = trained[name]
        rank = next(x.shape[0] for name, x in trained.items() if name.endswith(".lora_a.weight"))
        names = {own[name.rpartition(".lora_")[0]] for name in trained}
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(self.weights),
            "r": rank,
            "lora_alpha": alpha or rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "target_modules": self._named(names),
        }
        text = json.dumps(config, indent=2) + "\n"
        return {CONFIG: text.encode(), TENSORS: tensors_content(tensors, {"format": "pt"})}

    def _named(self, names: set[str]) -> list[str]:
        """Return modules by their last names, or whole ones where others have these too."""
        last = {name.rpartition(".")[2] for name in names}
        every = (name.removesuffix(".weight") for name in self._tensors)
        same = {name for name in every if name.rpartition(".")[2] in last}
        return sorted(last if same == names else names)


def _fitting(name: str, array: Array, types: Mapping[str, TensorType]) -> Array:
    """Return an array in the type of a parameter."""
    tensor = types[name]
    if array.shape != tensor.shape:
        raise ModelError(
            f"`{name}` has the shape {array.shape} in the weights, expected {tensor.shape}"
        )
    return array.astype(numpy_dtype(tensor.dtype), order="C")


def _read(path: Path) -> Mapping[str, Any]:
    """Return the fields of a JSON file."""
    try:
        fields = from_json(read_text(path))
    except FileNotFoundError:
        raise ModelError(f"there is no file `{path}`") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"`{path}` cannot be read: {reason}") from None
    if not isinstance(fields, dict):
        raise ModelError(f"`{path}` is no JSON object")
    return fields

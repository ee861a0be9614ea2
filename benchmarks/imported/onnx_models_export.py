"""Exports models of transformers and torchvision to ONNX, with what PyTorch computes of them.

Needs `torch`, `torchvision`, `transformers`, `onnx` and `onnxscript`, which the product does not:
run it in an environment of its own. The models are small and have random weights.

    python benchmarks/imported/onnx_models_export.py FOLDER [MODEL ...]

For every model and way to export it writes `MODEL.WAY.onnx`, and once `MODEL.npz` with inputs,
results, parameters, and their gradients for the mean square of the first result.
"""

import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
import transformers
from torch import nn

Tensors = dict[str, torch.Tensor]
Made = tuple[nn.Module, Tensors]
BATCH, LENGTH, VOCABULARY = 2, 8, 64
FIRST = 3  # the tokens before pad, and their rows of the table get no gradient in PyTorch
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4}
WIDE = {"intermediate_size": 64}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "dynamo": {"dynamo": True},
    "dynamo-plain": {"dynamo": True, "optimize": False},
    "script": {"dynamo": False},
    "script-plain": {"dynamo": False, "do_constant_folding": False},
}


def _tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(FIRST, VOCABULARY, (BATCH, length))


def _decoder(kind: str, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        config = transformers.AutoConfig.for_model(kind, **{**SIZES, **HEADS, **WIDE, **options})
        config.use_cache = False
        return transformers.AutoModelForCausalLM.from_config(config), {"input_ids": _tokens()}

    return make


def _rounded(kind: str, dtype: torch.dtype) -> Callable[[], Made]:
    def make() -> Made:
        network, inputs = _decoder(kind, num_key_value_heads=2)()
        return network.to(dtype), inputs

    return make


def _encoder(kind: str, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        config = transformers.AutoConfig.for_model(kind, **{**SIZES, **HEADS, **WIDE, **options})
        mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
        mask[1, -2:] = 0
        inputs = {"input_ids": _tokens(), "attention_mask": mask}
        return transformers.AutoModelForSequenceClassification.from_config(config), inputs

    return make


def _t5() -> Made:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    config.use_cache = False
    inputs = {"input_ids": _tokens(), "decoder_input_ids": _tokens(6)}
    return transformers.T5ForConditionalGeneration(config), inputs


def _vit() -> Made:
    config = transformers.ViTConfig(**SIZES, **HEADS, **WIDE, image_size=16, patch_size=4)
    return transformers.ViTForImageClassification(config), {"pixel_values": _images(16)["x"]}


def _images(side: int) -> Tensors:
    return {"x": torch.randn(BATCH, 3, side, side)}


def _vision(make: Callable[..., nn.Module], side: int = 64, **options: Any) -> Callable[[], Made]:
    return lambda: (make(weights=None, num_classes=5, **options), _images(side))


def _vgg() -> Made:
    network = torchvision.models.vgg11(weights=None)
    network.classifier = nn.Sequential(nn.Linear(512 * 49, 16), nn.ReLU(), nn.Linear(16, 5))
    return network, _images(224)


def _swin() -> Made:
    network = torchvision.models.SwinTransformer(
        [4, 4], 24, [2, 2], [2, 4], window_size=[4, 4], num_classes=5
    )
    return network, _images(64)


def _convnext() -> Made:
    setting = torchvision.models.convnext.CNBlockConfig
    blocks = [setting(16, 32, 2), setting(32, 48, 2), setting(48, None, 1)]
    return torchvision.models.ConvNeXt(blocks, num_classes=5), _images(64)


def _vision_transformer() -> Made:
    network = torchvision.models.VisionTransformer(64, 16, 2, 4, 32, 64, num_classes=5)
    nn.init.normal_(network.heads.head.weight)
    return network, _images(64)


class Segmentation(nn.Module):
    """A segmentation network that returns its scores alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores [sample, class, row, column]."""
        return self.network(x)["out"]


class Recurrent(nn.Module):
    """A recurrent network of two layers, and a layer over the last step."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent = kind(6, 8, num_layers=2, batch_first=True, bidirectional=kind is nn.LSTM)
        self.head = nn.Linear(8 * (1 + (kind is nn.LSTM)), 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of the last step."""
        return self.head(self.recurrent(x)[0][:, -1])


class GraphNetwork(nn.Module):
    """Two rounds of messages along edges, summed and then their largest taken."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return scores of every vertex."""
        source, target = edges[0], edges[1]
        messages = self.first(x)[source]
        summed = messages.new_zeros(x.shape[0], 8).index_add(0, target, messages)
        messages = torch.relu(summed)[source]
        index = target[:, None].expand(-1, 8)
        largest = messages.new_zeros(x.shape[0], 8).scatter_reduce(0, index, messages, "amax")
        return self.second(largest)


def _graph() -> Made:
    return GraphNetwork(), {"x": torch.randn(30, 4), "edges": torch.randint(0, 30, (2, 120))}


def _recurrent(kind: type[nn.RNNBase]) -> Callable[[], Made]:
    return lambda: (Recurrent(kind), {"x": torch.randn(BATCH, 5, 6)})


def _segmentation(make: Callable[..., nn.Module]) -> Callable[[], Made]:
    options = {"weights": None, "weights_backbone": None, "num_classes": 5}
    return lambda: (Segmentation(make(**options)), _images(64))


GROUPED = {"num_key_value_heads": 2}
MODELS: Mapping[str, Callable[[], Made]] = {
    "gpt2": _decoder("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=16),
    "gpt_neox": _decoder("gpt_neox"),
    "opt": _decoder("opt", ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=16),
    "llama": _decoder("llama", **GROUPED),
    "mistral": _decoder("mistral", **GROUPED),
    "qwen2": _decoder("qwen2", **GROUPED),
    "qwen3": _decoder("qwen3", **GROUPED, head_dim=8),
    "gemma": _decoder("gemma", num_key_value_heads=1, head_dim=8),
    "phi": _decoder("phi"),
    "olmo2": _decoder("olmo2", **GROUPED),
    "llama_bfloat16": _rounded("llama", torch.bfloat16),
    "qwen2_float16": _rounded("qwen2", torch.float16),
    "bert": _encoder("bert", max_position_embeddings=16),
    "roberta": _encoder("roberta", max_position_embeddings=16),
    "distilbert": _encoder(
        "distilbert", dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=16
    ),
    "t5": _t5,
    "vit": _vit,
    "resnet18": _vision(torchvision.models.resnet18),
    "mobilenet_v3": _vision(torchvision.models.mobilenet_v3_small),
    "efficientnet_b0": _vision(torchvision.models.efficientnet_b0),
    "vgg11": _vgg,
    "densenet121": _vision(torchvision.models.densenet121),
    "swin": _swin,
    "convnext": _convnext,
    "vision_transformer": _vision_transformer,
    "lraspp": _segmentation(torchvision.models.segmentation.lraspp_mobilenet_v3_large),
    "deeplab_v3": _segmentation(torchvision.models.segmentation.deeplabv3_mobilenet_v3_large),
    "lstm": _recurrent(nn.LSTM),
    "gru": _recurrent(nn.GRU),
    "graph": _graph,
}


def export(name: str, folder: Path) -> None:
    """Export one model in every way, and write what PyTorch computes."""
    torch.manual_seed(0)
    network, inputs = MODELS[name]()
    network.eval()
    _disturb(network)
    _write_expected(network, inputs, folder / f"{name}.npz")
    for way, options in WAYS.items():
        path = folder / f"{name}.{way}.onnx"
        try:
            _export(network, inputs, path, options)
            print(f"{path.name}: {path.stat().st_size} bytes", flush=True)
        except Exception as error:  # whatever the exporter raises is a result of this script
            path.unlink(missing_ok=True)
            print(f"{path.name}: not exported: {type(error).__name__}: {error}"[:300], flush=True)


def _export(network: nn.Module, inputs: Tensors, path: Path, options: Mapping[str, Any]) -> None:
    if "input_ids" in inputs and not options["dynamo"]:
        network, inputs = _traceable(network, inputs)
    names = {"input_names": list(inputs), "output_names": ["output"]}
    how = {"external_data": False, "verbose": False, **names, **options}
    if not options["dynamo"]:
        how["opset_version"] = 17
        torch.onnx.export(network, tuple(inputs.values()), str(path), **how)
    else:
        torch.onnx.export(network, (), str(path), kwargs=dict(inputs), **how)


def _traceable(network: nn.Module, inputs: Tensors) -> Made:
    """Return a model of transformers as the exporter that traces can take it: with its names.

    Without a mask, transformers looks for packed sequences, which that exporter cannot say; and it
    makes inputs of the default values of arguments.
    """
    names = ["input_ids", "attention_mask", *(n for n in inputs if n.startswith("decoder"))]
    inputs = {"attention_mask": torch.ones_like(inputs["input_ids"]), **inputs}
    forward = type(network).forward
    options = {"use_cache": False} if getattr(network.config, "use_cache", False) else {}

    def positional(*tensors: torch.Tensor) -> torch.Tensor:
        return forward(network, **dict(zip(names, tensors, strict=True)), **options)[0]

    network = copy(network)
    network.forward = positional
    return network, {name: inputs[name] for name in names}


def _disturb(network: nn.Module) -> None:
    """Make equal fresh parameters differ no more than a user's would: leave them as they are."""
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)


def _write_expected(network: nn.Module, inputs: Tensors, path: Path) -> None:
    found = network(**inputs)
    output = found if isinstance(found, torch.Tensor) else found[0]
    output.square().mean().backward()
    arrays = {f"input/{key}": _numbers(tensor) for key, tensor in inputs.items()}
    arrays["output"] = _numbers(output)
    for key, parameter in network.named_parameters():
        arrays[f"parameter/{key}"] = _numbers(parameter)
        if parameter.grad is not None:
            arrays[f"gradient/{key}"] = _numbers(parameter.grad)
    own = {parameter: key for key, parameter in network.named_parameters()}
    for key, parameter in network.named_parameters(remove_duplicate=False):
        if own[parameter] != key:  # shared with another module
            arrays[f"alias/{key}"] = np.array(own[parameter])
    np.savez(path, **arrays)


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def main(folder: str, *models: str) -> None:
    """Export every model, or those that are named."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in models or MODELS:
        try:
            export(name, Path(folder))
        except Exception:
            traceback.print_exc()
    versions = {m.__name__: m.__version__ for m in (torch, torchvision, transformers)}
    (Path(folder) / "versions.json").write_text(json.dumps(versions))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Inputs of the architectures of transformers, by the names of the arguments of `forward`.

Where a name leaves several shapes open, candidates are tried in order until the module runs.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

import torch
from small_configs import VOCABULARY
from torch import nn
from transformers import PretrainedConfig

BATCH, LENGTH = 4, 8
_MOST_CANDIDATES = 48
_FIRST, _LAST = 5, 60  # of ordinary tokens
Inputs = dict[str, torch.Tensor]
# What is taken even where `forward` has a default for it.
_WANTED = (
    "input_ids",
    "pixel_values",
    "input_features",
    "input_features_mask",
    "input_values",
    "pixel_values_videos",
    "image_grid_thw",
    "grid_thw",
    "bbox",
    "image_sizes",
    "spatial_shapes",
    "pixel_attention_mask",
    "past_values",
    "states",
    "actions",
    "rewards",
    "returns_to_go",
    "timesteps",
)


def candidates(module: nn.Module, head: str, extra: Mapping[str, Any]) -> Iterator[Inputs]:
    """Yield inputs that a module may take, the likeliest first.

    Parameters
    ----------
    module : Module
        The module.
    head : str
        What it is trained for, as the name of the mapping of its class says.
    extra : mapping of str to shape
        Shapes of inputs that no rule knows: floating-point numbers, or integers below the last
        element where the shape starts with ``"int"``, or ones after ``"ones"``.
    """
    signature = inspect.signature(module.forward)
    named = {n: p for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    needed = [n for n, p in named.items() if p.default is p.empty]
    main = module.main_input_name if isinstance(module.main_input_name, str) else ""
    names = [n for n in named if n in needed or n in _WANTED or n == main or n in extra]
    if "pixel_values" in names and "pixel_values_videos" not in (*needed, main):
        names = [n for n in names if n != "pixel_values_videos"]
    if "labels" in named and _labels(head):
        names.append("labels")
    elif "decoder_input_ids" in named:
        names.append("decoder_input_ids")
    elif head == "CTC" and "labels" in named:
        names.append("labels")
    options = [list(_options(n, module.config, head, extra)) for n in names]
    for chosen in islice(product(*options), _MOST_CANDIDATES):
        pairs = zip(names, chosen, strict=True)
        yield {name: item for name, item in pairs if item is not None}
    if head == "CAUSAL_LM" and not set(needed) - {"input_ids"}:  # as a language model alone
        yield {"input_ids": tokens(BATCH, LENGTH), "labels": tokens(BATCH, LENGTH)}


def tokens(*shape: int) -> torch.Tensor:
    """Return random ordinary tokens."""
    return torch.randint(_FIRST, _LAST, shape)


def _labels(head: str) -> bool:
    return any(word in head for word in ("LM", "CLASSIFICATION", "TEXT_TO_TEXT", "SEQ", "CTC"))


def _options(
    name: str, config: PretrainedConfig, head: str, extra: Mapping[str, Any]
) -> Iterator[torch.Tensor | None]:
    if name in extra:
        yield _given(extra[name])
    elif name in ("input_ids", "decoder_input_ids"):
        yield tokens(BATCH, LENGTH)
    elif name == "labels":
        yield from _label_options(config, head)
    elif name in ("pixel_values", "pixel_values_videos"):
        yield from _images(name, config)
    elif name in ("image_grid_thw", "grid_thw"):
        yield torch.tensor([[1, 4, 4]] * BATCH)
    elif name == "bbox":
        yield torch.tensor([1, 2, 8, 9]).expand(BATCH, LENGTH, 4).clone()
    elif name == "image_sizes":
        yield None
        side = _image_side(config)
        yield torch.tensor([[side, side]] * BATCH)
    elif name == "spatial_shapes":
        yield torch.tensor([[4, 4]] * BATCH)
    elif name == "pixel_attention_mask":
        yield None
        yield torch.ones(BATCH, 16, dtype=torch.int64)
    elif name == "input_features":
        mel = int(
            _found(config, "num_mel_bins", "feature_size", "n_mels", "input_feat_per_channel") or 16
        )
        yield torch.randn(BATCH, mel, 64)
        yield torch.randn(BATCH, 64, mel)
    elif name == "input_features_mask":
        yield None
        yield torch.ones(BATCH, 64, dtype=torch.int64)
    elif name == "input_values":
        yield torch.randn(BATCH, 3200 if head == "CTC" else 800)
        yield torch.randn(BATCH, 1, 800)
        yield torch.randn(BATCH, 64, 16)
    elif name in ("hidden_states", "query_embeds", "inputs_embeds"):
        width = int(_found(config, "hidden_size", "d_model") or 32)
        yield torch.randn(BATCH, LENGTH, width)
        yield torch.randn(BATCH, width, LENGTH)
    elif name == "past_values":
        yield torch.rand(BATCH, int(_found(config, "context_length") or 16)) + 1
    else:
        yield torch.ones(BATCH, LENGTH, dtype=torch.int64)
        yield torch.randn(BATCH, LENGTH)


def _given(shape: Any) -> torch.Tensor:
    if isinstance(shape, torch.Tensor):
        return shape.clone()
    if shape[0] == "ones":
        return torch.ones(shape[1:], dtype=torch.int64)
    if shape[0] == "int":
        return torch.randint(0, shape[-1], tuple(shape[1:-1]))
    return torch.randn(shape)


def _label_options(config: PretrainedConfig, head: str) -> Iterator[torch.Tensor]:
    if "TOKEN_CLASS" in head:
        yield torch.randint(0, 2, (BATCH, LENGTH))
    elif "CLASSIFICATION" in head:
        yield torch.randint(0, 2, (BATCH,))
    elif head == "CTC":
        yield torch.randint(1, 20, (BATCH, 3))
    else:
        yield tokens(BATCH, LENGTH)


def _image_side(config: PretrainedConfig) -> int:
    side = _found(config, "image_size", "pretrain_image_size", "input_size") or 32
    return int(side[0] if isinstance(side, (list, tuple)) else side)


def _images(name: str, config: PretrainedConfig) -> Iterator[torch.Tensor]:
    side = _image_side(config)
    channels = int(_found(config, "num_channels", "in_channels", "in_chans") or 3)
    frames = int(_found(config, "num_frames", "frames_per_clip") or 2)
    patch = _found(config, "patch_size") or 4
    patch = int(patch[0] if isinstance(patch, (list, tuple)) else patch)
    depth = _found(config, "temporal_patch_size") or 1
    flat = torch.randn(BATCH * 16, channels * int(depth) * patch * patch)
    if hasattr(_vision(config), "spatial_merge_size") or _found(config, "temporal_patch_size"):
        yield flat
    videos = torch.randn(BATCH, frames, channels, side, side)
    if name == "pixel_values_videos":
        yield videos
    yield torch.randn(BATCH, channels, side, side)
    if name == "pixel_values":
        yield videos
    yield torch.randn(BATCH, 1, channels, side, side)
    yield torch.randn(BATCH, 2, channels, side, side)
    yield torch.randn(BATCH, 16, channels * patch * patch)
    yield flat
    yield torch.randn(BATCH, 3, 64, 64)


def _vision(config: PretrainedConfig) -> PretrainedConfig:
    return getattr(config, "vision_config", None) or config


def _found(config: PretrainedConfig, *names: str) -> Any:
    """Return a field of a configuration, or of those inside of it."""
    inner = [
        v for k, v in vars(config).items() if isinstance(v, PretrainedConfig) and k != "text_config"
    ]
    for one in (_vision(config), config, *inner):
        for name in names:
            value = getattr(one, name, None)
            if isinstance(value, (int, list, tuple)) and not isinstance(value, bool) and value:
                return value
    for one in inner:
        if (value := _found(one, *names)) is not None:
            return value
    return None


# Numbers in messages about tokens that stand for images.
_COUNTS = re.compile(r"tokens: ?(\d+).*?features:? ?(?:torch\.Size\(\[)?(\d+)")


def with_places(made: Inputs, module: nn.Module, message: str) -> Inputs | None:
    """Return inputs with as many tokens for features as a message asks for.

    Parameters
    ----------
    made : dict
        The inputs.
    module : Module
        The module; its configuration names the token.
    message : str
        What the module said.
    """
    found = _COUNTS.search(message.replace("\n", " "))
    if found is None:
        return None
    count = int(found[2])
    token = _token(module.config, message)
    if token is None or count % BATCH or "input_ids" not in made:
        return None
    each = count // BATCH
    if each > 400:
        return None
    text = tokens(BATCH, LENGTH)
    marks = torch.full((BATCH, each), token)
    ids = torch.cat([text[:, :2], marks, text[:, 2:]], 1)
    made = {**made, "input_ids": ids}
    if "mm_token_type_ids" in inspect.signature(module.forward).parameters:
        made["mm_token_type_ids"] = (ids == token).long()
    if "labels" in made and made["labels"].dim() == 2:
        made["labels"] = tokens(*ids.shape)
    return made


def _token(config: PretrainedConfig, message: str) -> int | None:
    kind = next((k for k in ("video", "audio", "image") if k in message.lower()), "image")
    for name in (f"{kind}_token_id", f"{kind}_token_index"):
        for one in (config, *(v for v in vars(config).values() if isinstance(v, PretrainedConfig))):
            value = getattr(one, name, None)
            if isinstance(value, int) and 0 <= value < VOCABULARY:
                return value
    return None

"""Sizes, classes and inputs of architectures that the rules of small configurations do not find."""

from collections.abc import Mapping
from typing import Any

from small_configs import KEEP

_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
}
_DETR = {
    "backbone": None,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone_config": _RESNET,
}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16}
_BERT = {
    "model_type": "bert",
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
_DECODER = {**_BERT, "is_decoder": True, "add_cross_attention": True}
_VIT = {
    "model_type": "vit",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
_EFFICIENT = {
    "in_channels": KEEP,
    "out_channels": KEEP,
    "width_coefficient": 0.5,
    "depth_coefficient": 0.3,
    "hidden_dim": 64,
    "image_size": 64,
}
# Fields of configurations, by architecture; a mapping for a configuration inside.
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "align": {"vision_config": _EFFICIENT},
    "aria": {"projector_patch_to_query_dict": {1: 1, 4: 2, 16: 4}},
    "bamba": _MAMBA,
    "conditional_detr": _DETR,
    "dab-detr": _DETR,
    "deformable_detr": {**_DETR, "num_feature_levels": 3},
    "detr": _DETR,
    "dory": {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention"] * 3,
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
    },
    "efficientnet": _EFFICIENT,
    "encoder-decoder": {
        "_default": {"encoder": _BERT, "decoder": _DECODER},
        "encoder": _BERT,
        "decoder": _DECODER,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
    "table-transformer": _DETR,
    "vision-encoder-decoder": {
        "_default": {"encoder": _VIT, "decoder": _DECODER},
        "encoder": _VIT,
        "decoder": _DECODER,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
    "vision-text-dual-encoder": {
        "_default": {"vision_config": _VIT, "text_config": _BERT},
        "vision_config": _VIT,
        "text_config": _BERT,
    },
}
# Head and class, where another one than that of the auto classes is meant.
CLASSES: Mapping[str, tuple[str, str]] = {}
# Shapes of inputs by name.
INPUTS: Mapping[str, Mapping[str, Any]] = {}

"""Sizes, classes and inputs of architectures that the rules of small configurations do not find."""

from collections.abc import Mapping
from typing import Any

import torch
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
_GEMMA3N = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
    "intermediate_size": 48,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
}
_CODES = {"input_ids": ("int", 16, 8, 30), "labels": ("int", 4, 8, 4, 30)}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_BY_LAYER = {
    "full_attention": {**_ROPE, "mrope_section": [2, 1, 1]},
    "sliding_attention": {**_ROPE, "mrope_section": [2, 1, 1]},
}
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
    "hidden_dim": 640,
    "image_size": 64,
}
_SERIES = {
    "prediction_length": 6,
    "context_length": 12,
    "num_time_features": 2,
    "lags_sequence": [1, 2, 7],
}
_HISTORY = {
    "past_values": (4, 19),
    "past_time_features": (4, 19, 2),
    "past_observed_mask": (4, 19),
    "future_values": (4, 6),
    "future_time_features": (4, 6, 2),
}
_RT_DETR = {
    "backbone_config": {**_RESNET, "model_type": "rt_detr_resnet"},
    "encoder_in_channels": [16, 24, 32],
    "decoder_in_channels": [32, 32, 32],
    "encoder_hidden_dim": 32,
    "d_model": 32,
    "num_queries": 10,
}
_TIMM = {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 32, "patch_size": 8}
_PE = {"vision_config": {"model_args": _TIMM}}
_SAM2 = {
    "hidden_size": 8,
    "image_size": [128, 128],
    "blocks_per_stage": [1, 1, 1, 1],
    "embed_dim_per_stage": [8, 16, 32, 64],
    "window_size_per_stage": [8, 4, 4, 2],
    "global_attention_blocks": [2],
}
_SAM2_VISION = {
    "backbone_config": {"model_type": "sam2_hiera_det_model", **_SAM2},
    "backbone_channel_list": [64, 32, 16, 8],
    "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
}
_PIXEL_FEATURES = {"feature_size": 32, "mask_feature_size": 32}
_SWIN = {
    "model_type": "swin",
    "embed_dim": 24,
    "depths": [1, 1, 1, 1],
    "num_heads": [2, 2, 2, 2],
    "window_size": 2,
    "image_size": 64,
    "patch_size": 4,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
_FOUR_LAYERS = {
    "num_hidden_layers": 4,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "out_indices": [1, 2, 3, 4],
    "reshape_hidden_states": False,
}
_WAV2VEC2 = {
    "model_type": "wav2vec2",
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": [16, 16],
    "conv_stride": [5, 4],
    "conv_kernel": [10, 4],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
_VIBE = {"num_filters": 4, "downsampling_ratios": [2, 2], "depths": [1, 1, 1]}
_INDEXED = {
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}
# Fields of configurations, by architecture; a mapping for a configuration inside.
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "align": {
        "vision_config": _EFFICIENT,
        "projection_dim": 160,
        "text_config": {"hidden_size": 160},
    },
    "aria": {"projector_patch_to_query_dict": {1: 1, 4: 2, 16: 4}},
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 16},
    "autoformer": _SERIES,
    "bamba": _MAMBA,
    "bridgetower": {
        "hidden_size": 64,
        "text_config": {"hidden_size": 64},
        "vision_config": {"hidden_size": 64},
    },
    "bros": {"hidden_size": 64, "dim_bbox_sinusoid_emb_2d": 16, "dim_bbox_sinusoid_emb_1d": 2},
    "cohere_compass": {"text_config": {"rope_parameters": _BY_LAYER}},
    "cohere_compass_text": {"rope_parameters": _BY_LAYER},
    "dbrx": {
        "attn_config": {"model_type": "", "kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}
    },
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "conditional_detr": _DETR,
    "cvt": {"depth": [1, 2, 3], "embed_dim": [16, 48, 96]},
    "dab-detr": _DETR,
    "deformable_detr": {**_DETR, "num_feature_levels": 3},
    "detr": _DETR,
    "esm": {"vocab_size": 99, "pad_token_id": 1, "mask_token_id": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": _MAMBA,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "qk_head_dim": 16,
        "head_dim": 8,
        "v_head_dim": 8,
    },
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "reformer": {"is_decoder": True},
    "xlnet": {"d_head": 8},
    "xmod": {"default_language": "en_XX"},
    "informer": _SERIES,
    "rt_detr": _RT_DETR,
    "rt_detr_v2": _RT_DETR,
    "time_series_transformer": _SERIES,
    "gemma3n": {
        "text_config": _GEMMA3N,
        "vision_config": {"architecture": "test_vit", "hidden_size": 64},
    },
    "gemma3n_text": _GEMMA3N,
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
    "chmv2": {"backbone_config": {"return_class_token": True}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "depth_anything": {"backbone_config": _FOUR_LAYERS},
    "prompt_depth_anything": {"backbone_config": _FOUR_LAYERS},
    "zoedepth": {"backbone_config": _FOUR_LAYERS},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]}}},
    "gemma3n_vision": {"architecture": "test_efficientnet"},
    "glm4v_moe": {"text_config": {"head_dim": 16}},
    "glm4v_moe_text": {"head_dim": 16},
    "hy_v4_vl": {"text_config": {"qk_rope_head_dim": 8}},
    "hy_v4_vl_text": {"qk_rope_head_dim": 8},
    "levit": {"image_size": 64, "patch_size": KEEP},
    "maskformer": {"backbone_config": _SWIN, **_PIXEL_FEATURES, "fpn_feature_size": 32},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "neomme": {"head_dim": 16},
    "pp_lcnet_v4": {"stem_channels": KEEP},
    "qwen4_exp": {"text_config": _INDEXED},
    "qwen4_exp_text": _INDEXED,
    "speech-encoder-decoder": {
        "_default": {"encoder": _WAV2VEC2, "decoder": _DECODER},
        "encoder": _WAV2VEC2,
        "decoder": _DECODER,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
    "step3p7": {"text_config": {"sliding_window": 4}},
    "textnet": {"stem_out_channels": 8, "image_size": 64},
    "tvp": {"visual_prompt_size": 8},
    "vibevoice_acoustic_tokenizer": _VIBE,
    "vibevoice_acoustic_tokenizer_decoder": _VIBE,
    "vibevoice_acoustic_tokenizer_encoder": _VIBE,
    "vitmatte": {"backbone_config": {"num_channels": 4}},
    "vits": {"vocab_size": 99},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "lilt": {"hidden_size": 48},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8},
    "llava_next": {"image_grid_pinpoints": [[32, 32]]},
    "llava_next_video": {"image_grid_pinpoints": [[32, 32]]},
    "markuplm": {
        "max_xpath_tag_unit_embeddings": KEEP,
        "max_xpath_subs_unit_embeddings": KEEP,
        "tag_pad_id": KEEP,
        "subs_pad_id": KEEP,
    },
    "mask2former": _PIXEL_FEATURES,
    "mobilevit": {"hidden_sizes": [16, 24, 32]},
    "nystromformer": {"num_landmarks": 8, "segment_means_seq_len": 8, "conv_kernel_size": 3},
    "colpali": {"vlm_config": {"text_config": {"num_key_value_heads": 4}}},
    "paligemma": {"text_config": {"num_key_value_heads": 4}},
    "pe_audio_video": {"audio_video_config": {"video_config": _PE}},
    "pe_audio_video_encoder": {"video_config": _PE},
    "pe_video": {"video_config": _PE},
    "pe_video_encoder": _PE,
    "sam2": {"vision_config": _SAM2_VISION, "prompt_encoder_config": {"image_size": 128}},
    "sam2_hiera_det_model": _SAM2,
    "sam2_vision_model": _SAM2_VISION,
    "swin2sr": {"embed_dim": 24},
    "table-transformer": _DETR,
    "timm_backbone": {"_default": {"backbone": "test_resnet"}, "backbone": "test_resnet"},
    "vipllava": {"vision_feature_layers": [-1, -2]},
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
INPUTS: Mapping[str, Mapping[str, Any]] = {
    "audio-spectrogram-transformer": {"input_values": (4, 64, 16)},
    "musicgen_decoder": _CODES,
    "musicgen": _CODES,
    "musicgen_melody_decoder": _CODES,
    "musicgen_melody": _CODES,
    "granite_docling": {
        "pixel_values": (4, 2, 3, 32, 32),
        "pixel_attention_mask": torch.ones(4, 2, dtype=torch.bool),
    },
    "longt5": {"attention_mask": ("ones", 4, 8)},
    "lxmert": {"visual_feats": (4, 6, 32), "visual_pos": (4, 6, 4)},
    "embedding_gemma2": {"pixel_values": None, "input_features": None},
    "kosmos-2": {
        "pixel_values": (4, 3, 32, 32),
        "image_embeds_position_mask": torch.tensor([[0] * 2 + [1] * 32 + [0] * 6] * 4),
        "input_ids": ("int", 4, 40, 60),
        "labels": ("int", 4, 40, 60),
    },
    "moonshine": {"input_values": (4, 3200)},
    "perceiver": {
        "inputs": ("int", 4, 128, 60),
        "labels": ("int", 4, 128, 60),
        "input_ids": None,
    },
    "pi0": {"pixel_values": (4, 1, 3, 32, 32), "actions": (4, 4, 32), "state": (4, 32)},
    "pix2struct": {"flattened_patches": torch.rand(4, 16, 34)},
    "speech-encoder-decoder": {"inputs": (4, 800)},
    "pop2piano": {"input_ids": None, "input_features": (4, 8, 32)},
    "timesfm": {
        "past_values": (4, 64),
        "past_values_padding": ("int", 4, 64, 1),
        "freq": ("int", 4, 1, 2),
    },
    "vibevoice_acoustic_tokenizer_encoder": {"hidden_states": (4, 1, 64)},
    "vit_mae": {"noise": (4, 16)},
    "vitmatte": {"pixel_values": (4, 4, 32, 32)},
    "switch_transformers": {"attention_mask": ("ones", 4, 8)},
    "autoformer": _HISTORY,
    "informer": _HISTORY,
    "time_series_transformer": _HISTORY,
    "decision_transformer": {
        "states": (4, 6, 17),
        "actions": (4, 6, 4),
        "rewards": (4, 6, 1),
        "returns_to_go": (4, 6, 1),
        "timesteps": ("int", 4, 6, 20),
    },
}

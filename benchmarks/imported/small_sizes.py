"""Sizes of architectures that the rules of small configurations do not find."""

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
_GEMMA3N = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
    "intermediate_size": 48,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
}
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
    "blocks_per_stage": [1, 1, 2, 1],
    "embed_dim_per_stage": [8, 16, 32, 64],
    "window_size_per_stage": [8, 4, 4, 2],
    "window_positional_embedding_background_size": [4, 4],
    "global_attention_blocks": [3],
}
_SAM2_VISION = {
    "backbone_config": {"model_type": "sam2_hiera_det_model", **_SAM2},
    "backbone_channel_list": [64, 32, 16, 8],
    "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
}
_PROMPTS = {"image_size": 128, "patch_size": KEEP}
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
_VIBE = {"num_filters": 4, "downsampling_ratios": [2, 2], "depths": [1, 1, 1], "vae_std": 0.0}
_INDEXED = {
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}
# An encoder of sounds whose frames are stacked to a width of four hidden states.
_STACKED = {"audio_config": {"intermediate_size": 128}}
_EDGE = {
    "backbone_config": {
        "model_type": "timm_wrapper",
        "architecture": "test_resnet",
        "model_args": {"in_chans": 3, "features_only": True, "out_indices": [0, 1, 2, 3]},
        "num_classes": 2,
    },
    "backbone_channel_list": [192, 48, 32, 32],
    "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
}
_KEYPOINTS = {"keypoint_decoder_dim": 65}
_PERCEPTION = {"architecture": "test_vit", "model_args": {"embed_dim": 64}}
_HGNET = {
    "model_type": "hgnet_v2",
    "depths": [1, 1, 1, 1],
    "embedding_size": 8,
    "hidden_sizes": [16, 32, 64, 128],
    "stem_channels": [3, 4, 8],
    "stage_in_channels": [8, 16, 32, 64],
    "stage_mid_channels": [8, 8, 16, 16],
    "stage_out_channels": [16, 32, 64, 128],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [1, 1, 1, 1],
}
_MIMI = {"num_filters": 4, "upsampling_ratios": [4, 2], "num_quantizers": 4}
_SAM = {"downsample_channels": [16, 32], "global_attn_indexes": [1]}
_RATIOS = (("long", 7), ("mid", 5), ("short", 3))
_DETECTED = {
    "reduce_channel": [1, 1, 0],
    "return_channel": [1, 1, 0],
    **{
        f"{name}_{ratio}ratio": [kernel, [1, 1], [side // 2 for side in kernel]]
        for ratio, size in _RATIOS
        for name, kernel in (
            ("vertical_long_to_small_conv", [size, 1]),
            ("horizontal_small_to_long_conv", [1, size]),
            ("symmetric_conv_long", [size, size]),
        )
    },
}
_STEM = {
    "stem_channels": [3, 48, 96],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "out_indices": [1, 2, 3, 4],
}
_SCALED = {
    "intraclass_block_config": _DETECTED,
    "scale_factor_list": [1, 2, 4, 8],
    "kernel_list": [3, 2, 2],
}
# Fields of configurations, by architecture; a mapping for a configuration inside.
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "align": {
        "vision_config": _EFFICIENT,
        "projection_dim": 160,
        "text_config": {"hidden_size": 160},
    },
    "apertus1p5": {
        "image_token_offset": 20,
        "audio_token_offset": 52,
        "audio_config": {"num_filters": 4, "upsampling_ratios": [4, 2]},
        "vision_config": {
            "base_channels": 32,
            "channel_multiplier": [1, 1, 1, 1],
            "num_res_blocks": 1,
            "resolution": 32,
        },
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
    "chameleon": {
        "vocabulary_map": {
            "<image>": 98,
            **{f"IMGIMG{chr(65 + i // 10)}{chr(65 + i % 10)}Z": 60 + i for i in range(32)},
        }
    },
    "clap": {"audio_config": {"hidden_size": 256, "spec_size": 64, "num_mel_bins": 32}},
    "clvp": {
        "text_config": {"vocab_size": 256, "hidden_size": 128},
        "speech_config": {"hidden_size": 128},
        "decoder_config": {"hidden_size": 128},
    },
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
    "deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense", "sparse"]},
        "vision_config": {"sam_config": _SAM},
    },
    "diffusion_gemma": {"text_config": {"top_k_experts": 2, "moe_intermediate_size": 16}},
    "edgetam": {
        "vision_config": _EDGE,
        "prompt_encoder_config": {"image_size": 64, "patch_size": 8},
    },
    "edgetam_vision_model": _EDGE,
    "efficientloftr": {
        "hidden_size": 32,
        "out_features": [8, 8, 16, 32],
        "stage_num_blocks": [1, 1, 1, 1],
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "fine_fusion_dims": [32, 16, 8],
    },
    "fast_vlm": {
        "vision_config": {"architecture": "test_resnet", "model_args": None, "hidden_size": 96}
    },
    "florence2": {"vision_config": {"projection_dim": 32}},
    "fastspeech2_conformer_with_hifigan": {"vocoder_config": {"model_in_dim": 16}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 8, "hidden_size": 32}},
    "gemma4_assistant": {
        "_default": {
            "text_config": {
                "model_type": "gemma4_text",
                "hidden_size_per_layer_input": 0,
                "vocab_size_per_layer_input": 0,
                "num_kv_shared_layers": 30,
            }
        },
        "text_config": {"num_kv_shared_layers": 2},
    },
    "glmasr": _STACKED,
    "granite4_vision": {
        "vision_config": {"hidden_size": 64},
        "qformer_config": {"hidden_size": 64, "encoder_hidden_size": 64},
        "downsample_rate": "2/4",
        "deepstack_layer_map": [(-1, 0)],
        "image_grid_pinpoints": [[32, 32]],
        "spatial_target_layers": [0, 1],
    },
    "granite_speech": {"downsample_rate": 2, "encoder_config": {"dim_head": 8}},
    "granite_speech_plus": {"downsample_rate": 2, "encoder_config": {"dim_head": 8}},
    "inkling_mm_model": {"vision_config": {"n_layers": 2}},
    "kyutai_speech_to_text": {"num_codebooks": 4},
    "grounding-dino": {"max_text_len": 8},
    "lightglue": {"keypoint_detector_config": _KEYPOINTS},
    "lw_detr": {
        "backbone_config": {
            "num_windows": 4,
            "out_features": ["stage1", "stage2"],
            "out_indices": [1, 2],
        },
        "projector_scale_factors": [1.0],
    },
    "lw_detr_vit": {"num_windows": 4},
    "llava_onevision": {"image_grid_pinpoints": [[32, 32]]},
    "mimi": _MIMI,
    "mm-grounding-dino": {"max_text_len": 8},
    "muse_glimmer": {"out_hidden_size": 128},
    "mimi_decoder": _MIMI,
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "muse_spark": {
        "out_hidden_size": 128,
        "audio_config": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
    },
    "muse_spark_audio": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
    "paddleocr_vl": {"text_config": {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}}},
    "perception_lm": {"vision_config": _PERCEPTION},
    "pocket_tts_audio_tokenizer_decoder": {"num_filters": 4, "upsampling_ratios": [4, 2]},
    "pp_doclayout_v2": {"class_thresholds": [0.5] * 2, "class_order": [0, 1]},
    "pp_doclayout_v3": {"x4_feat_dim": 16},
    "pp_ocrv5_server_det": _SCALED,
    "pp_ocrv6_medium_det": {**_SCALED, "backbone_config": _STEM},
    "pp_ocrv6_small_det": {"backbone_config": _STEM},
    "sam3_tracker": {"vision_config": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}},
    "seggpt": {
        "image_size": [64, 32],
        "intermediate_hidden_state_indices": [1],
        "merge_index": 0,
    },
    "superglue": {"keypoint_detector_config": _KEYPOINTS, "sinkhorn_iterations": 4},
    "superpoint": _KEYPOINTS,
    "qwen3_omni_moe": {"talker_config": {"text_config": {"shared_expert_intermediate_size": 16}}},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "unlimited_ocr": {"vision_config": {"sam_config": _SAM}},
    "uvdoc": {"backbone_config": {"out_features": [f"stage{i + 1}" for i in range(6)]}},
    "vibevoice": {"audio_config": _VIBE, "semantic_model_config": _VIBE},
    "vibevoice_asr": {
        "acoustic_tokenizer_encoder_config": _VIBE,
        "semantic_tokenizer_encoder_config": _VIBE,
        "acoustic_tokenizer_chunk_size": 64,
    },
    "voxtral": _STACKED,
    "neucodec": {"quantization_dim": 64},
    "xcodec": {"codebook_dim": KEEP},
    "xcodec2": {"quantization_dim": 64},
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
    "tvp": {"visual_prompt_size": 8, "max_img_size": 64},
    "vibevoice_acoustic_tokenizer": _VIBE,
    "vibevoice_acoustic_tokenizer_decoder": _VIBE,
    "vibevoice_acoustic_tokenizer_encoder": _VIBE,
    "vitmatte": {"backbone_config": {"num_channels": 4, "patch_size": 16}},
    "vits": {"vocab_size": 99, "upsample_initial_channel": 64, "spectrogram_bins": 33},
    "wavtokenizer_encoder": {"num_filters": 4, "upsampling_ratios": [4, 2]},
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
    "sam2": {"vision_config": _SAM2_VISION, "prompt_encoder_config": _PROMPTS},
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

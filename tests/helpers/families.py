"""Tiny models with random weights of every family that tests train: one table of configs."""

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

VOCABULARY = 96
WINDOW = 6

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,  # attention has to matter
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "residual_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
TEXT = {name: value for name, value in COMMON.items() if "dropout" not in name}
HEAD = {"head_dim": 8}
SLIDING = {"sliding_window": WINDOW}
MIXED = {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
}
MIXED_MLP = {"mlp_layer_types": ["dense", "sparse"]}
LATENT = {  # heads whose values are smaller than their keys, neither a multiple of 8
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
INDEXED = {  # tokens that a small index selects; with few heads of it, many scores tie
    **EXPERTS,
    **LATENT,
    **MIXED_MLP,
    "index_topk": 8,
    "index_n_heads": 32,
    "index_head_dim": 16,
}
OLD = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128, "rotary_dim": 4}
UNDROPPED = {
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "dropout": 0.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}

BLOCKS = {  # the blocks that an index selects are those of the row
    "type": "minimax_m3_vl_text",
    **HEAD,
    **EXPERTS,
    **MIXED_MLP,
    "dense_intermediate_size": 48,
    "shared_intermediate_size": 24,
    "rotary_dim": 4,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_block_size": 4,
    "index_topk_blocks": 2,
}

POST = {
    "llama2": {"type": "llama", "num_key_value_heads": 4},
    "llama3": {
        "type": "llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral": SLIDING,
    "mixtral": EXPERTS,
    "granite": {},
    "dbrx": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 128,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
    },
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma": HEAD,
    "olmo": {},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen2_moe": EXPERTS,
    "stablelm": {},
    "starcoder2": SLIDING,
}
"""Those that the Hugging Face post on packing with Flash Attention names: Llama 2 and 3 to StarCoder2."""

NEWER = {
    "afmoe": {**HEAD, **MIXED, **EXPERTS, "num_dense_layers": 1},
    "apertus": {},
    "apertus1p5_text": {},
    "arcee": {},
    "aria_text": {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
    "axk1": {**EXPERTS, **LATENT, **MIXED_MLP},
    "beam": {**HEAD, **MIXED, **EXPERTS, **MIXED_MLP},
    "bert-generation": {**UNDROPPED, "is_decoder": True},
    "biogpt": UNDROPPED,
    "bitnet": {},
    "cohere": {},
    "cohere2": MIXED,
    "cohere2_moe": {**HEAD, **MIXED, **EXPERTS, **MIXED_MLP, "num_shared_experts": 1},
    "ctrl": {**OLD, **UNDROPPED, "dff": 48},
    "cwm": {**HEAD, **MIXED},
    "deepseek_v2": {**EXPERTS, **LATENT},
    "deepseek_v3": {**EXPERTS, **LATENT},
    "diffllama": {},
    "dory": {
        **HEAD,
        **SLIDING,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
    },
    "dots1": {**HEAD, **EXPERTS},
    "ernie4_5": HEAD,
    "ernie4_5_moe": {**EXPERTS, "moe_num_experts": 4, "moe_k": 2},
    "exaone4": MIXED,
    "exaone_moe": {**HEAD, **MIXED, **EXPERTS},
    "flex_olmo": EXPERTS,
    "gemma3_text": {**HEAD, **MIXED, "query_pre_attn_scalar": 8},
    "gemma3n_text": {
        **HEAD,
        **MIXED,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": None,
    },
    "gemma4_text": {
        **HEAD,
        **MIXED,
        "global_head_dim": 8,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
    },
    "gemma4_unified_text": {
        **HEAD,
        **MIXED,
        "global_head_dim": 8,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
    },
    "glm": HEAD,
    "glm4": HEAD,
    "glm4_moe": {**HEAD, **EXPERTS},
    "glm4_moe_lite": {**EXPERTS, **LATENT, **MIXED_MLP},
    "gpt2": {**OLD, **UNDROPPED},
    "gpt_bigcode": {**OLD, **UNDROPPED},
    "gpt_neox": {},
    "granitemoe": EXPERTS,
    "granitemoeshared": {**EXPERTS, "shared_intermediate_size": 24},
    "helium": HEAD,
    "hrm_text": HEAD,
    "hunyuan_v1_dense": HEAD,
    "hunyuan_v1_moe": {**HEAD, **EXPERTS, "moe_topk": 2},
    "hy_v3": {**HEAD, **EXPERTS, **MIXED_MLP},
    "hyperclovax": {},
    "internlm3": HEAD,
    "iquestcoder": HEAD,
    "jais2": {},
    "jetmoe": {**EXPERTS, "kv_channels": 8},
    "kolibri1": {**HEAD, **MIXED, **EXPERTS},
    "laguna": {**HEAD, **MIXED, **EXPERTS, **MIXED_MLP, "num_attention_heads_per_layer": [4, 4]},
    "longcat_flash": {
        **LATENT,
        "num_layers": 1,
        "head_dim": 4,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 24,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    "mellum": {**HEAD, **MIXED, **EXPERTS},
    "minicpm3": LATENT,
    "minimax_m2": {**HEAD, **EXPERTS},
    "minimax_m3-full": {**BLOCKS, "layer_types": ["full_attention", "full_attention"]},
    "ministral": {**HEAD, **SLIDING},
    "ministral3": HEAD,
    "modernbert-decoder": MIXED,
    "moshi": {**SLIDING, "ffn_dim": 48},
    "nanochat": {},
    "nemotron": {},
    "odd_heads": {"type": "llama", "head_dim": 10, "num_key_value_heads": 1},
    "olmo2": {},
    "olmo3": MIXED,
    "olmoe": EXPERTS,
    "opt": {**UNDROPPED, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "persimmon": {},
    "phimoe": {**EXPERTS, "router_jitter_noise": 0.0, "input_jitter_noise": 0.0},
    "qwen3": HEAD,
    "qwen3_moe": {**HEAD, **EXPERTS},
    "sarvam_mla": {**EXPERTS, **LATENT},
    "sarvam_moe": {**HEAD, **EXPERTS},
    "seed_oss": HEAD,
    "smollm3": {},
    "solar_open": {**HEAD, **EXPERTS},
    "youtu": LATENT,
}
"""Others whose documents our attention keeps apart."""

STATE = {
    "state_size": 8,
    "ssm_state_size": 8,
    "num_heads": 4,
    "n_groups": 1,
    "chunk_size": 8,
    "mamba_n_heads": 4,
    "mamba_num_heads": 4,
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
LINEAR = {
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}

SHORT_CONVOLUTIONS = {
    **HEAD,
    **EXPERTS,
    **MIXED_MLP,
    "layer_types": ["hybrid_sliding", "hybrid"],
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "sliding_window_size": WINDOW,
    "d_rel": 4,
    "rel_extent": WINDOW,
    "unpadded_vocab_size": VOCABULARY,
}
GLM5_NEXT = {
    "text_config": {
        **TEXT,
        **INDEXED,
        "layer_types": ["linear_attention", "indexed_attention"],
        "indexer_types": ["full", "full"],
        "index_kpool": 4,
        "qk_rope_head_dim": 0,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
    },
    "vision_config": {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 16,
        "out_hidden_size": 32,
        "projection_intermediate_size": 16,
    },
    "image_token_id": 90,
    "video_token_id": 91,
    "image_start_token_id": 92,
    "image_end_token_id": 93,
    "video_start_token_id": 94,
    "video_end_token_id": 95,
}

RECURRENT = {
    "bailing_hybrid": {
        **LINEAR,
        **EXPERTS,
        **LATENT,
        **MIXED_MLP,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "num_experts_per_token": 2,
        "num_expert_group": 1,
    },
    "bamba": {**STATE, "attn_layer_indices": [1]},
    "falcon_h1": {**STATE, **HEAD, "mamba_d_ssm": 64},
    "falcon_mamba": STATE,
    "glm5_next": GLM5_NEXT,
    "granitemoehybrid": {
        **STATE,
        **EXPERTS,
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 24,
    },
    "inkling2_loop_text": SHORT_CONVOLUTIONS,
    "inkling2_text": SHORT_CONVOLUTIONS,
    "inkling_text": SHORT_CONVOLUTIONS,
    "jamba": {
        **EXPERTS,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "kimi_linear": {
        **LINEAR,
        **EXPERTS,
        **LATENT,
        "linear_attn_config": {
            "full_attn_layers": [2],
            "kda_layers": [1],
            "head_dim": 8,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
    },
    "lara_mini": {**LINEAR, **EXPERTS, **SLIDING},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {**EXPERTS, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lfm3": {},
    "mamba": STATE,
    "mamba2": {**STATE, "head_dim": 16},
    "minimax": {**HEAD, **EXPERTS, "layer_types": ["linear_attention", "full_attention"], "block_size": 4},
    "nemotron_h": {**STATE, **HEAD, "layers_block_type": ["mamba", "attention"]},
    "olmo_hybrid": LINEAR,
    "qwen3_5_moe_text": {**LINEAR, **EXPERTS},
    "qwen3_5_text": LINEAR,
    "qwen3_next": {**LINEAR, **EXPERTS},
    "qwen4_exp_text": {
        **LINEAR,
        **EXPERTS,
        "layer_types": ["linear_attention", "indexed_attention"],
        "hc_lowrank": 8,
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {
        **HEAD,
        "num_hidden_layers": 3,
        "block_types": ["recurrent", "attention"],
        "attention_window_size": WINDOW,
        "lru_width": 32,
    },
    "rwkv": {"attention_hidden_size": 32},
    "xlstm": {"num_heads": 4, "chunk_size": 8},
    "zamba": {
        **STATE,
        **UNDROPPED,
        "layers_block_type": ["mamba", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "n_mamba_heads": 2,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "hybrid", "mamba"],
        "mamba_d_state": 8,
        "mamba_ngroups": 1,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "num_mem_blocks": 1,
        "chunk_size": 8,
    },
    "zaya": {**HEAD, **EXPERTS, "num_experts_per_tok": 1, "router_hidden_size": 16},
}
"""State-space, convolution and linear-attention layers, alone or beside attention."""

OTHER_ATTENTION = {
    "axk2": INDEXED,
    "big_bird": {**UNDROPPED, "is_decoder": True, "attention_type": "original_full"},
    "bloom": OLD,
    "codegen": {**OLD, **UNDROPPED},
    "cpmant": {**UNDROPPED, "dim_head": 8, "dim_ff": 48},
    "deepseek_v32": INDEXED,
    "deepseek_v4": {
        **INDEXED,
        **SLIDING,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "mlp_layer_types": ["hash_moe", "moe"],
        "o_groups": 2,
        "o_lora_rank": 8,
    },
    "doge": {},
    "dots3_note_text": {
        **INDEXED,
        **SLIDING,
        "layer_types": ["indexed_attention", "sliding_attention"],
        "shared_experts_intermediate_size": 24,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 16,
        "swa_head_dim": 12,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": 6,
    },
    "falcon-7b": {"type": "falcon", "multi_query": True, "alibi": False},
    "falcon-rw": {"type": "falcon", "alibi": True},
    "flint": {**HEAD, **MIXED, **EXPERTS},
    "gemma2": {**HEAD, **MIXED, "query_pre_attn_scalar": 8},
    "glm5_next-indexed": {
        **GLM5_NEXT,
        "type": "glm5_next",
        "text_config": {**GLM5_NEXT["text_config"], "layer_types": ["indexed_attention", "indexed_attention"]},
    },
    "glm_moe_dsa": INDEXED,
    "gpt_neo": {
        **UNDROPPED,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
        "embed_dropout": 0.0,
        "resid_dropout": 0.0,
    },
    "gpt_neox_japanese": {},
    "gpt_oss": {**HEAD, **MIXED, **EXPERTS},
    "gptj": {**OLD, **UNDROPPED},
    "granite_swa": MIXED,
    "granitemoe_swa": {**MIXED, **EXPERTS, "layer_rope_theta": [1e4, 1e4]},
    "hy_v4": {**INDEXED, "indexer_types": ["full", "shared"]},
    "llama4_text": {
        **HEAD,
        **EXPERTS,
        "layer_types": ["chunked_attention", "full_attention"],
        "attention_chunk_size": WINDOW,
        "intermediate_size_mlp": 48,
        "no_rope_layers": [1, 0],
    },
    "megatron-bert": {**UNDROPPED, "is_decoder": True},
    "mimo_v2_flash": {**HEAD, **MIXED, **EXPERTS, **MIXED_MLP, "v_head_dim": 6},
    "minimax_m3": {**BLOCKS, "layer_types": ["full_attention", "minimax_m3_sparse"]},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},
    "openai-gpt": {**OLD, **UNDROPPED},
    "rembert": {**UNDROPPED, "is_decoder": True, "input_embedding_size": 16, "output_embedding_size": 16},
    "roformer": {**UNDROPPED, "is_decoder": True, "embedding_size": 32},
    "vaultgemma": {**HEAD, **MIXED, "query_pre_attn_scalar": 8},
    "xglm": {**UNDROPPED, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
}
"""Attention that ours does not run: sinks, capped logits, biases, chunks, selected or compressed keys, own code."""

ENCODERS = {
    "bert": UNDROPPED,
    "electra": {**UNDROPPED, "embedding_size": 32},
    "eurobert": {},
    "modernbert": {
        "local_attention": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
}
"""Attention that sees both ways."""

ROBERTA = {
    "roberta": {**UNDROPPED, "type_vocab_size": 1},
    "xlm-roberta": {**UNDROPPED, "type_vocab_size": 1},
}
"""Their positions begin at 2, those of a packed batch at 0."""

SINCE_5_24 = {"apertus1p5_text", "dory", "inkling2_loop_text", "lara_mini", "sarvam_mla", "sarvam_moe"}
for families in (NEWER, RECURRENT):  # an earlier transformers does without them
    for family in SINCE_5_24 - set(CONFIG_MAPPING_NAMES):
        families.pop(family, None)

FAMILIES = {**POST, **NEWER, **OTHER_ATTENTION, **RECURRENT, **ENCODERS, **ROBERTA}


def tiny_model(family, *, attention=None, dtype=torch.float32, **changes):
    """A random model of two layers of a family, the same weights every time; `attention=None` for its default."""
    options = {**COMMON, **FAMILIES[family], **changes}
    config = AutoConfig.for_model(options.pop("type", family), **options)
    config._attn_implementation = attention
    config._experts_implementation = "eager"  # the default has no float64
    auto = AutoModelForMaskedLM if family in {**ENCODERS, **ROBERTA} else AutoModelForCausalLM
    if "text_config" in options:
        auto = AutoModelForImageTextToText
    torch.manual_seed(0)
    return auto.from_config(config, dtype=dtype).train()


def tiny_paligemma():
    """A model of two parts, whose text sees later tokens unless the batch says which are the prompt."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = PaliGemmaConfig(
        text_config={"model_type": "gemma", **TEXT, **HEAD},
        vision_config={"model_type": "siglip_vision_model", **vision, "image_size": 8, "patch_size": 4},
        projection_dim=32,
        image_token_index=90,
    )
    torch.manual_seed(0)
    return PaliGemmaForConditionalGeneration(config)


def tiny_gemma3():
    """A model of two parts: images and text."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config={**TEXT, **FAMILIES["gemma3_text"]},
        vision_config={**vision, "image_size": 8, "patch_size": 4},
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    return Gemma3ForConditionalGeneration(config)

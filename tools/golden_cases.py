"""What tools/make_golden.py makes: a case is a model_type of transformers and the fields of its configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One checkpoint: the model_type of transformers, the fields of its configuration and what is written beside it.

    half: keys and values go through the eager attention of the family's module as they are cached, so that logits with
    a rounded cache can be had. router: how large the routers' logits are; less where scores saturate.
    """

    kind: str
    dtype: str = "F32"
    config: dict[str, Any] = field(default_factory=dict)
    gguf: tuple[str, ...] = ()  # layouts of GGUF files to add: "merged", "per_expert"
    tokenizer: bool = False
    legacy_config: bool = False  # config.json with rope_theta and rope_scaling as files before transformers 5 have
    half: bool = True
    router: float = 3.0
    tokens: int = 24


BASE: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 640, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
SMALL = BASE | {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
MIXTRAL = BASE | {"intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN = BASE | {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 40}
OLMOE = BASE | {"intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
GLM = SMALL | {"intermediate_size": 24, "moe_intermediate_size": 12, "n_routed_experts": 12, "num_experts_per_tok": 3,
               "routed_scaling_factor": 1.3, "head_dim": 16}  # fmt: skip
GRANITE = SMALL | {"intermediate_size": 12, "num_local_experts": 6, "num_experts_per_tok": 2,
                   "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
                   "logits_scaling": 5.0}  # fmt: skip
# Three layers with states, then one of attention; two heads of values share one of keys.
HYBRID = SMALL | {"num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                  "linear_key_head_dim": 16, "linear_value_head_dim": 16, "moe_intermediate_size": 8,
                  "shared_expert_intermediate_size": 12, "num_experts": 4, "num_experts_per_tok": 3}  # fmt: skip
GRANITE_H = GRANITE | {"num_hidden_layers": 3, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8,
                       "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                       "shared_intermediate_size": 20}  # fmt: skip
NEMOTRON = {name: value for name, value in SMALL.items() if name != "num_hidden_layers"} | {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention"], "head_dim": 16,
    "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8, "moe_intermediate_size": 12,
    "moe_shared_expert_intermediate_size": 20, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.6,
}
LFM = SMALL | {"num_hidden_layers": 4, "intermediate_size": 24, "moe_intermediate_size": 12, "num_experts": 6,
               "num_experts_per_tok": 2, "num_dense_layers": 1, "tie_word_embeddings": True,
               "layer_types": ["conv", "full_attention", "conv", "conv"]}  # fmt: skip
LATENT = SMALL | {"num_key_value_heads": 4, "intermediate_size": 24, "moe_intermediate_size": 12, "kv_lora_rank": 32,
                  "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16, "q_lora_rank": 20,
                  "n_routed_experts": 8, "num_experts_per_tok": 3, "routed_scaling_factor": 1.6}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

GEMMA = SMALL | {"head_dim": 16, "global_head_dim": 24, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
                 "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 9, "top_k_experts": 3,
                 "moe_intermediate_size": 12, "intermediate_size": 20, "sliding_window": 7,
                 "layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 6.0}  # fmt: skip

CASES: dict[str, Case] = {
    "mixtral-gqa-f32": Case("mixtral", config=MIXTRAL, gguf=("merged", "per_expert")),
    "mixtral-tied-bf16": Case(
        "mixtral", "BF16", MIXTRAL | {"num_key_value_heads": 4, "num_local_experts": 8, "tie_word_embeddings": True},
        legacy_config=True,
    ),
    "mixtral-window-f16": Case("mixtral", "F16", MIXTRAL | {"sliding_window": 7, "head_dim": 32, "vocab_size": 101}),
    "mixtral-llama3-bf16": Case("mixtral", "BF16", MIXTRAL | {"rope_parameters": LLAMA3}, gguf=("merged",)),
    "qwen3_moe-gqa-f32": Case(
        "qwen3_moe", config=QWEN | {"norm_topk_prob": True, "head_dim": 16, "vocab_size": 272, "num_experts": 3},
        gguf=("merged",), tokenizer=True,
    ),
    "qwen3_moe-yarn-bf16": Case(
        "qwen3_moe", "BF16",
        QWEN | {"norm_topk_prob": True, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3,
                "tie_word_embeddings": True, "rope_parameters": YARN},
        gguf=("merged",), legacy_config=True,
    ),
    "qwen3_moe-bias-f32": Case(
        "qwen3_moe", config=QWEN | {"norm_topk_prob": False, "head_dim": 16, "attention_bias": True, "num_experts": 5,
                                    "num_key_value_heads": 1},
    ),
    "qwen3_moe-dense-bf16": Case(
        "qwen3_moe", "BF16", QWEN | {"norm_topk_prob": True, "head_dim": 16, "num_hidden_layers": 3,
                                     "mlp_only_layers": [0], "num_experts": 6},
    ),
    "olmoe-mha-f32": Case("olmoe", config=OLMOE, gguf=("merged",)),
    "olmoe-clip-bf16": Case(
        "olmoe", "BF16", OLMOE | {"clip_qkv": 1.1, "num_key_value_heads": 2, "norm_topk_prob": True, "num_experts": 6,
                                  "num_experts_per_tok": 3},
        gguf=("merged",), legacy_config=True,
    ),
    "olmoe-linear-f32": Case(
        "olmoe", config=OLMOE | {"tie_word_embeddings": True, "rope_parameters": LINEAR, "vocab_size": 150},
    ),
}  # fmt: skip

# In tests/golden/families: what tests/models/test_families.py alone needs. Sizes are small; one case or two a family.
FAMILIES: dict[str, Case] = {
    "gpt_oss-yarn-f32": Case(
        "gpt_oss",
        config=SMALL | {"num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 8, "sliding_window": 16,
                        "intermediate_size": 12, "num_local_experts": 5, "num_experts_per_tok": 2,
                        "rope_parameters": YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}},
    ),
    # Sizes that are no powers of two, one head of keys for five, more experts than a byte counts.
    "qwen2_moe-many-bf16": Case(
        "qwen2_moe", "BF16",
        SMALL | {"hidden_size": 20, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 24,
                 "mlp_only_layers": [0], "intermediate_size": 24, "moe_intermediate_size": 4,
                 "shared_expert_intermediate_size": 12, "num_experts": 260, "num_experts_per_tok": 3,
                 "norm_topk_prob": True},
        tokens=12,
    ),
    "qwen2_moe-yarn-f32": Case(
        "qwen2_moe", config=SMALL | {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 16,
                                     "intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2,
                                     "rope_parameters": YARN},
    ),
    "glm4_moe-groups-f32": Case(
        "glm4_moe", config=GLM | {"n_group": 4, "topk_group": 2, "use_qk_norm": True, "n_shared_experts": 2},
        router=1.5,
    ),
    "glm4_moe-yarn-bf16": Case(
        "glm4_moe", "BF16",
        GLM | {"attention_bias": True, "head_dim": 24, "num_key_value_heads": 1, "first_k_dense_replace": 2,
               "num_hidden_layers": 3, "rope_parameters": YARN | {"partial_rotary_factor": 0.5}},
        router=1.5,
    ),
    "qwen3_next-f32": Case("qwen3_next", config=HYBRID | {"intermediate_size": 24}),
    "qwen3_next-dense-bf16": Case(
        "qwen3_next", "BF16",
        HYBRID | {"num_hidden_layers": 3, "full_attention_interval": 2,
                  "mlp_only_layers": [1], "intermediate_size": 20, "norm_topk_prob": False, "attention_bias": True,
                  "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 12,
                  "linear_value_head_dim": 20, "linear_conv_kernel_dim": 3, "num_key_value_heads": 1},
        tokens=20,
    ),
    "qwen3_5_moe-f32": Case("qwen3_5_moe_text", config=HYBRID),
    "qwen3_5_moe-bf16": Case(
        "qwen3_5_moe_text", "BF16",
        HYBRID | {"hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 24,
                  "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8,
                  "linear_value_head_dim": 24, "num_hidden_layers": 4, "full_attention_interval": 2,
                  "tie_word_embeddings": True},
    ),
    "minimax_m2-rotary-f32": Case(
        "minimax_m2", config=SMALL | {"intermediate_size": 12, "num_local_experts": 12, "num_experts_per_tok": 3,
                                      "head_dim": 16, "rotary_dim": 8}, router=1.5, legacy_config=True,
    ),
    "granitemoe-scaled-f32": Case(
        "granitemoe", config=GRANITE | {"tie_word_embeddings": True, "attention_bias": True},
    ),
    "granitemoeshared-scaled-bf16": Case(
        "granitemoeshared", "BF16",
        GRANITE | {"shared_intermediate_size": 20, "hidden_size": 48, "num_attention_heads": 2},
    ),
    "granitemoehybrid-f32": Case("granitemoehybrid", config=GRANITE_H),
    # Groups, a head of 12, three taps, biases of projections, positions that turn.
    "granitemoehybrid-groups-bf16": Case(
        "granitemoehybrid", "BF16",
        GRANITE_H | {"hidden_size": 48, "mamba_n_heads": 8, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_conv": 3,
                     "mamba_proj_bias": True, "attention_bias": True, "position_embedding_type": "rope",
                     "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "nemotron_h-f32": Case("nemotron_h", config=NEMOTRON, router=2.0),
    # Latent experts in groups, a dense layer, one head of keys, steps that are cut, a layer of experts first.
    "nemotron_h-latent-bf16": Case(
        "nemotron_h", "BF16",
        NEMOTRON | {"hidden_size": 40, "moe_latent_size": 24, "n_group": 4, "topk_group": 2, "intermediate_size": 28,
                    "num_key_value_heads": 1, "mamba_head_dim": 12, "conv_kernel": 3, "time_step_min": 0.5,
                    "layers_block_type": ["moe", "mlp", "linear_attention", "full_attention", "moe"]},
        router=1.5,
    ),
    "lfm2_moe-f32": Case("lfm2_moe", config=LFM, router=1.5),
    # More taps, biases, one head of keys, a head of 24, layers that begin with attention.
    "lfm2_moe-bias-bf16": Case(
        "lfm2_moe", "BF16",
        LFM | {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 1, "conv_L_cache": 5,
               "conv_bias": True, "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": False,
               "routed_scaling_factor": 1.4,
               "layer_types": ["full_attention", "conv", "conv", "full_attention"]},
        router=1.5,
    ),
    "deepseek_v2-lite-f32": Case(
        "deepseek_v2", config=LATENT | {"q_lora_rank": None, "first_k_dense_replace": 1, "n_shared_experts": 2,
                                        "topk_method": "greedy", "n_group": 1, "topk_group": 1,
                                        "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
        legacy_config=True,
    ),
    "deepseek_v2-groups-bf16": Case(
        "deepseek_v2", "BF16", LATENT | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                                         "attention_bias": True, "kv_lora_rank": 64, "v_head_dim": 32},
    ),
    "deepseek_v3-groups-f32": Case(
        "deepseek_v3", config=LATENT | {"n_group": 4, "topk_group": 2, "n_shared_experts": 1, "num_hidden_layers": 3,
                                        "n_routed_experts": 12, "first_k_dense_replace": 1,
                                        "rope_parameters": YARN | {"mscale": 0.9, "mscale_all_dim": 1.0}},
        router=1.5,
    ),
    "glm4_moe_lite-heads-bf16": Case(
        "glm4_moe_lite", "BF16", LATENT | {"num_attention_heads": 5, "num_key_value_heads": 5, "qk_rope_head_dim": 16,
                                           "qk_nope_head_dim": 24, "rms_norm_eps": 1e-5, "n_routed_experts": 300,
                                           "moe_intermediate_size": 4},
        router=1.5, tokens=12,
    ),
    "ernie4_5_moe-pairs-bf16": Case(
        "ernie4_5_moe", "BF16",
        SMALL | {"intermediate_size": 48, "moe_intermediate_size": 12, "moe_num_experts": 6, "moe_k": 2,
                 "num_hidden_layers": 3, "tie_word_embeddings": True},
    ),
    "gemma4_text-sliding-f32": Case(
        "gemma4_text",
        config=GEMMA | {"layer_types": ["sliding_attention", "full_attention", "full_attention"],
                        "num_hidden_layers": 3},
    ),
    "gemma4_text-tied-bf16": Case(
        "gemma4_text", "BF16",
        GEMMA | {"tie_word_embeddings": True, "attention_k_eq_v": False, "final_logit_softcapping": None,
                 "hidden_size": 40, "global_head_dim": 16, "head_dim": 24, "intermediate_size": 36},
    ),
}  # fmt: skip

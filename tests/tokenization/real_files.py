"""The settings of published `config.json` files, old ones among them, as facts.

What today's `transformers` writes is not what lies in a folder from 2019. Each entry has the keys
and values of the file; long texts and label names are left out.
"""

from dataclasses import dataclass
from typing import Any

from minitransformer.models import BART, BERT, GPT2, T5, BERTForMaskedLM, Llama, Marian, ViT

Settings = dict[str, Any]


@dataclass(frozen=True)
class RealFile:
    """A published file: which class of ours and of `transformers` reads it, and what it says."""

    ours: Any
    theirs: str
    content: Settings


SUMMARY: Settings = {
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
}
WRITES = {"text-generation": {"do_sample": True, "max_length": 50}}


def gpt2(n_embd: int, n_head: int, n_layer: int, **more: Any) -> RealFile:
    content = {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.1),
        **{"bos_token_id": 50256, "eos_token_id": 50256},
        **{"initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2"},
        **{"n_ctx": 1024, "n_embd": n_embd, "n_head": n_head, "n_layer": n_layer},
        **{"n_positions": 1024, "vocab_size": 50257},
        **SUMMARY,
        "task_specific_params": WRITES,
    }
    return RealFile(GPT2, "GPT2LMHeadModel", content | more)


def llama(
    model_type: str, theirs: str, d: int, f: int, h: int, kv: int, n: int, **more: Any
) -> Any:
    content = {
        "architectures": [theirs],
        "attention_dropout": 0.0,
        **{"hidden_act": "silu", "hidden_size": d, "initializer_range": 0.02},
        **{"intermediate_size": f, "model_type": model_type, "num_attention_heads": h},
        **{"num_hidden_layers": n, "num_key_value_heads": kv, "torch_dtype": "bfloat16"},
        "use_cache": True,
    }
    return RealFile(Llama, theirs, content | more)


def qwen(model_type: str, theirs: str, *sizes: int, **more: Any) -> RealFile:
    common = {
        **{"bos_token_id": 151643, "eos_token_id": 151643, "rms_norm_eps": 1e-06},
        **{"rope_theta": 1000000.0, "tie_word_embeddings": True, "vocab_size": 151936},
        "use_sliding_window": False,
    }
    return llama(model_type, theirs, *sizes, **(common | more))


def bert(theirs: str = "BertForMaskedLM", ours: Any = BERTForMaskedLM, **more: Any) -> RealFile:
    content = {
        **{"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1},
        **{"hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072},
        **{"max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 12},
        **{"type_vocab_size": 2, "vocab_size": 30522},
    }
    return RealFile(ours, theirs, content | more)


def t5(**more: Any) -> RealFile:
    content = {
        **{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"},
        **{"d_ff": 2048, "d_kv": 64, "d_model": 512, "num_heads": 8, "num_layers": 6},
        **{"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
        **{"dropout_rate": 0.1, "initializer_factor": 1.0, "is_encoder_decoder": True},
        **{"layer_norm_epsilon": 1e-06, "n_positions": 512, "output_past": True},
        **{"relative_attention_num_buckets": 32, "vocab_size": 32128},
    }
    return RealFile(T5, "T5ForConditionalGeneration", content | more)


def bart(theirs: str, ours: Any, d: int, f: int, h: int, n: int, **more: Any) -> RealFile:
    sides = ("encoder", "decoder")
    content = {
        **{"architectures": [theirs], "attention_dropout": 0.0, "dropout": 0.1, "d_model": d},
        **{f"{side}_attention_heads": h for side in sides},
        **{f"{side}_ffn_dim": f for side in sides},
        **{f"{side}_layerdrop": 0.0 for side in sides},
        **{f"{side}_layers": n for side in sides},
        **{"init_std": 0.02, "is_encoder_decoder": True, "num_hidden_layers": n},
        **{"add_final_layer_norm": False, "normalize_before": False},
        **{"num_beams": 4, "classif_dropout": 0.0, "classifier_dropout": 0.0},
    }
    return RealFile(ours, theirs, content | more)


# What programs of 2019 and 2020 wrote in full, whether it was set or not.
DUMP: Settings = {
    **{"bad_words_ids": None, "chunk_size_feed_forward": 0, "diversity_penalty": 0.0},
    **{"do_sample": False, "early_stopping": False, "finetuning_task": None, "is_decoder": False},
    **{"length_penalty": 1.0, "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0},
    **{"num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "output_attentions": False},
    **{
        "output_hidden_states": False,
        "output_past": True,
        "pruned_heads": {},
        "use_bfloat16": False,
    },
    **{"repetition_penalty": 1.0, "temperature": 1.0, "tie_encoder_decoder": False, "top_k": 50},
    **{"top_p": 1.0, "torchscript": False, "xla_device": None, "add_cross_attention": False},
    **{"cross_attention_hidden_size": None, "return_dict": False, "is_encoder_decoder": False},
}
OLD_POOLER: Settings = {
    **{"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12},
    **{"pooler_num_fc_layers": 3, "pooler_size_per_head": 128},
    "pooler_type": "first_token_transform",
}
ROBERTA: Settings = {
    **{"layer_norm_eps": 1e-05, "max_position_embeddings": 514, "type_vocab_size": 1},
    **{"vocab_size": 50265, "architectures": ["RobertaForMaskedLM"]},
}
ROPE_3: Settings = {
    **{"high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"},
    "original_max_position_embeddings": 8192,
}
LLAMA_3: Settings = {
    **{"attention_bias": False, "bos_token_id": 128000, "mlp_bias": False, "pretraining_tp": 1},
    **{"rms_norm_eps": 1e-05, "rope_theta": 500000.0, "vocab_size": 128256},
}
LLAMA_2: Settings = {
    **{"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 4096, "pretraining_tp": 1},
    **{"rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False},
    "vocab_size": 32000,
}
OPUS: Settings = {
    **{"activation_function": "swish", "add_bias_logits": False, "bad_words_ids": [[58100]]},
    **{"bos_token_id": 0, "decoder_start_token_id": 58100, "eos_token_id": 0},
    **{"decoder_vocab_size": 58101, "forced_eos_token_id": 0, "max_length": 512},
    **{"max_position_embeddings": 512, "model_type": "marian", "normalize_embedding": False},
    **{"pad_token_id": 58100, "scale_embedding": True, "static_position_embeddings": True},
    **{"share_encoder_decoder_embeddings": True, "vocab_size": 58101, "activation_dropout": 0.0},
}
BART_OF_2019: Settings = {
    **{"_num_labels": 3, "activation_dropout": 0.1, "activation_function": "gelu"},
    **{"add_bias_logits": False, "bos_token_id": 0, "decoder_start_token_id": 2},
    **{"early_stopping": True, "eos_token_id": 2, "forced_eos_token_id": 2, "pad_token_id": 1},
    **{"gradient_checkpointing": False, "max_position_embeddings": 1024, "model_type": "bart"},
    **{"no_repeat_ngram_size": 3, "normalize_embedding": True, "scale_embedding": False},
    **{"forced_bos_token_id": 0, "task_specific_params": {"summarization": {"num_beams": 4}}},
}
SMOLLM: Settings = {
    **{"attention_bias": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
    **{"is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False},
    **{"pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False},
    **{"rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True},
    **{"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}, "vocab_size": 49152},
}
LM, Q2, Q3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
REAL_FILES = {
    "gpt2": gpt2(768, 12, 12),
    "gpt2-medium": gpt2(1024, 16, 24, n_special=0, predict_special_tokens=True),
    "gpt2-large": gpt2(1280, 20, 36),
    "gpt2-xl": gpt2(1600, 25, 48, output_past=True),
    "distilgpt2": gpt2(768, 12, 6, _num_labels=1, id2label={"0": "LABEL_0"}),
    "bert-base-uncased (2018)": bert(),
    "bert-base-uncased": bert(
        architectures=["BertForMaskedLM"],
        gradient_checkpointing=False,
        layer_norm_eps=1e-12,
        model_type="bert",
        pad_token_id=0,
        position_embedding_type="absolute",
        use_cache=True,
    ),
    "bert-base-chinese (2019)": bert(**OLD_POOLER, **DUMP, vocab_size=21128, layer_norm_eps=1e-12),
    "all-MiniLM-L6-v2": bert(
        "BertModel",
        BERT,
        **{"_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "architectures": ["BertModel"]},
        **{"gradient_checkpointing": False, "hidden_size": 384, "intermediate_size": 1536},
        **{"model_type": "bert", "num_hidden_layers": 6, "position_embedding_type": "absolute"},
    ),
    "roberta-base (2019)": bert("RobertaForMaskedLM", **DUMP, **ROBERTA),
    "roberta-base": bert(
        "RobertaForMaskedLM", **ROBERTA, model_type="roberta", bos_token_id=0, eos_token_id=2
    ),
    "distilbert-base-uncased": RealFile(
        BERTForMaskedLM,
        "DistilBertForMaskedLM",
        {
            **{"activation": "gelu", "architectures": ["DistilBertForMaskedLM"]},
            **{"attention_dropout": 0.1, "dim": 768, "dropout": 0.1, "hidden_dim": 3072},
            **{"initializer_range": 0.02, "max_position_embeddings": 512, "n_heads": 12},
            **{"model_type": "distilbert", "n_layers": 6, "pad_token_id": None},
            **{"qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False},
            **{"tie_weights_": True, "vocab_size": 30522, "output_past": True},
        },
    ),
    "t5-small": t5(task_specific_params={"summarization": {"num_beams": 4, "prefix": "summarize"}}),
    "t5-v1_1-small": t5(
        **{"d_ff": 1024, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 8},
        **{"num_heads": 6, "num_layers": 8, "tie_word_embeddings": False},
    ),
    "flan-t5-small": t5(
        **{"d_ff": 1024, "feed_forward_proj": "gated-gelu", "is_gated_act": True},
        **{"dense_act_fn": "gelu_new", "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8},
        **{"relative_attention_max_distance": 128, "tie_word_embeddings": False},
    ),
    "opus-mt-de-en": bart("MarianMTModel", Marian, 512, 2048, 8, 6, **OPUS),
    "bart-base": bart(
        "BartForConditionalGeneration",
        BART,
        *(768, 3072, 12, 6),
        **BART_OF_2019,
        vocab_size=50265,
    ),
    "bart-large-cnn": bart(
        "BartForConditionalGeneration",
        BART,
        *(1024, 4096, 16, 12),
        **{**BART_OF_2019, "prefix": " ", "min_length": 56, "max_length": 142},
        **{"length_penalty": 2.0, "output_past": True, "vocab_size": 50264},
        **{"static_position_embeddings": False, "extra_pos_embeddings": 2},
        force_bos_token_to_be_generated=True,
    ),
    "vit-base-patch16-224": RealFile(
        ViT,
        "ViTForImageClassification",
        {
            **{"architectures": ["ViTForImageClassification"], "hidden_act": "gelu"},
            **{"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0},
            **{"hidden_size": 768, "image_size": 224, "initializer_range": 0.02},
            **{"intermediate_size": 3072, "layer_norm_eps": 1e-12, "model_type": "vit"},
            **{"num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12},
            **{"patch_size": 16, "qkv_bias": True, "encoder_stride": 16},
            "id2label": {str(index): f"label {index}" for index in range(1000)},
        },
    ),
    "llama-7b (2023)": llama(
        "llama",
        LM,
        *(4096, 11008, 32, 32, 32),
        **{"max_sequence_length": 2048, "pad_token_id": -1, "rms_norm_eps": 1e-06},
        **{"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 32000},
    ),
    "Llama-2-7b-hf": llama("llama", LM, 4096, 11008, 32, 32, 32, **LLAMA_2),
    "Meta-Llama-3-8B": llama(
        "llama",
        LM,
        *(4096, 14336, 32, 8, 32),
        **LLAMA_3,
        **{"eos_token_id": 128001, "max_position_embeddings": 8192, "rope_scaling": None},
    ),
    "Llama-3.1-8B-Instruct": llama(
        "llama",
        LM,
        *(4096, 14336, 32, 8, 32),
        **LLAMA_3,
        **{"eos_token_id": [128001, 128008, 128009], "max_position_embeddings": 131072},
        rope_scaling={"factor": 8.0, **ROPE_3},
    ),
    "Llama-3.2-1B-Instruct": llama(
        "llama",
        LM,
        *(2048, 8192, 32, 8, 16),
        **LLAMA_3,
        **{"eos_token_id": [128001, 128008, 128009], "max_position_embeddings": 131072},
        **{"head_dim": 64, "rope_scaling": {"factor": 32.0, **ROPE_3}, "tie_word_embeddings": True},
        unsloth_version="2024.9",
    ),
    "TinyLlama-1.1B-Chat-v1.0": llama(
        "llama", LM, 2048, 5632, 32, 4, 22, **{**LLAMA_2, "max_position_embeddings": 2048}
    ),
    "SmolLM2-135M-Instruct": llama("llama", LM, 576, 1536, 9, 3, 30, **SMOLLM),
    "Mistral-7B-v0.1": llama(
        "mistral",
        "MistralForCausalLM",
        *(4096, 14336, 32, 8, 32),
        **{"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 32768},
        **{"rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096},
        **{"tie_word_embeddings": False, "vocab_size": 32000},
    ),
    "Qwen2-0.5B": qwen(
        *("qwen2", Q2, 896, 4864, 14, 2, 24),
        **{"max_position_embeddings": 131072, "max_window_layers": 24, "sliding_window": 131072},
    ),
    "Qwen2.5-0.5B": qwen(
        *("qwen2", Q2, 896, 4864, 14, 2, 24),
        **{"max_position_embeddings": 32768, "max_window_layers": 24, "sliding_window": 32768},
        use_mrope=False,
    ),
    "Qwen2.5-7B-Instruct": qwen(
        *("qwen2", Q2, 3584, 18944, 28, 4, 28),
        **{"max_position_embeddings": 32768, "max_window_layers": 28, "sliding_window": 131072},
        **{"eos_token_id": 151645, "tie_word_embeddings": False, "vocab_size": 152064},
    ),
    "Qwen3-0.6B": qwen(
        *("qwen3", Q3, 1024, 3072, 16, 8, 28),
        **{"attention_bias": False, "eos_token_id": 151645, "head_dim": 128},
        **{"max_position_embeddings": 40960, "max_window_layers": 28, "rope_scaling": None},
        sliding_window=None,
    ),
}
ROPES = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
REFUSED: dict[str, tuple[Any, Settings, str]] = {
    "gemma-3-1b": (Llama, {"model_type": "gemma3_text", "rope_parameters": ROPES}, "gemma3_text"),
    "Olmo-3-7B": (Llama, {"model_type": "olmo3", "rope_scaling": {"rope_type": "yarn"}}, "olmo3"),
    "Phi-3-mini-128k": (
        Llama,
        {"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
        "phi3",
    ),
    "Mixtral-8x7B": (Llama, {"model_type": "mixtral", "num_local_experts": 8}, "mixtral"),
    "DeepSeek-V3": (
        Llama,
        {"model_type": "deepseek_v3", "quantization_config": {"quant_method": "fp8"}},
        "deepseek_v3",
    ),
    "pythia-70m": (GPT2, {"model_type": "gpt_neox", "rotary_pct": 0.25}, "gpt_neox"),
    "xlm-roberta-base": (BERT, {"model_type": "xlm-roberta"}, "xlm-roberta"),
    "albert-base (2019)": (BERT, {"architectures": ["AlbertForMaskedLM"]}, "albertformaskedlm"),
    "mbart-large-cc25": (BART, {"model_type": "mbart", "normalize_before": True}, "mbart"),
    "mt5-small": (T5, {"model_type": "mt5"}, "mt5"),
    "deit-base": (ViT, {"model_type": "deit"}, "deit"),
    "BioMedLM": (
        GPT2,
        REAL_FILES["gpt2"].content | {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx is True",
    ),
    "Llama-2-7B-GPTQ": (
        Llama,
        REAL_FILES["Llama-2-7b-hf"].content
        | {"quantization_config": {"bits": 4, "quant_method": "gptq"}},
        "the weights are quantised, quantization_config=",
    ),
    "Llama with longrope": (
        Llama,
        REAL_FILES["Llama-2-7b-hf"].content
        | {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}},
        "rope_type must be one of .* got 'longrope'",
    ),
}
SIZES: dict[str, int] = {
    **{"vocab_size": 37, "decoder_vocab_size": 37, "n_embd": 12, "n_head": 3, "n_layer": 2},
    **{"hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4},
    **{"num_hidden_layers": 2, "intermediate_size": 20, "dim": 12, "n_heads": 3, "n_layers": 2},
    **{"hidden_dim": 20, "d_model": 12, "d_kv": 5, "num_heads": 3, "d_ff": 20, "num_layers": 2},
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 3 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 20 for side in ("encoder", "decoder")},
    **{"num_decoder_layers": 2, "image_size": 8, "patch_size": 4, "max_window_layers": 2},
}


def smaller(content: Settings) -> Settings:
    """The same file for a tiny model: sizes and last ids are smaller, all else is as it was."""
    small = content | {key: size for key, size in SIZES.items() if key in content}
    for key in ("pad_token_id", "decoder_start_token_id"):
        if (small.get(key) or 0) >= SIZES["vocab_size"]:
            small[key] = SIZES["vocab_size"] - 1
    for key in content.keys() & {"id2label"}:
        small[key] = dict(list(content[key].items())[:5])
    if content.get("num_key_value_heads") == content.get("num_attention_heads"):
        small |= {key: 6 for key in ("num_key_value_heads",) if key in content}
    return small

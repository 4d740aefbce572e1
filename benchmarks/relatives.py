"""The relatives as `transformers` makes them, with random configurations and random weights."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.models import BART, GPT2, T5, BERTForMaskedLM, Llama, Marian, ViT

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "models"))
from alike import EXACT, ROUNDED, ids_of, published, transformers
from real_files import REAL_FILES, REFUSED

__all__ = ["REAL_FILES", "REFUSED", "RELATIVES", "Relative", "ids_of", "theirs_of", "transformers"]

VOCAB_SIZE = 37
Settings = dict[str, Any]


@dataclass
class Relative:
    """An architecture: its two classes, and settings of it that are drawn at random.

    Attributes:
        ours: our class.
        theirs: the name of theirs.
        settings: what their configuration is made from.
        reads: what it reads: "text", a "source" and a target, a text "both ways", or "pictures".
        tolerance: what is exact in float64.
    """

    ours: Any
    theirs: str
    settings: Callable[[Random], Settings]
    reads: str = "text"
    tolerance: float = EXACT


def gpt2(draw: Random) -> Settings:
    heads = draw.choice([1, 2, 3, 5])
    return {
        "n_embd": heads * draw.choice([3, 4, 7]),
        "n_head": heads,
        "n_layer": draw.choice([1, 2, 3]),
        "n_inner": draw.choice([None, 22, 35]),
        "n_positions": 20,
        "activation_function": draw.choice(["gelu_new", "gelu", "relu", "silu"]),
        "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
        "tie_word_embeddings": draw.choice([True, True, False]),
    }


def llama(draw: Random) -> Settings:
    heads, shared = draw.choice([1, 2, 3]), draw.choice([1, 2, 3])
    width = draw.choice([4, 6, 8])
    scaled = {"factor": 4.0, "original_max_position_embeddings": 10, "rope_theta": 300.0}
    rope = [
        {"rope_type": "default", "rope_theta": draw.choice([77.0, 10_000.0, 1e6])},
        {"rope_type": "linear", "factor": 2.5, "rope_theta": 10_000.0},
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **scaled},
        {"rope_type": "yarn", **scaled},
    ]
    return {
        "hidden_size": heads * shared * width,
        "num_attention_heads": heads * shared,
        "num_key_value_heads": heads,
        "head_dim": draw.choice([width, width + 2]),
        "num_hidden_layers": draw.choice([1, 2, 3]),
        "intermediate_size": draw.choice([22, 35]),
        "max_position_embeddings": 40,
        "rope_parameters": draw.choice(rope),
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "tie_word_embeddings": draw.choice([True, False]),
        "attention_bias": draw.choice([True, False]),
        "mlp_bias": draw.choice([True, False]),
    }


def mistral(draw: Random) -> Settings:
    settings = without(llama(draw), "attention_bias", "mlp_bias")
    return settings | {"sliding_window": draw.choice([None, 2, 3, 5])}


def qwen2(draw: Random) -> Settings:
    settings = without(llama(draw), "attention_bias", "mlp_bias", "head_dim")
    windows = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    return settings | draw.choice([{}, windows])


def qwen3(draw: Random) -> Settings:
    settings = without(llama(draw), "mlp_bias")
    windows = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    return settings | draw.choice([{}, windows])


def smollm2(draw: Random) -> Settings:
    width = draw.choice([2, 4, 6])
    return {
        "hidden_size": 9 * width,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "num_hidden_layers": draw.choice([2, 4]),
        "intermediate_size": 24 * width,
        "max_position_embeddings": 40,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        "tie_word_embeddings": True,
    }


def bert(draw: Random) -> Settings:
    heads = draw.choice([1, 2, 3, 5])
    return {
        "hidden_size": heads * draw.choice([3, 4, 7]),
        "num_attention_heads": heads,
        "num_hidden_layers": draw.choice([1, 2, 3]),
        "intermediate_size": draw.choice([22, 35]),
        "max_position_embeddings": 16,
        "type_vocab_size": draw.choice([1, 2]),
        "hidden_act": draw.choice(["gelu", "gelu_new", "relu"]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5, 1e-3]),
        "pad_token_id": draw.choice([0, 1, 4]),
        "tie_word_embeddings": draw.choice([True, True, False]),
    }


def distilbert(draw: Random) -> Settings:
    heads = draw.choice([1, 2, 3, 5])
    return {
        "dim": heads * draw.choice([4, 6]),
        "n_heads": heads,
        "n_layers": draw.choice([1, 2, 3]),
        "hidden_dim": draw.choice([22, 35]),
        "max_position_embeddings": 16,
        "activation": draw.choice(["gelu", "relu"]),
        "pad_token_id": draw.choice([0, 4]),
    }


def t5(draw: Random) -> Settings:
    num_buckets, max_distance = draw.choice([(8, 11), (9, 20), (32, 128)])
    layers = draw.choice([1, 2, 3])
    return {
        "d_model": draw.choice([9, 12, 20]),
        "d_kv": draw.choice([3, 4, 5]),
        "num_heads": draw.choice([1, 2, 3]),
        "d_ff": draw.choice([22, 35]),
        "num_layers": layers,
        "num_decoder_layers": draw.choice(range(1, layers + 1)),  # with more theirs cannot cache
        "relative_attention_num_buckets": num_buckets,
        "relative_attention_max_distance": max_distance,
        "layer_norm_epsilon": draw.choice([1e-6, 1e-3]),
        "feed_forward_proj": draw.choice(["relu", "gelu"]),
        "decoder_start_token_id": 0,
    }


def t5_1_1(draw: Random) -> Settings:
    gates = ["gated-gelu", "gated-gelu", "gated-silu"]
    return t5(draw) | {"feed_forward_proj": draw.choice(gates), "tie_word_embeddings": False}


def marian(draw: Random) -> Settings:
    pad_id = draw.choice([36, 5])
    return bart(draw) | {"pad_token_id": pad_id, "decoder_start_token_id": pad_id}


def bart(draw: Random) -> Settings:
    return {
        "d_model": draw.choice([12, 18, 30]),
        **{f"{side}_layers": draw.choice([1, 2, 3]) for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": draw.choice([1, 2, 3]) for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": draw.choice([22, 35]) for side in ("encoder", "decoder")},
        "max_position_embeddings": 18,
        "activation_function": draw.choice(["swish", "gelu", "relu"]),
        "scale_embedding": draw.choice([True, False]),
        "forced_eos_token_id": None,  # else the longest texts end in it, however improbable
    }


def vit(draw: Random) -> Settings:
    heads, (rows, columns) = draw.choice([1, 2, 3, 5]), draw.choice([(2, 2), (3, 2), (1, 4)])
    return {
        "hidden_size": heads * draw.choice([3, 4, 7]),
        "num_attention_heads": heads,
        "num_hidden_layers": draw.choice([1, 2, 3]),
        "intermediate_size": draw.choice([22, 35]),
        "patch_size": (rows, columns),
        "image_size": (rows * draw.choice([2, 3]), columns * draw.choice([1, 4])),
        "num_channels": draw.choice([1, 2, 3]),
        "num_labels": 5,
        "hidden_act": draw.choice(["gelu", "relu"]),
        "qkv_bias": draw.choice([True, False]),
        "layer_norm_eps": draw.choice([1e-12, 1e-3]),
    }


def without(settings: Settings, *keys: str) -> Settings:
    """The settings that an architecture knows."""
    return {key: value for key, value in settings.items() if key not in keys}


RELATIVES = {
    "GPT-2": Relative(GPT2, "GPT2LMHeadModel", gpt2),
    "Llama": Relative(Llama, "LlamaForCausalLM", llama, tolerance=ROUNDED),
    "SmolLM2": Relative(Llama, "LlamaForCausalLM", smollm2, tolerance=ROUNDED),
    "Mistral": Relative(Llama, "MistralForCausalLM", mistral, tolerance=ROUNDED),
    "Qwen2": Relative(Llama, "Qwen2ForCausalLM", qwen2, tolerance=ROUNDED),
    "Qwen3": Relative(Llama, "Qwen3ForCausalLM", qwen3, tolerance=ROUNDED),
    "BERT": Relative(BERTForMaskedLM, "BertForMaskedLM", bert, "both ways"),
    "RoBERTa": Relative(BERTForMaskedLM, "RobertaForMaskedLM", bert, "both ways"),
    "DistilBERT": Relative(BERTForMaskedLM, "DistilBertForMaskedLM", distilbert, "both ways"),
    "T5": Relative(T5, "T5ForConditionalGeneration", t5, "source"),
    "T5-1.1": Relative(T5, "T5ForConditionalGeneration", t5_1_1, "source"),
    "Marian": Relative(Marian, "MarianMTModel", marian, "source"),
    "BART": Relative(BART, "BartForConditionalGeneration", bart, "source"),
    "ViT": Relative(ViT, "ViTForImageClassification", vit, "pictures"),
}


def theirs_of(relative: Relative, seed: int) -> Any:
    """A model of `transformers` in float64, from a random configuration, with random weights."""
    draw = Random(f"{relative.theirs} {seed}")
    torch.manual_seed(seed)
    kind = getattr(transformers, relative.theirs)
    special = {} if relative.reads == "pictures" else {"vocab_size": VOCAB_SIZE}
    theirs = kind(kind.config_class(**special, **relative.settings(draw)))
    if isinstance(getattr(theirs, "final_logits_bias", None), Tensor):  # a buffer of zeros there
        theirs.final_logits_bias = nn.Parameter(theirs.final_logits_bias)
    if theirs.config.model_type == "t5" and not theirs.config.tie_word_embeddings:
        theirs.lm_head.weight = nn.Parameter(torch.randn_like(theirs.lm_head.weight))
    formulas = [m for m in theirs.modules() if hasattr(m, "create_weight")]
    theirs = published(theirs, seed, scale=0.1)
    with torch.no_grad():
        for module in formulas:  # Marian's positions, which are neither learned nor stored
            module.weight.copy_(module.create_weight())
    return theirs

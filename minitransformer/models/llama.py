"""Llama, Mistral and Qwen: the decoder-only model as it has been built since 2023.

| | GPT-2 | Llama | Mistral | Qwen 2 | Qwen 3 |
| --- | --- | --- | --- | --- | --- |
| norms | layer norm | RMSNorm | RMSNorm | RMSNorm | RMSNorm, also of q and k |
| positions | learned | rotary | rotary | rotary | rotary |
| feed-forward | GELU | SwiGLU | SwiGLU | SwiGLU | SwiGLU |
| biases | everywhere | none | none | of q, k and v | none |
| heads of keys | h | fewer in large ones | fewer | fewer | fewer |
| width of a head | d/h | d/h | d/h | d/h | 128 |
| a query sees | all before | all before | 4096 in version 1 | all before | all before |
| output | tied | untied | untied | tied in small ones | tied in small ones |
| dropout | 0.1 | none | none | none | none |

The reasons that were given: RMSNorm takes less time; rotary positions let scores know distances;
SwiGLU had the lower loss; fewer heads of keys make a smaller cache; without biases large models
trained more steadily; the norms of q and k bound the scores. Chapter 12 measures each. SmolLM2
is a Llama whose output is tied.

Built in chapter 12. Papers: Touvron et al. (2023), section 2.2; Jiang et al. (2023), section 2;
Yang et al. (2024) and (2025), section 2.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from minitransformer.layers.encoder_decoder import EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.models.decoder_only import DecoderOnlyTransformer
from minitransformer.models.hub import Published
from minitransformer.models.llama_config import LlamaConfig
from minitransformer.models.published_config import ACTIVATION_NAMES, Stacked, linear
from minitransformer.models.transformer import start_normal

__all__ = ["Llama"]

GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu"}


class Llama(Published, DecoderOnlyTransformer):
    """Llama, Mistral, Qwen 2, Qwen 3 or SmolLM2, as its configuration says.

    Args:
        config: a `LlamaConfig`, `MistralConfig`, `Qwen2Config` or `Qwen3Config`.
        generator: source of the starting values; PyTorch's global one when left out.

    Example:
        >>> config = LlamaConfig(vocab_size=30, d_model=12, num_heads=3, num_layers=2, d_ff=20)
        >>> Llama(config)(torch.tensor([[5, 6, 7], [8, 9, -1]])).shape
        torch.Size([2, 3, 30])
    """

    config: Any
    config_class = LlamaConfig
    architecture = "LlamaForCausalLM"
    prefix = "model."
    names: ClassVar[Mapping[str, str | Stacked | None]] = {
        "model.embed_tokens.weight": "embedding.weight",
        "model.norm.weight": "decoder.norm.weight",
        **{
            f"model.layers.*.{theirs}.weight": f"decoder.layers.*.{ours}.weight"
            for theirs, ours in {
                "input_layernorm": "residual_1.norm",
                "post_attention_layernorm": "residual_2.norm",  # but before the network
                "self_attn.q_norm": "self_attention.norm_q",
                "self_attn.k_norm": "self_attention.norm_k",
            }.items()
        },
        **{
            their_name: our_name
            for theirs, ours in {
                **{f"self_attn.{x}_proj": f"self_attention.w_{x}" for x in "qkvo"},
                "mlp.gate_proj": "feed_forward.w_1",
                "mlp.up_proj": "feed_forward.w_3",
                "mlp.down_proj": "feed_forward.w_2",
            }.items()
            for their_name, our_name in linear(
                f"model.layers.*.{theirs}", f"decoder.layers.*.{ours}"
            ).items()
        },
        "model.layers.*.self_attn.rotary_emb.inv_freq": None,
        "model.rotary_emb.inv_freq": None,
        "lm_head.weight": "output_projection.weight",
    }

    def add_positions(self) -> None:
        """Make the one table of angles, for the attentions of all layers."""
        self.rotary = self.config.rotary.encoding(self.config.head_width, self.config.max_len)

    def layer(self, index: int, *, cross: bool = False) -> nn.Module:
        """One layer of a Llama."""
        config = self.config
        attention = MultiHeadAttention(
            config.d_model,
            config.num_heads,
            d_k=config.head_width,
            num_kv_heads=config.num_kv_heads,
            bias=config.attention_bias,
            output_bias=config.attention_bias and config.output_bias,
            rotary=self.rotary,
            norm_q=self.norm(config.head_width) if config.qk_norm else None,
            norm_k=self.norm(config.head_width) if config.qk_norm else None,
            window=config.window if index >= config.first_window_layer else None,
        )
        gate = GATED[ACTIVATION_NAMES[config.activation]]
        feed_forward = FeedForward(
            config.d_model, config.d_ff, activation=gate, bias=config.mlp_bias
        )
        return EncoderLayer(
            config.d_model,
            self_attention=attention,
            feed_forward=feed_forward,
            dropout=0.0,
            norm_first=True,
            norm=self.norm,
        )

    @property
    def max_len(self) -> int:
        """Longest text, in tokens; beyond the configuration's where its rotary rule allows it."""
        return self.config.rotary.longest(self.config.max_len)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every parameter anew with σ = 0.02; the papers do not say how."""
        start_normal(self, 0.02, generator)

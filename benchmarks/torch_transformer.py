"""`torch.nn.Transformer` made to do what our model does: the baseline of speed and of quality."""

import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer import SinusoidalPositionalEncoding, TokenEmbedding, Transformer

PAD_ID = 0


class TorchTransformer(nn.Module):
    """`nn.Transformer` between embeddings and a tied output projection; begins as `twin` begins.

    It computes on padding, as it comes.

    Args:
        twin: the model that it is a twin of.
        dropout_inside: whether it also drops attention weights and inner features, as it comes,
            and not only on embedded tokens and sub-layers' outputs, as ours does.
    """

    def __init__(self, twin: Transformer, *, dropout_inside: bool = False) -> None:
        super().__init__()
        config = self.config = twin.config
        self.max_len = twin.max_len
        self.src_embedding = TokenEmbedding(config.src_vocab_size, config.d_model)
        self.tgt_embedding = (
            self.src_embedding
            if config.share_embeddings
            else TokenEmbedding(config.tgt_vocab_size, config.d_model)
        )
        self.positions = SinusoidalPositionalEncoding(config.d_model, config.max_len)
        self.dropout = nn.Dropout(config.dropout)
        with warnings.catch_warnings():  # with norm_first there are none, and it says so
            warnings.filterwarnings("ignore", "enable_nested_tensor")
            self.transformer = nn.Transformer(
                config.d_model,
                config.num_heads,
                config.num_encoder_layers,
                config.num_decoder_layers,
                config.d_ff,
                config.dropout,
                batch_first=True,
                norm_first=True,
            )
        for module in [] if dropout_inside else self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0
        with torch.no_grad():
            for own, weight in self.pairs(twin):
                own.copy_(weight)

    def pairs(self, twin: Transformer) -> Iterator[tuple[Tensor, Tensor]]:
        """Each weight with the weight of `twin` that does the same."""
        yield self.src_embedding.weight, twin.src_embedding.weight
        yield self.tgt_embedding.weight, twin.tgt_embedding.weight
        for name in ("encoder", "decoder"):
            stack, other_stack = getattr(self.transformer, name), getattr(twin, name)
            norms = [(stack.norm, other_stack.norm)]
            for layer, other in zip(stack.layers, other_stack.layers, strict=True):
                norms += [
                    (layer.norm1, other.residual_1.norm),
                    (layer.norm2, other.residual_2.norm),
                ]
                attentions = [(layer.self_attn, other.self_attention)]
                if name == "decoder":
                    norms += [(layer.norm3, other.residual_3.norm)]
                    attentions += [(layer.multihead_attn, other.cross_attention)]
                linears = [
                    (layer.linear1, other.feed_forward.w_1),
                    (layer.linear2, other.feed_forward.w_2),
                ]
                for own, theirs in attentions:
                    projections = (theirs.w_q, theirs.w_k, theirs.w_v)
                    yield from zip(
                        own.in_proj_weight.chunk(3), (w.weight for w in projections), strict=True
                    )
                    yield from zip(
                        own.in_proj_bias.chunk(3), (w.bias for w in projections), strict=True
                    )
                    linears.append((own.out_proj, theirs.w_o))
                for linear, twin_linear in linears:
                    yield linear.weight, twin_linear.weight
                    yield linear.bias, twin_linear.bias
            for norm, twin_norm in norms:
                yield norm.weight, twin_norm.gain
                yield norm.bias, twin_norm.bias

    def embed(self, embedding: TokenEmbedding, ids: Tensor) -> Tensor:
        return self.dropout(self.positions(embedding(ids)))

    def loss(
        self, src: Tensor, tgt_input: Tensor, tgt_output: Tensor, *, smoothing: float
    ) -> Tensor:
        length, hidden = tgt_input.size(1), src == PAD_ID
        future = torch.ones(length, length, dtype=torch.bool, device=src.device).triu(1)
        decoded = self.transformer(
            self.embed(self.src_embedding, src),
            self.embed(self.tgt_embedding, tgt_input),
            tgt_mask=future,  # True = hidden
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return F.cross_entropy(
            (decoded @ self.tgt_embedding.weight.T).flatten(0, 1),
            tgt_output.flatten(),
            ignore_index=PAD_ID,
            label_smoothing=smoothing,
        )

"""`torch.nn.Transformer` made to do what our model does: the baseline of speed and of quality."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minitransformer as mt

PAD_ID = 0


def pairs_of_layers(stack: Any, twin: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Each weight of PyTorch's stack of layers with that of ours which does the same."""
    norms = [(stack.norm, twin.norm)]
    for layer, other in zip(stack.layers, twin.layers, strict=True):
        norms += [(layer.norm1, other.residual_1.norm), (layer.norm2, other.residual_2.norm)]
        attentions = [(layer.self_attn, other.self_attention)]
        if hasattr(layer, "multihead_attn"):
            norms += [(layer.norm3, other.residual_3.norm)]
            attentions += [(layer.multihead_attn, other.cross_attention)]
        linears = [(layer.linear1, other.feed_forward.w_1), (layer.linear2, other.feed_forward.w_2)]
        for own, theirs in attentions:
            ours = theirs.w_q, theirs.w_k, theirs.w_v
            yield from zip(own.in_proj_weight.chunk(3), (w.weight for w in ours), strict=True)
            yield from zip(own.in_proj_bias.chunk(3), (w.bias for w in ours), strict=True)
            linears.append((own.out_proj, theirs.w_o))
        for linear, twin_linear in linears:
            yield linear.weight, twin_linear.weight
            yield linear.bias, twin_linear.bias
    for norm, twin_norm in norms:
        yield norm.weight, twin_norm.weight
        yield norm.bias, twin_norm.bias


def torch_loss(trainer: mt.Trainer, batch: Any) -> Tensor:
    """What a trainer of a twin takes as its `loss`: that of the twin, by PyTorch's functions."""
    parts = (batch[:, :-1], batch[:, 1:]) if isinstance(batch, Tensor) else mt.collate(batch)
    return trainer.model.loss(*parts, smoothing=trainer.config.label_smoothing)


def as_ours(model: nn.Module) -> Any:
    """The model itself, or a twin's weights in a model of ours, so that one decoder judges all."""
    if not isinstance(model, TorchTransformer | TorchDecoderOnly):
        return model
    kind = mt.Transformer if isinstance(model, TorchTransformer) else mt.DecoderOnlyTransformer
    copy = kind(model.config)
    with torch.no_grad():
        for theirs, own in model.pairs(copy):
            own.copy_(theirs)
    return copy


class TorchTransformer(nn.Module):
    """`nn.Transformer` between embeddings and a tied output projection; begins as `twin` begins.

    It computes on padding, as it comes.

    Args:
        twin: the model that it is a twin of.
        dropout_inside: whether it also drops attention weights and inner features, as it comes,
            and not only on embedded tokens and sub-layers' outputs, as ours does.
    """

    def __init__(self, twin: mt.Transformer, *, dropout_inside: bool = False) -> None:
        super().__init__()
        config = self.config = twin.config
        self.max_len = twin.max_len
        self.src_embedding = mt.TokenEmbedding(config.src_vocab_size, config.d_model)
        self.tgt_embedding = (
            self.src_embedding
            if config.share_embeddings
            else mt.TokenEmbedding(config.tgt_vocab_size, config.d_model)
        )
        self.positions = mt.SinusoidalPositionalEncoding(config.d_model, config.max_len)
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

    def pairs(self, twin: mt.Transformer) -> Iterator[tuple[Tensor, Tensor]]:
        """Each weight with the weight of `twin` that does the same."""
        yield self.src_embedding.weight, twin.src_embedding.weight
        yield self.tgt_embedding.weight, twin.tgt_embedding.weight
        for name in ("encoder", "decoder"):
            yield from pairs_of_layers(getattr(self.transformer, name), getattr(twin, name))

    def embed(self, embedding: mt.TokenEmbedding, ids: Tensor) -> Tensor:
        return self.dropout(self.positions(embedding(ids)))

    def forward(self, src: Tensor, tgt_input: Tensor) -> Tensor:
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
        return decoded @ self.tgt_embedding.weight.T

    def loss(
        self, src: Tensor, tgt_input: Tensor, tgt_output: Tensor, *, smoothing: float
    ) -> Tensor:
        return F.cross_entropy(
            self(src, tgt_input).flatten(0, 1),
            tgt_output.flatten(),
            ignore_index=PAD_ID,
            label_smoothing=smoothing,
        )


class TorchDecoderOnly(nn.Module):
    """`nn.TransformerEncoder` with a causal mask between an embedding and a tied projection.

    It begins as `twin` begins, and drops out as it comes, attention weights and inner features too.

    Args:
        twin: the model that it is a twin of.
    """

    def __init__(self, twin: mt.DecoderOnlyTransformer) -> None:
        super().__init__()
        config = self.config = twin.config
        self.max_len = twin.max_len
        self.embedding = mt.TokenEmbedding(config.tgt_vocab_size, config.d_model)
        self.positions = mt.SinusoidalPositionalEncoding(config.d_model, config.max_len)
        self.dropout = nn.Dropout(config.dropout)
        layer = nn.TransformerEncoderLayer(
            config.d_model,
            config.num_heads,
            config.d_ff,
            config.dropout,
            batch_first=True,
            norm_first=True,
        )
        norm = nn.LayerNorm(config.d_model)
        self.decoder = nn.TransformerEncoder(
            layer, config.num_decoder_layers, norm, enable_nested_tensor=False
        )
        with torch.no_grad():
            for own, weight in self.pairs(twin):
                own.copy_(weight)

    def pairs(self, twin: mt.DecoderOnlyTransformer) -> Iterator[tuple[Tensor, Tensor]]:
        """Each weight with the weight of `twin` that does the same."""
        yield self.embedding.weight, twin.embedding.weight
        yield from pairs_of_layers(self.decoder, twin.decoder)

    def forward(self, ids: Tensor) -> Tensor:
        future = torch.ones(2 * ids.shape[1:], dtype=torch.bool, device=ids.device).triu(1)
        x = self.dropout(self.positions(self.embedding(ids)))
        x = self.decoder(x, mask=future, is_causal=True)  # True = hidden
        return x @ self.embedding.weight.T

    def loss(self, ids: Tensor, targets: Tensor, *, smoothing: float) -> Tensor:
        return F.cross_entropy(
            self(ids).flatten(0, 1),
            targets.flatten(),
            ignore_index=PAD_ID,
            label_smoothing=smoothing,
        )

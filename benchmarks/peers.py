"""The libraries that a reader would otherwise import, each made to do the same work as ours.

Every function returns one model of the given sizes with random weights: embeddings tied, dropout
on embedded tokens and sub-layers alone, pre-norm where the library offers it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel
from x_transformers import Decoder, Encoder, TransformerWrapper

from minitransformer import SinusoidalPositionalEncoding, TokenEmbedding

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2


class TorchTransformer(nn.Module):
    """`nn.Transformer` between an embedding and the same matrix as output projection."""

    def __init__(self, vocab_size: int, d_model: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(vocab_size, d_model)
        self.positions = SinusoidalPositionalEncoding(d_model)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(
            d_model,
            d_model // 64,
            num_layers,
            num_layers,
            4 * d_model,
            dropout,
            batch_first=True,
            norm_first=True,
        )
        for module in self.transformer.modules():  # leave dropout on sub-layers' outputs alone
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.positions(self.embedding(ids)))

    def loss(self, src: Tensor, tgt_input: Tensor, tgt_output: Tensor) -> Tensor:
        length, hidden = tgt_input.size(1), src == PAD_ID
        future = torch.ones(length, length, dtype=torch.bool).triu(1)  # True = hidden
        decoded = self.transformer(
            self.embed(src),
            self.embed(tgt_input),
            tgt_mask=future,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        logits = decoded @ self.embedding.weight.T
        return F.cross_entropy(logits.flatten(0, 1), tgt_output.flatten(), ignore_index=PAD_ID)


def marian(
    vocab_size: int, d_model: int, num_layers: int, dropout: float, attention: str
) -> MarianMTModel:
    """Hugging Face's translation model: post-norm, sinusoids."""
    config = MarianConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        encoder_layers=num_layers,
        decoder_layers=num_layers,
        encoder_attention_heads=d_model // 64,
        decoder_attention_heads=d_model // 64,
        encoder_ffn_dim=4 * d_model,
        decoder_ffn_dim=4 * d_model,
        activation_function="relu",
        dropout=dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        forced_eos_token_id=None,
        decoder_start_token_id=BOS_ID,
        max_position_embeddings=1024,
        attn_implementation=attention,
    )
    return MarianMTModel(config)


def marian_loss(model: MarianMTModel, src: Tensor, tgt_input: Tensor, tgt_output: Tensor) -> Tensor:
    """Its own loss, over the targets that are not padding."""
    labels = tgt_output.masked_fill(tgt_output == PAD_ID, -100)
    output = model(
        input_ids=src, attention_mask=src != PAD_ID, decoder_input_ids=tgt_input, labels=labels
    )
    return output.loss


def gpt2(vocab_size: int, d_model: int, num_layers: int, num_heads: int, context: int) -> nn.Module:
    """Hugging Face's GPT-2 with sdpa and PyTorch's fused GELU; no dropout."""
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=context,
        n_embd=d_model,
        n_layer=num_layers,
        n_head=num_heads,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=BOS_ID,
        eos_token_id=None,
        pad_token_id=PAD_ID,
        attn_implementation="sdpa",
    )
    return GPT2LMHeadModel(config)


def x_decoder(
    vocab_size: int, d_model: int, num_layers: int, num_heads: int, context: int
) -> nn.Module:
    """x-transformers' decoder-only model with its fused attention."""
    return TransformerWrapper(
        num_tokens=vocab_size,
        max_seq_len=context,
        tie_embedding=True,
        attn_layers=Decoder(dim=d_model, depth=num_layers, heads=num_heads, attn_flash=True),
    )


class XTranslator(nn.Module):
    """x-transformers' encoder and decoder, with one embedding for all.

    It has no dropout on sub-layers' outputs; its feed-forward networks drop inside instead.
    """

    def __init__(self, vocab_size: int, d_model: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        options = {
            "dim": d_model,
            "depth": num_layers,
            "heads": d_model // 64,
            "attn_flash": True,
            "layer_dropout": 0.0,
            "ff_dropout": dropout,
        }
        self.encoder = TransformerWrapper(
            num_tokens=vocab_size,
            max_seq_len=1024,
            attn_layers=Encoder(**options),
            emb_dropout=dropout,
            tie_embedding=True,
        )
        self.decoder = TransformerWrapper(
            num_tokens=vocab_size,
            max_seq_len=1024,
            emb_dropout=dropout,
            tie_embedding=True,
            attn_layers=Decoder(cross_attend=True, **options),
        )
        self.decoder.token_emb = self.encoder.token_emb

    def loss(self, src: Tensor, tgt_input: Tensor, tgt_output: Tensor) -> Tensor:
        mask = src != PAD_ID
        memory = self.encoder(src, mask=mask, return_embeddings=True)
        logits = self.decoder(tgt_input, context=memory, context_mask=mask)
        return F.cross_entropy(logits.flatten(0, 1), tgt_output.flatten(), ignore_index=PAD_ID)


def write(
    model: MarianMTModel | GPT2LMHeadModel, ids: Tensor, length: int, num_beams: int
) -> Tensor:
    """Its own `generate`, for exactly `length` new tokens, with its cache."""
    return model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=length,
        min_new_tokens=length,
        num_beams=num_beams,
        do_sample=False,
    )

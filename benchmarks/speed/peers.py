"""The libraries that a reader would otherwise import, each made to do the same work as ours.

Every function returns one model of the given sizes with random weights: embeddings tied, dropout
on embedded tokens and sub-layers alone, pre-norm where the library offers it.
"""

import io
import json
import sysconfig
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import sentencepiece
import tiktoken
import tiktoken_ext.openai_public
import tokenizers
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel
from x_transformers import Decoder, Encoder, TransformerWrapper

from benchmarks.speed.torch_transformer import PAD_ID
from minitransformer import BPETokenizer
from minitransformer.tokenization.byte_pair_encoding import BYTE_OF

BOS_ID, EOS_ID = 1, 2


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
    """x-transformers' encoder and decoder, with one embedding for all."""

    def __init__(self, vocab_size: int, d_model: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        options = {
            "dim": d_model,
            "depth": num_layers,
            "heads": d_model // 64,
            "attn_flash": True,
            "layer_dropout": 0.0,
            "attn_sublayer_dropout": dropout,
            "ff_sublayer_dropout": dropout,
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


def corpus(size: float) -> list[str]:
    """The documents and sources of this Python, until there are `size` characters."""
    texts = list(topics.values())
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if sum(map(len, texts)) >= size:
            break
        if "site-packages" not in path.parts:
            texts.append(path.read_text(encoding="utf-8", errors="ignore"))
    return texts


def train_tokenizers(texts: list[str], vocab_size: int) -> tokenizers.Tokenizer:
    """What the library `tokenizers` learns with the settings of our BPETokenizer."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(BPETokenizer.special_tokens),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_sentencepiece(texts: list[str], vocab_size: int) -> bytes:
    """A byte-pair model of sentencepiece, which wants lines; what its file would hold."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for text in texts for line in text.splitlines() if line),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        character_coverage=0.9995,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def tokenizers_from(state: dict[str, Any]) -> Callable[[list[str]], list[list[int]]]:
    """Encode with the library `tokenizers` as the file of our BPETokenizer says; no cache yet."""
    text = json.dumps(state)

    def encode(texts: list[str]) -> list[list[int]]:
        tokenizer = tokenizers.Tokenizer.from_str(text)
        return [found.ids for found in tokenizer.encode_batch_fast(texts)]

    return encode


def tiktoken_from(trained: BPETokenizer) -> Callable[[list[str]], list[list[int]]]:
    """Encode with tiktoken, with the tokens of our BPETokenizer and the pattern of GPT-2."""
    specials = len(trained.special_tokens)
    ranks = {
        bytes(BYTE_OF[ord(letter)] for letter in token): rank
        for token, rank in trained.ids.items()
        if rank >= specials
    }

    def encode(texts: list[str]) -> list[list[int]]:
        pattern = tiktoken_ext.openai_public.r50k_pat_str
        encoding = tiktoken.Encoding(
            "ours", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )
        return [encoding.encode_ordinary(text) for text in texts]

    return encode

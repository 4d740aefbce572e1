"""Decoding: one token after another, with a cache of keys and values.

Built in chapter 10. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.1
(auto-regressive decoding).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from minitransformer.encoder_decoder import DecoderLayer
from minitransformer.tokenization import Tokenizer, pad_rows
from minitransformer.transformer import Transformer

__all__ = ["KVCache", "greedy_decode", "translate"]


class KVCache:
    """Keys and values that one decoder layer need not compute twice.

    Self-attention's grow by one position a step, in memory reserved at the start. Those of
    cross-attention depend on the encoder's output alone, so they are there from the start.

    Args:
        memory: projected keys and values of the encoder's output, each (b, h, s, e).
        max_len: number of target positions to make room for.

    Example:
        >>> memory = torch.zeros(2, 3, 7, 4)
        >>> cache = KVCache((memory, memory), max_len=10)
        >>> new = torch.ones(2, 3, 1, 4)
        >>> keys, values = cache.extend(new, new)
        >>> keys, values = cache.extend(new, new)
        >>> tuple(keys.shape), cache.length
        ((2, 3, 2, 4), 2)

    Built in chapter 10.
    """

    def __init__(self, memory: tuple[Tensor, Tensor], max_len: int) -> None:
        self.memory = memory
        b, h, _, e = memory[0].shape
        self.keys, self.values = (part.new_empty(b, h, max_len, e) for part in memory)
        self.length = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the next positions' keys and values, (b, h, q, e); return all so far.

        Raises:
            ValueError: if there is no room left.
        """
        end = self.length + keys.size(-2)
        if end > self.keys.size(-2):
            raise ValueError(f"the cache holds {self.keys.size(-2)} positions, {end} are needed")
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    @classmethod
    def for_decoder(cls, model: Transformer, memory: Tensor, max_len: int) -> "list[KVCache]":
        """A cache for each decoder layer of `model`, given the encoder's output, (b, s, d)."""
        return [
            cls(layer.cross_attention.keys_values(memory, memory), max_len)
            for layer in model.decoder.layers
            if isinstance(layer, DecoderLayer)
        ]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout and gradients off inside the block, and back to what they were after it."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def greedy_decode(
    model: Transformer,
    src_ids: Tensor,
    *,
    max_new_tokens: int,
    bos_id: int = 1,
    eos_id: int = 2,
) -> Tensor:
    """Extend each target by its most probable next token until all have ended.

    Args:
        model: a trained model; dropout is off while it decodes.
        src_ids: (b, s), an integer dtype, on the model's device.
        max_new_tokens: longest target, its end included.
        bos_id: the id every target begins with; not part of what is returned.
        eos_id: the id that ends a target.

    Returns:
        (b, n) with n ≤ max_new_tokens, int64; after its `eos_id` a row is filled with pad_id.

    Raises:
        ValueError: if `max_new_tokens` is below 1 or exceeds the model's max_len, or
            `src_ids` do not fit the model.

    Example:
        >>> from minitransformer.config import TransformerConfig
        >>> config = TransformerConfig(20, 30, d_model=12, num_heads=3, d_ff=16)
        >>> model = Transformer(config, torch.Generator().manual_seed(0))
        >>> greedy_decode(model, torch.tensor([[5, 6], [7, 0]]), max_new_tokens=4).size(0)
        2

    Built in chapter 10.
    """
    if not 1 <= max_new_tokens <= model.config.max_len:
        raise ValueError(
            f"max_new_tokens must lie between 1 and max_len={model.config.max_len}, "
            f"got {max_new_tokens}"
        )
    with evaluating(model):
        memory, memory_mask = model.encode(src_ids)
        caches = KVCache.for_decoder(model, memory, max_new_tokens)
        token = src_ids.new_full((src_ids.size(0), 1), bos_id, dtype=torch.int64)
        done = torch.zeros_like(token, dtype=torch.bool)
        tokens = []
        for position in range(max_new_tokens):
            logits = model.decode(token, memory, memory_mask, caches, start=position)
            token = logits.argmax(dim=-1).masked_fill(done, model.config.pad_id)
            tokens.append(token)
            done |= token == eos_id
            if done.all():
                break
    return torch.cat(tokens, dim=1)


def translate(
    model: Transformer,
    texts: Sequence[str],
    src_tokenizer: Tokenizer,
    tgt_tokenizer: Tokenizer,
    *,
    max_new_tokens: int = 64,
    batch_size: int = 256,
) -> list[str]:
    """Translate texts by greedy decoding, a batch of similar lengths at a time.

    Args:
        model: a trained model.
        texts: source texts.
        src_tokenizer: what the model was trained with, on the source side.
        tgt_tokenizer: the same for the target side.
        max_new_tokens: longest translation, in tokens.
        batch_size: texts decoded together.

    Returns:
        A translation for each text, in the same order.

    Raises:
        ValueError: if a text has no token, or is too long for the model.

    Example:
        >>> from minitransformer.config import TransformerConfig
        >>> from minitransformer.tokenization import CharacterTokenizer, WordTokenizer
        >>> words, letters = WordTokenizer.train(["one two"]), CharacterTokenizer.train(["eins"])
        >>> sizes = words.vocab_size, letters.vocab_size
        >>> config = TransformerConfig(*sizes, d_model=8, num_heads=2)
        >>> model = Transformer(config, torch.Generator().manual_seed(0))
        >>> len(translate(model, ["two", "one two"], words, letters, max_new_tokens=3))
        2

    Built in chapter 10.
    """
    device = next(model.parameters()).device
    sources = [src_tokenizer.encode(text) for text in texts]
    for text, ids in zip(texts, sources, strict=True):
        if not ids:
            raise ValueError(f"every text must have at least one token, got {text!r}")
    order = sorted(range(len(texts)), key=lambda index: len(sources[index]))
    translations = [""] * len(texts)
    for first in range(0, len(order), batch_size):
        indices = order[first : first + batch_size]
        rows = [[*sources[index], src_tokenizer.eos_id] for index in indices]
        src_ids = pad_rows(rows, src_tokenizer.pad_id).to(device)
        tgt_ids = greedy_decode(
            model,
            src_ids,
            max_new_tokens=max_new_tokens,
            bos_id=tgt_tokenizer.bos_id,
            eos_id=tgt_tokenizer.eos_id,
        )
        for index, row in zip(indices, tgt_ids.tolist(), strict=True):
            translations[index] = tgt_tokenizer.decode(row)
    return translations

"""A trained model with its tokenizers: texts in, texts out.

Built in chapters 9 and 10.
"""

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F

from minitransformer.checks import check_at_least_1, texts_of
from minitransformer.files import File
from minitransformer.inference.generate import generate
from minitransformer.inspection.record import evaluating
from minitransformer.models.pretrained import check_tokenizers
from minitransformer.models.transformer import DecoderOnlyTransformer, Transformer
from minitransformer.tokenization.tokenizer import Tokenizer, pad_rows
from minitransformer.training.checkpoint import load_model
from minitransformer.training.data import (
    as_pairs,
    collate,
    encode_pairs,
    encode_source,
    epoch_batches,
    num_targets,
    target_start,
    token_stream,
)
from minitransformer.training.loss import next_token_loss

__all__ = ["TextGenerator", "TextModel", "Translator"]


class TextModel:
    """A model with the tokenizers that it was trained with: a `Translator` or a `TextGenerator`.

    Raises:
        TypeError: if the model does not generate text.
        ValueError: if the tokenizers do not fit it.

    Built in chapter 9.
    """

    sides: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: Any, **tokenizers: Tokenizer) -> None:
        check_generates(model)
        check_tokenizers(model.config, tokenizers)
        self.model, self.tokenizers = model, tokenizers

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return cast(torch.device, next(self.model.parameters()).device)

    @classmethod
    def of(cls, model: Any, tokenizers: Mapping[str, Tokenizer]) -> Self:
        """A `Translator` or a `TextGenerator`, by the tokenizers; an error if it is neither."""
        for kind in (cls, *cls.__subclasses__()):
            if tokenizers and tokenizers.keys() == {*kind.sides}:
                return kind(model, *(tokenizers[side] for side in kind.sides))
        raise ValueError(
            f"no {cls.__name__}: it is a {type(model).__name__} with tokenizers "
            f"{sorted(tokenizers)}"
        )

    @classmethod
    def load(cls, file: File, device: torch.device | str = "cpu") -> Self:
        """Read a checkpoint, or a folder of a model with its tokenizers, for evaluation.

        Args:
            file: a checkpoint that a trainer's `save` wrote, a path or an open file, of which the
                averaged weights are read, if there are any; or a folder that `save` or
                `save_pretrained` wrote, or others published, here or on the Hugging Face Hub.
            device: where to put the model.

        Raises:
            FileNotFoundError: if there is no checkpoint or folder, or a file of it is missing.
            ValueError: if it is damaged, or holds something else.
        """
        model, tokenizers = load_model(file, device)
        try:
            return cls.of(model.eval(), tokenizers)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file} holds {error}") from error

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that `load` reads; see `Pretrained.save_pretrained`."""
        self.model.save_pretrained(folder, **self.tokenizers)

    @property
    def stop_ids(self) -> list[int]:
        """The ids that end a text, of the tokenizer and of the files of a published model."""
        last = self.tokenizers[self.sides[-1]].special_id("eos", "sep")
        also = self.model.stop_ids if hasattr(self.model.config, "eos_ids") else ()
        return sorted({*also} if last is None else {last, *also})

    def decode(self, rows: list[list[int]], options: dict[str, Any]) -> list[list[int]]:
        """The new tokens that `generate` finds for each row of ids, all in one batch."""
        pad_id, tokenizer = self.model.config.pad_id, self.tokenizers[self.sides[-1]]
        ids = pad_rows(rows, pad_id).to(self.device)
        new = generate(self.model, ids, **({"stop_ids": self.stop_ids} | options)).tolist()
        # Published tables have spare rows, which are no tokens.
        return [[i for i in row if i != pad_id and i < tokenizer.vocab_size] for row in new]


class Translator(TextModel):
    """An encoder-decoder model with the two tokenizers that it was trained with.

    Example:
        >>> from minitransformer import CharacterTokenizer, TransformerConfig, WordTokenizer
        >>> words, letters = WordTokenizer.train(["one two"]), CharacterTokenizer.train(["eins"])
        >>> sizes = {"src_vocab_size": words.vocab_size, "tgt_vocab_size": letters.vocab_size}
        >>> config = TransformerConfig(**sizes, d_model=8, num_heads=2)
        >>> model = Transformer(config, torch.Generator().manual_seed(0))
        >>> translator = Translator(model, words, letters)
        >>> len(translator.translate(["two", "one two"], max_new_tokens=3))
        2

    Built in chapter 9.
    """

    sides = ("src", "tgt")

    def __init__(
        self, model: Transformer, src_tokenizer: Tokenizer, tgt_tokenizer: Tokenizer
    ) -> None:
        super().__init__(model, src=src_tokenizer, tgt=tgt_tokenizer)

    def translate(
        self, texts: Iterable[str], *, batch_size: int = 256, **options: Any
    ) -> list[str]:
        """Translate texts, a batch of similar lengths at a time.

        Args:
            texts: source texts.
            batch_size: texts decoded together.
            options: passed to `generate`, such as `num_beams`; greedy when left out. Targets begin
                and end as model and tokenizer say, unless `bos_id` or `stop_ids` are given.

        Raises:
            TypeError: if `texts` are not several texts.
            ValueError: if a text has no token, or is too long for the model; if `batch_size` is
                below 1.
        """
        check_at_least_1(batch_size=batch_size)
        src, tgt = self.tokenizers.values()
        options = {"bos_id": target_start(self.model.config, tgt)} | options
        sources = [encode_source(text, src) for text in texts_of("texts", texts)]
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        translations = [""] * len(sources)
        for first in range(0, len(order), batch_size):
            indices = order[first : first + batch_size]
            rows = self.decode([sources[index] for index in indices], options)
            for index, row in zip(indices, rows, strict=True):
                translations[index] = tgt.decode(row)
        return translations

    def exact_match(self, pairs: Iterable[tuple[str, str]], **options: Any) -> float:
        """The share of pairs whose translation, by `translate` with these options, is the target.

        Raises:
            TypeError: if a pair is not two texts.
            ValueError: if there are no pairs.
        """
        pairs = as_pairs(pairs)
        if not pairs:
            raise ValueError("pairs must hold at least 1 pair, got 0")
        found = self.translate([pair.src for pair in pairs], **options)
        return sum(map(str.__eq__, found, [pair.tgt for pair in pairs])) / len(pairs)

    def held_out_loss(self, pairs: Iterable[tuple[str, str]], *, batch_size: int = 64) -> float:
        """The mean loss of a target token in nats: without label smoothing, without dropout.

        Each token counts once, whatever batch it is in.

        Raises:
            TypeError: if a pair is not two texts.
            ValueError: if there are no pairs, or `batch_size` is below 1.
        """
        config = self.model.config
        src, tgt = self.tokenizers.values()
        examples = encode_pairs(pairs, src, tgt, config)
        nats = 0.0
        with evaluating(self.model):
            for batch in epoch_batches(examples, batch_size, seed=0, epoch=0):
                parts = (part.to(self.device) for part in collate(batch, config.pad_id))
                loss = next_token_loss(self.model, *parts).item()
                nats += num_targets(batch, config.pad_id) * loss
        return nats / num_targets(examples, config.pad_id)


def check_generates(model: Any) -> None:
    """Raise an error unless a model generates text; one that only reads has no stacks to count."""
    if not hasattr(getattr(model, "config", None), "num_encoder_layers"):
        raise TypeError(f"model must generate text, got a {type(model).__name__}")


class TextGenerator(TextModel):
    """A decoder-only model with the tokenizer that it was trained with.

    Example:
        >>> from minitransformer import CharacterTokenizer, TransformerConfig
        >>> letters = CharacterTokenizer.train(["abc"])
        >>> config = TransformerConfig.decoder_only(letters.vocab_size, d_model=8, num_heads=2)
        >>> model = DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
        >>> writer = TextGenerator(model, letters)
        >>> len(writer.complete(["a", "", "cab"], max_new_tokens=5))
        3
        >>> writer.bits_per_character(["abcabc"]) > 1
        True

    Built in chapter 10.
    """

    sides = ("text",)

    def __init__(self, model: DecoderOnlyTransformer, tokenizer: Tokenizer) -> None:
        super().__init__(model, text=tokenizer)

    def complete(self, prompts: Iterable[str], **options: Any) -> list[str]:
        """Continue each prompt, all in one batch: prompt + text reads as one.

        Args:
            prompts: beginnings of texts; an empty one is the beginning of any text.
            options: passed to `generate`, such as `temperature`; greedy when left out. Texts end
                as model and tokenizer say, unless `stop_ids` are given.

        Raises:
            TypeError: if `prompts` are not several texts.
            ValueError: if a prompt is too long for the model; if one is empty and the tokenizer
                has no token that begins a text.
        """
        tokenizer = self.tokenizers["text"]
        rows = [tokenizer.begin(prompt) for prompt in texts_of("prompts", prompts)]
        new = self.decode(rows, options) if rows else []
        return [tokenizer.decode_after(*pair) for pair in zip(rows, new, strict=True)]

    def bits_per_character(
        self, texts: Iterable[str], *, context_length: int = 64, batch_size: int = 64
    ) -> float:
        """How many bits the model needs for a character of these texts: the mean of −log₂ p.

        Unlike the loss per token it can be compared between tokenizers. The model sees windows of
        `context_length` tokens that overlap by half, so that, but for the beginning, each token is
        predicted from half a window or more. The ends of the texts are to be predicted too.

        Raises:
            TypeError: if a text is none.
            ValueError: if there is no character, or a number is too small.
        """
        texts = list(texts_of("texts", texts))
        tokenizer = self.tokenizers["text"]
        num_characters = sum(map(len, texts))
        if num_characters < 1:
            raise ValueError("texts must hold at least 1 character, got 0")
        if context_length < 2:
            raise ValueError(f"context_length must be at least 2, got {context_length}")
        check_at_least_1(batch_size=batch_size)
        stream = token_stream(texts, tokenizer)
        if stream[0] != tokenizer.first_id:  # for the first token is to be predicted too
            stream = F.pad(stream, (1, 0), value=tokenizer.first_id)
        pad_id = self.model.config.pad_id
        stride = context_length // 2
        missing = context_length + 1 - len(stream)  # below 0 where there are several windows
        stream = F.pad(stream, (0, missing if missing > 0 else missing % stride), value=pad_id)
        rows = stream.to(self.device).unfold(0, context_length + 1, stride)
        targets = rows[:, 1:].clone()
        targets[1:, : context_length - stride] = pad_id  # the window before has predicted these
        nats = 0.0
        with evaluating(self.model):
            batches = zip(rows.split(batch_size), targets.split(batch_size), strict=True)
            for ids, expected in batches:
                scores = self.model(ids[:, :-1]).float().transpose(1, 2)
                loss = F.cross_entropy(scores, expected, ignore_index=pad_id, reduction="sum")
                nats += loss.item()
        return nats / math.log(2) / num_characters

"""The tokenizers that others publish: their files read, their ids found, the files written back.

| | chapter 1's tokenizers | those that are published |
| --- | --- | --- |
| special tokens | five, ids 0 to 4 | other ones, other ids, some of them missing |
| before cutting | text stays as it is | it may lose accents, capitals, leading spaces |
| pieces | one pattern for each kind | one of many, and a space may become "▁" |
| model | BPE, WordPiece | these, and Unigram |
| added tokens | none | cut out of a text before all the rest |
| around the ids | nothing | [CLS] … [SEP], `<s>`, … where the file says so |

Source: the library `tokenizers`, which decides what a file means: ids are those that it finds.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from minitransformer.checks import check_instance
from minitransformer.files import replacing
from minitransformer.tokenization import CACHE_SIZE, Tokenizer
from minitransformer.tokenizer_file import abbreviated, check_same
from minitransformer.tokenizers.pre_tokenization import normalizer, pre_tokenizer
from minitransformer.tokenizers.special_tokens import AddedToken, finder, post_processor, with_added
from minitransformer.tokenizers.subwords import decoder, subword_model
from minitransformer.tokenizers.tokenizer_folder import COMMON_NAMES, as_json, read_folder

__all__ = ["PublishedTokenizer"]

STEPS = ("normalizer", "pre_tokenizer", "model", "post_processor", "decoder")
WITHOUT_EFFECT = ("version", "added_tokens", "truncation", "padding")
LONGEST_REMEMBERED = 64  # characters of a piece; where a whole text is one, it will not come again


class PublishedTokenizer(Tokenizer):
    """A tokenizer that somebody else trained, with the ids that the library `tokenizers` finds.

    It does what every `Tokenizer` does, except that it cannot be trained. `pad_id`, `bos_id`,
    `eos_id`, `unk_id`, `mask_id`, and `cls_id` and `sep_id` of BERT, are those of the published
    one, or None if it has none. Truncation and padding, which a file may ask for, are not done;
    `transformers` sets them anew with each call, too.

    As in chapter 1, a special token that stands in a text is text, unless it is parsed for them.

    Args:
        state: the content of a `tokenizer.json`.
        names: the special tokens, or their ids, by role: "pad", "bos", "eos", "unk", "mask",
            "cls", "sep". For a role left out, the special token of a common name is taken.
        files: what `save_pretrained` writes, by name; the `tokenizer.json` when left out.

    Raises:
        ValueError: if a file asks for what is not known here, by its name.

    Example:
        >>> words = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "zwei": 3, "##und": 4, "##zig": 5}
        >>> tokenizer = PublishedTokenizer({
        ...     "added_tokens": [{"id": 0, "content": "[UNK]", "special": True},
        ...                      {"id": 1, "content": "[CLS]", "special": True},
        ...                      {"id": 2, "content": "[SEP]", "special": True}],
        ...     "normalizer": {"type": "BertNormalizer"},
        ...     "pre_tokenizer": {"type": "BertPreTokenizer"},
        ...     "model": {"type": "WordPiece", "vocab": words, "unk_token": "[UNK]"},
        ...     "post_processor": {"type": "BertProcessing", "cls": ["", 1], "sep": ["", 2]},
        ...     "decoder": {"type": "WordPiece"},
        ... })
        >>> tokenizer.encode("Zweiundzig", add_special_tokens=True)
        [1, 3, 4, 5, 2]
        >>> tokenizer.decode([1, 3, 4, 5, 2]), tokenizer.cls_id, tokenizer.pad_id
        ('zweiundzig', 1, None)

    Source: the library `tokenizers`.
    """

    # Of a published tokenizer, these belong to the instance.
    special_tokens: tuple[str, ...]  # type: ignore[misc]
    pad_id: int | None  # type: ignore[assignment]
    bos_id: int | None  # type: ignore[assignment]
    eos_id: int | None  # type: ignore[assignment]
    unk_id: int | None  # type: ignore[assignment]
    mask_id: int | None  # type: ignore[assignment]
    cls_id: int | None
    sep_id: int | None

    def __init__(
        self,
        state: Mapping[str, Any],
        names: Mapping[str, str | int | None] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        if unknown := sorted(state.keys() - {*STEPS, *WITHOUT_EFFECT}):
            raise ValueError(f"tokenizer.json has {abbreviated(unknown)}, which is not known here")
        check_same(state.get("version", "1.0"), "1.0", "version")
        check_instance("model", state.get("model"), dict)
        self.state = state
        self.files = {"tokenizer.json": as_json(state)} if files is None else files
        added = [AddedToken.from_dict(found) for found in state.get("added_tokens") or []]
        special = [token.content for token in added if token.special]
        vocab, self.model = subword_model(state["model"], special)
        self.ids = with_added(vocab, added)
        self.tokens = tuple(sorted(self.ids, key=self.ids.__getitem__))
        self.special_tokens = tuple(dict.fromkeys(special))
        self.cache: dict[str, list[int]] = {}
        self.normalize = normalizer(state.get("normalizer"))
        self.pre_tokenize = pre_tokenizer(state.get("pre_tokenizer"))
        self.join = decoder(state.get("decoder"))
        self.surround = post_processor(state.get("post_processor"))
        self.find_written = finder([token for token in added if not token.normalized])
        self.find_normalized = finder(
            [token for token in added if token.normalized], self.normalize
        )
        unknown = state["model"].get("unk_token", state["model"].get("unk_id"))
        for role, common in COMMON_NAMES.items():
            guess = next((name for name in common if name in self.special_tokens), None)
            guess = unknown if role == "unk" and unknown is not None else guess
            setattr(self, f"{role}_id", self.id_of((names or {}).get(role, guess)))

    def id_of(self, token: str | int | None) -> int | None:
        """The id of a token or of an id; None if there is no such one."""
        index = self.ids.get(token) if isinstance(token, str) else token
        return index if index is not None and 0 <= index < self.vocab_size else None

    @classmethod
    def from_pretrained(cls, name_or_folder: str | os.PathLike[str], side: str = "source") -> Self:
        """Read the tokenizer of a folder, or of a model on the Hugging Face Hub.

        The first of these that is there is read: `tokenizer.json`; `source.spm` and `target.spm`
        with `vocab.json` (Marian); `vocab.json` and `merges.txt` (GPT-2, RoBERTa, BART);
        `vocab.txt` (BERT, DistilBERT); `spiece.model` (T5). For those of SentencePiece the library
        `sentencepiece` must be installed. Which tokens are special for what is read from
        `tokenizer_config.json`, `special_tokens_map.json` or `config.json`.

        Args:
            name_or_folder: a folder; or, where there is none of that name, a model on the Hub,
                which takes `pip install 'minitransformer[hub]'`.
            side: Marian cuts the "source" otherwise than the "target" that it is trained on.

        Raises:
            FileNotFoundError: if there is no such folder or model, or none of these files.
            ImportError: if SentencePiece is needed and not there.
            ValueError: if a file is damaged or asks for what is not known here.
        """
        state, names, files = read_folder(name_or_folder, side)
        try:
            return cls(state, names, files)
        except ValueError as error:
            raise ValueError(f"{name_or_folder}: {error}") from error

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the files that were read, for `transformers` and `from_pretrained`.

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> model = {"type": "WordLevel", "vocab": {"?": 0, "zwei": 1}, "unk_token": "?"}
            >>> with TemporaryDirectory() as folder:
            ...     PublishedTokenizer({"model": model}).save_pretrained(folder)
            ...     PublishedTokenizer.from_pretrained(folder).encode("zwei")
            [1]
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            with replacing(folder / name) as unfinished:
                unfinished.write_bytes(content)

    def to_dict(self) -> dict[str, Any]:
        """The content of the `tokenizer.json`, which is all there is to a tokenizer that has one.

        Raises:
            ValueError: if it has none, for it is the library `sentencepiece` that cuts.
        """
        if self.state["model"].get("type") == "SentencePiece":
            raise ValueError("SentencePiece has no tokenizer.json: use save_pretrained")
        return dict(self.state)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild what `to_dict` returned; roles go by common names."""
        return cls(state)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Not for what is published already: a TypeError."""
        raise TypeError("a published tokenizer is read by from_pretrained, it cannot be trained")

    def split(self, text: str) -> list[str]:  # type: ignore[override]
        """The pieces that no token crosses, as the vocabulary spells them."""
        return [piece for piece, _ in self.pieces(text, parse_special=False)]

    def encode_piece(self, piece: str) -> list[int]:
        """The ids of one piece."""
        found = self.cache.get(piece)
        if found is None:
            found = self.model(piece)
            if len(piece) <= LONGEST_REMEMBERED:
                if len(self.cache) >= CACHE_SIZE:
                    self.cache.clear()
                self.cache[piece] = found
        return found

    def encode(
        self, text: str, *, parse_special: bool = False, add_special_tokens: bool = False
    ) -> list[int]:
        """Cut text into tokens and return their ids.

        Args:
            text: any text.
            parse_special: whether a special token in the text means itself. It is text otherwise;
                added tokens that are not special are always found.
            add_special_tokens: whether to put around them what the model was trained with.
        """
        ids = self.plain_ids(text, parse_special)
        return self.surround(ids, None)[0] if add_special_tokens else ids

    def begin(self, text: str) -> list[int]:
        """The ids of a text that a model is to go on with: what stood before texts in training."""
        ids = self.encode(text, add_special_tokens=True)
        return ids[:-1] if ids and ids[-1] in (self.eos_id, self.sep_id) else ids

    def encode_pair(
        self, first: str, second: str, *, parse_special: bool = False
    ) -> tuple[list[int], list[int]]:
        """The ids of two texts with special tokens around them, and to which text each belongs.

        Returns:
            Ids and as many token types, which say to which text a token belongs (0 or 1 for BERT).
        """
        return self.surround(
            self.plain_ids(first, parse_special), self.plain_ids(second, parse_special)
        )

    def plain_ids(self, text: str, parse_special: bool) -> list[int]:
        """The ids of a text, with nothing around."""
        check_instance("text", text, str)
        ids: list[int] = []
        for piece, token in self.pieces(text, parse_special):
            ids += self.encode_piece(piece) if token is None else [self.ids[token]]
        return ids

    def pieces(self, text: str, parse_special: bool) -> Iterator[tuple[str, str | None]]:
        """Cut a text into pieces and added tokens, with the token's name where it is one."""
        for start, written, name in self.find_written(text, parse_special):
            if name is not None:
                yield written, name
                continue
            for at, part, name in self.find_normalized(self.normalize(written), parse_special):
                if name is not None:
                    yield part, name
                else:
                    for piece, _ in self.pre_tokenize([(part, start == at == 0)]):
                        yield piece, None

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Join tokens to text.

        Args:
            ids: token ids.
            skip_special_tokens: whether special tokens, <unk> included, leave no trace.

        Raises:
            TypeError: if `ids` cannot be iterated over.
            ValueError: if an id lies outside the vocabulary.
        """
        check_instance("ids", ids, Iterable)
        tokens = map(self.token, ids)
        hidden = frozenset(self.special_tokens if skip_special_tokens else ())
        return self.join([token for token in tokens if token not in hidden])

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Each id's token as readable text, for figures: bytes as characters, spaces as such."""
        tokens = map(self.token, ids)
        if self.join(["Ġ"]) == " ":  # it spells bytes
            return [self.join([token]) for token in tokens]
        visible = self.join(["a", "▁a"]) == "a a"
        return [token.replace("▁", " ") if visible else token for token in tokens]

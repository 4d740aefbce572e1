"""The tokenizers that others publish, read by the libraries that they were made with.

`tokenizers` and `sentencepiece` come with `pip install 'minitransformer[hub]'`.
"""

import json
import os
import re
import warnings
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from minitransformer.checks import check_instance
from minitransformer.files import local_folder, replacing
from minitransformer.tokenization.published_files import (
    FILES,
    SETTINGS,
    by_library,
    content_of,
    from_state,
    parsed,
    text_of,
)
from minitransformer.tokenization.tokenizer import ROLES, SpecialTokens, Tokenizer

__all__ = ["PublishedTokenizer"]


class PublishedTokenizer(Tokenizer):
    """A tokenizer that somebody else trained: a `Tokenizer` that cannot be trained again.

    `pad_id`, `bos_id`,
    `eos_id`, `unk_id`, `mask_id`, and `cls_id` and `sep_id` of BERT, are those of the published
    one, or None if it has none. Truncation and padding, which a file may ask for, are not done.
    A chat template is kept and written back, and not used: write the prompt yourself, and give
    `generate` the ids of `begin(prompt, parse_special=True)`.

    Args:
        files: the content of the published files by name, as `from_pretrained` reads them.
        side: which of Marian's two models cuts texts, "source" or "target".

    Raises:
        FileNotFoundError: if files are missing.
        ImportError: if the library that reads the files is not installed.
        ValueError: if a file is damaged, or is for a class that is not known here.

    Example:
        >>> model = {"type": "WordLevel", "vocab": {"?": 0, "zwei": 1}, "unk_token": "?"}
        >>> words = PublishedTokenizer.from_dict({"model": model})
        >>> words.encode("zwei"), words.decode([1]), words.unk_id, words.pad_id
        ([1], 'zwei', 0, None)
    """

    # Of a published tokenizer, these belong to the instance.
    pad_id: int | None  # type: ignore[assignment]
    bos_id: int | None  # type: ignore[assignment]
    eos_id: int | None  # type: ignore[assignment]
    unk_id: int | None  # type: ignore[assignment]
    mask_id: int | None  # type: ignore[assignment]
    cls_id: int | None
    sep_id: int | None

    def __init__(self, files: Mapping[str, bytes], side: str = "source") -> None:
        self.files, self.side = {name: files[name] for name in FILES if name in files}, side
        settings = {name: parsed(files, name) for name in SETTINGS}
        state, self.sentence_piece = by_library(content_of, self.files, settings, side)
        self.state = {"version": "1.0"} | state | {"truncation": None, "padding": None}
        self.parsing = by_library(from_state, self.state)
        if dropout := self.state["model"].get("dropout"):
            raise ValueError(f"model.dropout is {dropout}, expected 0: encoding draws no lots")
        self.ids = self.parsing.get_vocab()
        self.tokens = tuple(sorted(self.ids, key=self.ids.__getitem__))
        self.vocab_size = len(self.tokens)
        added = {token["content"]: token for token in self.state.get("added_tokens") or []}
        for index, token in enumerate(self.tokens):
            if (found := added.get(token, {}).get("id", self.ids[token])) != index:
                raise ValueError(f"token {token!r} has id {found}, expected {index}")
        SpecialTokens.__init__(self, [t for t in added if added[t].get("special")], self.ids)
        for role, special_id in self.roles(settings).items():
            setattr(self, f"{role}_id", special_id)

    def roles(self, settings: Mapping[str, dict[str, Any]]) -> dict[str, int | None]:
        """The ids of the tokens that have a role, where the files say something of them.

        The ids of `config.json` count only where no file names a token: a model without padding
        has the id of some other token there, now and then.
        """
        said = settings["special_tokens_map.json"] | settings["tokenizer_config.json"]
        named = {role: text_of(said[f"{role}_token"]) for role in ROLES if f"{role}_token" in said}
        unknown = self.state["model"].get("unk_token")
        if (place := self.state["model"].get("unk_id")) is not None:
            unknown = self.tokens[place]
        ids: dict[str, int | None] = {}
        for role in ROLES:
            number = settings["config.json"].get(f"{role}_token_id")
            if named:
                ids[role] = self.ids.get(named.get(role) or "")
            elif isinstance(number, int) and 0 <= number < self.vocab_size:
                ids[role] = number
        return ids if "unk" in named or unknown is None else ids | {"unk": self.ids.get(unknown)}

    @classmethod
    def from_pretrained(cls, name_or_folder: str | os.PathLike[str], side: str = "source") -> Self:
        """Read the tokenizer of a folder, or of a model on the Hugging Face Hub.

        The first of these that is there is read: `tokenizer.json`; `source.spm` and `target.spm`
        with `vocab.json` (Marian); `spiece.model` (T5); `tokenizer.model` (Llama 1 and 2).
        Which tokens are special for what is read from `tokenizer_config.json`,
        `special_tokens_map.json` or `config.json`. Errors are those of the class.
        """
        paths = [local_folder(name_or_folder, FILES) / name for name in FILES]
        try:
            return cls({path.name: path.read_bytes() for path in paths if path.is_file()}, side)
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(f"{name_or_folder}: {error}") from error

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the files that were read, for `transformers` and `from_pretrained`."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name in {*FILES} - {"config.json"}:  # which is the model's
            if name not in self.files:  # of another tokenizer: which would be read?
                Path(folder, name).unlink(missing_ok=True)
                continue
            with replacing(Path(folder, name)) as unfinished:
                unfinished.write_bytes(self.files[name])

    def to_dict(self) -> dict[str, Any]:
        """All files, for `from_dict`; other programs read what `save_pretrained` writes."""
        files = {name: b64encode(content).decode() for name, content in self.files.items()}
        return {"type": "PublishedTokenizer", "side": self.side, "files": files}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild what `to_dict` returned, or read the content of a `tokenizer.json`."""
        if "files" not in state:
            return cls({"tokenizer.json": json.dumps(state).encode()})
        return cls({name: b64decode(text) for name, text in state["files"].items()}, state["side"])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.files, self.side)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int | None = None) -> Self:
        """Not for what is published already: a TypeError."""
        raise TypeError("a published tokenizer is read by from_pretrained, it cannot be trained")

    def split(self, text: str) -> list[str]:
        """The text as it is: the library cuts it."""
        return [text]

    def encode(
        self, text: str, *, parse_special: bool | None = None, add_special_tokens: bool = False
    ) -> list[int]:
        """Cut text into tokens and return their ids.

        Args:
            text: any text.
            parse_special: as in `Tokenizer.encode`; None is False, with a warning where a special
                token is read as text. Added tokens that are not special are always found.
            add_special_tokens: whether to put around them what the model was trained with.
        """
        return self.encoded([text], parse_special, add_special_tokens)[0]

    def begin(self, text: str, *, parse_special: bool | None = None) -> list[int]:
        """The ids of a text that a model is to go on with: what stood before texts in training."""
        return self.without_end(text, parse_special) or [self.first_id]

    def stream_ids(self, text: str) -> list[int]:
        """The ids of a text with all that the model was trained with around it, always an end."""
        return [*self.without_end(text), self.last_id]

    sequence_ids = stream_ids

    def without_end(self, text: str, parse_special: bool | None = None) -> list[int]:
        """The ids of a text with special tokens around, but for the one that ends it."""
        ids = self.encode(text, parse_special=parse_special, add_special_tokens=True)
        return ids[:-1] if ids and ids[-1] in (self.eos_id, self.sep_id) else ids

    def encode_pair(
        self, first: str, second: str, *, parse_special: bool | None = None
    ) -> tuple[list[int], list[int]]:
        """The ids of two texts with special tokens around them, and 0 or 1, the text of each."""
        return self.encoded([first, second], parse_special, add_special_tokens=True)

    def encoded(
        self, texts: list[Any], parse_special: bool | None, add_special_tokens: bool
    ) -> tuple[list[int], list[int]]:
        """Ids and token types of one text or two."""
        for text in texts:
            check_instance("text", text, str)
            if parse_special is None and (found := self.special_pattern.search(text)):
                warnings.warn(
                    f"{found[0]!r} is read as text; `begin` and `encode` with parse_special=True "
                    "read it as the special token, parse_special=False says that text is meant",
                    stacklevel=3,
                )
            if surrogate := re.search("[\ud800-\udfff]", text):
                raise ValueError(f"text has the lone surrogate {surrogate[0]!r}, which is no text")
        options = {"add_special_tokens": add_special_tokens}
        if self.sentence_piece is not None:
            texts = [self.pieces(text, bool(parse_special)) for text in texts]
            options["is_pretokenized"] = True
        result = (self.parsing if parse_special else self.plain).encode(*texts, **options)
        return result.ids, result.type_ids

    def pieces(self, text: str, parse_special: bool) -> list[str]:
        """The tokens of a text by the library `sentencepiece`, which knows no added ones."""
        added = {token["content"] for token in self.state["added_tokens"]}
        names = sorted(added - {*(() if parse_special else self.special_tokens)}, key=len)
        pattern = "|".join(map(re.escape, names[::-1])) or "(?!)"
        code = "^>>.*?<<" if "source.spm" in self.files else "(?!)"  # of a language
        parts = re.split(f"({code}|{pattern})", text, flags=re.DOTALL)
        cut = self.sentence_piece.encode
        return [t for i, p in enumerate(parts) for t in ([p] if i % 2 else cut(p, out_type=str))]

    @cached_property
    def plain(self) -> Any:
        """The library's tokenizer with other names for special tokens, so that no text has them.

        (Its own `encode_special_tokens` is not enough: the model of T5 finds "</s>" all the same.)
        """
        names = {token: f"\U0010ffff{i}" for i, token in enumerate(self.special_tokens)}
        state = renamed(self.state, names)
        if "merges" in state["model"]:
            ids, prefix = state["model"]["vocab"], state["model"].get("continuing_subword_prefix")
            pairs = [p.split(" ") if isinstance(p, str) else p for p in state["model"]["merges"]]
            state["model"]["merges"] = [
                pair for pair in pairs if pair[0] + pair[1].removeprefix(prefix or "") in ids
            ]
        return from_state(state)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Join tokens to text, as `Tokenizer.decode`."""
        check_instance("ids", ids, Iterable)
        hidden = self.special_tokens if skip_special_tokens else ()
        return self.join([token for token in map(self.token, ids) if token not in hidden])

    def join(self, tokens: Sequence[str]) -> str:
        """The text of tokens."""
        decoder = self.parsing.decoder
        return decoder.decode([*tokens]) if decoder and tokens else " ".join(tokens)

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Each id's token as readable text, for figures: bytes as characters, spaces as such."""
        tokens = map(self.token, ids)
        if self.join(["Ġ"]) == " ":  # it spells bytes
            return [self.join([token]) for token in tokens]
        visible = self.join(["a", "▁a"]) == "a a"
        return [token.replace("▁", " ") if visible else token for token in tokens]


def renamed(content: Any, names: Mapping[str, str]) -> Any:
    """A copy in which strings, as keys too, have other names."""
    if isinstance(content, dict):
        return {renamed(key, names): renamed(value, names) for key, value in content.items()}
    if isinstance(content, list):
        return [renamed(value, names) for value in content]
    return names.get(content, content) if isinstance(content, str) else content

"""The tokenizers that others publish, read by the libraries that they were made with.

`tokenizers` and `sentencepiece` come with `pip install 'minitransformer[hub]'`. A SentencePiece
model holds only a vocabulary and how texts are cut; what is put around them is in the class of
`transformers` that reads it: `T5Tokenizer`, `LlamaTokenizer` or `MarianTokenizer`. Here the library
`tokenizers` is told to do the same.
"""

import copy
import json
import os
import re
import warnings
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from minitransformer.checks import check_instance, library
from minitransformer.files import json_object, local_folder, replacing
from minitransformer.tokenization.tokenizer import ROLES, SpecialTokens, Tokenizer
from minitransformer.tokenization.tokenizer_file import in_order

__all__ = ["PublishedTokenizer"]

KINDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("tokenizer.json",): (),
    ("source.spm", "target.spm", "vocab.json"): ("marian",),
    ("spiece.model",): ("t5", "mt5"),
    ("tokenizer.model",): ("llama", "mistral"),
}
"""Files that make a tokenizer, of which the first that are all there are read; and for whom."""
SETTINGS = ("special_tokens_map.json", "tokenizer_config.json", "config.json")
KEPT = ("added_tokens.json", "chat_template.jinja", "target_vocab.json", "vocab.txt", "merges.txt")
FILES = tuple(dict.fromkeys([*(name for names in KINDS for name in names), *SETTINGS, *KEPT]))

CONFIGURED = {
    "BertNormalizer": {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    },
    "ByteLevel": {"add_prefix_space": "add_prefix_space"},
}
"""What `tokenizer_config.json` has the last word on, by the type of a part of `tokenizer.json`."""


class PublishedTokenizer(Tokenizer):
    """A tokenizer that others have trained: a `Tokenizer` that cannot be trained again.

    `pad_id`, `bos_id`, `eos_id`, `unk_id`, `mask_id`, and `cls_id` and `sep_id` of BERT, are those
    of the published one, or None if it has none. Truncation and padding, which a file may ask for,
    are not done. A chat template is kept and written back, and not used: write the prompt yourself,
    and give `generate` the ids of `begin(prompt, parse_special=True)`.

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
        self.files = {name: files[name] for name in FILES if name in files}
        self.side = side
        settings = {name: json_object(files.get(name, b"{}"), name) for name in SETTINGS}
        try:
            state, self.sentence_piece = content_of(self.files, settings, side)
            self.state = {"version": "1.0"} | state | {"truncation": None, "padding": None}
            self.parsing = from_state(self.state)
        except (FileNotFoundError, ImportError, ValueError):
            raise
        except Exception as error:  # the libraries' own errors have no common type
            raise ValueError(f"the files are damaged or no tokenizer's: {error}") from error
        if dropout := self.state["model"].get("dropout"):
            raise ValueError(f"model.dropout is {dropout}, expected 0: encoding is not random")
        self.ids = self.parsing.get_vocab()
        self.tokens = tuple(in_order(self.ids, "the vocabulary"))
        self.vocab_size = len(self.tokens)
        added = self.state.get("added_tokens") or []
        for token in added:
            if (found := self.ids[token["content"]]) != token["id"]:
                raise ValueError(f"{token['content']!r} has id {token['id']}, expected {found}")
        special_tokens = [token["content"] for token in added if token.get("special")]
        SpecialTokens.__init__(self, special_tokens, self.ids)
        self.set_roles(settings)

    def set_roles(self, settings: Mapping[str, dict[str, Any]]) -> None:
        """Set `pad_id` and the like to what the files say.

        The ids of `config.json` count only if no other file names a token: some models without
        padding have the id of another token there.
        """
        said = settings["special_tokens_map.json"] | settings["tokenizer_config.json"]
        names = {role: said[f"{role}_token"] for role in ROLES if f"{role}_token" in said}
        for role in ROLES:
            name = names.get(role)
            number = settings["config.json"].get(f"{role}_token_id")
            if names:
                name = name["content"] if isinstance(name, dict) else name
                setattr(self, f"{role}_id", self.ids.get(name or ""))
            elif isinstance(number, int) and 0 <= number < self.vocab_size:
                setattr(self, f"{role}_id", number)
        unknown = self.state["model"].get("unk_id")
        if unknown is None:
            unknown = self.ids.get(self.state["model"].get("unk_token") or "")
        if unknown is not None and "unk" not in names:
            self.unk_id = unknown

    @classmethod
    def from_pretrained(cls, name_or_folder: str | os.PathLike[str], side: str = "source") -> Self:
        """Read the tokenizer of a folder, or of a model on the Hugging Face Hub.

        The first of these that is there is read: `tokenizer.json`; `source.spm` and `target.spm`
        with `vocab.json` (Marian); `spiece.model` (T5); `tokenizer.model` (Llama 1 and 2).
        The roles of special tokens are read from `tokenizer_config.json`,
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

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int | None = None) -> Self:
        """Raise a TypeError: what is published is not trained again."""
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
            add_special_tokens: whether to put those around them that the model was trained with.
        """
        return self.encoded([text], parse_special, add_special_tokens)[0]

    def encode_pair(
        self, first: str, second: str, *, parse_special: bool | None = None
    ) -> tuple[list[int], list[int]]:
        """The ids of two texts with special tokens around them, and 0 or 1, the text of each."""
        return self.encoded([first, second], parse_special, add_special_tokens=True)

    def begin(self, text: str, *, parse_special: bool | None = None) -> list[int]:
        """The ids of a text for a model to continue, after what began each text in training."""
        return self.without_end(text, parse_special) or [self.first_id]

    def stream_ids(self, text: str) -> list[int]:
        """The ids of a text with the special tokens of training around it, and always an end."""
        return [*self.without_end(text), self.last_id]

    sequence_ids = stream_ids

    def without_end(self, text: str, parse_special: bool | None = None) -> list[int]:
        """The ids of a text with special tokens around, but for the one that ends it."""
        ids = self.encode(text, parse_special=parse_special, add_special_tokens=True)
        return ids[:-1] if ids and ids[-1] in (self.eos_id, self.sep_id) else ids

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
        is_cut = self.sentence_piece is not None
        if is_cut:
            texts = [self.pieces(text, bool(parse_special)) for text in texts]
        result = (self.parsing if parse_special else self.plain).encode(
            *texts, is_pretokenized=is_cut, add_special_tokens=add_special_tokens
        )
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
        """The library's tokenizer that finds no special token in a text."""
        state = copy.deepcopy(self.state)
        model = state["model"]
        names = {token: f"\U0010ffff{i}" for i, token in enumerate(self.special_tokens)}
        # These models find "</s>" in a text even if it is no special token.
        if model["type"] == "Unigram":
            model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
        elif model["type"] == "WordLevel":
            names.pop(model.get("unk_token"), None)
            model["vocab"] = {names.get(word, word): i for word, i in model["vocab"].items()}
        plain = from_state(state)
        plain.encode_special_tokens = True
        return plain

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


def from_state(state: Mapping[str, Any]) -> Any:
    """The tokenizer of the library `tokenizers` whose file has this content."""
    return library("tokenizers", "hub").Tokenizer.from_str(json.dumps(state))


def content_of(
    files: Mapping[str, bytes], settings: Mapping[str, dict[str, Any]], side: str
) -> tuple[dict[str, Any], Any]:
    """The content of a `tokenizer.json`, and what cuts texts before it if SentencePiece does."""
    kind = next((kind for kind in KINDS if files.keys() >= set(kind)), None)
    convert = "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    convert = f"`transformers` makes a tokenizer.json of other files: {convert}"
    if kind is None:
        expected = ", or ".join(" + ".join(names) for names in KINDS)
        raise FileNotFoundError(f"there is no tokenizer: no {expected}; {convert}")
    if side not in ("source", "target")[: 2 if "target.spm" in kind else 1]:
        raise ValueError(f"side is {side!r}, but there is one tokenizer for both sides")
    config = settings["tokenizer_config.json"]
    if not KINDS[kind]:
        return as_configured(json_object(files[kind[0]], kind[0]), config), None
    named = config.get("tokenizer_class") or settings["config.json"].get("model_type")
    family = str(named or KINDS[kind][0]).removesuffix("Fast").removesuffix("Tokenizer").lower()
    if family not in KINDS[kind]:
        known = " or ".join(KINDS[kind])
        raise ValueError(f"{kind[0]} is for {named!r}, expected {known}; {convert}")
    if "target_vocab.json" in files or config.get("separate_vocabs"):
        raise ValueError("there is a vocabulary for each side, expected one for both")
    if "added_tokens.json" in files:
        raise ValueError(f"added_tokens.json adds tokens to {kind[0]}; {convert}")
    file = files[f"{side}.spm" if family == "marian" else kind[0]]
    cut = library("sentencepiece", "hub").SentencePieceProcessor(model_proto=file)
    vocab = json_object(files.get("vocab.json", b"{}"), "vocab.json")
    return json.loads(for_pieces(family, cut, vocab, config).to_str()), cut


def as_configured(state: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a `tokenizer.json`, with what its class reads from beside it."""
    if config.get("tokenizer_class") != "PreTrainedTokenizerFast":  # which takes it as it is
        for part in (state.get("normalizer") or {}, state.get("pre_tokenizer") or {}):
            for name, entry in CONFIGURED.get(part.get("type", ""), {}).items():
                if name in config:
                    part[entry] = config[name]
    return state


def for_pieces(family: str, cut: Any, vocab: dict[str, int], config: Mapping[str, Any]) -> Any:
    """What finds the ids of SentencePiece's tokens; Marian has them in a file."""
    tk = library("tokenizers", "hub")
    vocab = vocab or {cut.id_to_piece(index): index for index in range(cut.get_piece_size())}
    is_t5 = family in ("t5", "mt5")
    is_llama = family in ("llama", "mistral")
    number = config.get("extra_ids", 100) if is_t5 else 0
    sentinels = [f"<extra_id_{n}>" for n in reversed(range(number))]
    vocab |= {token: len(vocab) + place for place, token in enumerate(sentinels)}
    made = tk.Tokenizer(tk.models.WordLevel(vocab, "<unk>"))
    names = ("<s>", "<pad>", "</s>", "<unk>", *sentinels)
    special = [tk.AddedToken(name, normalized=False) for name in names if name in vocab]
    made.add_special_tokens(special)
    ends = r"\A " if is_llama else r"\A +" if is_t5 else r"\A +| +\z"
    joined = [tk.decoders.Replace("▁", " "), tk.decoders.ByteFallback(), tk.decoders.Fuse()]
    made.decoder = tk.decoders.Sequence([*joined, tk.decoders.Replace(tk.Regex(ends), "")])
    before = ["<s>"] if config.get("add_bos_token", is_llama) else []
    after = ["</s>"] if config.get("add_eos_token", not is_llama) else []
    made.post_processor = tk.processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B", *after],
        special_tokens=[(token, vocab[token]) for token in (*before, *after)],
    )
    added = config.get("added_tokens_decoder", {})
    for index in sorted(added, key=int):
        flags = {key: value for key, value in added[index].items() if key != "__type"}
        if flags["content"] not in vocab:
            made.add_tokens([tk.AddedToken(**flags)])
    return made

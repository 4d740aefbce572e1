"""From pieces to ids and from tokens to text: the steps `model` and `decoder` of published files.

As in `pre_tokenization.py`, each type is a function that takes a step's options. No model makes a
special token of what a user types: these are found only where a text is parsed for them.

Source: the library `tokenizers`, whose file it is. The merging is chapter 1's.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from minitransformer.byte_pair_encoding import BYTE_OF
from minitransformer.merging import merge_pairs
from minitransformer.tokenizer_file import abbreviated
from minitransformer.tokenizers.pre_tokenization import step
from minitransformer.tokenizers.special_tokens import vocabulary
from minitransformer.tokenizers.unicode_patterns import Pattern
from minitransformer.tokenizers.unigram import (
    Ids,
    Model,
    byte_ids,
    join_sentence_pieces,
    sentence_piece,
    unigram,
)

Decoder = Callable[[list[str]], list[str]]


# --- models: from a piece to ids


def subword_model(found: Mapping[str, Any], special: Iterable[str] = ()) -> tuple[Ids, Model]:
    """The vocabulary of a file's `model`, and what finds the ids of a piece.

    Args:
        found: the file's entry. The oldest files do not say of which type it is.
        special: tokens that it does not find.

    Example:
        >>> ids = {"?": 0, "zw": 1, "##ei": 2}
        >>> _, encode = subword_model({"type": "WordPiece", "vocab": ids, "unk_token": "?"})
        >>> encode("zwei"), encode("drei")
        ([1, 2], [0])
    """
    if "type" not in found:
        kinds = {"unk_id": "Unigram", "merges": "BPE", "max_input_chars_per_word": "WordPiece"}
        kind = next((kind for key, kind in kinds.items() if key in found), "WordLevel")
        found = {"type": kind, **found}
    ids, hidden = vocabulary(found), set(special)
    plain = {token: index for token, index in ids.items() if token not in hidden}
    options = {**found, "vocab": found["vocab"] if found["type"] == "Unigram" else ids}
    return ids, step("model", {**options, "plain": plain}, MODELS)


def unknown_id(vocab: Ids, unk_token: str) -> int:
    """The id of what stands for the unknown."""
    if unk_token not in vocab:
        raise ValueError(f"model.unk_token is {abbreviated(unk_token)}, which is no token")
    return vocab[unk_token]


def bpe(
    plain: Ids,
    vocab: Ids,
    merges: Sequence[str | Sequence[str]],
    dropout: float | None = None,
    unk_token: str | None = None,
    continuing_subword_prefix: str | None = None,
    end_of_word_suffix: str | None = None,
    fuse_unk: bool = False,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> Model:
    """Byte-pair encoding, from the characters of a piece; a byte-level piece has bytes for them.

    Args:
        plain, vocab: the vocabulary without special tokens, and with them.
        merges: pairs of tokens, or in one text with a space between, the first learned first.
        dropout: the share of merges that training leaves out; only 0 is done.
        unk_token: what an unknown character becomes; without it, nothing.
        continuing_subword_prefix, end_of_word_suffix: what characters get that do not begin the
            piece, and the last one.
        fuse_unk: whether neighbours that are unknown become one.
        byte_fallback: whether an unknown character becomes its bytes, if all are there.
        ignore_merges: whether a piece that is a token becomes that token.
    """
    if dropout:
        raise ValueError(f"model.dropout is {dropout}, expected 0: encoding draws no lots")
    prefix, suffix = continuing_subword_prefix or "", end_of_word_suffix or ""
    rules: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, pair in enumerate(merges):
        left, *more = pair.split(" ") if isinstance(pair, str) else pair
        if len(more) != 1:
            raise ValueError(f"a merge joins 2 tokens, got {abbreviated(pair)}")
        right = more[0]
        for token in (left, right, joined := left + right.removeprefix(prefix)):
            if token not in vocab:
                raise ValueError(f"merge {left!r} + {right!r}: {token!r} is no token")
        rules[vocab[left], vocab[right]] = rank, vocab[joined]
    unknown = [] if unk_token is None else [unknown_id(vocab, unk_token)]

    def encode(piece: str) -> list[int]:
        if ignore_merges and piece in plain:
            return [plain[piece]]
        ids: list[int] = []
        waiting: list[int] = []  # what stands for the last unknown character, till a known one
        for at, character in enumerate(piece):
            token = (prefix if at else "") + character + (suffix if at == len(piece) - 1 else "")
            found = plain.get(token)
            if found is not None:
                ids += [*waiting, found]
                waiting = []
            elif byte_fallback and (fallback := byte_ids(token, plain)):
                ids += fallback
            else:
                ids += [] if fuse_unk else waiting
                waiting = unknown
        return merge_pairs(ids + waiting, rules)

    return encode


def word_piece(
    plain: Ids,
    vocab: Ids,
    unk_token: str = "[UNK]",
    continuing_subword_prefix: str = "##",
    max_input_chars_per_word: int = 100,
) -> Model:
    """Longest match from the left, as in chapter 1; a piece that cannot be cut is unknown."""
    unknown = unknown_id(vocab, unk_token)

    def encode(piece: str) -> list[int]:
        ids: list[int] = []
        start, prefix = 0, ""
        while start < len(piece) <= max_input_chars_per_word:
            for end in range(len(piece), start, -1):
                if (found := plain.get(prefix + piece[start:end])) is not None:
                    break
            else:
                return [unknown]
            ids.append(found)
            start, prefix = end, continuing_subword_prefix
        return ids or [unknown]

    return encode


def word_level(plain: Ids, vocab: Ids, unk_token: str) -> Model:
    """Each piece is a token, or unknown."""
    unknown = unknown_id(vocab, unk_token)
    return lambda piece: [plain.get(piece, unknown)]


MODELS: dict[str, Callable[..., Model]] = {
    "BPE": bpe,
    "SentencePiece": sentence_piece,  # the model that a library reads: no type of a file
    "Unigram": unigram,
    "WordLevel": word_level,
    "WordPiece": word_piece,
}


# --- decoders: from tokens to parts of the text


def decoder(found: Mapping[str, Any] | None) -> Callable[[list[str]], str]:
    """The step that a file's `decoder` names; without one, tokens are joined with spaces.

    Example:
        >>> decoder({"type": "WordPiece"})(["vier", "##zig", "!"])
        'vierzig!'
    """
    if found is None:
        return " ".join
    decode: Decoder = step("decoder", found, DECODERS)
    return lambda tokens: "".join(decode(tokens))


def decoder_sequence(decoders: Sequence[Mapping[str, Any]]) -> Decoder:
    steps = [step("decoder", found, DECODERS) for found in decoders]

    def decode(tokens: list[str]) -> list[str]:
        for each in steps:
            tokens = each(tokens)
        return tokens

    return decode


def byte_level(
    add_prefix_space: bool = True, trim_offsets: bool = True, use_regex: bool = True
) -> Decoder:
    """Bytes spelled as characters become bytes again; the options change nothing."""

    def to_bytes(token: str) -> bytes:
        try:
            return bytes(BYTE_OF[ord(character)] for character in token)
        except KeyError:  # an added token, which means itself
            return token.encode("utf-8", "surrogatepass")

    return lambda tokens: [b"".join(map(to_bytes, tokens)).decode("utf-8", "replace")]


CLEANUP = [(f" {mark}", mark) for mark in ".?!,"] + [(" ' ", "'"), (" n't", "n't"), (" 'm", "'m")]
CLEANUP += [(" do not", " don't")] + [(f" {end}", end) for end in ("'s", "'ve", "'re")]


def word_piece_decoder(prefix: str = "##", cleanup: bool = True) -> Decoder:
    """A space before each token that begins a word; `cleanup` takes some of them away again."""

    def decode(tokens: list[str]) -> list[str]:
        parts = []
        for at, token in enumerate(tokens):
            if at:
                begins = not token.startswith(prefix)
                token = f" {token}" if begins else token.removeprefix(prefix)
            for written, cleaned in CLEANUP if cleanup else ():
                token = token.replace(written, cleaned)
            parts.append(token)
        return parts

    return decode


def metaspace_decoder(
    replacement: str,
    prepend_scheme: str = "always",
    split: bool = True,
    add_prefix_space: bool = True,
    str_rep: str | None = None,
) -> Decoder:
    """Visible spaces become spaces, except in the first token, where one had been put before."""
    first = "" if prepend_scheme != "never" and add_prefix_space else " "

    def decode(tokens: list[str]) -> list[str]:
        return [token.replace(replacement, " " if at else first) for at, token in enumerate(tokens)]

    return decode


def byte_fallback() -> Decoder:
    """Runs of tokens such as `<0x0A>` become characters; each becomes U+FFFD if they make none."""

    def decode(tokens: list[str]) -> list[str]:
        parts: list[str] = []
        waiting = b""
        for token in [*tokens, ""]:
            if BYTE_TOKEN.fullmatch(token):
                waiting += bytes.fromhex(token[3:5])
                continue
            try:
                parts += [waiting.decode()] if waiting else []
            except UnicodeDecodeError:
                parts += "\ufffd" * len(waiting)
            parts.append(token)
            waiting = b""
        return parts

    return decode


BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


def strip_decoder(content: str, start: int = 0, stop: int = 0) -> Decoder:
    """Up to `start` and `stop` of a character go from the ends of each part."""

    def strip(token: str) -> str:
        for _ in range(start):
            token = token.removeprefix(content)
        for _ in range(stop):
            token = token.removesuffix(content)
        return token

    return lambda tokens: list(map(strip, tokens))


def replace_decoder(pattern: Mapping[str, str], content: str) -> Decoder:
    replace = Pattern(pattern).replace
    return lambda tokens: [replace(token, content) for token in tokens]


DECODERS: dict[str, Callable[..., Decoder]] = {
    "ByteFallback": byte_fallback,
    "ByteLevel": byte_level,
    "Fuse": lambda: lambda tokens: ["".join(tokens)],
    "Metaspace": metaspace_decoder,
    "Replace": replace_decoder,
    "SentencePiece": join_sentence_pieces,
    "Sequence": decoder_sequence,
    "Strip": strip_decoder,
    "WordPiece": word_piece_decoder,
}

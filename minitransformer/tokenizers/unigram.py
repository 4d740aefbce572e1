"""Unigram: the cut of a piece whose tokens are most probable, as T5 and SentencePiece have it.

Each token has a probability, and a cut the product of those of its tokens, as if they were drawn
one by one. Byte-pair encoding replays its merges; here the best of all cuts is taken. There are
2ⁿ⁻¹ cuts of n characters, but the best cut that ends at a place is the best cut that ends where its
last token begins, and that token: so one walk from left to right is enough (Viterbi, 1967).

With it comes the map of characters that SentencePiece normalizes by, which has a format of its own.

Source: "Subword Regularization" (Kudo, 2018), section 3.2; for the map, "SentencePiece" (Kudo and
Richardson, 2018), section 3.3.
"""

import re
import struct
import unicodedata
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from minitransformer.tokenizers.unicode_patterns import category

Ids = Mapping[str, int]
Model = Callable[[str], list[int]]
UNKNOWN_PENALTY = 10.0  # an unknown character is e¹⁰ times less probable than the rarest token
JOINERS = frozenset("\u200c\u200d\u0e33\u0eb3\uff9e\uff9f")
APART = re.compile(  # marks that are no part of a cluster
    "[\u102b\u102c\u1038\u1062-\u1064\u1067-\u106d\u1083\u1087-\u108c\u108f\u109a-\u109c"
    "\u1a61\u1a63\u1a64\uaa7b\uaa7d]"
)
PREPENDED = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e")
LONGEST_CLUSTER = 5  # bytes


def best_cut(
    text: str, scores: Mapping[str, float], starts: frozenset[str], unknown: float
) -> list[str]:
    """The cut into tokens with the largest sum of scores.

    A character that is no token by itself may stand alone too; neighbours that do become one
    part. Of equally good cuts the one whose last token is longest is taken, and so on backwards.

    With m the length of the longest token, n characters take O(n·m²) steps.

    Args:
        text: what to cut.
        scores: the logarithm of each token's probability.
        starts: every beginning of every token, itself included, for the search to stop early.
        unknown: the score of a character that is no token.

    Example:
        >>> scores = {"a": -2.0, "b": -2.0, "ab": -3.0, "abb": -6.0}
        >>> [best_cut(text, scores, all_starts(scores), -16.0) for text in ("abb", "xyab")]
        [['ab', 'b'], ['xy', 'ab']]
    """
    best = [0.0] + [float("-inf")] * len(text)  # the score of the best cut that ends at each place
    last = [0] * (len(text) + 1)  # where its last token begins
    for start, character in enumerate(text):
        end = start + 1
        if character not in scores and best[start] + unknown > best[end]:
            best[end], last[end] = best[start] + unknown, start
        while end <= len(text) and (token := text[start:end]) in starts:
            score = scores.get(token)
            if score is not None and best[start] + score > best[end]:
                best[end], last[end] = best[start] + score, start
            end += 1
    parts: list[str] = []
    end, joined = len(text), False
    while end > 0:
        part = text[last[end] : end]
        alone = part not in scores
        if alone and joined:
            parts[-1] = part + parts[-1]
        else:
            parts.append(part)
        end, joined = last[end], alone
    return parts[::-1]


def all_starts(tokens: Mapping[str, float]) -> frozenset[str]:
    """Every beginning of every token."""
    return frozenset(token[:end] for token in tokens for end in range(1, len(token) + 1))


def byte_ids(text: str, plain: Ids) -> list[int] | None:
    """The ids of a text's bytes, spelled as `<0x0A>`; None if one is missing."""
    found = [plain.get(f"<0x{byte:02X}>") for byte in text.encode("utf-8", "surrogatepass")]
    return None if None in found else [index for index in found if index is not None]


def unigram(
    plain: Ids, vocab: Sequence[tuple[str, float]], unk_id: int | None, byte_fallback: bool = False
) -> Model:
    """The model: the best cut of a piece. The vocabulary has a score for each token."""
    if unk_id is None or not 0 <= unk_id < len(vocab):
        raise ValueError(f"model.unk_id is {unk_id}, expected one of the ids 0 to {len(vocab) - 1}")
    scores = {token: score for token, score in vocab if token in plain}
    unknown = min(score for _, score in vocab) - UNKNOWN_PENALTY
    starts = all_starts(scores)

    def encode(piece: str) -> list[int]:
        ids: list[int] = []
        for part in best_cut(piece, scores, starts, unknown):
            if part in plain:
                ids.append(plain[part])
            else:
                ids += (byte_ids(part, plain) if byte_fallback else None) or [unk_id]
        return ids

    return encode


# --- the library's own


def processor(file: bytes) -> Any:
    """What the library `sentencepiece` reads a model with.

    Raises:
        ImportError: if it is not installed.
        ValueError: if the file is damaged.
    """
    try:
        library = import_module("sentencepiece")
    except ImportError as error:
        raise ImportError(
            "files of SentencePiece take the library that made them: pip install sentencepiece"
        ) from error
    try:
        return library.SentencePieceProcessor(model_proto=file)
    except RuntimeError as error:
        raise ValueError(f"the SentencePiece model ({len(file)} bytes) is damaged") from error


def sentence_piece(
    plain: Ids, vocab: Ids, file: bytes, unk_token: str, has_codes: bool = False
) -> Model:
    """A model that the library reads; its pieces have their ids in another file, perhaps.

    Args:
        plain: the vocabulary without special tokens.
        vocab: the vocabulary.
        file: the content of the model's file.
        unk_token: what a piece becomes that is no token.
        has_codes: whether a text may begin with a code for a language, such as >>de<<.
    """
    cut, unknown = processor(file), vocab[unk_token]

    def encode(piece: str) -> list[int]:
        code = re.match(">>.*?<<", piece, re.DOTALL) if has_codes else None
        parts = [code[0]] if code else []
        parts += cut.encode(piece[code.end() :] if code else piece, out_type=str)
        return [plain.get(part, unknown) for part in parts]

    return encode


def join_sentence_pieces(file: bytes, special: Sequence[str]) -> Callable[[list[str]], list[str]]:
    """The library joins what stands between special tokens; these get a space after them."""
    cut = processor(file)

    def decode(tokens: list[str]) -> list[str]:
        joined, waiting = "", []
        for token in [*tokens, ""]:
            if token and token not in special:
                waiting.append(token)
                continue
            joined += cut.decode_pieces(waiting) + (f"{token} " if token else "")
            waiting = []
        return [joined.replace("▁", " ").strip()]

    return decode


# --- the map of characters


def precompiled(precompiled_charsmap: str | None) -> Callable[[str], str]:
    """The normalizer that a SentencePiece model carries: what becomes of which characters.

    The library `tokenizers` looks up what a reader takes for one character, such as a letter with
    its accents (a grapheme cluster), if that has at most 5 bytes, and then takes the *shortest*
    entry that it begins with: what is left of the cluster is lost. SentencePiece itself takes the
    longest, and loses nothing. Ids must be those of the library, so this does as it does.

    Args:
        precompiled_charsmap: in base64, the size of a trie, the trie, and the texts it points to.
    """
    content = b64decode(precompiled_charsmap or "")
    if not content:
        return str
    (size,) = struct.unpack_from("<I", content)
    trie = struct.unpack_from(f"<{size // 4}I", content, 4)
    texts = content[4 + size :]

    @lru_cache(2**16)
    def mapped(part: str) -> str | None:
        place = shortest_entry(trie, part.encode("utf-8", "surrogatepass"))
        return None if place is None else texts[place : texts.index(b"\0", place)].decode()

    def normalize(text: str) -> str:
        parts = []
        for cluster in clusters(text):
            short = len(cluster.encode("utf-8", "surrogatepass")) <= LONGEST_CLUSTER
            whole = mapped(cluster) if short else None
            if whole is None:
                parts += [c if (found := mapped(c)) is None else found for c in cluster]
            else:
                parts.append(whole)
        return "".join(parts)

    return normalize


def shortest_entry(trie: tuple[int, ...], key: bytes) -> int | None:
    """The value of the shortest entry that `key` begins with.

    The trie is a double array: a node holds a byte, an offset to XOR with the next byte, which
    gives the place of its child, and whether there is a value, which then lies at the offset.
    """
    place = offset(trie[0])
    for byte in key:
        if byte == 0:
            return None
        place ^= byte
        node = trie[place]
        if node & 0x8000_00FF != byte:
            return None
        place ^= offset(node)
        if node >> 8 & 1:
            return trie[place] & 0x7FFF_FFFF
    return None


def offset(node: int) -> int:
    """How far the children of a node lie; a bit says whether in units of 1 or of 256."""
    return node >> 10 << ((node & 0x200) >> 6)


def clusters(text: str) -> Iterator[str]:
    """Cut a text into grapheme clusters, as far as they can have 5 bytes and entries in a map."""
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or not stays_with(text[end - 1], text[end]):
            yield text[start:end]
            start = end


def stays_with(before: str, after: str) -> bool:
    """Whether two neighbours are in one cluster."""
    if before == "\r":
        return after == "\n"
    if before in PREPENDED or after in JOINERS:
        return not (is_control(before) or is_control(after))
    return category(after) == "M" and not APART.match(after) and not is_control(before)


def is_control(character: str) -> bool:
    """Whether a character is a cluster for itself."""
    special = JOINERS | PREPENDED
    return unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp") and character not in special

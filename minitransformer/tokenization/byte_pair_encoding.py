"""Byte-pair encoding: begin with single bytes, and merge again and again the most frequent pair.

Built in chapter 1. Papers: "Neural Machine Translation of Rare Words with Subword Units" (Sennrich
et al., 2016), on which section 5.1 of "Attention Is All You Need" rests; for bytes and pieces,
"Language Models are Unsupervised Multitask Learners" (Radford et al., 2019), section 2.2.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Self

import regex

from minitransformer.checks import check_instance, check_vocab_size, texts_of
from minitransformer.tokenization.tokenizer import Tokenizer
from minitransformer.tokenization.tokenizer_file import GPT2_PATTERN, read_vocab_and_merges

__all__ = ["BPETokenizer", "learn_merges", "merge_pairs"]

# A file holds text, so each byte is spelled as a character: the printable ones of Latin-1 as
# themselves, the other 68 as the characters from 256 on. The space becomes "Ġ".
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
SPELLED = {byte: chr(byte) for byte in PRINTABLE} | {b: chr(256 + n) for n, b in enumerate(OTHERS)}
BYTE_OF = {ord(character): byte for byte, character in SPELLED.items()}
BYTE_TOKENS = tuple(sorted(SPELLED.values()))

# GPT2_PATTERN for texts of ASCII alone; Python's own `re`, which has no \p, takes half the time.
ASCII = re.compile(r"'(?:[stmd]|re|ve|ll)| ?[a-zA-Z]+| ?\d+| ?[^\sa-zA-Z\d]+|\s+(?!\S)|\s+", re.A)


class BPETokenizer(Tokenizer):
    """Byte-pair encoding as in GPT-2: every byte is a token, so that every text can be encoded.

    Merges stay inside pieces of the text: what the pattern matches, and what is between. By default
    these are words with the space before them, numbers, runs of punctuation.

    Args:
        tokens: the vocabulary, in order of id, each byte spelled as a character; all 256 bytes
            must be there. Special tokens that are not in it are put in front.
        merges: pairs of tokens, the first learned first.
        special_tokens: tokens that are not found in a text unless `encode` is asked to parse them.
        pattern: a regular expression of the library `regex`, without groups that capture.

    Raises:
        ValueError: if a byte is missing, or a merge joins or makes what is not in the vocabulary.

    Example:
        >>> tokenizer = BPETokenizer.train(["zwanzig dreißig vierzig"], vocab_size=263)
        >>> tokenizer.labels(tokenizer.encode("vierzig"))
        ['v', 'i', 'e', 'r', 'zig']
        >>> tokenizer.decode(tokenizer.encode("fünfzig ☃"))
        'fünfzig ☃'
        >>> Tokenizer.from_dict(tokenizer.to_dict()).tokens == tokenizer.tokens  # as from a file
        True

    Papers: Sennrich et al., section 3.2; Radford et al., section 2.2.
    """

    def __init__(
        self,
        tokens: Iterable[str],
        merges: Iterable[Sequence[str]] = (),
        special_tokens: Iterable[str] = Tokenizer.special_tokens,
        pattern: str = GPT2_PATTERN,
    ) -> None:
        super().__init__(tokens, special_tokens)
        self.merges = [(left, right) for left, right in merges]
        check_merges(self.ids, self.merges)
        self.rules = {
            (self.ids[left], self.ids[right]): (rank, self.ids[left + right])
            for rank, (left, right) in enumerate(self.merges)
        }
        self.pattern = pattern
        self.pieces = splitter(pattern)
        self.byte_ids = [self.ids[SPELLED[byte]] for byte in range(256)]
        self.special_spellings = {name: spell(name) for name in self.special_tokens}

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int | None = None, **options: Any) -> Self:
        """Merge the most frequent pair of neighbours until there are `vocab_size` tokens.

        Of equally frequent pairs the one with the smaller ids is taken. Training ends early when
        no pair is left. The order of the texts does not matter. Nothing is merged across texts,
        nor across a special token in a text, which itself does not count.

        Args:
            texts: what to learn from.
            vocab_size: number of tokens, with special tokens and bytes; None sets no limit.
            options: `special_tokens` and `pattern`.

        Raises:
            TypeError: if `texts` is a single str.
            ValueError: if `vocab_size` is below the number of special tokens and 256 bytes.
        """
        untrained = cls(BYTE_TOKENS, **options)
        check_vocab_size(vocab_size, untrained.tokens)
        words = {
            "".join(chr(untrained.byte_ids[byte]) for byte in to_bytes(piece)): count
            for piece, count in untrained.count_pieces(texts).items()
        }
        tokens, merges = learn_merges(words, untrained.tokens, vocab_size)
        return cls(tokens, merges, **options)

    @classmethod
    def from_files(cls, vocab: str | Path, merges: str | Path, **options: Any) -> Self:
        """Read a published vocabulary with its ids: GPT-2's `vocab.json` and `merges.txt`.

        Args:
            vocab: the file of the tokens' ids.
            merges: the file of the merges.
            options: `pattern`, and `special_tokens`, by default `<|endoftext|>` alone. Those that
                are not in the vocabulary get the ids after it.

        Raises:
            FileNotFoundError: if a file does not exist.
            ValueError: if a file is damaged, or the tokens are not those of a byte-level BPE.
        """
        options = {"special_tokens": ("<|endoftext|>",), **options}
        tokens, pairs = read_vocab_and_merges(vocab, merges)
        return cls(dict.fromkeys([*tokens, *options["special_tokens"]]), pairs, **options)

    def split(self, text: str) -> list[str]:
        return self.pieces(text)

    def encode_piece(self, piece: str) -> list[int]:
        """Merge a piece's bytes, always the pair whose merge was learned first."""
        return merge_pairs([self.byte_ids[byte] for byte in to_bytes(piece)], self.rules)

    def encode_iterable(
        self, texts: Iterable[str], *, parse_special: bool = False
    ) -> Iterator[int]:
        """Yield the ids of one long text that comes in parts, such as the lines of a file.

        They are the ids of `encode("".join(texts))`, but only one part, and the end of the one
        before, are in memory. The pattern may look one piece ahead, as GPT-2's does, not further.
        """
        longest = max(map(len, self.special_tokens), default=0) if parse_special else 0
        rest = ""
        for text in texts_of("texts", texts):
            rest += text
            parts = self.special_pattern.split(rest) if parse_special else [rest]
            cuts = ([part] if n % 2 else self.split(part) for n, part in enumerate(parts))
            pieces = list(chain.from_iterable(cuts))
            # What follows may change the last two pieces, or complete a special token.
            least, held = max(longest, len("".join(pieces[-2:]))), 0
            while pieces and held < least:
                held += len(pieces.pop())
            whole, rest = rest[: len(rest) - held], rest[len(rest) - held :]
            yield from self.encode(whole, parse_special=parse_special)
        yield from self.encode(rest, parse_special=parse_special)

    def join(self, tokens: Sequence[str]) -> str:
        """The text of tokens; bytes that are no UTF-8 show as U+FFFD."""
        return to_text("".join(self.special_spellings.get(token, token) for token in tokens))

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Each id's token as readable text, for figures; half a character shows as U+FFFD."""
        return [self.join([self.token(index)]) for index in ids]


def learn_merges(
    words: Mapping[str, int], tokens: Sequence[str], vocab_size: int | None = None, prefix: str = ""
) -> tuple[list[str], list[tuple[str, str]]]:
    """Merge the most frequent pair of neighbours, again and again, and return what was learned.

    It ends when there are `vocab_size` tokens, or no pair is left. Of equally frequent pairs the
    one with the smaller ids is taken. No two merges make the same token, because each replaces its
    pair everywhere.

    A word is a str whose characters are token ids: `chr(7)` is token 7. So `str.split` and
    `str.join` merge a pair, and comparing pairs compares ids. Counts are updated around the places
    of the merged pair only. A heap finds the largest: a count grows only in the step that makes
    the newer of the pair's tokens, so an entry of the heap may be too large, never too small.

    Args:
        words: how often each word occurs.
        tokens: the first tokens, in order of id.
        vocab_size: how many tokens there may be in the end; None sets no limit.
        prefix: what a token loses when it is joined to the one before it.

    Returns:
        All tokens, and the merges, the first learned first.

    Example:
        >>> words = {chr(0) + chr(1) + chr(0) + chr(1) + chr(2): 3}  # "ababc", three times
        >>> learn_merges(words, ["a", "b", "c"], vocab_size=5)
        (['a', 'b', 'c', 'ab', 'abc'], [('a', 'b'), ('ab', 'c')])

    Paper: Sennrich et al., section 3.2.
    """
    tokens = list(tokens)
    merges: list[tuple[str, str]] = []
    sequences = list(words)  # each as it is after the merges so far
    weights = list(words.values())
    counts: defaultdict[str, int] = defaultdict(int)
    places: defaultdict[str, list[int]] = defaultdict(list)
    for index, word in enumerate(sequences):
        for left, right in pairwise(word):
            counts[left + right] += weights[index]
            places[left + right].append(index)
    heap = [(-counts[pair], pair, where) for pair, where in places.items()]
    heapify(heap)
    while heap and (vocab_size is None or len(tokens) < vocab_size):
        negative_count, pair, where = heappop(heap)
        if counts[pair] != -negative_count:  # other merges took some of its places
            if counts[pair] > 0:
                heappush(heap, (-counts[pair], pair, where))
            continue
        left, right = (tokens[ord(character)] for character in pair)
        merges.append((left, right))
        new = chr(len(tokens))
        tokens.append(left + right.removeprefix(prefix))
        places = defaultdict(list)
        for index in dict.fromkeys(where):  # a word once, however often it has the pair
            parts = sequences[index].split(pair)
            weight = weights[index]
            sequences[index] = new.join(parts)
            last = ""  # before the place: a token, or where two places touch, the new one
            for before, after in pairwise(parts):
                if last := before[-1:] or last:
                    counts[(pair[1] if last == new else last) + pair[0]] -= weight
                    counts[last + new] += weight
                    places[last + new].append(index)
                if after:
                    counts[pair[1] + after[0]] -= weight
                    counts[new + after[0]] += weight
                    places[new + after[0]].append(index)
                last = new
        for pair, where in places.items():
            heappush(heap, (-counts[pair], pair, where))
    return tokens, merges


def merge_pairs(ids: list[int], rules: Mapping[tuple[int, int], tuple[int, int]]) -> list[int]:
    """Merge neighbours, always the leftmost pair of lowest rank, until there is none.

    A heap holds the candidates and each id knows its neighbours, so that n ids take O(n log n).

    Args:
        ids: token ids.
        rules: for each pair of ids that is merged, its rank and the id that it becomes.

    Example:
        >>> rules = {(0, 1): (0, 3), (3, 2): (1, 4)}  # a+b first, ab+c second
        >>> merge_pairs([2, 0, 1, 2], rules)
        [2, 4]
    """
    end = len(ids)
    ids = [*ids, -1]  # ids[-1] and ids[end] are no token
    before = list(range(-1, end))
    after = [*range(1, end + 1), end]
    heap = [(rules[pair][0], at) for at, pair in enumerate(pairwise(ids)) if pair in rules]
    heapify(heap)
    while heap:
        rank, at = heappop(heap)
        gone = after[at]
        rule = rules.get((ids[at], ids[gone]))
        if rule is None or rule[0] != rank:
            continue  # one of the two was merged in the meantime
        ids[at] = rule[1]
        ids[gone] = -1
        after[at] = after[gone]
        before[after[at]] = at
        for start in (before[at], at):
            if found := rules.get((ids[start], ids[after[start]])):
                heappush(heap, (found[0], start))
    return [index for index in ids if index >= 0]


def to_bytes(text: str) -> bytes:
    """A text's UTF-8 bytes; lone surrogates, which UTF-8 forbids, pass too."""
    return text.encode("utf-8", "surrogatepass")


def spell(text: str) -> str:
    """The bytes of a text, each written as a visible character."""
    return "".join(SPELLED[byte] for byte in to_bytes(text))


def to_text(spelled: str) -> str:
    """The text whose bytes are written as visible characters."""
    joined = spelled.translate(BYTE_OF).encode("latin-1")
    try:
        return joined.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return joined.decode("utf-8", "replace")


def splitter(pattern: str) -> Callable[[str], list[str]]:
    """What cuts a text into pieces: what the pattern matches, and what is between."""
    check_instance("pattern", pattern, str)
    found = regex.compile(rf"(?:{pattern})|(?:(?!{pattern})[\s\S])+")
    if found.groups:
        raise ValueError(f"pattern must not have groups that capture, but (?:…), got {pattern!r}")
    if pattern != GPT2_PATTERN:
        return found.findall
    return lambda text: (ASCII if text.isascii() else found).findall(text)


def check_merges(ids: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> None:
    """Raise an error unless all bytes, and all that is merged, are tokens."""
    if missing := [byte for byte, token in SPELLED.items() if token not in ids]:
        raise ValueError(
            f"all 256 bytes must be tokens, {len(missing)} are missing: {min(missing)}"
            + (f" to {max(missing)}" if len(missing) > 1 else "")
        )
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in ids:
                raise ValueError(f"merge {left!r} + {right!r}: {token!r} is no token")

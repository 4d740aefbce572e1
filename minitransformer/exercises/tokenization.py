"""The exercises of chapter 1, tokenization."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations, pairwise
from statistics import mean
from typing import Any

from minitransformer.exercises.checking import Exercise
from minitransformer.exercises.comparing import Difference, brief
from minitransformer.tokenization import GPT2_PATTERN, BPETokenizer
from minitransformer.tokenization.byte_pair_encoding import BYTE_TOKENS, spell, to_text

MERGES = ["e r", "er t", "v i", "vi er", "t a", "r ta", "ert e", "a vi", "f Ã", "¼ n"]
"""Some words are cut badly by one rule or another, and *ü* is cut in the middle."""
WHERE = "The tokenizer is minitransformer.exercises.tokenization.tokenizer()."
NUMBERS = ["in 1999", "19 und 20", "x²³", "y²³", "z²³"]


@cache
def tokenizer() -> BPETokenizer:
    """A small tokenizer, the same for all exercises."""
    merges = [merge.split() for merge in MERGES]
    return BPETokenizer([*BYTE_TOKENS, *map("".join, merges)], merges)


def strings(found: Any) -> Any:
    """A list of strings, where each may be given in parts, such as a pair that was merged."""
    return ["".join(part) for part in found]


three_merges = Exercise(
    function="my_tokens",
    arguments=lambda: [()],
    use=lambda mine: tuple(map(strings, mine)),
    right=lambda: (["an", "ban", "ana"], ["an", "ana", "s"]),
    mistakes={
        "The merges are right. ananas is not cut by the longest token from the left: apply the "
        "merges in the order of learning, each everywhere.": (
            lambda: (["an", "ban", "ana"], ["ana", "n", "a", "s"])
        ),
        "The merges are right. For ananas apply all three of them, not the first alone.": (
            lambda: (["an", "ban", "ana"], ["an", "an", "a", "s"])
        ),
        "After the first merge two pairs have 3 each. The tie is decided by the left tokens: b is "
        "older than an.": lambda: (["an", "ana", "ban"], ["an", "ana", "s"]),
        "These are the three most frequent pairs of the first count. Count again after each "
        "merge.": lambda: (["an", "na", "ba"], ["an", "an", "a", "s"]),
        "The third merge joins a new token too: an and a now have 3.": (
            lambda: (["an", "ban", "anan"], ["anan", "a", "s"])
        ),
    },
    hints=(
        "Write banana down with the factor 2, and count each pair of neighbours.",
        "an occurs 6 times. Write the words with it as one token, and count again.",
        "How ties are decided is in the section By hand: five words.",
    ),
)


def ratio(texts: Sequence[str], *, size: Callable[[str], int] = len) -> float:
    return sum(len(tokenizer().encode(t)) for t in texts) / sum(map(size, texts))


price_of_a_language = Exercise(
    function="tokens_per_character",
    arguments=lambda: [
        (["a"],),
        (["vier"],),
        (["vi", "er"],),
        (["für fünf", "这是"],),
        (["vier"] * 3 + ["Αυτή είναι"],),
    ],
    use=lambda mine, texts: mine(tokenizer(), texts),
    compared=WHERE,
    right=lambda texts: ratio(texts),
    mistakes={
        "These are tokens per byte. A Greek letter has two bytes, and is one character.": (
            lambda tokenizer, texts: ratio(texts, size=lambda text: len(text.encode()))
        ),
        "These are characters per token, the other way round.": (
            lambda tokenizer, texts: 1 / ratio(texts)
        ),
        "This is the mean of each text's ratio, to which a short text adds as much as a long one. "
        "Divide all tokens by all characters.": (
            lambda tokenizer, texts: mean([ratio([text]) for text in texts])
        ),
        "The texts are joined before encoding: tokens may not cross from one text into the next.": (
            lambda tokenizer, texts: ratio(["".join(texts)])
        ),
        "These are tokens per word.": (
            lambda tokenizer, texts: ratio(texts, size=lambda text: len(text.split()))
        ),
        "This is the number of tokens: divide it by the characters.": (
            lambda tokenizer, texts: float(sum(len(tokenizer.encode(t)) for t in texts))
        ),
    },
    hints=(
        "tokenizer.encode(text) is a list of ids, and len(text) counts characters.",
        "Two sums over the texts, of tokens and of characters. Divide at the end.",
        "How many bytes a character has: What is a letter? Unicode and bytes.",
    ),
)


def trained(pattern: str) -> Callable[[list[str], int], BPETokenizer]:
    """What trains a tokenizer with this pattern."""
    return lambda texts, vocab_size: BPETokenizer.train(texts, vocab_size, pattern=pattern)


def labels_by(mine: Any, texts: list[str], vocab_size: int, text: str) -> Any:
    """How a tokenizer that was trained by an answer cuts a text."""
    found = mine(texts, vocab_size)
    return found.labels(found.encode(text)) if found is not None else None


one_digit_one_token = Exercise(
    function="train_one_digit",
    arguments=lambda: [
        (NUMBERS, 267, "42"),
        (NUMBERS, 267, "in 1999 or 19"),
        (NUMBERS, 267, "x²³ and 19½"),
    ],
    use=labels_by,
    compared="The results are the tokens of text, as text.",
    right=lambda texts, vocab_size, text: labels_by(
        trained(r"'(?:[stmd]|re|ve|ll)| ?(?:\p{N}|\p{L}+|[^\s\p{L}\p{N}]+)|\s+(?!\S)|\s+"),
        texts,
        vocab_size,
        text,
    ),
    mistakes={
        "Digits are merged with each other: this is GPT-2's pattern.": trained(GPT2_PATTERN),
        "Up to three digits stay together here. One is asked for.": (
            trained(GPT2_PATTERN.replace(r"\p{N}+", r"\p{N}{1,3}"))
        ),
        "The space before a number has become a piece by itself; it belongs to the first digit.": (
            trained(GPT2_PATTERN.replace(r" ?\p{N}+", r"\p{N}"))
        ),
        "The space before a number belongs to its first digit; and there are other numbers than 0 "
        "to 9, such as ² and ³: \\p{{N}}.": (
            trained(GPT2_PATTERN.replace(r" ?\p{N}+", r"[0-9]| ?\p{N}+"))
        ),
        "The digits 0 to 9 are cut, but there are other numbers, such as ² and ³: \\p{{N}}.": (
            trained(GPT2_PATTERN.replace(r"\p{N}+", r"[0-9]| ?\p{N}+"))
        ),
        "Letters are cut one by one, too: then no word can be merged.": (
            trained(GPT2_PATTERN.replace(r"\p{N}+", r"\p{N}").replace(r"\p{L}+", r"\p{L}"))
        ),
    },
    hints=(
        "Which part of GPT2_PATTERN matches a number of several digits?",
        "A + means one or more. BPETokenizer.train passes pattern= on to the tokenizer.",
        "What the parts of the pattern match: Pieces: what no token may cross.",
    ),
)


def fewest(piece: str) -> tuple[int, str]:
    """The smallest number of tokens, by trying all cuts, and the piece."""
    spelled = spell(piece)
    tokens = {*tokenizer().tokens[5:]}
    for count in range(len(spelled)):
        for cuts in combinations(range(1, len(spelled)), count):
            places = (0, *cuts, len(spelled))
            if all(spelled[start:end] in tokens for start, end in pairwise(places)):
                return count + 1, piece
    return 0, piece


def count_and_text(mine: Any, piece: str) -> Any:
    """How many ids an answer gives, and the text that they decode to."""
    ids = mine(tokenizer(), piece)
    if ids is None or ids is ...:
        return None
    try:
        ids = [int(index) for index in ids]
        return len(ids), tokenizer().decode(ids)
    except (TypeError, ValueError):
        raise Difference(f"gives {brief(ids)}, expected a list of ids.") from None


def longest_first(tokenizer: BPETokenizer, piece: str, *, from_left: bool) -> list[int]:
    """The cut that takes the longest token at one end, again and again."""
    rest, ids = spell(piece), list[int]()
    while rest:
        parts = [rest[:n] if from_left else rest[-n:] for n in range(len(rest), 0, -1)]
        part = next(part for part in parts if tokenizer.ids.get(part, 0) >= 5)
        rest = rest[len(part) :] if from_left else rest[: -len(part)]
        ids = [*ids, tokenizer.ids[part]] if from_left else [tokenizer.ids[part], *ids]
    return ids


fewest_tokens = Exercise(
    function="fewest_tokens",
    arguments=lambda: [
        ("",),
        ("!",),
        ("vierta",),
        ("vierte",),
        ("rtavi",),
        ("fün",),
        ("<eos>",),
        ("<mask>!",),
    ],
    use=count_and_text,
    compared=f"The results are the number of ids, and the text that they decode to. {WHERE}",
    right=fewest,
    mistakes={
        "This is BPE's cut, which takes the merges in their order. There is a shorter one.": (
            lambda tokenizer, piece: tokenizer.encode(piece)
        ),
        "This takes the longest token from the left each time. A shorter first token can leave a "
        "rest that needs fewer.": lambda t, piece: longest_first(t, piece, from_left=True),
        "This takes the longest token from the right each time. A shorter last token can leave a "
        "rest that needs fewer.": lambda t, piece: longest_first(t, piece, from_left=False),
        "What a user writes is text: <eos> in it is five characters, not the special token.": (
            lambda tokenizer, piece: shortest(tokenizer, piece, special=True)
        ),
        "The tokens are the right ones in the wrong order: a path that is followed back from the "
        "end has to be reversed.": lambda tokenizer, piece: shortest(tokenizer, piece)[::-1],
        "No token is longer than a byte here.": (
            lambda tokenizer, piece: [tokenizer.ids[byte] for byte in spell(piece)]
        ),
    },
    hints=(
        "The shortest cut of the first n bytes ends in some token; before it is a shortest cut.",
        "Keep a list: best[n] is the shortest cut of spell(piece)[:n], and best[0] is empty.",
        "How bytes are spelled in the vocabulary: the section Byte-level BPE.",
    ),
)


def shortest(tokenizer: BPETokenizer, piece: str, *, special: bool = False) -> list[int]:
    """A cut into the fewest tokens, of which special ones are perhaps some."""
    first = 0 if special else 5
    spelled = spell(piece)
    best: list[list[int]] = [[]]
    for end in range(1, len(spelled) + 1):
        parts = [(start, tokenizer.ids.get(spelled[start:end], -1)) for start in range(end)]
        best.append(min(([*best[start], i] for start, i in parts if i >= first), key=len))
    return best[-1]


def heard(mine: Any, ids: list[int]) -> Any:
    """What has been yielded after each id, before the next is asked for; and at the end."""
    said = list[str]()

    def coming() -> Iterator[int]:
        for index in ids:
            said.append("")
            yield index
        said.append("")

    found = mine(tokenizer(), coming())
    if found is None:
        return None
    for text in found:
        if not said or not isinstance(text, str):
            return text
        said[-1] += text
    return said or None


def certain(ids: list[int]) -> list[str]:
    """The same, from texts that cannot change any more."""
    decoded = [tokenizer().decode(ids[:n]) for n in range(len(ids) + 1)]
    kept = [*(text.rstrip("�") for text in decoded), decoded[-1]]
    return [after.removeprefix(before) for before, after in pairwise(kept)]


def held_until_whole(tokenizer: BPETokenizer, ids: Iterable[int]) -> Iterator[str]:
    """Text comes when the tokens so far end with a character."""
    waiting: list[int] = []
    for index in ids:
        waiting.append(index)
        text = tokenizer.decode(waiting)
        if not text.endswith("�"):
            yield text
            waiting = []
    yield tokenizer.decode(waiting)


def all_again(tokenizer: BPETokenizer, ids: Iterable[int]) -> Iterator[str]:
    """The whole text each time."""
    seen: list[int] = []
    for index in ids:
        seen.append(index)
        yield tokenizer.decode(seen).rstrip("�")


def in_order(
    tokenizer: BPETokenizer, ids: Iterable[int], *, end: bool = True, special: bool = False
) -> Iterator[str]:
    """Right, but for what is asked: no rest at the end, or special tokens shown."""
    seen: list[int] = []
    given = ""
    for index in ids:
        seen.append(index)
        text = (
            to_text("".join(tokenizer.tokens[i] for i in seen))
            if special
            else (tokenizer.decode(seen))
        )
        text = text.rstrip("�")
        yield text.removeprefix(given)
        given = text
    if end:
        yield tokenizer.decode(seen).removeprefix(given)


as_the_tokens_come = Exercise(
    function="stream",
    arguments=lambda: [
        (tokenizer().encode("vi"),),
        (tokenizer().encode("fünf"),),
        ([*tokenizer().encode("☃ vier 😀!"), tokenizer().eos_id],),
        (tokenizer().encode("☃")[:2],),
        ([*tokenizer().encode("☃")[:2], *tokenizer().encode("vier")],),
        ([],),
    ],
    use=heard,
    compared="The results are what is yielded after each id, before the next one, and at the end. "
    + WHERE,
    right=certain,
    mistakes={
        "Half a character shows as �: hold its bytes back until the rest has come.": (
            lambda tokenizer, ids: (tokenizer.decode([index]) for index in ids)
        ),
        "Nothing is yielded before the last id has come: yield what is certain after each.": (
            lambda tokenizer, ids: iter([tokenizer.decode(ids)])
        ),
        "A token may end a character, or begin one: what is whole before the half one is certain, "
        "and can be yielded now.": held_until_whole,
        "What was yielded once is yielded again: yield only what is new.": all_again,
        "At the end a half character is left, and decode(ids) shows it as �: yield it, too.": (
            lambda tokenizer, ids: in_order(tokenizer, ids, end=False)
        ),
        "Special tokens such as <eos> are no text: decode leaves them out.": (
            lambda tokenizer, ids: in_order(tokenizer, ids, special=True)
        ),
    },
    hints=(
        "Work with bytes: BYTE_OF[ord(c)] is the byte of each character c of a token's spelling.",
        "codecs.getincrementaldecoder keeps the bytes of an unfinished character; tell it when "
        "the end has come.",
        "Why a token can be half a character: Byte-level BPE, and the trap after it.",
    ),
)

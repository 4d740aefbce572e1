"""Right answers to the exercises of chapter 1, written differently from the solutions."""

import codecs
import re
from functools import cache

import numpy as np

from minitransformer.tokenization import GPT2_PATTERN, BPETokenizer
from minitransformer.tokenization.byte_pair_encoding import BYTE_OF, spell

# Changes of these answers that change nothing.
SAME: set[str] = set()

three_merges_1 = (("an", "ban", "ana"), ("an", "ana", "s"))
three_merges_2 = [[("a", "n"), ("b", "an"), ("an", "a")], ["an", "ana", "s"]]


def price_of_a_language_1(tokenizer, texts):
    tokens = 0
    characters = 0
    for text in texts:
        tokens += len(tokenizer.encode(text))
        characters += len(text)
    return tokens / characters


def price_of_a_language_2(tokenizer, texts):
    sizes = np.array([[len(tokenizer.encode(text)), len(text)] for text in texts])
    return np.divide(*sizes.sum(0))


def one_digit_one_token_1(texts, vocab_size):
    pattern = GPT2_PATTERN.replace("N}+", "N}{1}")
    return BPETokenizer.train(texts, vocab_size, pattern=pattern)


def one_digit_one_token_2(texts, vocab_size):
    return BPETokenizer.train(texts, vocab_size, pattern=r" ?\p{N}|" + GPT2_PATTERN)


def fewest_tokens_1(tokenizer, piece):
    spelled = spell(piece)

    @cache
    def cut(rest):
        heads = [t for t in tokenizer.tokens[5:] if rest.startswith(t)]
        ways = [[tokenizer.ids[t], *cut(rest.removeprefix(t))] for t in heads]
        return min(ways, key=len, default=[])

    return np.array(cut(spelled))


def fewest_tokens_2(tokenizer, piece):
    """The shortest path, one token more at each turn."""
    spelled = spell(piece)
    tokens = {t: i for t, i in tokenizer.ids.items() if t not in tokenizer.special_tokens}
    paths = {0: ()}
    for _ in range(len(spelled)):
        if len(spelled) in paths:
            break
        longer = {}
        for place, path in paths.items():
            for token, index in tokens.items():
                if spelled.startswith(token, place):
                    longer.setdefault(place + len(token), (*path, index))
        paths = longer
    return paths[len(spelled)]


def as_the_tokens_come_1(tokenizer, ids):
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    hidden = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    for index in ids:
        if index not in hidden:
            spelled = tokenizer.tokens[index]
            yield decoder.decode(spelled.translate(BYTE_OF).encode("latin-1"))
    yield decoder.decode(b"", True)


def as_the_tokens_come_2(tokenizer, ids):
    seen = []
    given = ""
    for index in ids:
        seen = [*seen, index]
        text = re.sub("�+$", "", tokenizer.decode(seen))
        yield text[len(given) :]
        given = text
    yield tokenizer.decode(seen)[len(given) :]

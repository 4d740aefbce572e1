"""The two loops behind subword tokenizers: learn which pairs to merge, and merge them in a text.

Built in chapter 1. Paper: "Neural Machine Translation of Rare Words with Subword Units" (Sennrich
et al., 2016), section 3.2, whose algorithm this is, with counts kept up to date.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

__all__ = ["learn_merges", "merge_pairs"]


def learn_merges(
    words: Mapping[str, int], tokens: Sequence[str], vocab_size: int, prefix: str = ""
) -> tuple[list[str], list[tuple[str, str]]]:
    """Merge the most frequent pair of neighbours, again and again, and return what was learned.

    It ends when there are `vocab_size` tokens, or no pair is left. Of equally frequent pairs the
    one with the smaller ids is taken. A merge replaces its pair everywhere, from the left, so no
    two merges can make the same token.

    A word is a str whose characters are token ids: `chr(7)` is token 7. So Python's own string
    functions do the work: `str.split` and `str.join` merge a pair, and comparing pairs compares
    ids. Counts are not taken anew for each merge: they change only around the places of the pair,
    so that a word of n characters takes O(n) for each merge, however often it has the pair. A heap
    finds the largest. A pair gains places only in the step that makes the newer of its tokens;
    later its count can only fall, so that an entry of the heap may be too large, never too small.

    Args:
        words: how often each word occurs.
        tokens: the first tokens, in order of id.
        vocab_size: how many tokens there may be in the end.
        prefix: what a token loses when it is joined to the one before it.

    Returns:
        All tokens, and the merges, the first learned first.

    Example:
        >>> words = {chr(0) + chr(1) + chr(0) + chr(1) + chr(2): 3}  # "ababc", three times
        >>> learn_merges(words, ["a", "b", "c"], vocab_size=5)
        (['a', 'b', 'c', 'ab', 'abc'], [('a', 'b'), ('ab', 'c')])

    Built in chapter 1. Paper: Sennrich et al., section 3.2.
    """
    tokens, merges = list(tokens), []
    spelled, weights = list(words), list(words.values())
    counts: defaultdict[str, int] = defaultdict(int)
    places: defaultdict[str, list[int]] = defaultdict(list)
    for index, word in enumerate(spelled):
        for left, right in pairwise(word):
            counts[left + right] += weights[index]
            places[left + right].append(index)
    heap = [(-counts[pair], pair, where) for pair, where in places.items()]
    heapify(heap)
    while heap and len(tokens) < vocab_size:
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
            parts, weight = spelled[index].split(pair), weights[index]
            spelled[index] = new.join(parts)
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

    Built in chapter 1.
    """
    ids, end = [*ids, -1], len(ids)  # at both ends, as ids[-1] and ids[end], stands no token
    before, after = list(range(-1, end)), [*range(1, end + 1), end]
    heap = [(rules[pair][0], at) for at, pair in enumerate(pairwise(ids)) if pair in rules]
    heapify(heap)
    while heap:
        rank, at = heappop(heap)
        gone = after[at]
        rule = rules.get((ids[at], ids[gone]))
        if rule is None or rule[0] != rank:
            continue  # one of the two was merged in the meantime
        ids[at], ids[gone] = rule[1], -1
        after[at] = after[gone]
        before[after[at]] = at
        for start in (before[at], at):
            if found := rules.get((ids[start], ids[after[start]])):
                heappush(heap, (found[0], start))
    return [index for index in ids if index >= 0]

"""Byte-pair encoding against the library `tokenizers`, one thread each: same results, what time?

python benchmarks/byte_pair_encoding.py            12.6 MB of Python sources, 8192 tokens, 3 rounds
python benchmarks/byte_pair_encoding.py 3 4096 5   3 MB, 4096 tokens, 5 rounds

The rounds alternate between the two, so that a busy machine slows both.
"""

import json
import os
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "1"  # read when the library starts its threads
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from minitransformer import BPETokenizer


def corpus(size: float) -> list[str]:
    """The documents and sources of this Python, until there are `size` characters."""
    texts = list(topics.values())
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if sum(map(len, texts)) >= size:
            break
        if "site-packages" not in path.parts:
            texts.append(path.read_text(encoding="utf-8", errors="ignore"))
    return texts


def train_theirs(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """What the library learns with the settings of our BPETokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(BPETokenizer.special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds and result of a call."""
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def main() -> None:
    """Compare the files and ids, and print the seconds and their ratios."""
    numbers = [float(argument) for argument in sys.argv[1:]]
    size, vocab_size, rounds = numbers + [12.6, 8192, 3][len(numbers) :]
    texts = corpus(size * 1e6)
    print(f"{sum(map(len, texts)) / 1e6:.1f} million characters in {len(texts)} texts")
    seconds: dict[str, list[tuple[float, float]]] = {"training": [], "encoding": []}
    for _ in range(int(rounds)):
        ours, our_tokenizer = timed(BPETokenizer.train, texts, int(vocab_size))
        theirs, their_tokenizer = timed(train_theirs, texts, int(vocab_size))
        seconds["training"].append((ours, theirs))
        state = json.loads(json.dumps(our_tokenizer.to_dict()))
        assert state == json.loads(their_tokenizer.to_str()), "the vocabularies or merges differ"
        ours, our_ids = timed(lambda t: [t.encode(text) for text in texts], our_tokenizer)
        fast = their_tokenizer.encode_batch_fast  # without the places of tokens, like ours
        theirs, their_ids = timed(lambda f: [found.ids for found in f(texts)], fast)
        seconds["encoding"].append((ours, theirs))
        assert our_ids == their_ids, "the ids differ"
    print(f"{len(our_tokenizer.merges)} merges and {sum(map(len, our_ids)):,} ids are identical")
    print("seconds    minitransformer  tokenizers  ratio (medians)")
    for what, pairs in seconds.items():
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        print(f"{what:<10} {ours:>15.2f}  {theirs:>10.2f}  {ratio:>5.2f}")


if __name__ == "__main__":
    main()

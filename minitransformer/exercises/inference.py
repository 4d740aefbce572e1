"""The exercises of chapter 10, inference."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.inference.decoding import CachedDecoding
from minitransformer.models.config import TransformerConfig
from minitransformer.models.transformer import Transformer

BOS, EOS = 1, 2


@lru_cache
def numbers_in_caches(config: TransformerConfig, b: int, n: int, s: int) -> int:
    """Counted in the caches of a model that generates."""
    model = Transformer(config).eval()
    with torch.no_grad():
        step = CachedDecoding(model, torch.full((b, s), 5), BOS, max_new_tokens=n)
        step(step.prompts)
    stores = [x for cache in step.caches for x in cache.reserved or ()]
    for cache in step.caches:
        stores += [x for x in (cache.memory.keys, cache.memory.values) if x is not None]
    return sum(x.numel() for x in stores)


def counted(formula: Callable[..., int]) -> Callable[[TransformerConfig, int, int, int], int]:
    """A wrong answer: this formula of layers, width of keys, d, and b, n, s."""

    def answer(config: TransformerConfig, b: int, n: int, s: int) -> int:
        heads = config.num_kv_heads or config.num_heads
        width = heads * config.d_model // config.num_heads
        return formula(config, width, b, n, s)

    return answer


def small(**changes: int) -> TransformerConfig:
    """A configuration of one layer a side, or changed so."""
    tiny = TransformerConfig(
        src_vocab_size=7,
        tgt_vocab_size=8,
        d_model=4,
        num_heads=2,
        d_ff=5,
        num_encoder_layers=2,
        num_decoder_layers=1,
    )
    return replace(tiny, **changes)  # type: ignore[arg-type]


how_much_room = Exercise(
    function="cache_numbers",
    arguments=lambda: [
        (small(), 1, 1, 1),
        (small(), 2, 5, 3),
        (small(d_model=18, num_heads=6, num_decoder_layers=3), 2, 5, 3),
        (small(d_model=12, num_heads=6, num_kv_heads=2, num_decoder_layers=3), 2, 4, 7),
    ],
    right=numbers_in_caches,
    mistakes={
        "Keys and values are both stored: twice as many.": counted(
            lambda config, width, b, n, s: config.num_decoder_layers * b * (n + s) * width
        ),
        "The source's keys and values are missing, of cross-attention: {s} positions.": counted(
            lambda config, width, b, n, s: config.num_decoder_layers * 2 * b * n * width
        ),
        "With num_kv_heads a position keeps fewer pairs than there are heads.": (
            lambda config, b, n, s: config.num_decoder_layers * 2 * b * (n + s) * config.d_model
        ),
        "Every row has a cache of its own: b={b} times as many.": counted(
            lambda config, width, b, n, s: config.num_decoder_layers * 2 * (n + s) * width
        ),
        "Every decoder layer has a cache of its own.": counted(
            lambda config, width, b, n, s: 2 * b * (n + s) * width
        ),
        "The encoder caches nothing: it reads the source once. Decoder layers count.": counted(
            lambda config, width, b, n, s: config.num_encoder_layers * 2 * b * (n + s) * width
        ),
        "A position keeps num_kv_heads times the width of a head, d_model // num_heads; here it is "
        "the number of heads alone.": lambda config, b, n, s: (
            config.num_decoder_layers * 2 * b * (n + s) * (config.num_kv_heads or config.num_heads)
        ),
    },
    hints=(
        "How many numbers does one position keep, in one layer, for one text?",
        "Keys and values, for target positions and for source positions, in each decoder layer.",
        "What is stored, and what need not be, is in Nothing needs computing twice.",
    ),
)


def entropy(logits: Tensor, temperature: float) -> float:
    return float(torch.distributions.Categorical(logits=logits / temperature).entropy())


def temperature_where(logits: Tensor, nats: float) -> float:
    """By bisection of its logarithm."""
    low, high = math.log(0.01), math.log(100)
    logits = logits.double()
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy(logits, math.exp(middle)) < nats else (low, middle)
    return math.exp(low)


temperature_and_entropy = Exercise(
    function="temperature_for",
    arguments=lambda: [
        (torch.tensor([0.0, 1.0]), 0.5),
        (3 * random_tensors((12,))[0], 3.0),
        (3 * random_tensors((31,))[0], 1.0),
        (torch.tensor([0.0, 10.0]), 0.95),
        (torch.tensor([0.0, 0.2]), 0.1),
    ],
    right=lambda logits, bits: temperature_where(logits, bits * math.log(2)),
    mistakes={
        "Here the entropy is {bits:g} nats: bits have logarithms to the base 2.": (
            temperature_where
        ),
        "This is 1 over the temperature: logits are divided by it.": (
            lambda logits, bits: 1 / temperature_where(logits, bits * math.log(2))
        ),
        "Your bisection ends at 100: where the entropy is too small, the lower end moves up.": (
            lambda logits, bits: 100.0
        ),
        "Your bisection ends at 0.01: where the entropy is too large, the upper end moves down.": (
            lambda logits, bits: 0.01
        ),
        "This is the entropy at a temperature of 1. A temperature is asked for.": (
            lambda logits, bits: entropy(logits, 1.0) / math.log(2)
        ),
    },
    hints=(
        "First a function for the entropy at a temperature. Does it grow with the temperature?",
        "Keep two temperatures, one too low, one too high. The middle replaces one of them, again "
        "and again.",
        "What the temperature does to the logits: Temperature, top-k, top-p.",
    ),
    tolerance=2e-3,
)


def cut(logits: Tensor, kept: Tensor, rest: float = -math.inf) -> Tensor:
    return torch.where(kept, logits, rest)


min_p = Exercise(
    function="keep_likely",
    arguments=lambda: [
        (torch.tensor([0.5]), 0.3),
        (torch.tensor([0.6, 0.03, 0.3, 0.07]).log(), 0.1),
        (torch.tensor([[300.0, 299.0, 280.0], [-1.0, -4.0, -2.5]]), 0.2),
        (2 * random_tensors((4, 31))[0], 0.05),
        (2 * random_tensors((3, 7))[0], 1.0),
    ],
    right=lambda logits, m: cut(
        logits, logits.softmax(-1) >= m * logits.softmax(-1).amax(-1, keepdim=True)
    ),
    mistakes={
        "A token is kept here if its probability is at least m={m:g}; m is a share of the best.": (
            lambda logits, m: cut(logits, logits.softmax(-1) >= m)
        ),
        "The highest logit is multiplied by m. Probabilities are; logits are their logarithms.": (
            lambda logits, m: cut(logits, logits >= m * logits.amax(-1, keepdim=True))
        ),
        "m is subtracted from the highest logit; a factor of probabilities is its logarithm, in "
        "logits.": lambda logits, m: cut(logits, logits >= logits.amax(-1, keepdim=True) - m),
        "The sign of log m: m is below 1, and its logarithm is negative already.": (
            lambda logits, m: cut(logits, logits >= logits.amax(-1, keepdim=True) - math.log(m))
        ),
        "Every row has a best token of its own.": lambda logits, m: cut(
            logits, logits >= logits.max() + math.log(m)
        ),
        "The likely tokens are cut off, and the unlikely kept.": lambda logits, m: cut(
            logits, logits < logits.amax(-1, keepdim=True) + math.log(m)
        ),
        "What is cut off becomes 0 here, a logit like others; minus infinity has probability 0.": (
            lambda logits, m: cut(logits, logits >= logits.amax(-1, keepdim=True) + math.log(m), 0)
        ),
    },
    hints=(
        "Write the rule p_i >= m p_max with logits: which part of the softmax cancels?",
        "Take the logarithm of both sides. The edge lies below the highest logit of the row.",
        "Cut-off logits are treated in Temperature, top-k, top-p.",
    ),
    tolerance=1e-5,
)


class Writer:
    """A model made of a rule: the next token follows from the last one and the length."""

    MOST_CALLS = 150

    def __init__(self, name: str, text: list[int], wrong_at: tuple[int, ...] = ()) -> None:
        self.name, self.text, self.wrong_at, self.calls = name, text, wrong_at, 0

    def __repr__(self) -> str:
        return self.name

    def __call__(self, src: Tensor, ids: Tensor) -> Tensor:
        """Scores of the next token at every position, (1, t, v)."""
        self.calls += 1
        if self.calls > self.MOST_CALLS:
            raise RuntimeError(f"{self.name} is called without end: does the loop stop?")
        read = ids[0, 1:].tolist()  # behind <bos>
        rows = [[0.0] * 12 for _ in range(len(read) + 1)]
        for n, row in enumerate(rows):
            follows = self.text[n] if n < len(self.text) and read[:n] == self.text[:n] else 9
            wrong = 11 if n % 2 else 3  # above the right token, or below it
            row[wrong if n in self.wrong_at else follows] = 1.0
        return torch.tensor([rows])  # (1, t, v)


TEXT = [4, 7, 5, 5, 8, 6, 4, 10, 7, EOS]


def writers() -> list[tuple[Writer, Writer, Tensor, int, int]]:
    """Two models, a source, at most so many tokens, and so many in a draft."""
    cases = (
        ([4, EOS], (), 5, 1),
        ([4, 7, 5, EOS], (0,), 9, 2),
        (TEXT, (2, 3), 20, 4),
        (TEXT, (6,), 7, 2),
        (TEXT, (6,), 8, 2),
        (TEXT, (1,), 30, 3),
    )
    return [
        (Writer("large", text), Writer("small", text, wrong), torch.tensor([[5, EOS]]), most, k)
        for text, wrong, most, k in cases
    ]


def greedy_and_passes(
    large: Writer, small_one: Writer, src: Tensor, longest: int, draft_length: int
) -> tuple[Tensor, int]:
    """The large model's greedy text, and how often it is asked if the small one drafts."""
    text = large.text[:longest]
    passes = written = 0
    while written < len(text):
        agreed = 0
        while agreed < draft_length and written + agreed < len(text):
            if written + agreed in small_one.wrong_at:
                break
            agreed += 1
        written += agreed + 1
        passes += 1
    return torch.tensor(text), passes


def speculative(wrong: str) -> Callable[..., tuple[list[int], int]]:
    """A wrong answer."""

    def answer(
        large: Writer, small_one: Writer, src: Tensor, longest: int, draft_length: int
    ) -> tuple[list[int], int]:
        tokens, passes = [BOS], 0
        while len(tokens) <= longest and (tokens[-1] != EOS or wrong == "end"):
            draft = list(tokens)
            for _ in range(draft_length):
                draft.append(int(small_one(src, torch.tensor([draft]))[0, -1].argmax()))
            passes += 1 + (wrong == "passes") * draft_length
            choices = large(src, torch.tensor([draft]))[0].argmax(-1).tolist()
            for n in range(len(tokens) - 1, len(draft)):
                last = n + 1 == len(draft)
                if last and wrong == "one more":
                    break
                agrees = not last and (choices[n] == draft[n + 1] or wrong == "believes")
                tokens.append(
                    draft[n + 1] if agrees or (wrong == "keeps" and not last) else choices[n]
                )
                if (tokens[-1] == EOS and wrong != "end") or not agrees or wrong == "single":
                    break
        return tokens[1:] if wrong == "longest" else tokens[1 : longest + 1], passes

    return answer


a_small_model_drafts = Exercise(
    function="write_speculatively",
    arguments=writers,
    right=greedy_and_passes,
    mistakes={
        "The text is right; of a draft, all tokens that agree are kept in one pass, not one.": (
            speculative("single")
        ),
        "The text is right; but where the whole draft agrees, the large model's next token is "
        "known from the same pass.": speculative("one more"),
        "Passes of the large model are to be counted, not those of the small one.": (
            speculative("passes")
        ),
        "Where the two disagree, the large model's token is written, not the draft's.": (
            speculative("keeps")
        ),
        "The draft is believed: every token has to be what the large model would write there.": (
            speculative("believes")
        ),
        "It writes on after <eos>: accepted tokens end with it, too.": speculative("end"),
        "A pass may bring more tokens than longest={longest} allows: the text is cut there.": (
            speculative("longest")
        ),
    },
    hints=(
        "What the large model gives at position n is its choice for the token n + 1.",
        "Go through the draft until a token is not the large model's choice; then write its "
        "choice. If all agree, one choice is left over: write it, too.",
        "A greedy writer to start from is in The loop.",
    ),
)


def rescaled(left: Tensor) -> Tensor:
    return left / left.sum()


def right_draw(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """What keeps p[i] keep[i] + rejected rest[i] = q[i], solved for rest."""
    keep = (q / p).clamp(max=1)
    rejected = 1 - (p * keep).sum()
    return keep, (q - p * keep) / rejected


def drawn(
    keep: Callable[[Tensor, Tensor], Tensor], rest: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A wrong answer."""
    return lambda p, q: (keep(p, q), rest(p, q))


def right_keep(p: Tensor, q: Tensor) -> Tensor:
    return (q / p).clamp(max=1)


def right_rest(p: Tensor, q: Tensor) -> Tensor:
    return rescaled((q - p).clamp(min=0))


drafts_for_sampling = Exercise(
    function="keep_or_draw",
    arguments=lambda: [
        (torch.tensor([0.6, 0.4]), torch.tensor([0.3, 0.7])),
        (torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0.5, 0.0, 0.5])),
        tuple(2 * logits for logits in random_tensors((9,), (9,))),
    ],
    use=lambda mine, p, q: mine(p, q) if len(p) < 9 else mine(p.softmax(0), q.softmax(0)),
    right=lambda p, q: right_draw(p, q) if len(p) < 9 else right_draw(p.softmax(0), q.softmax(0)),
    mistakes={
        "q / p, and not p / q: a token that the large model likes more is always kept.": drawn(
            lambda p, q: (p / q).clamp(max=1), right_rest
        ),
        "A probability is at most 1: where q is larger than p, the token is kept.": drawn(
            lambda p, q: q / p, right_rest
        ),
        "This is the probability of a token to be drafted *and* kept; once drafted, it is kept "
        "with min(1, q / p).": drawn(torch.minimum, right_rest),
        "What is left of q does not add up to 1: rescale it.": drawn(
            right_keep, lambda p, q: (q - p).clamp(min=0)
        ),
        "After a rejection q itself is too much: what the drafts brought is left out of it.": (
            drawn(right_keep, lambda p, q: q)
        ),
        "What is left is of q, where it is larger than p; here it is of p.": drawn(
            right_keep, lambda p, q: rescaled((p - q).clamp(min=0))
        ),
        "The two results are exchanged: first with which probability a draft is kept.": (
            lambda p, q: (right_rest(p, q), right_keep(p, q))
        ),
        "Negative differences become 0, not positive: there is nothing left of q.": drawn(
            right_keep, lambda p, q: rescaled((q - p).abs())
        ),
    },
    hints=(
        "Two vectors, as long as p: the first has entries up to 1, the second adds up to 1.",
        "The first is the smaller of 1 and q / p; the second is q - p, without what is negative, "
        "divided by its sum.",
        "Drawing from a distribution that was changed: Temperature, top-k, top-p.",
    ),
)

"""The project of the dates: examples, and the laws that a translator made by the reader keeps."""

import ast
import math
import os
import random
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitransformer.exercises.projects.laws import (
    Verdict,
    alike,
    loaded,
    stirred,
    verdict,
    verdicts_of,
    want,
)

SECONDS = 360  # of processor time: three minutes on two cores
ACCURACY = 0.98
READY_MADE = {"minitransformer", "transformers", "MultiheadAttention", "LayerNorm", "layer_norm"}
READY_MADE |= {"Transformer", "TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer"}
READY_MADE |= {"TransformerDecoderLayer", "scaled_dot_product_attention", "RMSNorm", "rms_norm"}
MONTHS = "January February March April May June July August September October November December"
SMALL = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth"
)
SMALL += " fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
ORDINALS = [*SMALL.split(), *(f"twenty-{word}" for word in SMALL.split()[:9]), "thirtieth"]
ORDINALS += ["thirty-first"]
FIRST, LAST = date(1950, 1, 1).toordinal(), date(2049, 12, 31).toordinal()


# --- examples --------------------------------------------------------------------------------


def is_held_out(day: int) -> bool:
    """Whether an ordinal is one of the tenth of all days that never occur in training."""
    return day * 2_654_435_761 % 2**32 < 2**32 // 10


def written(day: date, rng: random.Random) -> str:
    """The day in one of twelve ways. Years of two digits lie between 1950 and 2049."""
    d, m, y, month = day.day, day.month, day.year, MONTHS.split()[day.month - 1]
    suffix = "th" if 10 < d < 20 else {1: "st", 2: "nd", 3: "rd"}.get(d % 10, "th")
    short = f"{y % 100:02}"
    text: str = rng.choice(
        [
            f"{d} {month} {y}",
            f"{month} {d}, {y}",
            f"{month[:3]} {d}{suffix}, {y}",
            f"the {ORDINALS[d - 1]} of {month}, {y}",
            f"{month} the {ORDINALS[d - 1]}, '{short}",
            f"{d}/{m}/{short} (UK)",
            f"{m}/{d}/{short} (US)",
            f"{d:02}/{m:02}/{y} (UK)",
            f"{m:02}/{d:02}/{y} (US)",
            f"{d}.{m}.{y}",
            f"{d:02}-{month[:3].upper()}-{short}",
            f"{y}, {month[:3]}. {d}",
        ]
    )
    return text


def examples(number: int, seed: int, held_out: bool = False) -> list[tuple[str, str]]:
    """Dates as people write them, and as ISO 8601 does.

    Example:
        >>> examples(2, seed=0)
        [('2/15/19 (US)', '2019-02-15'), ('06/16/1996 (US)', '1996-06-16')]
    """
    rng = random.Random(seed)
    found: list[tuple[str, str]] = []
    while len(found) < number:
        day = rng.randint(FIRST, LAST)
        if is_held_out(day) == held_out:
            then = date.fromordinal(day)
            found.append((written(then, rng), then.isoformat()))
    return found


def write_pairs(folder: Path) -> None:
    """Write the 20,000 pairs to train on, a pair a line with a tab between."""
    lines = "".join(f"{src}\t{tgt}\n" for src, tgt in examples(20_000, seed=0))
    (folder / "pairs.tsv").write_text(lines, encoding="utf-8")


# --- laws ------------------------------------------------------------------------------------


def batch(code: Any, pairs: list[tuple[str, str]], more: int = 0) -> tuple[Tensor, Tensor]:
    """Sources, and targets between <bos> and <eos>, with at least `more` columns of padding."""
    sources = [code.encode(src) for src, _ in pairs]
    want(None not in sources, "encode returns nothing yet.")
    targets = [[code.BOS, *code.encode(tgt), code.EOS] for _, tgt in pairs]
    src, tgt = (
        torch.tensor([row + [code.PAD] * (max(map(len, rows)) + more - len(row)) for row in rows])
        for rows in (sources, targets)
    )
    return src, tgt


PAIRS = [("3/5/98 (UK)", "1998-05-03"), ("the third of May, 1998", "1998-05-03"), ("1.2.2003", "2")]


def round_trip(code: Any) -> None:
    for text in {text for pair in examples(500, seed=3) for text in pair}:
        ids = code.encode(text)
        want(code.decode(ids) == text, f"decode(encode({text!r})) gives {code.decode(ids)!r}.")
        special = {code.PAD, code.BOS, code.EOS}
        want(len(special) == 3 and not special & {*ids}, f"encode({text!r}) has a special id.")
    ended = [code.BOS, *code.encode("1998"), code.EOS, *code.encode("7"), code.PAD]
    want(code.decode(ended) == "1998", "decode has to leave out special ids and stop at EOS.")


def attention_by_loops(code: Any) -> None:
    query, key, value = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 7)
    mask = torch.rand(2, 1, 4, 6) < 0.6
    mask[..., 0] = True
    for used, name in ((None, "without a mask"), (mask, "with a mask, True = may be attended")):
        expected = torch.zeros(2, 3, 4, 7)
        for b, h, q in ((b, h, q) for b in range(2) for h in range(3) for q in range(4)):
            scores = [query[b, h, q] @ key[b, h, k] / math.sqrt(5) for k in range(6)]
            powers = [s.exp() if used is None or used[b, 0, q, k] else 0 * s
                      for k, s in enumerate(scores)]  # fmt: skip
            terms = (p * value[b, h, k] for k, p in enumerate(powers))
            expected[b, h, q] = sum(terms) / sum(powers)
        found = code.attention(query, key, value, used)
        if used is not None and alike(found, code.attention(query, key, value, ~used)):
            want(False, "The mask changes nothing.")
        want(alike(found, expected), f"It differs from the formula in loops, {name}.")


def nothing_to_see(code: Any) -> None:
    query, key, value = (torch.randn(1, 1, 2, 4, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[True, True], [False, False]])
    output = code.attention(query, key, value, mask)
    want(alike(output[0, 0, 1], torch.zeros(4)), "A query that may see nothing has to get zeros.")
    output.sum().backward()
    want(
        all(map(finite, (query, key, value))),
        "A query that may see nothing gives gradients that are not finite.",
    )


def layer_norm(code: Any) -> None:
    x, weight, bias = 3 * torch.randn(2, 3, 8) + 1, torch.randn(8), torch.randn(8)
    found = code.layer_norm(x, weight, bias)
    expected = torch.nn.functional.layer_norm(x, (8,), weight, bias)
    want(alike(found, expected, 1e-3), "It differs from F.layer_norm over the last axis.")


def no_peeking(code: Any) -> None:
    model = stirred(code.Translator())
    src, tgt = batch(code, PAIRS[:2])
    logits = model(src, tgt)
    for place in range(1, tgt.size(1)):
        other = tgt.clone()
        other[:, place:] = code.encode("7")[0]
        seen = alike(model(src, other)[:, :place], logits[:, :place])
        want(seen, f"Logits before position {place} change with the target at {place} and after.")


def padding(code: Any) -> None:
    model = stirred(code.Translator())
    (src, tgt), (long_src, long_tgt) = batch(code, PAIRS[1:2]), batch(code, PAIRS[1:2], more=3)
    logits = model(src, tgt)
    want(alike(model(long_src, tgt), logits), "Padding behind the source changes the logits.")
    padded = model(src, long_tgt)[:, : tgt.size(1)]
    want(alike(padded, logits), "Padding behind the target changes the logits.")


def batches(code: Any) -> None:
    model = stirred(code.Translator())
    src, tgt = batch(code, PAIRS)
    logits = model(src, tgt)
    for row, pair in enumerate(PAIRS):
        alone_src, alone_tgt = batch(code, [pair])
        alone = model(alone_src, alone_tgt)[0]
        want(alike(logits[row, : len(alone)], alone), f"{pair[0]!r} alone gives other logits.")


def order(code: Any) -> None:
    model = stirred(code.Translator())
    (src, tgt), (other, _) = (batch(code, [(text, "1998-05-03")]) for text in ("3/5", "5/3"))
    want(not alike(model(src, tgt), model(other, tgt)), "3/5 and 5/3 give the same logits.")
    (other, _) = batch(code, [("4/5", "")])
    want(not alike(model(src, tgt), model(other, tgt)), "The source changes nothing.")
    swapped = tgt[:, [0, 2, 1, *range(3, tgt.size(1))]]
    late = slice(5, None)
    same = alike(model(src, tgt)[:, late], model(src, swapped)[:, late])
    want(not same, "The order of the target's beginning changes nothing.")


def loss(code: Any) -> None:
    model = stirred(code.Translator())
    src, tgt = batch(code, PAIRS, more=2)
    logits, targets = model(src, tgt[:, :-1]), tgt[:, 1:]
    rows = -logits.log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0]
    real = targets != code.PAD
    found = code.loss(model, src, tgt)
    if not alike(found, rows[real].mean()):
        want(not alike(found, rows.mean()), "Padding counts: take the mean over real tokens.")
        unshifted = -logits.log_softmax(dim=-1).gather(-1, tgt[:, :-1, None])[..., 0]
        same = alike(found, unshifted[tgt[:, :-1] != code.PAD].mean())
        want(not same, "The targets are not shifted: position i has to predict token i + 1.")
        want(False, f"It is {float(found):.4f}, expected {rows[real].mean():.4f}.")
    found.backward()
    for name, parameter in model.named_parameters():
        want(parameter.grad is not None, f"{name} gets no gradient.")
        want(finite(parameter), f"The gradient of {name} is not finite.")


def finite(tensor: Tensor) -> bool:
    """Whether it has got a gradient, all of whose numbers are finite."""
    return tensor.grad is not None and bool(tensor.grad.isfinite().all())


def greedy(code: Any) -> None:
    texts = [src for src, _ in PAIRS]
    for seed in range(3):
        model = stirred(code.Translator(), seed, amount=0.2)
        by_hand = []
        for text in texts:
            (src, _), ids = batch(code, [(text, "")]), [code.BOS]
            with torch.no_grad():
                while len(ids) <= 10 and ids[-1] != code.EOS:
                    ids.append(model(src, torch.tensor([ids]))[0, -1].argmax().item())
            by_hand.append(code.decode(ids))
        found = [code.translate(model, [text])[0] for text in texts]
        want(
            found == by_hand, f"translate gives {found[0]!r}, token by token it is {by_hand[0]!r}."
        )
        want(code.translate(model, texts) == by_hand, "A batch of texts gives other translations.")
        model.train()
        again = code.translate(model, texts)
        want(again == by_hand, "A model in training mode gives others: dropout has to be off.")


def learned(code: Any) -> None:
    pairs, held_out = examples(20_000, seed=0), examples(500, seed=1, held_out=True)
    started = spent()
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, threads))
    try:
        model = code.train(pairs)
    finally:
        torch.set_num_threads(threads)
    seconds = spent() - started
    texts = [src for src, _ in held_out]
    found = [x for i in range(0, 500, 50) for x in code.translate(model, texts[i : i + 50])]
    both = zip(found, held_out, strict=True)
    wrong = [(src, mine, tgt) for mine, (src, tgt) in both if mine != tgt]
    right = 1 - len(wrong) / len(held_out)
    example = "" if not wrong else "\n{!r} became {!r}, not {!r}.".format(*wrong[0])
    said = f"{right:.1%} of 500 held-out dates right; {ACCURACY:.0%} are asked for.{example}"
    want(right >= ACCURACY, said)
    said = f"It took {seconds:.0f} s of processor time; {SECONDS} s are allowed."
    want(seconds <= SECONDS, said)


def spent() -> float:
    """Seconds of processor time, of this process and of those it started that have ended."""
    return sum(os.times()[:4])


LAWS: dict[str, Callable[[Any], None]] = {
    "round trip": round_trip,
    "loop = vectorised (attention)": attention_by_loops,
    "a row with nothing to see": nothing_to_see,
    "equals torch (layer norm)": layer_norm,
    "no peeking": no_peeking,
    "padding is invisible": padding,
    "alone = in a batch": batches,
    "order and source matter": order,
    "the loss, and its gradients": loss,
    "greedy = by hand": greedy,
}


def own_parts(source: str) -> None:
    """Nothing ready-made is imported, or reached through a module that is."""
    nodes = list(ast.walk(ast.parse(source)))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {name.asname or name.name.split(".")[0] for node in imports for name in node.names}
    for node in nodes:
        names: set[str] = set()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {part for name in node.names for part in name.name.split(".")}
            names |= {*(getattr(node, "module", None) or "").split(".")}
        elif isinstance(node, ast.Attribute) and ast.unparse(node).split(".")[0] in imported:
            names |= {node.attr}
        used = sorted(names & READY_MADE)
        want(not used, f"Line {getattr(node, 'lineno', 0)} uses {', '.join(used)}; write your own.")


def verdicts(folder: Path) -> Iterator[Verdict]:
    """Those on all laws; if all are kept, then the one on a training."""
    with loaded(folder, "translator") as (code,):
        source = (folder / "translator.py").read_text(encoding="utf-8")
        found = [verdict("own parts", own_parts, source)]
        yield found[0]
        for one in verdicts_of(LAWS, code):
            found.append(one)
            yield one
        if any(one.fault for one in found):
            yield Verdict("held-out dates after training", "Tried once all laws are kept.")
        else:
            yield verdict("held-out dates after training", learned, code)

"""What chapter 19 says of more than one training: heads that matter, and how a circuit forms.

    python -m benchmarks.experiments.looking_inside      about 6 minutes of one core

numbers: small models of number words. In numbers such as 342, at the step that writes the German
units digit, each cross-attention head's weight on the English units word, weight times gradient,
loss of the logit difference when the head's output is replaced by its mean, and the share of the
difference that its output from another number carries over. Then heads are cut (uniform weights, or
each row's own weights shuffled), in order of attention, of what patching found, and at random, and
held-out numbers are translated.

circuit: decoder-only models on random segments that are repeated, of one layer and of two. In those
of two, what a head of the first layer writes is taken away from the second layer's queries, keys or
values alone, or given back to them alone.
"""

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

import minitransformer as mt
from benchmarks.runs import Row, Runs, options
from minitransformer.inspection import ablate, patch, record_activations
from minitransformer.tasks.number_words import HELD_OUT_PAIRS, number_in_words
from minitransformer.tasks.recipes import FAST
from minitransformer.training import new_optimizer

SHAPE = {"positional_encoding": "rotary", "d_model": 64, "d_ff": 128}
STEPS = 400
EXAMPLES, DRAWS = 128, 5
CUTS = (1, 2, 3, 4, 8)
VOCABULARY, LENGTH, PERIOD = 32, 32, 12
CIRCUIT: dict[str, Any] = {"num_heads": 4, "d_model": 64, "d_ff": 64, "norm_first": True}
CIRCUIT |= {"dropout": 0.0, "embedding_scale": 1.0}
RATE, CIRCUIT_STEPS, LOOKS = 1e-2, 600, 20


# --- number words


def translator(seed: int) -> Any:
    """A small model of chapter 9's task, trained with chapter 16's recipe."""
    recipe = FAST["number-words"]
    config = mt.TrainingConfig(seed=seed, **{**recipe.settings, "steps": STEPS})
    trainer = replace(recipe, model=SHAPE).new_trainer(config)
    trainer.fit(progress=False)
    trainer.model.eval()
    return trainer.trained()


def pairs_of(model: Any) -> list[Tensor]:
    """Numbers such as 342 and 347, the German before the units digit, and both next tokens."""
    rows = []
    for number in range(200, 1000):
        other = number - number % 10 + (number % 10 + 4) % 9 + 1
        if number % 100 < 20 or number % 10 == 0:
            continue
        if {number % 100, other % 100} & HELD_OUT_PAIRS:
            continue
        english, german = (
            [model.tokenizers[side].sequence_ids(number_in_words(n, lang)) for n in (number, other)]
            for side, lang in (("src", "en"), ("tgt", "de"))
        )
        same = next(i for i, (a, b) in enumerate(zip(*german, strict=False)) if a != b)
        rows.append((*english, [1, *german[0][:same]], german[0][same], german[1][same]))
    (shape, _), *_ = Counter((len(row[0]), len(row[2])) for row in rows).most_common(1)
    rows = [row for row in rows if (len(row[0]), len(row[2])) == shape]
    rows = random.Random(0).sample(rows, EXAMPLES)
    return [torch.tensor(column) for column in zip(*rows, strict=True)]


def heads_of_numbers(seed: int) -> Row:
    """What each cross-attention head looks at and does, and what breaks without some."""
    text_model = translator(seed)
    model = text_model.model
    clean, corrupted, written, yes, no = pairs_of(text_model)
    held_out = FAST["number-words"].splits(seed)["held_out"][:300]

    def difference(logits: Tensor) -> Tensor:
        last = logits[:, -1]  # (b, v)
        return (last.gather(1, yes[:, None]) - last.gather(1, no[:, None])).mean()

    attentions = [f"decoder.layers.{layer}.cross_attention" for layer in range(2)]
    heads = [(site, head) for site in attentions for head in range(4)]
    units = clean.size(1) - 2  # before the end
    kept: dict[str, Tensor] = {}
    with ExitStack() as patches:
        for site in attentions:

            def keep(weights: Tensor, site: str = site) -> Tensor:
                kept[site] = weights.detach().requires_grad_()
                return kept[site]

            patches.enter_context(patch(model, f"{site}.weights", keep))
        whole = difference(model(clean, written))
        gradients = dict(zip(attentions, torch.autograd.grad(whole, [*kept.values()]), strict=True))
    attention = [kept[site][:, h, -1, units].mean().item() for site, h in heads]
    gradient = [(kept[site] * gradients[site])[:, h, -1, units].sum().item() for site, h in heads]
    with torch.no_grad():
        with record_activations(model) as found:
            whole = difference(model(clean, written))
        base = difference(model(corrupted, written))
        ablated, patched = [], []
        for site, head in heads:
            with ablate(model, f"{site}.heads", heads=[head], positions=[-1]):
                ablated.append((whole - difference(model(clean, written))).item())
            with patch(model, f"{site}.heads", found[f"{site}.heads"], heads=[head]):
                carried = difference(model(corrupted, written)) - base
                patched.append((carried / (whole - base)).item())

        def without(cut: Sequence[int], change: Callable[[Tensor], Tensor]) -> float:
            with ExitStack() as patches:
                for site, head in (heads[index] for index in cut):
                    patches.enter_context(patch(model, f"{site}.weights", change, heads=[head]))
                return text_model.exact_match(held_out[:100])

        orders = {
            name: sorted(range(8), key=lambda index, values=values: -values[index])
            for name, values in (("attention", attention), ("patching", patched))
        }
        draws = [random.Random(draw).sample(range(8), 8) for draw in range(DRAWS)]
        cuts: Row = {}
        generator = torch.Generator().manual_seed(seed)
        for kind, change in (("right", uniform), ("shuffled", partial(shuffled, generator))):
            cuts[kind] = {
                name: [without(order[:count], change) for count in CUTS]
                for name, order in orders.items()
            }
            cuts[kind]["random"] = [
                statistics.fmean(without(draw[:count], change) for draw in draws) for count in CUTS
            ]
    measures = {"attention": attention, "gradient": gradient, "ablated": ablated}
    return {
        "held_out": text_model.exact_match(held_out),
        **measures,
        "patched": patched,
        "with patching": {
            name: float(stats.spearmanr(values, patched).statistic)
            for name, values in measures.items()
        },
        **cuts,
    }


def uniform(weights: Tensor) -> Tensor:
    """The same weight for everything that is seen."""
    seen = (weights > 0).to(weights.dtype)
    return seen / seen.sum(-1, keepdim=True)


def shuffled(generator: torch.Generator, weights: Tensor) -> Tensor:
    """Each query's own weights in another order, over what it sees, which comes first."""
    noise = torch.rand(weights.shape, generator=generator).masked_fill(weights <= 0, 2.0)
    return weights.gather(-1, noise.argsort(-1))


# --- a circuit


def repeated(count: int, generator: torch.Generator) -> Tensor:
    """Rows of a random segment of 4 to 12 tokens, repeated to the end, (count, LENGTH)."""
    rows = []
    for period in torch.randint(4, PERIOD + 1, (count,), generator=generator).tolist():
        segment = torch.randint(1, VOCABULARY, (period,), generator=generator)
        rows.append(segment.repeat(LENGTH // period + 1)[:LENGTH])
    return torch.stack(rows)


def train_circuit(seed: int, num_layers: int) -> tuple[Any, list[Row]]:
    """A decoder-only model on repeated segments, and what it could do on the way."""
    generator = torch.Generator().manual_seed(seed)
    config = mt.TransformerConfig.decoder_only(VOCABULARY, num_layers=num_layers, **CIRCUIT)
    model = mt.DecoderOnlyTransformer(config, generator)
    optimizer = new_optimizer(model, mt.TrainingConfig(optimizer="muon"))
    looks = []
    for step in range(CIRCUIT_STEPS + 1):
        if step % LOOKS == 0:
            looks.append({"step": step, **look(model)})
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 30, 2 * (1 - step / (CIRCUIT_STEPS + 1)))
        rows = repeated(32, generator)
        loss = mt.next_token_loss(model, rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, looks


@torch.no_grad()
def look(model: Any) -> Row:
    """The second copy's loss from its second token on, and each head's scores.

    Segments have 5 to PERIOD tokens: a head that always looks as far back cannot follow them all.
    """
    generator = torch.Generator().manual_seed(99)
    periods = torch.arange(5, PERIOD + 1).repeat_interleave(8)[:, None]  # (b, 1)
    segments = [
        torch.randint(1, VOCABULARY, (p,), generator=generator) for (p,) in periods.tolist()
    ]
    rows = torch.stack([segment.repeat(5)[: 2 * PERIOD] for segment in segments])
    query = torch.arange(2 * PERIOD)
    known = (query >= periods) & (query < 2 * periods - 1)  # (b, q)
    with record_activations(model) as found:
        logits = model(rows)
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), rows[:, 1:], reduction="none")
    weights = [x for site, x in found.items() if site.endswith(".weights")]
    place = (
        (query - periods + 1).clamp(min=0)[:, None, :, None].expand(-1, weights[0].size(1), -1, 1)
    )
    return {
        "loss": losses[known[:, :-1]].mean().item(),
        "previous": [w.diagonal(-1, -2, -1).mean((0, 2)).tolist() for w in weights],
        "induction": [
            w.gather(-1, place)[..., 0].transpose(1, 2)[known].mean(0).tolist() for w in weights
        ],
    }


@torch.no_grad()
def lesions(model: Any) -> list[list[Row]]:
    """The loss and the last layer's best score without each head, by layer: its mean instead."""
    found: list[list[Row]] = []
    for layer in range(len(model.decoder.layers)):
        found.append([])
        for head in range(CIRCUIT["num_heads"]):
            with ablate(model, f"decoder.layers.{layer}.self_attention.heads", heads=[head]):
                there = look(model)
            found[-1].append({"loss": there["loss"], "score": max(there["induction"][-1])})
    return found


@torch.no_grad()
def paths(model: Any) -> list[Row]:
    """For each head of the first layer, what of it the second layer's attention needs, and where.

    cut: it is away for the queries, keys or values alone. kept: it is there for these alone.
    """
    attention = model.decoder.layers[1].self_attention
    parts = {"queries": attention.w_q, "keys": attention.w_k, "values": attention.w_v}

    def run(outputs: dict[str, Tensor]) -> tuple[Row, dict[str, Tensor]]:
        """Loss and best score with other outputs of these parts, and the model's own outputs."""
        found: dict[str, Tensor] = {}

        def part(name: str, module: Any, args: Any, output: Tensor) -> Tensor | None:
            found[name] = output
            return outputs.get(name)

        hooks = [each.register_forward_hook(partial(part, name)) for name, each in parts.items()]
        there = look(model)
        for hook in hooks:
            hook.remove()
        return {"loss": there["loss"], "score": max(there["induction"][-1])}, found

    whole = run({})[1]
    results = []
    for head in range(CIRCUIT["num_heads"]):
        with ablate(model, "decoder.layers.0.self_attention.heads", heads=[head]):
            away = run({})[1]
            kept = {name: run({name: whole[name]})[0] for name in parts}
        results.append({"kept": kept, "cut": {name: run({name: away[name]})[0] for name in parts}})
    return results


def circuit(num_layers: int, seed: int) -> Row:
    """How a model learns to repeat, and what it cannot do without."""
    model, looks = train_circuit(seed, num_layers)
    found = {"looks": looks, "without": lesions(model)}
    return found | {"paths": paths(model)} if num_layers == 2 else found


# --- all of it


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all models, and write what was found, a file for each part."""
    parser = options(__doc__ or "", "looking_inside.json", range(5))
    parser.add_argument("--part", choices=["numbers", "circuit"], help="both when left out")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    kinds: dict[str, tuple[list[Any], dict[str, Callable[[int], Row]]]] = {
        "numbers": ([STEPS, SHAPE, "shuffled"], {"numbers": heads_of_numbers}),
        "circuit": (
            [CIRCUIT, RATE, CIRCUIT_STEPS, "segments of 5 to 12", "paths"],
            {"two layers": partial(circuit, 2), "one layer": partial(circuit, 1)},
        ),
    }
    for part, (plan, makers) in kinds.items():
        if chosen.part in (None, part):
            out = chosen.out.with_stem(f"{chosen.out.stem}_{part}")
            runs = Runs(out, chosen.seeds, *plan)
            found = {
                name: [runs.run(f"{name}, {seed}", partial(make, seed)) for seed in chosen.seeds]
                for name, make in makers.items()
            }
            runs.finish({"seeds": chosen.seeds, **found})


if __name__ == "__main__":
    main()

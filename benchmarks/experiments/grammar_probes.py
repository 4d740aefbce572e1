"""What chapter 19 says of grammar: which layer knows number, gender and case, by probes.

    python -m benchmarks.experiments.grammar_probes      about 10 minutes of one core

Five models of chapter 8's sentences, trained with chapter 16's recipe. German needs number, gender
and case of a noun to choose between der, die, das, den and dem, where English has "the". After
the embedding and after each layer of the encoder, a linear classifier reads each of the three at
"the" and at its noun. The control task gives every form of a noun, such as "dogs", a label at
random (Hewitt & Liang, 2019). Classes are equally frequent, so that a guess is right once in two
times (number) or three (gender, case).

Are these directions used? At "the", the difference of two means is added to the encoder's output:
that of phrases which are alike in two properties and differ in the third. If the decoder reads the
property there, the German article changes to that of the other class, and nothing else does. A
step of the same length in a random direction is the control.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import minitransformer as mt
from benchmarks.runs import Row, Runs, options
from minitransformer.inspection import linear_probe, record_activations
from minitransformer.inspection import patch as patched
from minitransformer.tasks import grammar
from minitransformer.tasks.inflection import german_ending
from minitransformer.tasks.recipes import FAST

EXAMPLES = 3_000  # of each property, half of them to fit the classifier
TRANSLATED = 100
ANSWERS = ("article", "same", "other")
CLASSES = {"number": "sp", "gender": "mfn", "case": ("nom", "acc", "dat")}
BATCH = 250
Found = dict[str, Any]


def noun_phrases(seed: int) -> Iterator[Found]:
    """Sentences with one phrase such as "the old dog", what German asks of it, and where it is."""
    generator = random.Random(f"probes {seed}")
    drawn: list[Found] = []

    def noun_phrase(determiner: Any, adjective: Any, noun: Any, number: str, case: str) -> Any:
        """The grammar's own, which notes what it was asked for."""
        made = real(determiner, adjective, noun, number, case)
        drawn.append({"words": made.en, "number": number, "gender": noun.gender, "case": case})
        drawn[-1] |= {"entry": noun, "phrase": made.de}
        return made

    real = grammar.noun_phrase
    while True:
        drawn.clear()
        with patch.object(grammar, "noun_phrase", noun_phrase):
            sentence, german = grammar.draw_sentence(generator)[0]
        said = re.findall(r"\w+|[.,]", sentence)
        for found in drawn:
            words = found["words"].split()
            starts = [i for i in range(len(said)) if said[i : i + len(words)] == words]
            if words[0] == "the" and len(starts) == 1:
                places = {"the": starts[0], "noun": starts[0] + len(words) - 1}
                yield found | places | {"type": words[-1], "sentence": sentence, "german": german}


def balanced(seed: int) -> dict[str, list[Found]]:
    """Examples for each property, whose classes are equally frequent."""
    wanted = {name: EXAMPLES // len(classes) for name, classes in CLASSES.items()}
    found: dict[str, dict[str, list[Found]]] = {name: defaultdict(list) for name in CLASSES}
    for phrase in noun_phrases(seed):
        for name, classes in found.items():
            if len(classes[phrase[name]]) < wanted[name]:
                classes[phrase[name]].append(phrase)
        if all(
            len(found[name][each]) == wanted[name]
            for name, classes in CLASSES.items()
            for each in classes
        ):
            break
    return {name: [*chain.from_iterable(classes.values())] for name, classes in found.items()}


def streams(translator: Any, phrases: Sequence[Found], place: str) -> list[Tensor]:
    """The residual stream at a place of each sentence, after the embedding and each layer."""
    model, tokenizer = translator.model, translator.tokenizers["src"]
    layers = [f"encoder.layers.{i}" for i in range(model.config.num_encoder_layers)]
    names = ["encoder.layers.0.residual_1.before", *(f"{x}.residual_2.after" for x in layers)]
    kept: list[list[Tensor]] = []
    for at in range(0, len(phrases), BATCH):
        batch = phrases[at : at + BATCH]
        rows = [tokenizer.sequence_ids(phrase["sentence"]) for phrase in batch]
        for row, phrase in zip(rows, batch, strict=True):
            said = tokenizer.decode([row[phrase[place]]])
            assert said == ("the" if place == "the" else phrase["type"]), phrase
        ids = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True)
        with torch.no_grad(), record_activations(model, *names) as found:
            model.encode(ids)
        where = torch.tensor([phrase[place] for phrase in batch])
        kept.append([found[name][torch.arange(len(batch)), where] for name in names])  # (b, d)
    return [torch.cat(each) for each in zip(*kept, strict=True)]


def article(phrase: Found) -> str:
    """The German article of a phrase: der, die, das, den or dem."""
    noun = phrase["entry"]._replace(gender=phrase["gender"])
    return "d" + german_ending("article", noun, phrase["number"], phrase["case"])


def steered(translator: Any, phrases: Sequence[Found], name: str, seed: int) -> Row:
    """What a step from one class of a property to another changes, at "the" in the encoder."""
    model, draw = translator.model, random.Random(f"steered {seed} {name}")
    site = f"encoder.layers.{model.config.num_encoder_layers - 1}.residual_2.after"
    states = streams(translator, phrases, "the")[-1]
    classes = [tuple(phrase[each] for each in CLASSES) for phrase in phrases]
    means = {
        one: states[torch.tensor([each == one for each in classes])].mean(0) for one in {*classes}
    }
    generator = torch.Generator().manual_seed(seed)
    results: dict[str, Counter[str]] = {"step": Counter(), "random": Counter()}
    for phrase in draw.sample(phrases, len(phrases)):
        new = phrase | {name: draw.choice([c for c in CLASSES[name] if c != phrase[name]])}
        before, _, after = phrase["german"].partition(phrase["phrase"])
        if article(new) == article(phrase) or phrase["german"].count(phrase["phrase"]) != 1:
            continue  # such as die in two cases, and im for in dem
        step = means[tuple(new[each] for each in CLASSES)]
        step = step - means[tuple(phrase[each] for each in CLASSES)]
        rest = phrase["phrase"].removeprefix(article(phrase))
        answers = {before + article(new) + rest + after: "article", phrase["german"]: "same"}
        noise = torch.randn(len(step), generator=generator)
        for kind, change in (("step", step), ("random", noise / noise.norm() * step.norm())):
            with patched(model, site, partial(torch.add, change), positions=[phrase["the"]]):
                german = translator.translate([phrase["sentence"]])[0]
            results[kind][answers.get(german, "other")] += 1
        if results["step"].total() == TRANSLATED:
            break
    return {kind: {a: counts[a] / TRANSLATED for a in ANSWERS} for kind, counts in results.items()}


def probes(seed: int) -> Row:
    """One training: held-out sentences right, and accuracy and control by place and property."""
    recipe = FAST["grammar"]
    trainer = recipe.new_trainer(mt.TrainingConfig(seed=seed, **recipe.settings))
    trainer.fit(progress=False)
    trainer.model.eval()
    translator = trainer.trained()
    found: Row = {"held_out": translator.exact_match(recipe.splits(seed)["held_out"][:300])}
    for name, phrases in balanced(seed).items():
        words = sorted({phrase["type"] for phrase in phrases})
        types = torch.tensor([words.index(phrase["type"]) for phrase in phrases])
        labels = torch.tensor([CLASSES[name].index(phrase[name]) for phrase in phrases])
        for place in ("the", "noun"):
            found_there = streams(translator, phrases, place)
            results = [linear_probe(x, labels, types, seed=seed) for x in found_there]
            found.setdefault(place, {})[name] = {
                "accuracy": [result.accuracy for result in results],
                "control": [result.control for result in results],
            }
        found.setdefault("steered", {})[name] = steered(translator, phrases, name, seed)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all models, and write what the probes found."""
    chosen = options(__doc__ or "", "grammar_probes.json", range(5)).parse_args(arguments)
    torch.set_num_threads(1)
    runs = Runs(chosen.out, chosen.seeds, FAST["grammar"].settings, EXAMPLES, TRANSLATED)
    found = [runs.run(f"probes, {seed}", partial(probes, seed)) for seed in chosen.seeds]
    runs.finish({"seeds": chosen.seeds, "probes": found})


if __name__ == "__main__":
    main()

"""The model in JavaScript, `_static/live/model.mjs`: every number is the package's."""

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from helpers import (
    MODELS,
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    shaken,
    small_config,
    small_model,
)

import live_model
import minitransformer as mt
from minitransformer.inference.sampling import next_token_probs
from minitransformer.layers.attention import ScaledDotProductAttention
from minitransformer.tasks.number_words import number_in_words

NUMBERS = [0, 7, 12, 16, 42, 100, 342, 976_042, 3_000_040, 1_000_005]
"""Their words are ten inputs of the page's first model."""
PROMPTS = ["ROMEO:", "To be, or not to be", "O", "KING HENRY VI:\nI", "\n", "Ünsinn ☃", "Good"]
PROMPTS += ["A plague", "Nay, but this dotage of our general's", "  FIRST witch:"]
"""Of the model that continues a text."""

float32 = partial(torch.tensor, dtype=torch.float32)
SOURCE = SRC_IDS[:1, :6]
HOST = "http://live.test/"
EXPLAIN = """async ([folder, source, target]) => {
    const [{ Model, readTensors }, { boxes, outputBox }, { explain }] = await Promise.all(
        ["./model.mjs", "./parts.mjs", "./formulas.mjs"].map((module) => import(module)));
    const file = (name) => fetch(`${folder}/${name}`);
    const tensors = readTensors(await (await file("model.safetensors")).arrayBuffer());
    const model = new Model(await (await file("config.json")).json(), tensors);
    const memory = source && model.encode(source);
    const trace = {};
    model.decode(trace, target, memory);
    const rows = (name) => trace[name] ?? memory[name];
    const found = [];
    const sides = source ? { encoder: source, decoder: target } : { decoder: target };
    for (const [side, ids] of Object.entries(sides)) {
        const all = boxes(model.config, side);
        if (side === "decoder") all.push(outputBox());
        for (const step of all.flatMap(({ steps }) => steps)) {
            const where = step.of ?? side;
            for (let i = 0; i < sides[where].length; i++) {
                const row = rows(step.name)[i];
                const head = i % model.config.num_heads;
                const numbers = step.byKey ? row[head] : row;
                const at = i % numbers.length;
                const entry = { i, j: at, key: at, head, id: sides[where][i] };
                const { value, formula, numbers: text } = explain(step, model, rows, entry);
                found.push([step.name, step.label, i, value, numbers[at], formula + text]);
            }
        }
    }
    return found;
}"""
"""Every step of every box, explained for an entry of each row, and what the trace has there."""
COMPUTE = """async ([folder, source, chunks]) => {
    const { Model, readTensors } = await import("./model.mjs");
    const file = (name) => fetch(`${folder}/${name}`);
    const tensors = readTensors(await (await file("model.safetensors")).arrayBuffer());
    const model = new Model(await (await file("config.json")).json(), tensors);
    const memory = source && model.encode(source);
    const trace = {};
    for (const ids of chunks) model.decode(trace, ids, memory);
    const plain = (x) => Array.isArray(x) || ArrayBuffer.isView(x) ? Array.from(x, plain) : x;
    return JSON.stringify(plain(Object.entries({ ...memory, ...trace })));
}"""
"""All that a model computes for a source and for a target that it reads in chunks."""


@pytest.fixture(scope="module")
def compute(browser):
    """A function of a folder, a source and a target, which runs a program on them."""
    served = {}

    def answer(route):
        name = route.request.url.removeprefix(HOST)
        if name == "live/":
            return route.fulfill(body="<title>a page</title>", content_type="text/html")
        model = "live/model/"
        inside = name.removeprefix(model)
        path = served["model"] / inside if inside != name else live_model.FOLDER.parent / name
        return route.fulfill(path=path) if path.exists() else route.fulfill(status=404)

    with browser.new_context() as context:
        context.route(f"{HOST}**", answer)
        page = context.new_page()
        page.goto(f"{HOST}live/")

        def run(folder, source, target, program=COMPUTE):
            served["model"] = folder
            return page.evaluate(program, ["model", source, target])

        yield run


STEPS = {"scores", "positions", "sum", "probabilities"}
"""What a trace holds beside the outputs of modules."""


def trace_of(text):
    """The rows of a trace by their names."""
    return dict(json.loads(text))


def package_numbers(model, *inputs):
    """What the package computes, under the names of a trace: rows of vectors, lists of weights."""
    numbers = {}
    config = model.config
    group = config.num_heads // (config.num_kv_heads or config.num_heads)  # share their keys

    def keep(name, tensor):
        numbers[name] = tensor[0].tolist()

    def made(name, module, args, output):
        if isinstance(module, ScaledDotProductAttention):
            owner, (queries, keys, values) = name.rpartition(".")[0], args[:3]
            parts = {"queries": queries, "heads": output}
            parts |= {"keys": keys[:, ::group], "values": values[:, ::group]}
            for what, tensor in parts.items():
                keep(f"{owner}.{what}", tensor.transpose(1, 2).flatten(2))
        elif isinstance(output, torch.Tensor) and output.dim() == 3:
            keep(name, output)
            if name in ("encoder", "decoder"):
                keep(f"{name}.input", args[0])
            if name.endswith(".w_2"):
                keep(name.replace("w_2", "inner"), args[0])

    with ExitStack() as hooks, torch.inference_mode():
        for name, module in model.eval().named_modules():
            hooks.enter_context(module.register_forward_hook(partial(made, name)))
        maps = hooks.enter_context(mt.record_attention(model))
        model(*inputs)
    for name, weights in maps.items():
        numbers[f"{name}.weights"] = weights[0].transpose(0, 1).tolist()  # (q, h, k)
    return numbers


def assert_same_numbers(found, model, inputs, tolerance):
    """A trace holds what every layer with parameters computes, and nothing else but some steps."""
    expected = package_numbers(model, *inputs)
    layers = {name.rpartition(".")[0] for name, _ in model.named_parameters()} - {"positions"}
    assert layers - found.keys() == set()
    steps = {name for name in found if name.rpartition(".")[2] in STEPS}
    if model.config.share_embeddings:  # one module for both sides: what enters the stacks tells
        steps |= {"src_embedding", "tgt_embedding"}
    for name in found.keys() - steps:
        if not name.endswith("weights"):
            assert_same(float32(found[name]), float32(expected[name]), tolerance)
            continue
        for row, wanted in zip(found[name], expected[name], strict=True):
            seen = len(row[0])
            assert_same(float32(row), float32(wanted)[:, :seen], tolerance)
            assert not float32(wanted)[:, seen:].any()  # the future, which a trace leaves out


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("new_model", [small_model, decoder_only_model])
def test_any_model_of_the_package(compute, tmp_path, changes, new_model):
    model = new_model(**changes)
    model.save_pretrained(tmp_path)
    target = TGT_IDS[:1]
    chunks = [target[0, :2].tolist(), [target[0, 2].item()], target[0, 3:].tolist()]
    inputs = (SOURCE, target) if model.config.num_encoder_layers else (target,)
    found = trace_of(compute(tmp_path, SOURCE[0].tolist() if len(inputs) == 2 else None, chunks))
    assert_same_numbers(found, model, inputs, 1e-5)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "reglu", "geglu"])
def test_every_activation(compute, tmp_path, activation):
    config = small_config(activation=activation, positional_encoding="rotary", rotary_layout="half")
    config = replace(config, src_vocab_size=config.tgt_vocab_size, share_embeddings=True)
    model = shaken(mt.Transformer(config))
    model.save_pretrained(tmp_path)
    found = trace_of(compute(tmp_path, SOURCE[0].tolist(), [TGT_IDS[0].tolist()]))
    assert_same_numbers(found, model, (SOURCE, TGT_IDS[:1]), 3e-5)


loaded = cache(lambda name: live_model.read_model(live_model.FOLDER / name))
"""The package's model with the page's weights, and its tokenizers."""


def inputs_of(name):
    """Ten texts that the model of this name translates or continues."""
    if name == live_model.WRITER:
        return PROMPTS
    if name == "number_words":
        return [number_in_words(number, "en") for number in NUMBERS]
    return [pair.src for pair in mt.grammar_sentences(num_train=1, num_held_out=10)["held_out"]]


@pytest.mark.parametrize("name", live_model.MODELS)
def test_page_s_models_for_ten_inputs_each(compute, name):
    model, tokenizers = loaded(name).model, loaded(name).tokenizers
    texts = inputs_of(name)
    assert len({len(text) for text in texts}) > 5
    if isinstance(loaded(name), mt.Translator):
        answers = loaded(name).translate(texts)
        sources = [tokenizers["src"].sequence_ids(text) for text in texts]
        targets = [tokenizers["tgt"].begin(answer) for answer in answers]
    else:
        answers = loaded(name).complete(texts, max_new_tokens=24)
        sources = [None] * len(texts)
        pairs = zip(texts, answers, strict=True)
        targets = [tokenizers["text"].begin(text + answer) for text, answer in pairs]
    for source, target in zip(sources, targets, strict=True):
        found = trace_of(compute(live_model.FOLDER / name, source, [[token] for token in target]))
        inputs = [torch.tensor([ids]) for ids in (source, target) if ids]
        assert_same_numbers(found, model, inputs, 1e-4)


# --- what is said about the numbers ------------------------------------------------------------

EXPLAINED = {
    "post-norm": {},
    "all at once": MODELS["all at once"],
    "learned": {"positional_encoding": "learned", "norm_first": True, "activation": "gelu"},
    "half": {"positional_encoding": "rotary", "rotary_layout": "half"},
    "alibi": {"positional_encoding": "alibi", "activation": "gelu_tanh"},
}


@pytest.mark.parametrize("changes", EXPLAINED.values(), ids=EXPLAINED.keys())
@pytest.mark.parametrize("new_model", [small_model, decoder_only_model])
def test_every_formula_gives_the_number(compute, tmp_path, changes, new_model):
    model = new_model(**changes)
    model.save_pretrained(tmp_path)
    source = SOURCE[0].tolist() if model.config.num_encoder_layers else None
    explained = compute(tmp_path, source, TGT_IDS[0].tolist(), EXPLAIN)
    assert len(explained) > 100
    for name, label, position, value, expected, text in explained:
        assert value == pytest.approx(expected, abs=1e-4), (name, label, position)
        assert not re.search("undefined|NaN", text), (name, label, text)


def test_every_line_of_code_is_the_package_s(compute):
    code = compute(None, None, None, "async () => (await import('./parts.mjs')).CODE")
    package = live_model.FOLDER.parent.parent / "minitransformer"
    source = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    lines = {line.strip() for line in source.splitlines()}
    assert set(code.values()) - lines == set()


# --- the next token ----------------------------------------------------------------------------

PROBS = """async ([, scores, settings]) => {
    const { nextTokenProbs } = await import("./sampling.mjs");
    return settings.map((one) => Array.from(nextTokenProbs(scores, one)));
}"""
ENDLESS = """async ([, cases]) => {
    const { Translator } = await import("./translator.mjs");
    return Promise.all(cases.map(async ([name, text]) => {
        const translation = (await Translator.load(name)).begin(text);
        while (!translation.ended) translation.step(() => 50);
        return translation.ids.length;
    }));
}"""
BEAM = """async ([, text, settings]) => {
    const { Translator } = await import("./translator.mjs");
    const translation = (await Translator.load("number_words")).begin(text);
    return settings.map((one) => translation.beam(one).ended[0].tokens);
}"""


def test_texts_without_an_end_are_cut_off(compute):
    cases = [["number_words", "one"], ["grammar", "We sleep."], ["shakespeare", "ROMEO:"]]
    assert compute(None, cases, None, ENDLESS) == [40, 40, 60]
    pairs = mt.grammar_sentences(num_train=3000, num_held_out=1)["train"]
    tokenizer = loaded("grammar").tokenizers["tgt"]
    assert max(len(tokenizer.sequence_ids(pair.tgt)) for pair in pairs) < 40


def test_probabilities_are_the_package_s(compute):
    scores = torch.randn(50, generator=torch.Generator().manual_seed(0))
    settings = [
        {},
        {"temperature": 0.3},
        {"temperature": 1.7, "topK": 5},
        {"topK": 1},
        {"topP": 0.5},
        {"temperature": 2.0, "topK": 20, "topP": 0.8},
    ]
    names = {"temperature": "temperature", "topK": "top_k", "topP": "top_p"}
    for found, one in zip(compute(None, scores.tolist(), settings, PROBS), settings, strict=True):
        options = {names[name]: value for name, value in one.items()}
        assert_same(float32(found), next_token_probs(scores, **options), 1e-6)


@pytest.mark.parametrize("text", ["one million five", "two thousand forty-two"])
def test_beam_search_finds_what_the_package_finds(compute, text):
    ours = loaded("number_words")
    source = torch.tensor([ours.tokenizers["src"].sequence_ids(text)])
    settings = [{"width": 2, "alpha": 0.6}, {"width": 5, "alpha": 0}, {"width": 4, "alpha": 2}]
    found = compute(None, text, settings, BEAM)
    for ids, one in zip(found, settings, strict=True):
        options = {"num_beams": one["width"], "length_penalty": one["alpha"]}
        assert ids == mt.generate(ours.model, source, **options)[0].tolist()


# --- what is typed -----------------------------------------------------------------------------

UNDERSTAND = """async ([, texts]) => {
    const { understand } = await import("./understand.mjs");
    const { sourceTokenizer } = await import("./translator.mjs");
    const names = ["number_words", "grammar"];
    const cutters = Object.fromEntries(
        await Promise.all(names.map(async (name) => [name, await sourceTokenizer(name)])));
    return texts.map((text) => understand(text, cutters));
}"""
READS = {
    "342": "three hundred forty-two",
    "1,234": "one thousand two hundred thirty-four",
    "12 000": "twelve thousand",
    "007": "seven",
    "0": "zero",
    "Three Hundred and Forty-Two": "three hundred forty-two",
    "forty two": "forty-two",
    "forty\N{EN DASH}two.": "forty-two",
    "a hundred and one": "one hundred one",
    "twelve hundred": "one thousand two hundred",
    "two two": "two two",
    "the dog sleeps": "The dog sleeps.",
    "THE DOG SLEEPS!": "The dog sleeps.",
    "He doesn't sleep": "He does not sleep.",
    "I haven\N{RIGHT SINGLE QUOTATION MARK}t seen the dog.": "I have not seen the dog.",
    "Two dogs sleep": "Two dogs sleep.",
    "I'm tired": "I am tired.",
    "The dog sleeps. The cat sleeps.": "The dog sleeps. The cat sleeps.",
}
REFUSED = {
    " \n ": "Type a number, or a sentence",
    "-3": "whole numbers from zero on",
    "1.5": "whole numbers from zero on",
    "1,000,000,000": "no word for a billion",
    "forty-tow": "numbers does not know \u201ctow\u201d",
    "I love you": "sentences does not know \u201cyou\u201d",
    "Are we tired?": "does not know \u201c?\u201d",
    "constructor <eos>": "does not know",
    "The dog sleeps. " * 32: "reads 127 tokens at most, not 128",
}


def test_what_is_typed_is_understood(compute):
    found = compute(None, list(READS), None, UNDERSTAND)
    assert [one.get("reads") for one in found] == list(READS.values())
    refused = compute(None, list(REFUSED), None, UNDERSTAND)
    for one, message in zip(refused, REFUSED.values(), strict=True):
        assert message in one["refusal"]
        assert "\n" not in one["refusal"]


def test_every_number_is_read_as_in_training(compute):
    numbers = [*range(0, 1200, 7), *range(1000, 10**6, 9973), *range(10**6, 10**9, 99_999_937)]
    words = [number_in_words(number, "en") for number in numbers]
    with_and = [text.replace("hundred ", "hundred and ").upper() for text in words]
    for typed in (list(map(str, numbers)), [f"{number:,}" for number in numbers], words, with_and):
        found = compute(None, typed, None, UNDERSTAND)
        assert [one.get("reads") for one in found] == words
    warned = {n for n, one in zip(numbers, found, strict=True) if one.get("note")}
    assert warned == {n for n in numbers if n >= 10**6}


def test_a_clause_in_a_subordinate_clause_comes_with_a_warning(compute):
    splits = mt.grammar_sentences(num_train=300, num_held_out=100)
    for name, least, most in (("deep", 100, 100), ("train", 0, 45)):
        found = compute(None, [pair.src for pair in splits[name]], None, UNDERSTAND)
        assert least <= sum("no clause within" in (one.get("note") or "") for one in found) <= most


def test_every_text_of_training_is_read_as_it_is(compute):
    sentences = [pair.src for pair in mt.grammar_sentences(num_train=300, num_held_out=10)["train"]]
    found = compute(None, sentences, None, UNDERSTAND)
    assert [one.get("reads") for one in found] == sentences

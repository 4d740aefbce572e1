"""Generation writes what the model's scores say: greedily, at random, in batches, alone."""

import inspect
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch
from helpers import (
    SRC_IDS,
    decoder_only_model,
    each_model,
    shaken,
    small_model,
)

import minitransformer as mt
from minitransformer import (
    DecoderOnlyTransformer,
    LanguageModelTrainer,
    TextGenerator,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Translator,
    WordTokenizer,
    encode_pairs,
    generate,
    next_token_loss,
    pad_rows,
    record_attention,
    token_stream,
)
from minitransformer.inference.decoding import CachedDecoding
from minitransformer.inference.logits_processors import (
    no_repeat_ngrams,
    occurrence_penalty,
    repetition_penalty,
    suppress_tokens,
)
from minitransformer.inference.sampling import next_token_probs
from minitransformer.inspection.record import evaluating
from minitransformer.models import GPT2, GPT2Config, Llama, LlamaConfig


@pytest.fixture
def copier(trained):
    """A model that has learned to write letters backwards, its tokenizers, and its sources."""
    src, tgt = trained.tokenizers.values()
    return trained.model, src, tgt, pad_rows([example.src for example in trained.examples])


# --- greedy decoding


def best_token(logits):
    """The most probable token that is not padding."""
    return 1 + logits[1:].argmax().item()


def argmax_loop(model, src_ids, max_new_tokens, eos_id=2):
    """Score the whole target anew for every token, one row at a time."""
    rows = []
    with evaluating(model):
        for src in src_ids:
            tgt = [1]
            while len(tgt) <= max_new_tokens and (eos_id not in tgt[1:]):
                tgt.append(best_token(model(src[None], torch.tensor([tgt]))[0, -1]))
            rows.append(tgt[1:])
    return pad_rows(rows)


def continuation_loop(model, prompts, max_new_tokens, eos_id=2):
    """The same for a decoder-only model: each prompt alone, without its padding."""
    rows = []
    with evaluating(model):
        for prompt in prompts:
            ids = prompt[prompt != 0].tolist()
            start = len(ids)
            while len(ids) < start + max_new_tokens and (eos_id not in ids[start:]):
                ids.append(best_token(model(torch.tensor([ids]))[0, -1]))
            rows.append(ids[start:])
    return pad_rows(rows)


@each_model
@pytest.mark.parametrize("max_new_tokens", [1, 6, 16])
def test_greedy_decoding_equals_argmax_loop_without_cache(changes, max_new_tokens):
    model = small_model(**changes)
    expected = argmax_loop(model, SRC_IDS, max_new_tokens)
    assert torch.equal(generate(model, SRC_IDS, max_new_tokens=max_new_tokens), expected)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 9])
def test_greedy_decoding_equals_argmax_loop_when_rows_end_at_different_steps(
    copier, max_new_tokens
):
    model, _, _, src_ids = copier
    expected = argmax_loop(model.eval(), src_ids, max_new_tokens)
    decoded = generate(model, src_ids, max_new_tokens=max_new_tokens)
    assert torch.equal(decoded, expected)
    lengths = (expected != 0).sum(1).unique().tolist()
    assert lengths == sorted(range(min(2, max_new_tokens), min(5, max_new_tokens) + 1))


def test_row_that_has_ended_is_padded_and_changes_no_other(copier):
    model, _, tgt, src_ids = copier
    together = generate(model, src_ids, max_new_tokens=9)
    assert together.dtype == torch.int64
    for src, row in zip(src_ids, together.tolist(), strict=True):
        length = row.index(tgt.eos_id) + 1
        assert row[length:] == [tgt.pad_id] * (len(row) - length)
        alone = generate(model, src[None], max_new_tokens=9)
        assert alone.tolist() == [row[:length]]


@torch.no_grad()
def test_target_begins_as_told():
    model, first_tokens = small_model(), set()
    for bos_id in range(31):
        expected = 1 + model(SRC_IDS, torch.full((2, 1), bos_id))[..., 1:].argmax(-1)
        decoded = generate(model, SRC_IDS, max_new_tokens=1, bos_id=bos_id)
        assert torch.equal(decoded, expected)
        first_tokens.add(tuple(decoded.flatten().tolist()))
    assert len(first_tokens) > 1


def test_target_ends_as_told(copier):
    model, src, tgt, _ = copier
    src_ids = pad_rows([[*src.encode(text), src.eos_id] for text in ("c b a d", "a d")])
    (a,) = tgt.encode("a")
    decoded = generate(model, src_ids, max_new_tokens=9, stop_ids=[a])
    assert [tgt.decode(row) for row in decoded.tolist()] == ["d a", "d a"]
    (b,) = tgt.encode("b")
    decoded = generate(model, src_ids, max_new_tokens=3, stop_ids=[b])
    assert decoded.tolist()[0] == tgt.encode("d a b")


@pytest.mark.parametrize("training", [True, False])
def test_decoding_has_no_dropout_and_leaves_the_mode_as_it_was(training):
    model = small_model(dropout=0.5).train(training)
    expected = argmax_loop(small_model(), SRC_IDS, 6)
    assert torch.equal(generate(model, SRC_IDS, max_new_tokens=6), expected)
    assert model.training == training
    with pytest.raises(ValueError, match="outside the vocabulary"):
        generate(model, SRC_IDS + 2, max_new_tokens=6)
    assert model.training == training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("fails", [False, True])
def test_every_module_keeps_its_own_mode(fails):
    model = small_model(dropout=0.5).train()
    model.encoder.eval()
    model.decoder.layers[1].feed_forward.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    if fails:
        with pytest.raises(ValueError, match="outside the vocabulary"):
            generate(model, SRC_IDS + 2, max_new_tokens=6)
    else:
        generate(model, SRC_IDS, max_new_tokens=6)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert len(set(modes.values())) == 2


@each_model
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"num_beams": 3}], ids=str)
def test_model_can_be_trained_on_what_it_wrote(changes, options):
    model = small_model(**changes)
    new = generate(model, SRC_IDS, max_new_tokens=6, min_new_tokens=6, **options)
    assert not new.is_inference()
    model(SRC_IDS, new).square().mean().backward()
    model = decoder_only_model(**changes)
    new = generate(model, PROMPTS, max_new_tokens=6, min_new_tokens=6, **options)
    model(new).square().mean().backward()
    new[0, 0] = 5


def test_what_was_recorded_while_decoding_can_be_trained_on():
    model = small_model()
    with record_attention(model) as maps:
        generate(model, SRC_IDS, max_new_tokens=6)
    assert not any(tensor.is_inference() for tensor in maps.values())


PROMPTS = pad_rows([[8, 3, 28, 5, 11], [9, 22], [30, 6, 19, 12], [4]])


@each_model
@pytest.mark.parametrize("max_new_tokens", [1, 6, 12])
def test_prompts_of_different_lengths_continue_as_each_alone(changes, max_new_tokens):
    model = decoder_only_model(**changes)
    expected = continuation_loop(model, PROMPTS, max_new_tokens)
    assert torch.equal(generate(model, PROMPTS, max_new_tokens=max_new_tokens), expected)


def test_more_padding_of_prompts_changes_nothing():
    model = decoder_only_model()
    padded = torch.nn.functional.pad(PROMPTS, (0, 3))
    together = generate(model, padded, max_new_tokens=6)
    assert torch.equal(together, generate(model, PROMPTS, max_new_tokens=6))


@pytest.mark.parametrize("stop_ids", [[2], [13, 2], list(range(5, 25))])
def test_any_stop_id_ends_a_row_and_the_others_go_on(stop_ids):
    model = decoder_only_model()
    free = generate(model, PROMPTS, max_new_tokens=12, stop_ids=[])
    expected = []
    for row in free.tolist():
        ends = [n for n, token in enumerate(row, start=1) if token in stop_ids]
        expected.append(row[: ends[0]] if ends else row)
    decoded = generate(model, PROMPTS, max_new_tokens=12, stop_ids=stop_ids)
    assert torch.equal(decoded, pad_rows(expected))


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"num_beams": 3}], ids=str)
@pytest.mark.parametrize("length", [1, 3, 7])
def test_length_stays_within_the_limits(options, length):
    for model, ids in ((decoder_only_model(), PROMPTS), (small_model(), SRC_IDS)):
        everything = list(range(31))
        limits = {"min_new_tokens": length, "max_new_tokens": 7}
        written = generate(model, ids, stop_ids=everything[20:], **limits, **options)
        for row in written.tolist():
            real = [token for token in row if token]
            assert length <= len(real) <= 7
            assert 0 not in row[: len(real)]
            assert all(token < 20 for token in real[: length - 1])
            assert len(real) == 7 or real[-1] >= 20


def test_rows_that_have_ended_are_not_computed_any_more(copier, monkeypatch):
    model, _, _, src_ids = copier
    sizes = []

    class Counted(CachedDecoding):
        def __call__(self, ids):
            sizes.append(len(ids))
            return super().__call__(ids)

    monkeypatch.setattr(
        sys.modules["minitransformer.inference.generate"], "CachedDecoding", Counted
    )
    generate(model, src_ids, max_new_tokens=9)
    # Of 1, 2, 3 and 4 letters there are 3, 3, 2 and 2 texts.
    assert sizes == [10, 10, 7, 4, 2]


# --- sampling


def test_draws_follow_the_distribution():
    model, num_rows = decoder_only_model(), 4000
    prompt = torch.tensor([[8, 3, 28]])
    with torch.no_grad():
        logits = model(prompt)[0, -1]
    logits[0] = -torch.inf
    options = {"temperature": 0.7, "top_k": 9, "top_p": 0.9}
    expected = next_token_probs(logits, **options)
    generator = torch.Generator().manual_seed(3)
    drawn = generate(
        model, prompt.repeat(num_rows, 1), max_new_tokens=1, generator=generator, **options
    )
    counts = drawn.flatten().bincount(minlength=31)
    assert (counts[expected == 0] == 0).all()
    assert (expected > 0).sum() > 3
    spread = (expected * (1 - expected) / num_rows).sqrt()
    assert ((counts / num_rows - expected).abs() <= 4 * spread).all()


def test_generator_decides_the_draw_and_the_global_state_stays():
    model = decoder_only_model()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (
        generate(
            model,
            PROMPTS,
            max_new_tokens=8,
            temperature=1.0,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in (5, 5, 6)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("has_encoder", [True, False], ids=["pairs", "texts"])
def test_several_samples_of_a_row_are_those_of_the_row_taken_several_times(has_encoder):
    model, ids = (small_model(), SRC_IDS) if has_encoder else (decoder_only_model(), PROMPTS)
    options = {"max_new_tokens": 8, "temperature": 1.0, "stop_ids": list(range(2, 9))}
    samples, repeated = (
        generate(model, rows, generator=torch.Generator().manual_seed(5), **options, **more)
        for rows, more in ((ids, {"num_samples": 3}), (ids.repeat_interleave(3, 0), {}))
    )
    assert torch.equal(samples, repeated)
    assert len(samples.unique(dim=0)) > len(ids)


@pytest.mark.parametrize("temperature", [1e-9, 1e-40, 1e-320])
def test_sampling_without_warmth_is_greedy(temperature):
    model = decoder_only_model()
    greedy = generate(model, PROMPTS, max_new_tokens=8)
    assert torch.equal(generate(model, PROMPTS, max_new_tokens=8, temperature=temperature), greedy)


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_sampling_from_one_token_is_greedy(cut):
    model = decoder_only_model()
    greedy = generate(model, PROMPTS, max_new_tokens=8)
    assert torch.equal(generate(model, PROMPTS, max_new_tokens=8, temperature=2.0, **cut), greedy)


# --- how long a text can be


@pytest.mark.parametrize("min_new_tokens", [1, 16])
def test_default_length_fits_the_model(min_new_tokens):
    options = {"min_new_tokens": min_new_tokens, "stop_ids": []}
    assert generate(small_model(), SRC_IDS, **options).shape == (2, 16)
    padded = torch.nn.functional.pad(PROMPTS, (0, 3))
    assert generate(decoder_only_model(), padded, stop_ids=[]).shape == (4, 12)
    assert generate(small_model(max_len=99), SRC_IDS, **options).shape == (2, 64)
    options["min_new_tokens"] = 70
    assert generate(small_model(max_len=99), SRC_IDS, **options).shape == (2, 70)


@pytest.mark.parametrize("scheme", ["alibi", "none"])
def test_without_a_table_no_length_is_too_long(scheme):
    model, longer = (decoder_only_model(positional_encoding=scheme, max_len=n) for n in (16, 99))
    assert torch.equal(
        generate(model, PROMPTS, max_new_tokens=30, min_new_tokens=30),
        generate(longer, PROMPTS, max_new_tokens=30, min_new_tokens=30),
    )
    assert generate(model, PROMPTS, stop_ids=[]).shape == (4, 64)
    ids = PROMPTS[:1].repeat(1, 5)
    assert torch.equal(model(ids), longer(ids))
    model, longer = (small_model(positional_encoding=scheme, max_len=n) for n in (16, 99))
    src = SRC_IDS[:, :4].repeat(1, 7)
    assert torch.equal(
        generate(model, src, max_new_tokens=30, min_new_tokens=30),
        generate(longer, src, max_new_tokens=30, min_new_tokens=30),
    )
    assert torch.equal(model(src, src), longer(src, src))


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned", "rotary"])
def test_with_a_table_its_end_is_the_end(scheme):
    model = decoder_only_model(positional_encoding=scheme)
    assert generate(model, PROMPTS, max_new_tokens=12, min_new_tokens=12).shape == (4, 12)
    with pytest.raises(ValueError, match="20 positions is longer than max_len=16"):
        model(PROMPTS[:1].repeat(1, 4))
    with pytest.raises(ValueError, match="max_new_tokens=13 take 17 positions, more than max_len"):
        generate(model, PROMPTS, max_new_tokens=13)


# --- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1 and finite, got 0"),
        ({"max_new_tokens": 17}, "1 tokens and max_new_tokens=17 take 17 positions.* max_len=16"),
        ({"min_new_tokens": 0}, "min_new_tokens must be at least 1 and finite, got 0"),
        ({"min_new_tokens": 7}, "max_new_tokens must be at least 7 and finite, got 6"),
        ({"num_beams": 0}, "num_beams must be at least 1 and finite, got 0"),
        (
            {"num_beams": 2, "length_penalty": -0.1},
            r"length_penalty must .* got -0\.1",
        ),
        ({"temperature": -1.0}, r"temperature must be at least 0 .* got -1\.0"),
        ({"temperature": float("nan")}, "temperature must be at least 0 .* got nan"),
        ({"temperature": float("inf")}, "temperature .* finite, got inf"),
        ({"num_beams": 2, "length_penalty": float("inf")}, "length_penalty .* finite, got inf"),
        ({"max_new_tokens": float("inf")}, "max_new_tokens .* finite, got inf"),
        ({"max_new_tokens": None, "min_new_tokens": 17}, "max_new_tokens=17 take 17 positions"),
        (
            {"min_new_tokens": 2, "stop_ids": range(1, 31)},
            "min_new_tokens=2 needs a token .* pad_id=0 and stop_ids are all 31 there are",
        ),
        ({"num_beams": 2, "temperature": 1.0}, r"num_beams=2 needs temperature 0, got 1\.0"),
        ({"num_samples": 2}, "num_samples=2 needs a temperature above 0, got 0"),
        ({"top_k": 3}, "top_k=3 needs a temperature above 0, got 0"),
        ({"top_p": 0.9}, r"top_p=0\.9 needs a temperature above 0, got 0"),
        ({"min_p": 0.1}, r"min_p=0\.1 needs a temperature above 0, got 0"),
        ({"temperature": 1.0, "top_k": 0}, "top_k must be at least 1, got 0"),
        ({"temperature": 1.0, "top_p": 1.5}, r"top_p must be above 0 and at most 1, got 1\.5"),
        ({"stop_ids": [2, 31]}, "stop_ids must lie between 0 and 30, got 31"),
        ({"bos_id": 31}, "id 31 lies outside the vocabulary of 31 tokens"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        generate(small_model(), SRC_IDS, **({"max_new_tokens": 6} | options))


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        (PROMPTS[:0], ValueError, r"ids must have shape \(b, length\).* got \(0, 5\)"),
        (PROMPTS[0], ValueError, r"ids must have shape \(b, length\).* got \(5,\)"),
        (PROMPTS.flip(1), ValueError, "filled on the right only, got pad_id=0 before"),
        (torch.zeros(1, 3).long(), ValueError, "at least 1 token, got one with 0"),
        (PROMPTS.repeat(1, 3)[:1], ValueError, "15 tokens and max_new_tokens=6 take 20 positions"),
        (PROMPTS.float(), TypeError, r"int32 or int64, got torch\.float32"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(prompts, error, message):
    with pytest.raises(error, match=message):
        generate(decoder_only_model(), prompts, max_new_tokens=6)


def test_prompt_without_room_behind_it_is_refused():
    with pytest.raises(ValueError, match="20 tokens and max_new_tokens=1 take 20 positions"):
        generate(decoder_only_model(), PROMPTS[:1].repeat(1, 4))


def test_every_token_may_end_a_text_that_need_not_go_on():
    assert generate(small_model(), SRC_IDS, stop_ids=range(31)).shape == (2, 1)


@pytest.mark.parametrize(
    ("src_ids", "error", "message"),
    [
        (SRC_IDS[:0], ValueError, r"src_ids must have shape \(b, length\).* got \(0, 7\)"),
        (SRC_IDS[0], ValueError, r"src_ids must have shape \(b, length\).* got \(7,\)"),
        (SRC_IDS[:, :3].repeat(1, 7), ValueError, "21 positions is longer than max_len=16"),
        (SRC_IDS.float(), TypeError, r"int32 or int64, got torch\.float32"),
    ],
)
def test_sources_that_do_not_fit_are_refused(src_ids, error, message):
    with pytest.raises(error, match=message):
        generate(small_model(), src_ids, max_new_tokens=6)


# --- translate


@pytest.mark.parametrize("batch_size", [1, 2, 3, 256])
def test_translations_keep_the_order_of_the_texts(copier, batch_size):
    model, src, tgt, _ = copier
    texts = ["c b a d", "a", "b c", "d c a", "c", "b a d c", "a"]
    translations = Translator(model, src, tgt).translate(
        texts, max_new_tokens=9, batch_size=batch_size
    )
    assert translations == [text[::-1] for text in texts]


def test_no_texts_have_no_translations(copier):
    model, src, tgt, _ = copier
    assert Translator(model, src, tgt).translate([]) == []


def test_translation_stops_at_the_limit(copier):
    model, src, tgt, _ = copier
    assert Translator(model, src, tgt).translate(["c b a d", "a"], max_new_tokens=2) == ["d a", "a"]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_text_without_tokens_is_refused(copier, text):
    model, src, tgt, _ = copier
    with pytest.raises(ValueError, match=rf"at least one token, got {text!r}".replace("\\", r"\\")):
        Translator(model, src, tgt).translate(["a", text])


def test_text_too_long_for_the_model_is_refused(copier):
    model, src, tgt, _ = copier
    with pytest.raises(ValueError, match="65 positions is longer than max_len=64"):
        Translator(model, src, tgt).translate(["a " * 64])


def test_word_never_seen_is_translated_as_unknown(copier):
    model, src, tgt, _ = copier
    assert len(Translator(model, src, tgt).translate(["a zebra"], max_new_tokens=9)) == 1


@pytest.mark.parametrize("num_beams", [1, 4])
def test_translations_by_beam_search_are_as_good(copier, num_beams):
    model, src, tgt, _ = copier
    texts = ["c b a d", "a", "b c", "d c a"]
    translations = Translator(model, src, tgt).translate(
        texts, max_new_tokens=9, num_beams=num_beams
    )
    assert translations == [text[::-1] for text in texts]


def test_translation_fits_a_model_with_little_room(copier):
    model, src, tgt, _ = copier
    short = Transformer(replace(model.config, max_len=9))
    short.load_state_dict(model.state_dict())
    texts = ["c b a d", "a", "b c"]
    assert Translator(short, src, tgt).translate(texts) == [text[::-1] for text in texts]


def test_tokenizer_with_another_padding_than_the_model_is_refused(copier):
    model, src, tgt, _ = copier
    other = WordTokenizer(src.tokens[5:])
    other.pad_id = 4
    with pytest.raises(ValueError, match="tokenizer src has pad_id=4, the model 0"):
        Translator(model, other, tgt).translate(["a"])
    with pytest.raises(ValueError, match="tokenizer tgt has pad_id=4, the model 0"):
        Translator(model, src, other).translate(["a"])
    config = TransformerConfig.decoder_only(tgt.vocab_size, d_model=12, num_heads=3, pad_id=3)
    with pytest.raises(ValueError, match="tokenizer text has pad_id=0, the model 3"):
        TextGenerator(DecoderOnlyTransformer(config), tgt).complete(["a"])


# --- complete


def test_completions_leave_out_the_prompt_and_need_none(copier):
    _, _, tgt, _ = copier
    config = TransformerConfig.decoder_only(tgt.vocab_size, num_layers=2, d_model=12, num_heads=3)
    model = shaken(DecoderOnlyTransformer(config, torch.Generator().manual_seed(0)))
    prompts = ["a b", "", "c"]
    rows = pad_rows([[tgt.bos_id, *tgt.encode(prompt)] for prompt in prompts])

    def options():
        generator = torch.Generator().manual_seed(4)
        return {"max_new_tokens": 5, "temperature": 3.0, "generator": generator}

    # WordTokenizer writes a space before each word but the first.
    expected = [
        tgt.decode([*row, *new]).removeprefix(prompt)
        for prompt, row, new in zip(
            prompts, rows.tolist(), generate(model, rows, **options()).tolist(), strict=True
        )
    ]
    assert TextGenerator(model, tgt).complete(prompts, **options()) == expected
    assert len(set(expected)) > 1
    assert TextGenerator(model, tgt).complete([]) == []


# --- a single text, texts that come one at a time, and none


def takes_texts():
    """The public functions and methods that take several texts, or pairs of them."""
    places = (mt, mt.models, mt.parallel, mt.export)
    public = {name: getattr(place, name) for place in places for name in place.__all__}
    for name, value in list(public.items()):
        if inspect.isclass(value):
            own = {key: getattr(value, key) for key in vars(value) if not key.startswith("_")}
            public |= {f"{name}.{key}": x for key, x in own.items() if callable(x)}
    named = {"texts", "pairs", "prompts"}
    public = {name: value for name, value in public.items() if callable(value)}
    found = {n for n, value in public.items() if named & {*inspect.signature(value).parameters}}
    # Of ids; of what the constructor checked; of texts that must be those of the checkpoint.
    inner = ("beam_search", ".encoded", ".set_up", ".resume")
    return {name for name in found if not name.endswith(inner)}


def test_a_single_text_is_refused_everywhere(copier, tmp_path):
    model, src, tgt, _ = copier
    writer, settings = decoder_only_model(), TrainingConfig(context_length=2)
    translator, generator = Translator(model, src, tgt), TextGenerator(writer, tgt)
    bytes_only = mt.BPETokenizer.train([])
    calls = {
        "Translator.translate": translator.translate,
        "Translator.exact_match": translator.exact_match,
        "Translator.held_out_loss": translator.held_out_loss,
        "TextGenerator.complete": generator.complete,
        "TextGenerator.bits_per_character": generator.bits_per_character,
        "Trainer": lambda pairs: Trainer(model, pairs, src, tgt, settings),
        "LanguageModelTrainer": lambda texts: LanguageModelTrainer(writer, texts, tgt, settings),
        "Tokenizer.count_pieces": WordTokenizer([]).count_pieces,
        "BPETokenizer.encode_iterable": lambda texts: list(bytes_only.encode_iterable(texts)),
        "encode_pairs": partial(encode_pairs, src_tokenizer=src, tgt_tokenizer=tgt),
        "token_stream": partial(token_stream, tokenizer=tgt),
        "write_tokens": lambda texts: mt.parallel.write_tokens(texts, tgt, tmp_path / "tokens"),
    }
    for name, kind in vars(mt).items():
        if name.endswith("Tokenizer") and name != "Tokenizer":
            calls[f"{name}.train"] = partial(kind.train, vocab_size=300)
    assert takes_texts() - calls.keys() <= {"Tokenizer.train", "PublishedTokenizer.train"}
    for call in calls.values():
        for wrong in ("a b", ["a", 2]):
            with pytest.raises(TypeError, match=r"(texts|pairs|prompts) must be .*(str|'a'|2)"):
                call(wrong)
    with pytest.raises(TypeError, match="ids must be of type Tensor, got str"):
        generate(writer, "a")


def test_texts_may_come_one_at_a_time(copier):
    model, src, tgt, _ = copier
    texts = ["c b a d", "a", "b c"]
    translator = Translator(model, src, tgt)
    assert translator.translate(iter(texts)) == translator.translate(texts)
    writer = decoder_only_model()
    known = {"logits_processors": [partial(suppress_tokens, tokens=range(tgt.vocab_size, 31))]}
    expected = TextGenerator(writer, tgt).complete(["a", "b"], **known)
    assert TextGenerator(writer, tgt).complete(iter(["a", "b"]), **known) == expected
    pairs = [(text, text[::-1]) for text in texts]
    assert translator.exact_match(iter(pairs)) == translator.exact_match(pairs)
    assert torch.equal(token_stream(iter(texts), tgt), token_stream(texts, tgt))


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batches_have_at_least_one_text(copier, batch_size):
    model, src, tgt, _ = copier
    message = f"batch_size must be at least 1, got {batch_size}"
    with pytest.raises(ValueError, match=message):
        Translator(model, src, tgt).translate(["a"], batch_size=batch_size)
    with pytest.raises(ValueError, match=message):
        TextGenerator(decoder_only_model(), tgt).bits_per_character(["a"], batch_size=batch_size)


def test_source_that_cannot_be_translated_is_not_trained_on(copier):
    model, src, tgt, _ = copier
    settings = TrainingConfig(steps=2, warmup_steps=1)
    for call in (
        lambda: Trainer(model, [("a", "a"), ("", "a")], src, tgt, settings),
        lambda: Translator(model, src, tgt).translate(["a", ""]),
        lambda: Translator(model, src, tgt).held_out_loss([("", "a")]),
    ):
        with pytest.raises(ValueError, match="every text must have at least one token, got ''"):
            call()


# --- begins and ends


def test_ends_are_the_models_unless_others_are_asked_for(monkeypatch):
    model = decoder_only_model()
    free = generate(model, PROMPTS, max_new_tokens=12, stop_ids=[])
    ends = (int(free[0, 3]), int(free[1, 5]))
    monkeypatch.setattr(DecoderOnlyTransformer, "stop_ids", ends)
    expected = generate(model, PROMPTS, max_new_tokens=12, stop_ids=ends)
    assert torch.equal(generate(model, PROMPTS, max_new_tokens=12), expected)
    assert not torch.equal(expected, free)


def test_begin_and_ends_of_the_user_go_before(copier):
    model, src, tgt, src_ids = copier
    (a,) = tgt.encode("a")
    assert Translator(model, src, tgt).translate(["c b a d", "a d"], stop_ids=[a]) == ["d a", "d a"]
    given = generate(model, src_ids[:1], bos_id=a, max_new_tokens=5)
    text = src.decode(src_ids[0].tolist())
    assert Translator(model, src, tgt).translate([text], bos_id=a, max_new_tokens=5) == [
        tgt.decode(given[0].tolist())
    ]


# --- padding stands on the right, everywhere


HOLES = {"left": [[0, 0, 5, 6], [4, 3, 5, 6]], "one": [[0, 5], [4, 6]], "inside": [[5, 0, 6, 7]]}


@pytest.mark.parametrize("rows", HOLES.values(), ids=HOLES.keys())
def test_padding_before_a_token_is_refused_everywhere(rows):
    ids = torch.tensor(rows)
    right = ids.masked_fill(ids == 0, 9)
    writer, model = decoder_only_model(), small_model()
    for name, call in {
        "ids": lambda: writer(ids),
        "ids ": lambda: next_token_loss(writer, ids, right, smoothing=0.1),
        "prompts": lambda: generate(writer, ids, max_new_tokens=2),
        "src_ids": lambda: model(ids, right),
        "src_ids ": lambda: next_token_loss(model, ids, right, right, smoothing=0.1),
        "src_ids  ": lambda: generate(model, ids, max_new_tokens=2),
        "tgt_ids": lambda: model(right, ids),
        "tgt_ids ": lambda: next_token_loss(model, right, ids, right, smoothing=0.1),
    }.items():
        message = f"^{name.strip()} must be filled on the right only, got pad_id=0 before"
        with pytest.raises(ValueError, match=message):
            call()
    # Targets may all begin with it, and a mask says itself what may be seen.
    model(right, torch.cat([torch.zeros_like(right[:, :1]), right], dim=1))
    writer(ids, torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).tril())


PENALTIES = {
    "repetition": partial(repetition_penalty, penalty=3.0),
    "occurrence": partial(occurrence_penalty, presence=2.0, frequency=1.0),
    "runs": partial(no_repeat_ngrams, size=2),
    "single tokens": partial(no_repeat_ngrams, size=1),
    "bans": partial(suppress_tokens, tokens=[3, 30]),
}


@pytest.mark.parametrize("num_beams", [1, 2])
@pytest.mark.parametrize("rule", PENALTIES.values(), ids=PENALTIES.keys())
@pytest.mark.parametrize("kind", ["GPT-2", "Llama", "ours"])
def test_rules_see_no_padding(kind, rule, num_beams):
    sizes = {"vocab_size": 31, "d_model": 12, "num_heads": 3, "num_layers": 1}
    if kind == "ours":
        model, prompts = decoder_only_model(), PROMPTS
    else:
        config = (
            GPT2Config(**sizes, max_len=16) if kind == "GPT-2" else LlamaConfig(**sizes, d_ff=20)
        )
        model = shaken((GPT2 if kind == "GPT-2" else Llama)(config, torch.Generator()))
        prompts = PROMPTS.masked_fill(PROMPTS == 0, -1)
    options = {"max_new_tokens": 6, "stop_ids": [], "num_beams": num_beams}
    together = generate(model, prompts, logits_processors=[rule], **options)
    for row, prompt in zip(together, prompts, strict=True):
        alone = prompt[prompt != model.config.pad_id][None]
        found = generate(model, alone, logits_processors=[rule], **options)
        assert torch.equal(found[0], row)


# --- several threads


def test_modes_come_back_whatever_leaves_first():
    model = small_model(dropout=0.5).train()
    model.decoder.layers[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    whole, part = evaluating(model), evaluating(model.encoder)
    with torch.enable_grad():  # whose mode is a thread's own, and this is but one
        whole.__enter__()
        part.__enter__()
        whole.__exit__(None, None, None)
        assert not any(module.training for module in model.encoder.modules())
        assert model.decoder.training
        part.__exit__(None, None, None)
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_threads_that_write_leave_a_model_in_its_mode():
    model = small_model(dropout=0.5).train()
    expected = generate(small_model(), SRC_IDS, max_new_tokens=6)

    def write(_):
        return generate(model, SRC_IDS, max_new_tokens=6)

    with ThreadPoolExecutor(8) as pool:
        for written in pool.map(write, range(16)):
            assert torch.equal(written, expected)
    assert all(module.training for module in model.modules())

"""Texts in, texts out: translations, completions, and what held-out texts measure."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from helpers import PAIRS, copying_trainer, decoder_only_model, shaken

import minitransformer as mt


@pytest.fixture
def translator(trained):
    """A model that has learned to write letters backwards, and its tokenizers."""
    return trained.trained()


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"batch_size": 3}, {"num_beams": 4}, {}])
def test_translations_keep_the_order_of_the_texts(translator, options):
    texts = ["c b a d", "a", "b c", "d c a", "c", "b a d c", "a"]
    translations = translator.translate(iter(texts), max_new_tokens=9, **options)
    assert translations == [text[::-1] for text in texts]
    assert translator.exact_match(zip(texts, translations, strict=True), **options) == 1.0
    assert translator.translate([]) == []


def test_translation_fits_a_model_with_little_room(translator):
    short = mt.Transformer(replace(translator.model.config, max_len=9))
    short.load_state_dict(translator.model.state_dict())
    again = mt.Translator(short, *translator.tokenizers.values())
    texts = ["c b a d", "a", "b c"]
    assert again.translate(texts) == translator.translate(texts)


def test_begin_end_and_length_asked_for_go_before_the_models(translator):
    src, tgt = translator.tokenizers.values()
    (a,) = tgt.encode("a")
    assert translator.translate(["c b a d", "a d"], stop_ids=[a]) == ["d a", "d a"]
    assert translator.translate(["c b a d", "a"], max_new_tokens=2) == ["d a", "a"]
    ids = torch.tensor([[*src.encode("c b"), src.eos_id]])
    (row,) = mt.generate(translator.model, ids, bos_id=a, max_new_tokens=5).tolist()
    assert translator.translate(["c b"], bos_id=a, max_new_tokens=5) == [tgt.decode(row)]


def test_texts_that_cannot_be_translated_are_refused(translator):
    assert len(translator.translate(["a zebra"], max_new_tokens=9)) == 1  # a word never seen
    with pytest.raises(ValueError, match="65 positions is longer than max_len=64"):
        translator.translate(["a " * 64])
    tokenizers, settings = translator.tokenizers.values(), mt.TrainingConfig()
    for text in ("", "  \n"):
        for call in (
            lambda text=text: translator.translate(["a", text]),
            lambda text=text: translator.held_out_loss([(text, "a")]),
            lambda text=text: mt.Trainer(translator.model, [(text, "a")], *tokenizers, settings),
        ):
            with pytest.raises(ValueError, match="every text must have at least one token, got '"):
                call()


def test_models_that_do_not_generate_are_refused(translator):
    class Mine(torch.nn.Module):
        """A class that a reader wrote, with the methods of the package's."""

        def __init__(self, model):
            super().__init__()
            self.config, self.model = model.config, model

    tokenizers = translator.tokenizers.values()
    assert mt.Translator(Mine(translator.model), *tokenizers).device == translator.device
    with pytest.raises(TypeError, match="model must generate text, got a Linear"):
        mt.Translator(torch.nn.Linear(2, 2), *tokenizers)


def test_completions_leave_out_the_prompt_and_need_none(translator):
    tgt = translator.tokenizers["tgt"]
    sizes = {"num_layers": 2, "d_model": 12, "num_heads": 3}
    config = mt.TransformerConfig.decoder_only(tgt.vocab_size, **sizes)
    model = shaken(mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0)))
    prompts = ["a b", "", "c"]
    rows = mt.pad_rows([[tgt.bos_id, *tgt.encode(prompt)] for prompt in prompts])

    def options():
        generator = torch.Generator().manual_seed(4)
        return {"max_new_tokens": 5, "temperature": 3.0, "generator": generator}

    # WordTokenizer writes a space before each word but the first.
    new = mt.generate(model, rows, **options()).tolist()
    expected = [
        tgt.decode([*row, *more]).removeprefix(prompt)
        for prompt, row, more in zip(prompts, rows.tolist(), new, strict=True)
    ]
    assert mt.TextGenerator(model, tgt).complete(iter(prompts), **options()) == expected
    assert len(set(expected)) > 1
    assert mt.TextGenerator(model, tgt).complete([]) == []


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_held_out_loss_is_the_mean_over_tokens_in_any_batches(batch_size):
    trainer = copying_trainer()
    trainer.model.train()
    before = torch.get_rng_state()
    found = trainer.trained().held_out_loss(iter(PAIRS), batch_size=batch_size)
    assert trainer.model.training
    assert torch.equal(torch.get_rng_state(), before)
    batch = mt.collate(mt.encode_pairs(PAIRS, *trainer.tokenizers.values()))
    logits = trainer.model.eval()(batch.src, batch.tgt_input)
    expected = F.cross_entropy(logits.transpose(1, 2), batch.tgt_output, ignore_index=0)
    assert found == pytest.approx(expected.item(), rel=1e-6)


def test_measures_of_nothing_are_refused(translator):
    writer = mt.TextGenerator(decoder_only_model(), translator.tokenizers["tgt"])
    for measure, arguments, batch_size, message in (
        (translator.exact_match, [], 64, "pairs must hold at least 1 pair, got 0"),
        (translator.held_out_loss, [], 64, "got 0 examples"),
        (translator.held_out_loss, PAIRS, 0, "10 examples and batch_size=0"),
        (translator.translate, ["a"], 0, "batch_size must be at least 1, got 0"),
        (writer.bits_per_character, ["a"], 0, "batch_size must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            measure(arguments, batch_size=batch_size)


def test_a_single_text_is_refused_everywhere(translator, tmp_path):
    model, (src, tgt) = translator.model, translator.tokenizers.values()
    settings, writer = mt.TrainingConfig(context_length=2), decoder_only_model()
    generator = mt.TextGenerator(writer, tgt)
    calls = [
        translator.translate,
        translator.exact_match,
        translator.held_out_loss,
        generator.complete,
        generator.bits_per_character,
        lambda pairs: mt.Trainer(model, pairs, src, tgt, settings),
        lambda texts: mt.LanguageModelTrainer(writer, texts, tgt, settings),
        lambda texts: mt.parallel.write_tokens(texts, tgt, tmp_path / "tokens"),
        mt.WordTokenizer([]).count_pieces,
        partial(mt.encode_pairs, src_tokenizer=src, tgt_tokenizer=tgt),
        partial(mt.token_stream, tokenizer=tgt),
    ]
    kinds = (mt.CharacterTokenizer, mt.WordTokenizer, mt.BPETokenizer, mt.WordPieceTokenizer)
    calls += [partial(kind.train, vocab_size=300) for kind in kinds]
    for call in calls:
        for wrong in ("a b", ["a", 2]):
            with pytest.raises(TypeError, match=r"(texts|pairs|prompts) must be .*(str|'a'|2)"):
                call(wrong)

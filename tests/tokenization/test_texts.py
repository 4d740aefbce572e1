"""Texts of published models: what they begin and end with, and how what follows is decoded."""

import warnings

import pytest
import torch
from alike import transformers
from helpers import published_words
from tokenizer_kinds import marian_folder, trained

from minitransformer import (
    DecoderOnlyTransformer,
    LanguageModelTrainer,
    TextGenerator,
    Trainer,
    TrainingConfig,
    TransformerConfig,
    Translator,
    encode_pairs,
    generate,
    token_stream,
)
from minitransformer.models import BART, GPT2, T5, GPT2Config, Marian, PublishedTokenizer

PAIRS = [
    ("The town lies between two hills", "Die Stadt liegt zwischen zwei Hügeln"),
    ("two hills", "zwei Hügel"),
    ("one", "eins 😀"),
]
TEXTS = [text for pair in PAIRS for text in pair]


def ours(kind):
    """A tokenizer of the library, read by us."""
    return PublishedTokenizer.from_dict(trained(kind)[1])


def small_config(tokenizer):
    return GPT2Config(vocab_size=tokenizer.vocab_size, d_model=12, num_heads=3, num_layers=1)


def theirs_of(family, folder):
    """A model of `transformers` and its tokenizer, both in a folder, where ours finds them."""
    both = {"d_model": 32, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    for name, size in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 64)):
        both |= {f"{side}_{name}": size for side in ("encoder", "decoder")}
    if family is Marian:
        tokenizer = transformers.MarianTokenizer.from_pretrained(marian_folder(folder))
        ids = dict.fromkeys(("pad_token_id", "decoder_start_token_id"), tokenizer.pad_token_id)
        config = transformers.MarianConfig(vocab_size=len(tokenizer), eos_token_id=0, **ids, **both)
        return transformers.MarianMTModel(config), tokenizer
    kind, roles = ("roberta", {"bos_token": "<s>"}) if family is BART else ("t5", {})
    roles |= {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=trained(kind)[0], **roles)
    tokenizer.save_pretrained(folder)
    if family is BART:
        config = transformers.BartConfig(vocab_size=len(tokenizer), **both)
        return transformers.BartForConditionalGeneration(config), tokenizer
    sizes = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 64, "num_layers": 1}
    settings = {"dropout_rate": 0.0, "decoder_start_token_id": 0}
    config = transformers.T5Config(vocab_size=len(tokenizer), **sizes, **settings)
    return transformers.T5ForConditionalGeneration(config), tokenizer


@pytest.fixture(scope="module", params=[BART, T5, Marian])
def family(request, tmp_path_factory):
    """Our `Translator`, and the model and tokenizer of theirs."""
    folder = tmp_path_factory.mktemp(request.param.__name__)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Marian's recommends a library
        theirs, tokenizer = theirs_of(request.param, folder)
    theirs.save_pretrained(folder)
    return Translator.load(folder), theirs, tokenizer


def test_pairs_are_encoded_as_theirs(family):
    translator, theirs, tokenizer = family
    pairs = [*PAIRS, ("two", "")]
    examples = encode_pairs(pairs, *translator.tokenizers.values(), translator.model.config)
    for pair, example in zip(pairs, examples, strict=True):
        labels = tokenizer(text_target=pair[1])["input_ids"]
        read = theirs.prepare_decoder_input_ids_from_labels(labels=torch.tensor([labels]))
        assert example.src == tokenizer(pair[0])["input_ids"]
        assert example.tgt[1:] == labels
        assert example.tgt[:-1] == read[0].tolist()


@pytest.mark.slow
def test_pairs_learned_by_heart_are_translated(family):
    translator, *_ = family
    settings = {"warmup_steps": 10, "peak_learning_rate": 5e-3, "label_smoothing": 0.0}
    config = TrainingConfig(steps=160, batch_size=3, **settings)
    trainer = Trainer(translator.model, PAIRS, *translator.tokenizers.values(), config)
    assert trainer.fit(progress=False)[-1]["loss"] < 0.5
    assert translator.held_out_loss(PAIRS) < 0.5
    sources, targets = zip(*PAIRS, strict=True)
    target = translator.tokenizers["tgt"]
    written = [target.decode(target.encode(text)) for text in targets]
    assert translator.translate(sources) == written


# --- running text


def test_a_text_without_begin_begins_with_the_end_of_the_one_before():
    tokenizer = ours("gpt2")
    end, one, two = tokenizer.eos_id, tokenizer.encode("one"), tokenizer.encode("two hills")
    assert token_stream(["one", "two hills"], tokenizer).tolist() == [*one, end, *two, end]
    assert tokenizer.begin("one") == one
    assert tokenizer.begin("") == [end]
    other = ours("llama2")  # which has a begin
    assert token_stream(["two"], other).tolist() == [1, *other.encode("two"), 2]
    assert other.begin("") == [1]
    writer = TextGenerator(GPT2(small_config(tokenizer)), tokenizer)
    assert len(writer.complete(["", "two"], max_new_tokens=4)) == 2
    # Its first token is to be predicted as all the others are.
    ids = torch.tensor([[end, *one, end]])
    with torch.no_grad():
        scores = writer.model.eval()(ids[:, :-1]).log_softmax(-1)
    bits = -scores.gather(2, ids[:, 1:, None]).sum().item() / torch.tensor(2.0).log().item()
    assert writer.bits_per_character(["one"]) == pytest.approx(bits / 3, rel=1e-5)


def test_a_text_ends_with_the_tokenizers_end_and_without_one_no_training_begins():
    config = TransformerConfig.decoder_only(
        5, d_model=12, num_heads=3, num_layers=1, d_ff=20, pad_id=-1
    )
    model = DecoderOnlyTransformer(config)
    assert TextGenerator(model, published_words("<pad>", "</s>")).stop_ids == [1]
    settings = TrainingConfig(steps=2, warmup_steps=1, context_length=4)
    with pytest.raises(ValueError, match="the tokenizer has no token that ends a text"):
        LanguageModelTrainer(model, TEXTS, published_words(), settings)
    with pytest.raises(ValueError, match="the tokenizer has no token that begins a text"):
        TextGenerator(model, published_words()).complete([""])


@pytest.mark.parametrize("kind", ["gpt2", "t5", "llama2"])
def test_parts_are_the_whole_and_no_part_ends_in_half_a_character(kind):
    tokenizer = ours(kind)
    generator = torch.Generator().manual_seed(0)
    # Bytes that are no character may undo those before them, see below.
    whole = [i for i, token in enumerate(tokenizer.tokens) if not token.startswith("<0x")]
    drawn = torch.randint(len(whole), (40, 9), generator=generator)
    drawn = torch.tensor(whole)[drawn].tolist()
    for ids in [*map(tokenizer.encode, TEXTS), *drawn]:
        before, parts = tokenizer.begin("two"), [tokenizer.decode(tokenizer.begin("two"))]
        for index in ids:
            parts.append(tokenizer.decode_after(before, [index]))
            before.append(index)
            assert not parts[-1].endswith("\ufffd")
        whole = tokenizer.decode([*tokenizer.begin("two"), *ids])
        assert "".join(parts) == whole.rstrip("\ufffd")
        assert parts[0] + tokenizer.decode_after(tokenizer.begin("two"), ids) == "".join(parts)
    if kind == "llama2":
        before = [*tokenizer.begin("two"), tokenizer.ids["<0x6A>"]]
        assert tokenizer.decode(before) == "twoj"
        assert tokenizer.decode_after(before, [tokenizer.ids["<0xE3>"]]) == ""


def test_texts_end_as_the_model_says_and_as_the_user_says_first(monkeypatch):
    tokenizer = ours("gpt2")
    model = GPT2(small_config(tokenizer), torch.Generator().manual_seed(0))
    writer, prompt = TextGenerator(model, tokenizer), torch.tensor([[5, 6]])

    def both(**options):
        """What is drawn after ids, and after a text."""
        options |= {"max_new_tokens": 8, "temperature": 2.0}
        seeds = [torch.Generator().manual_seed(7) for _ in range(2)]
        ids = generate(model, prompt, generator=seeds[0], **options)
        return ids[0].tolist(), writer.complete(["two"], generator=seeds[1], **options)

    free = both(stop_ids=[])
    assert len(free[0]) == 8
    monkeypatch.setattr(GPT2, "stop_ids", (free[0][3],))
    assert set(writer.stop_ids) == {free[0][3], tokenizer.eos_id}
    assert both()[0] == free[0][: free[0].index(free[0][3]) + 1]
    assert both(stop_ids=[]) == free

"""What a writer accepts its own reader reads, with equal outputs; what it refuses leaves no trace.

Every class of models, with what users add to it, through every writer: a checkpoint by `fit` and by
`save`, many processes' shares and what `gather` makes of them, and a folder.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from helpers import TEXTS, assert_same, published_words, shaken, small_model
from many import LIMIT
from torch import nn

import minitransformer as mt
from minitransformer import models
from minitransformer.efficient_attention import linear_attention_of_all_pairs
from minitransformer.models import add_lora
from minitransformer.models.pretrained import class_of
from minitransformer.models.registry import CLASSES, described, rebuilt, with_weights
from minitransformer.parallel import (
    ParallelTrainer,
    TokenFile,
    gather,
    join_processes,
    write_tokens,
)

PAIRS = [(text, text[::-1]) for text in TEXTS]
LETTERS = mt.CharacterTokenizer.train(TEXTS)
BYTES = mt.BPETokenizer.train(TEXTS, 270)
SIZES = {"d_model": 12, "num_heads": 3, "d_ff": 20, "max_len": 32}
SIDES = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("num_heads", 3), ("d_ff", 20))
}
STEPS = mt.TrainingConfig(steps=4, warmup_steps=1, batch_size=4, context_length=5, ema_decay=0.5)
ROTARY = models.RotaryScaling("llama3", factor=4.0, low=1.0, high=4.0, trained_len=16)


class Doubled(mt.Transformer):
    """A user's own: what it computes, no model of the package does."""

    def decode(self, *arguments, **options):
        return 2 * super().decode(*arguments, **options)


class Halved(models.GPT2):
    """A user's own, of a published model."""

    def decode(self, *arguments, **options):
        return super().decode(*arguments, **options) / 2


@dataclass(frozen=True)
class WiderConfig(mt.TransformerConfig):
    """A user's own settings, with a tuple among them."""

    kept_layers: tuple[int, ...] = (0,)


class Linear(nn.Module):
    """What each head computes: linear attention of chapter 15."""

    def forward(self, query, key, value, mask=None, bias=None):
        return linear_attention_of_all_pairs(query, key, value, mask)


class WithLinearAttention(mt.DecoderOnlyTransformer):
    """A user's own, with another attention inside the projections of each layer."""

    def attention(self, *, cross=False):
        return mt.MultiHeadAttention(12, 3, attention=Linear())


class WithOwnLayers(mt.Transformer):
    """A user's own, with a norm, an attention and a network that no configuration names."""

    def norm(self, d_model):
        return nn.RMSNorm(d_model, eps=0.1)

    def attention(self, *, cross=False):
        options = {"d_k": 5, "bias": False, "scale": 0.3}
        return mt.MultiHeadAttention(12, 3, window=None if cross else 2, **options)

    def layer(self, index, *, cross=False):
        kind = mt.DecoderLayer if cross else mt.EncoderLayer
        parts = {"self_attention": self.attention()}
        parts |= {"cross_attention": self.attention(cross=True)} if cross else {}
        network = nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 12))
        return kind(12, **parts, feed_forward=network, norm=self.norm, norm_first=index == 0)


class Wider(mt.DecoderOnlyTransformer):
    """A user's own, with a user's own configuration."""

    config_class = WiderConfig


def ours(kind, config_kind, tokenizer, **sizes):
    """A model of the package's own configuration."""
    size = tokenizer.vocab_size
    both = {"num_encoder_layers": 1, "num_decoder_layers": 2} | SIZES | sizes
    return kind(config_kind(src_vocab_size=size, tgt_vocab_size=size, **both))


def writer(tokenizer, kind=mt.DecoderOnlyTransformer, config_kind=mt.TransformerConfig, **sizes):
    """A decoder-only one."""
    one = {"num_encoder_layers": 0, "share_embeddings": True}
    return ours(kind, config_kind, tokenizer, **one, **sizes)


def published(kind, config_kind, tokenizer, **sizes):
    """A published model, small."""
    return kind(config_kind(vocab_size=tokenizer.vocab_size, **sizes))


def llama(config_kind, tokenizer, **sizes):
    """A Llama or one of those made from it."""
    sizes = SIZES | {"num_layers": 2, "num_kv_heads": 1} | sizes
    return published(models.Llama, config_kind, tokenizer, **sizes)


def marian(kind, config_kind, tokenizer):
    """A Marian or a BART that pads as our tokenizers do, and begins as they do."""
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 12, "max_len": 32}
    return published(kind, config_kind, tokenizer, **layers, **SIDES, pad_id=0, start_id=1)


def t5(tokenizer, **changes):
    """A T5."""
    sizes = {"d_model": 12, "d_k": 5, "num_heads": 3, "d_ff": 20, "num_encoder_layers": 1}
    return published(models.T5, models.T5Config, tokenizer, **sizes, start_id=1, **changes)


TRANSLATORS = {
    "Transformer": lambda t: ours(mt.Transformer, mt.TransformerConfig, t),
    "rotary": lambda t: ours(
        mt.Transformer,
        mt.TransformerConfig,
        t,
        positional_encoding="rotary",
        norm="rms_norm",
        share_embeddings=True,
    ),
    "user's own": lambda t: ours(Doubled, mt.TransformerConfig, t),
    "own layers": lambda t: ours(WithOwnLayers, mt.TransformerConfig, t),
    "T5": t5,
    "T5 1.1": lambda t: t5(t, network="gated-gelu", tie_output=False, scale_output=False),
    "Marian": lambda t: marian(models.Marian, models.MarianConfig, t),
    "BART": lambda t: marian(models.BART, models.BARTConfig, t),
}
WRITERS = {
    "DecoderOnlyTransformer": writer,
    "user's own": lambda t: writer(t, Wider, WiderConfig, kept_layers=(1, 0)),
    "linear attention": lambda t: writer(t, WithLinearAttention, norm_first=True),
    "GPT2": lambda t: published(models.GPT2, models.GPT2Config, t, **SIZES, num_layers=2),
    "user's own GPT2": lambda t: published(Halved, models.GPT2Config, t, **SIZES, num_layers=2),
    "Llama": lambda t: llama(models.LlamaConfig, t, rotary=ROTARY, d_k=6),
    "Mistral": lambda t: llama(models.MistralConfig, t, window=3),
    "Qwen2": lambda t: llama(models.Qwen2Config, t, window=4, first_window_layer=1),
    "Qwen3": lambda t: llama(models.Qwen3Config, t, d_k=6),
}
MODELS = {("translator", n): m for n, m in TRANSLATORS.items()}
MODELS |= {("writer", n): m for n, m in WRITERS.items()}
SOME = [("translator", "user's own"), ("writer", "Llama")]
each_model = pytest.mark.parametrize("name", MODELS, ids=" ".join)


class Foreign(nn.Module):
    """What no class of the package has."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.gain = layer, nn.Parameter(torch.ones(1))

    def forward(self, *arguments):
        return self.gain * self.layer(*arguments)


class Statistics(nn.Module):
    """Without parameters, but with numbers that training moves."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        return x


def network_of(model):
    """The first layer of the last stack."""
    return model.decoder.layers[0]


def wrapped(model):
    layer = network_of(model)
    layer.feed_forward = Foreign(layer.feed_forward)


def untied(model):
    model.output_projection.weight = nn.Parameter(torch.rand_like(model.output_projection.weight))


def setting(path, value):
    """A change: what is at that place in the first layer of the last stack is now the value."""
    return lambda model: setattr(network_of(model).get_submodule(path[0]), path[1], value)


FOREIGN = {
    "around a layer": (wrapped, "feed_forward is a Foreign, a FeedForward as configured"),
    "module": (setting(("", "probe"), nn.Linear(3, 2)), "probe is a Linear, nothing as configured"),
    "its buffer": (setting(("", "mean"), Statistics()), "mean is a Statistics, nothing as conf"),
    "parameter": (
        setting(("feed_forward", "gate"), nn.Parameter(torch.ones(1))),
        r"1 of \d+ weights do not fit .* is \(1,\), expected missing",
    ),
    "buffer": (
        lambda model: network_of(model).feed_forward.register_buffer("mean", torch.ones(1)),
        r"feed_forward.mean is not what .* a tensor \(1,\), expected None",
    ),
    "ε": (setting(("residual_1.norm", "eps"), 0.1), "norm.eps is not what .* 0.1, expected 1e-0"),
    "dtype": (lambda model: network_of(model).feed_forward.half(), "a single floating-point dtype"),
    "weight": (
        lambda model: nn.utils.parametrizations.weight_norm(network_of(model).self_attention.w_q),
        "w_q is a ParametrizedLinear, a Linear as configured",
    ),
    "activation": (setting(("feed_forward", "activation"), torch.tanh), "activation is not what"),
    "window": (setting(("self_attention", "window"), 3), "window is not what .* 3, expected None"),
    "scale": (setting(("self_attention.attention", "scale"), 0.5), "attention.scale is not what"),
    "network": (setting(("", "feed_forward"), nn.Identity()), "feed_forward is a Identity, a Fe"),
    "untied": (untied, r"1 of \d+ weights do not fit .* is \(\d+, 12\), expected missing"),
    "nothing": (setting(("", "residual_1"), None), "residual_1.* is nothing, a part of the model"),
}
each_foreign = pytest.mark.parametrize(("change", "message"), FOREIGN.values(), ids=FOREIGN)


def low_rank(model):
    add_lora(model, 2, alpha=3.0, names=("w_q", "w_v"))


def frozen(model):
    model.requires_grad_(False)
    network_of(model).requires_grad_(True)


def nothing(model):
    pass


def begun(name, change=nothing, tokenizer=LETTERS, settings=STEPS):
    """A trainer of that model, with the change made to it; always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = shaken(MODELS[name](tokenizer))
        change(model)
    if name[0] == "translator":
        return mt.Trainer(model, PAIRS, tokenizer, tokenizer, settings)
    return mt.LanguageModelTrainer(model, TEXTS, tokenizer, settings)


def texts_of(trainer):
    return PAIRS if "src" in trainer.tokenizers else TEXTS


@torch.no_grad()
def outputs(model, tokenizers):
    """What a model makes of some texts: its scores, and what it writes."""
    model.eval()
    ids = mt.pad_rows([[5, 7, 6, 8], [6, 5]], model.config.pad_id)
    if "src" in tokenizers:
        scores = model(ids, torch.tensor([[1, 6, 5], [1, 7, 8]]))
        written = mt.Translator(model, *tokenizers.values()).translate(
            ["a b", "c"], max_new_tokens=6
        )
    else:
        scores = model(ids)
        written = mt.TextGenerator(model, tokenizers["text"]).complete(
            ["a b", "c"], max_new_tokens=6
        )
    return scores, written


def load(path, trainer):
    """Read a model and its tokenizers by one call."""
    if "src" in trainer.tokenizers:
        loaded = mt.Translator.load(path)
    else:
        loaded = mt.TextGenerator.load(path)
    return loaded.model, loaded.tokenizers


def assert_same_model(found, expected):
    """The same class and configuration; the same outputs, to the bit."""
    (model, tokenizers), (wanted, theirs) = found, expected
    assert type(model) is type(wanted)
    for key, value in vars(wanted.config).items():
        assert value in (None, getattr(model.config, key))
    assert {side: t.to_dict() for side, t in tokenizers.items()} == {
        side: t.to_dict() for side, t in theirs.items()
    }
    (scores, written), (wanted_scores, wanted_written) = (
        outputs(model, tokenizers),
        outputs(wanted, theirs),
    )
    assert_same(scores, wanted_scores, 1e-7)
    assert written == wanted_written


def assert_same_weights(found, expected):
    weights, wanted = (dict(each.named_parameters()) for each in (found, expected))
    assert weights.keys() == wanted.keys()
    for key, weight in wanted.items():
        assert torch.equal(weights[key], weight), key
        assert weights[key].requires_grad == weight.requires_grad, key


def fit(trainer, path, until):
    trainer.fit(until, checkpoint=path, progress=False)


def save(trainer, path, until):
    trainer.fit(until, progress=False)
    trainer.save(path)


def shares(trainer, path, until):
    with join_processes("cpu", time_limit=LIMIT) as processes:
        folder = path.with_name("shares")
        ParallelTrainer(trainer, processes, "ddp").fit(until, checkpoint=folder, progress=False)
    gather(folder, path)


CHECKPOINTS = {each.__name__: each for each in (fit, save, shares)}
each_checkpoint = pytest.mark.parametrize("write", CHECKPOINTS.values(), ids=CHECKPOINTS)


@pytest.mark.parametrize(
    ("name", "change", "write"),
    [(name, change, fit) for name in MODELS for change in (nothing, low_rank)]
    + [(name, frozen, save) for name in SOME]
    + [(name, low_rank, shares) for name in SOME],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else each.__name__,
)
def test_checkpoint_is_resumed_and_loaded(tmp_path, name, change, write):
    trainer = begun(name, change)
    write(trainer, tmp_path / "saved", 3)
    resumed = type(trainer).resume(tmp_path / "saved", texts_of(trainer))
    assert type(resumed.model) is type(trainer.model)
    assert resumed.model.config == trainer.model.config
    assert_same_weights(resumed.model, trainer.model)
    assert_same_model(load(tmp_path / "saved", trainer), (trainer.averaged(), trainer.tokenizers))
    straight = begun(name, change)
    straight.fit(progress=False)
    resumed.fit(checkpoint=tmp_path / "saved", progress=False)
    assert resumed.history == straight.history
    assert_same_weights(resumed.model, straight.model)


@each_checkpoint
@each_foreign
@pytest.mark.parametrize("name", [("translator", "Transformer"), ("writer", "GPT2")], ids=" ".join)
def test_checkpoint_of_what_would_be_lost_is_refused(tmp_path, name, change, message, write):
    trainer = begun(name, change)
    with pytest.raises(ValueError, match=message):
        write(trainer, tmp_path / "saved", 0 if write is save else 3)
    assert trainer.step == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("tokenizer", [LETTERS, BYTES], ids=["letters", "bytes"])
@each_model
def test_folder_is_loaded(tmp_path, name, tokenizer):
    trainer = begun(name, tokenizer=tokenizer)
    model, tokenizers = trainer.model, trainer.tokenizers
    model.save_pretrained(tmp_path / "model", **tokenizers)
    assert_same_model(load(tmp_path / "model", trainer), (model, tokenizers))
    again = type(model).from_pretrained(tmp_path / "model")
    assert_same_model((again, tokenizers), (model, tokenizers))
    assert_same_weights(again, model)
    model.save_pretrained(tmp_path / "alone")
    assert_same_weights(type(model).from_pretrained(tmp_path / "alone"), model)


@each_foreign
@pytest.mark.parametrize("name", [("translator", "T5"), ("writer", "user's own")], ids=" ".join)
def test_folder_of_what_would_be_lost_is_refused_at_once(tmp_path, name, change, message):
    trainer = begun(name, change)
    with pytest.raises(ValueError, match=message):
        trainer.model.save_pretrained(tmp_path / "model", **trainer.tokenizers)
    assert list(tmp_path.iterdir()) == []


def test_positions_that_no_configuration_says_are_not_saved(tmp_path):
    model = small_model(positional_encoding="rotary")
    attention = model.decoder.layers[0].self_attention
    attention.rotary.layout = "half"
    with pytest.raises(ValueError, match=r"rotary.layout .* 'half', expected 'interleaved'"):
        model.save_pretrained(tmp_path)
    attention.rotary = mt.RotaryPositionalEncoding(4, 16, base=500_000.0)
    with pytest.raises(ValueError, match=r"self_attention.rotary.table .*: a tensor \(16, 4\)"):
        model.save_pretrained(tmp_path)
    attention.rotary = None
    with pytest.raises(ValueError, match=r"self_attention.rotary is nothing, a part of the model"):
        model.save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_evaluation_does_not_see_may_differ(tmp_path):
    model = small_model(dropout=0.1).train()
    model.dropout.p = 0.5
    model.decoder.layers[0].self_attention.attention.backend = "reference"
    model.save_pretrained(tmp_path)
    assert mt.Transformer.from_pretrained(tmp_path).dropout.p == 0.1


# --- models that no trainer of the package takes


READS = {"vocab_size": 30, "d_model": 12, "num_heads": 3, "num_layers": 1, "d_ff": 20}
SEES = {"image_size": models.Rectangle(4, 8), "patch_size": 2, "d_model": 12, "num_heads": 3}
IDS = torch.tensor([[5, 6, 0]])
READERS = {
    "BERT": (models.BERT, models.BERTConfig(**READS), IDS),
    "RoBERTa": (models.BERT, models.RoBERTaConfig(**READS), IDS),
    "DistilBERT": (models.BERTForMaskedLM, models.DistilBERTConfig(**READS), IDS),
    "classes": (
        models.BERTForSequenceClassification,
        models.BERTConfig(**READS, num_labels=3),
        IDS,
    ),
    "ViT": (models.ViT, models.ViTConfig(**SEES, num_layers=1, d_ff=20), torch.rand(1, 3, 4, 8)),
}


@pytest.mark.parametrize(("kind", "config", "given"), READERS.values(), ids=READERS)
def test_models_that_only_read_are_loaded(tmp_path, kind, config, given):
    model = shaken(kind(config)).eval()
    model.save_pretrained(tmp_path)
    weights = dict(model.named_parameters())
    assert class_of(tmp_path) is kind
    for again in (
        kind.from_pretrained(tmp_path),
        with_weights(rebuilt(described(model), "cpu"), weights, "cpu").eval(),
    ):
        assert again.config == model.config
        assert torch.equal(again(given), model(given))
    with pytest.raises(ValueError, match="holds no"):
        mt.TextGenerator.load(tmp_path)


# --- classes by their names


class Line(nn.Module):
    """Nothing of the package's, but enough for a trainer."""

    max_len = 32
    config_class = mt.TransformerConfig

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.tgt_vocab_size, config.tgt_vocab_size)

    def forward(self, ids):
        return self.table(ids)


def test_class_that_is_not_registered_is_refused_with_the_word(tmp_path):
    def trainer():
        config = mt.TransformerConfig.decoder_only(LETTERS.vocab_size, d_model=8, num_heads=2)
        return mt.LanguageModelTrainer(Line(config), TEXTS, LETTERS, STEPS)

    first = trainer()
    for write in CHECKPOINTS.values():
        with pytest.raises(ValueError, match=r"a test_saved_and_loaded.Line .* @minitransformer.r"):
            write(first, tmp_path / "saved", 0 if write is save else 3)
    assert first.step == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert mt.register(Line) is Line
    second = trainer()
    fit(second, tmp_path / "saved", 3)
    resumed = mt.LanguageModelTrainer.resume(tmp_path / "saved", TEXTS)
    assert type(resumed.model) is Line
    assert_same_weights(resumed.model, second.model)


def test_class_that_is_gone_is_named(tmp_path, monkeypatch):
    trainer = begun(("writer", "user's own"))
    fit(trainer, tmp_path / "saved", 1)
    trainer.model.save_pretrained(tmp_path / "folder", **trainer.tokenizers)
    monkeypatch.delitem(CLASSES, "test_saved_and_loaded.Wider")
    for path in ("saved", "folder"):
        with pytest.raises(ValueError, match=r"class test_saved_and_loaded.Wider is not known he"):
            mt.TextGenerator.load(tmp_path / path)


def test_constructor_that_needs_more_is_refused_at_once(tmp_path):
    class Needy(mt.DecoderOnlyTransformer):
        def __init__(self, config, needed):
            super().__init__(config)

    config = mt.TransformerConfig.decoder_only(LETTERS.vocab_size, d_model=8, num_heads=2)
    trainer = mt.LanguageModelTrainer(Needy(config, 1), TEXTS, LETTERS, STEPS)
    with pytest.raises(ValueError, match=r"Needy cannot be made of its configuration alone"):
        fit(trainer, tmp_path / "saved", 3)
    assert trainer.step == 0


def test_tokenizer_of_a_users_own_is_refused_at_once(tmp_path):
    class Spaced(mt.CharacterTokenizer):
        @staticmethod
        def split(text):
            return list(text.replace(" ", "_"))

    letters = Spaced(LETTERS.tokens[5:])
    trainer = begun(("writer", "GPT2"), tokenizer=letters)
    for write in (
        lambda: fit(trainer, tmp_path / "saved", 3),
        lambda: trainer.model.save_pretrained(tmp_path / "folder", text=letters),
        lambda: writer(letters).save_pretrained(tmp_path / "folder", text=letters),
        lambda: write_tokens(TEXTS, letters, tmp_path / "tokens"),
    ):
        with pytest.raises(ValueError, match="a Spaced, cannot be saved"):
            write()
    assert trainer.step == 0
    assert list(tmp_path.iterdir()) == []


# --- another training's file


def test_new_trainer_does_not_replace_what_another_has_trained(tmp_path):
    path = tmp_path / "saved"
    fit(begun(("writer", "GPT2")), path, 3)
    before = path.read_bytes()
    for name in (("writer", "GPT2"), ("writer", "Llama")):
        with pytest.raises(ValueError, match=r"holds another training, of 3 steps, .*`resume`, na"):
            fit(begun(name), path, 3)
    further = begun(("writer", "GPT2"), settings=replace(STEPS, seed=1))
    further.fit(2, progress=False)
    with pytest.raises(ValueError, match=r"of 3 steps, which this one, at step 2, would replace"):
        fit(further, path, 3)
    assert path.read_bytes() == before
    resumed = mt.LanguageModelTrainer.resume(path, TEXTS)
    fit(resumed, path, 4)
    fit(resumed, path, 4)
    assert mt.LanguageModelTrainer.resume(path, TEXTS).step == 4


def test_best_state_of_the_same_training_is_replaced_that_of_another_is_not(tmp_path):
    stopping = mt.EarlyStopping("score", best=tmp_path / "best")
    callbacks = [mt.Evaluate(lambda: {"score": 1.0}, every=1), stopping]

    def go_on(trainer, until):
        trainer.fit(until, callbacks, progress=False)

    first = begun(("writer", "GPT2"))
    first.fit(1, checkpoint=tmp_path / "last", progress=False)
    go_on(first, 3)
    go_on(mt.LanguageModelTrainer.resume(tmp_path / "last", TEXTS), 4)  # killed in between
    with pytest.raises(ValueError, match="holds another training"):
        go_on(begun(("writer", "GPT2")), 3)


# --- tokens in files


def test_token_file_trains_saves_and_goes_on(tmp_path):
    write_tokens(TEXTS, LETTERS, tmp_path / "tokens")
    file = TokenFile(tmp_path / "tokens")

    def trainer():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = shaken(MODELS["writer", "GPT2"](LETTERS))
            return mt.LanguageModelTrainer(model, file.tokens, file.tokenizer, STEPS)

    straight, stopped = trainer(), trainer()
    straight.fit(progress=False)
    fit(stopped, tmp_path / "saved", 2)
    resumed = mt.LanguageModelTrainer.resume(tmp_path / "saved", file.tokens)
    fit(resumed, tmp_path / "saved", 4)
    assert_same_weights(resumed.model, straight.model)
    assert_same_model(
        load(tmp_path / "saved", straight), (straight.averaged(), straight.tokenizers)
    )


def test_published_tokenizer_is_written_with_tokens_and_beside_models(tmp_path):
    words = published_words("<s>", "</s>", words="abcd")
    write_tokens(TEXTS, words, tmp_path / "tokens")
    file = TokenFile(tmp_path / "tokens")
    assert file.tokens.tolist() == mt.token_stream(TEXTS, words).tolist()
    assert file.tokenizer.to_dict() == words.to_dict()
    for name in ("GPT2", "DecoderOnlyTransformer"):
        model = MODELS["writer", name](words)
        if name != "GPT2":
            model = type(model)(replace(model.config, pad_id=-1))
        model.save_pretrained(tmp_path / name, text=words)
        loaded = mt.TextGenerator.load(tmp_path / name)
        again, tokenizer = loaded.model, loaded.tokenizers["text"]
        assert tokenizer.encode("a b d") == words.encode("a b d")
        assert (tokenizer.bos_id, tokenizer.eos_id) == (words.bos_id, words.eos_id)
        assert_same_weights(again, model)


def test_no_texts_are_refused_and_leave_nothing(tmp_path):
    with pytest.raises(ValueError, match="texts must hold at least 1 text"):
        write_tokens([], LETTERS, tmp_path / "tokens")
    assert list(tmp_path.iterdir()) == []


# --- where to


@pytest.mark.parametrize("name", [("translator", "Transformer"), ("writer", "GPT2")], ids=" ".join)
def test_folder_without_a_name_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    trainer = begun(name)
    for do in (
        lambda: trainer.model.save_pretrained(""),
        lambda: type(trainer.model).from_pretrained(""),
        lambda: write_tokens(TEXTS, LETTERS, ""),
        lambda: load("", trainer),
    ):
        with pytest.raises(ValueError, match="must have a name, got ''"):
            do()
    assert list(Path().iterdir()) == []

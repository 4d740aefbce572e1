"""What a writer accepts its own reader reads, with equal outputs; what it refuses leaves no trace.

Every class of models, with what users add to it, through every writer: a checkpoint by `fit` and by
`save`, many processes' shares and what `gather` makes of them, and a folder.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from helpers import TEXTS, assert_same, assert_same_weights, published_words, shaken, small_model
from many import LIMIT
from torch import nn

import minitransformer as mt
from minitransformer import models, parallel
from minitransformer.efficient_attention import linear_attention_of_all_pairs
from minitransformer.models import add_lora
from minitransformer.models.registry import CLASSES

PAIRS = [(text, text[::-1]) for text in TEXTS]
LETTERS = mt.CharacterTokenizer.train(TEXTS)
BYTES = mt.BPETokenizer.train(TEXTS, 270)
SIZES = {"d_model": 12, "num_heads": 3, "d_ff": 20, "max_len": 32}
STEPS = mt.TrainingConfig(steps=4, warmup_steps=1, batch_size=4, context_length=5, ema_decay=0.5)


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


PAIRED = SIZES | {"num_encoder_layers": 1, "num_decoder_layers": 2}
ALONE = SIZES | {"num_encoder_layers": 0, "num_decoder_layers": 2, "share_embeddings": True}
ROTARY = {"positional_encoding": "rotary", "norm": "rms_norm", "share_embeddings": True}
GPT = SIZES | {"num_layers": 2}
LLAMA = GPT | {"num_kv_heads": 1}
SCALED = models.RotaryScaling("llama3", factor=4.0, low=1.0, high=4.0, trained_len=16)
T5 = {"d_model": 12, "d_k": 5, "num_heads": 3, "d_ff": 20, "num_encoder_layers": 1, "start_id": 1}
T5_1_1 = T5 | {"network": "gated-gelu", "tie_output": False, "scale_output": False}
MARIAN = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 12, "max_len": 32}
MARIAN |= {f"{side}_num_heads": 3 for side in ("encoder", "decoder")}
MARIAN |= {f"{side}_d_ff": 20 for side in ("encoder", "decoder")}
MARIAN |= {"pad_id": 0, "start_id": 1}  # as our tokenizers pad and begin
MODELS = {
    "Transformer": (mt.Transformer, mt.TransformerConfig, PAIRED),
    "rotary": (mt.Transformer, mt.TransformerConfig, PAIRED | ROTARY),
    "doubled": (Doubled, mt.TransformerConfig, PAIRED),
    "own layers": (WithOwnLayers, mt.TransformerConfig, PAIRED),
    "T5": (models.T5, models.T5Config, T5),
    "T5 1.1": (models.T5, models.T5Config, T5_1_1),
    "Marian": (models.Marian, models.MarianConfig, MARIAN),
    "BART": (models.BART, models.BARTConfig, MARIAN),
    "decoder only": (mt.DecoderOnlyTransformer, mt.TransformerConfig, ALONE),
    "wider": (Wider, WiderConfig, ALONE | {"kept_layers": (1, 0)}),
    "linear attention": (WithLinearAttention, mt.TransformerConfig, ALONE | {"norm_first": True}),
    "GPT2": (models.GPT2, models.GPT2Config, GPT),
    "halved GPT2": (Halved, models.GPT2Config, GPT),
    "Llama": (models.Llama, models.LlamaConfig, LLAMA | {"rotary": SCALED, "d_k": 6}),
    "Mistral": (models.Llama, models.MistralConfig, LLAMA | {"window": 3}),
    "Qwen2": (models.Llama, models.Qwen2Config, LLAMA | {"window": 4, "first_window_layer": 1}),
    "Qwen3": (models.Llama, models.Qwen3Config, LLAMA | {"d_k": 6}),
}
"""The class, that of its configuration, and the settings; `begun` trains each."""


def made(name, tokenizer, **changes):
    """The model of that name, for texts of that tokenizer."""
    kind, config, settings = MODELS[name]
    sides = ("src_", "tgt_") if issubclass(config, mt.TransformerConfig) else ("",)
    sizes = {f"{side}vocab_size": tokenizer.vocab_size for side in sides}
    return kind(config(**sizes, **(settings | changes)))


def layer_of(model):
    """The first layer of the last stack."""
    return model.decoder.layers[0]


def setting(path, value):
    """A change: what is at that place in the first layer of the last stack is now the value."""
    part, _, name = path.rpartition(".")
    return lambda model: setattr(layer_of(model).get_submodule(part), name, value)


def wrapped(model):
    layer_of(model).feed_forward = nn.Sequential(layer_of(model).feed_forward, nn.Linear(12, 12))


def untied(model):
    model.output_projection.weight = nn.Parameter(torch.rand_like(model.output_projection.weight))


def with_a_buffer(model):
    layer_of(model).feed_forward.register_buffer("mean", torch.ones(1))


def normed(model):
    nn.utils.parametrizations.weight_norm(layer_of(model).self_attention.w_q)


ONE, STATISTICS = nn.Parameter(torch.ones(1)), nn.BatchNorm1d(3, affine=False)
MISSING = r"1 of \d+ weights do not fit .* is \({}\), expected missing"
FOREIGN = {
    "around a layer": (wrapped, "feed_forward is a Sequential, a FeedForward as configured"),
    "module": (setting("probe", nn.Linear(3, 2)), "probe is a Linear, nothing as configured"),
    "its buffers": (setting("mean", STATISTICS), "mean is a BatchNorm1d, nothing as configured"),
    "parameter": (setting("feed_forward.gate", ONE), MISSING.format("1,")),
    "buffer": (with_a_buffer, r"mean is not what .* a tensor \(1,\), expected None"),
    "ε": (setting("residual_1.norm.eps", 0.1), "norm.eps is not what .* 0.1, expected 1e-0"),
    "dtype": (lambda model: layer_of(model).feed_forward.half(), "a single floating-point dtype"),
    "weight": (normed, "w_q is a ParametrizedLinear, a Linear as configured"),
    "activation": (setting("feed_forward.activation", torch.tanh), "activation is not what"),
    "window": (setting("self_attention.window", 3), "window is not what .* 3, expected None"),
    "scale": (setting("self_attention.attention.scale", 0.5), "attention.scale is not what"),
    "network": (setting("feed_forward", nn.Identity()), "feed_forward is a Identity, a Fe"),
    "untied": (untied, MISSING.format(r"\d+, 12")),
    "nothing": (setting("residual_1", None), "residual_1.* is nothing, a part of the model"),
}


def low_rank(model):
    add_lora(model, 2, alpha=3.0, names=("w_q", "w_v"))


def frozen(model):
    model.requires_grad_(False)
    layer_of(model).requires_grad_(True)


def nothing(model):
    pass


def begun(name, change=nothing, tokenizer=LETTERS, settings=STEPS, texts=TEXTS):
    """A trainer of that model, with the change made to it; always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = shaken(made(name, tokenizer))
        change(model)
    if isinstance(model, mt.Transformer):
        return mt.Trainer(model, PAIRS, tokenizer, tokenizer, settings)
    return mt.LanguageModelTrainer(model, texts, tokenizer, settings)


def resume(path, trainer):
    """A trainer that goes on from a checkpoint of this one."""
    return type(trainer).resume(path, PAIRS if "src" in trainer.tokenizers else TEXTS)


@torch.no_grad()
def outputs(model, tokenizers):
    """What a model makes of some texts: its scores, and what it writes."""
    model.eval()
    ids = mt.pad_rows([[5, 7, 6, 8], [6, 5]], model.config.pad_id)
    texts = ["a b", "c"]
    if "src" in tokenizers:
        translator = mt.Translator(model, *tokenizers.values())
        scores = model(ids, torch.tensor([[1, 6, 5], [1, 7, 8]]))
        return scores, translator.translate(texts, max_new_tokens=6)
    generator = mt.TextGenerator(model, tokenizers["text"])
    return model(ids), generator.complete(texts, max_new_tokens=6)


def load(path, trainer):
    """Read a model and its tokenizers by one call."""
    kind = mt.Translator if "src" in trainer.tokenizers else mt.TextGenerator
    loaded = kind.load(path)
    return loaded.model, loaded.tokenizers


def assert_same_model(found, expected):
    """The same class, configuration and tokenizers; the same outputs, to the bit."""
    (model, tokenizers), (wanted, theirs) = found, expected
    assert type(model) is type(wanted)
    for key, value in vars(wanted.config).items():
        assert value in (None, getattr(model.config, key))
    assert tokenizers.keys() == theirs.keys()
    assert all(tokenizers[side].to_dict() == t.to_dict() for side, t in theirs.items())
    (scores, written), (wanted_scores, wanted_written) = outputs(*found), outputs(*expected)
    assert_same(scores, wanted_scores, 1e-7)
    assert written == wanted_written


def fit(trainer, path, until):
    trainer.fit(until, checkpoint=path, progress=False)


def save(trainer, path, until):
    trainer.fit(until, progress=False)
    trainer.save(path)


def shares(trainer, path, until):
    with parallel.join_processes("cpu", time_limit=LIMIT) as processes:
        many, folder = parallel.ParallelTrainer(trainer, processes), path.with_name("shares")
        many.fit(until, checkpoint=folder, progress=False)
    parallel.gather(folder, path)


CHECKPOINTS = (fit, save, shares)


def assert_refused(write, trainer, folder, message):
    """At once: without a step, and without a file."""
    with pytest.raises(ValueError, match=message):
        write(trainer, folder / "saved", 0 if write is save else 3)
    assert trainer.step == 0
    assert [path for path in folder.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("name", "change", "write"),
    [(name, change, fit) for name in MODELS for change in (nothing, low_rank)]
    + [(name, frozen, save) for name in ("doubled", "Llama")]
    + [(name, low_rank, shares) for name in ("doubled", "Llama")],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_checkpoint_is_resumed_and_loaded(tmp_path, name, change, write):
    trainer = begun(name, change)
    write(trainer, tmp_path / "saved", 3)
    resumed = resume(tmp_path / "saved", trainer)
    assert type(resumed.model) is type(trainer.model)
    assert resumed.model.config == trainer.model.config
    assert_same_weights(resumed.model, trainer.model)
    for one, other in zip(resumed.model.parameters(), trainer.model.parameters(), strict=True):
        assert one.requires_grad == other.requires_grad
    assert_same_model(load(tmp_path / "saved", trainer), (trainer.averaged(), trainer.tokenizers))
    straight = begun(name, change)
    straight.fit(progress=False)
    resumed.fit(checkpoint=tmp_path / "saved", progress=False)
    assert resumed.history == straight.history
    assert_same_weights(resumed.model, straight.model)


def folder(trainer, path, until):
    trainer.model.save_pretrained(path, **trainer.tokenizers)


@pytest.mark.parametrize(("change", "message"), FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize(
    ("name", "write"),
    [(name, write) for name in ("Transformer", "GPT2") for write in CHECKPOINTS]
    + [(name, folder) for name in ("T5", "wider")],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_what_would_be_lost_is_refused_at_once(tmp_path, name, change, message, write):
    assert_refused(write, begun(name, change), tmp_path, message)


@pytest.mark.parametrize("tokenizer", [LETTERS, BYTES], ids=["letters", "bytes"])
@pytest.mark.parametrize("name", MODELS)
def test_folder_is_loaded(tmp_path, name, tokenizer):
    trainer = begun(name, tokenizer=tokenizer)
    model, tokenizers = trainer.model, trainer.tokenizers
    model.save_pretrained(tmp_path / "model", **tokenizers)
    assert_same_model(load(tmp_path / "model", trainer), (model, tokenizers))
    model.save_pretrained(tmp_path / "alone")
    for name in ("model", "alone"):
        again = type(model).from_pretrained(tmp_path / name)
        assert_same_model((again, tokenizers), (model, tokenizers))
        assert_same_weights(again, model)


def test_positions_that_no_configuration_says_are_not_saved(tmp_path):
    model = small_model(positional_encoding="rotary")
    for rotary, message in (
        (mt.RotaryPositionalEncoding(4, 16, layout="half"), "layout .* 'half', expected 'interl"),
        (mt.RotaryPositionalEncoding(4, 16, base=500_000.0), r"table .*: a tensor \(16, 4\)"),
        (None, "is nothing, a part of the model"),
    ):
        model.decoder.layers[0].self_attention.rotary = rotary
        with pytest.raises(ValueError, match=f"self_attention.rotary.*{message}"):
            model.save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_evaluation_does_not_see_may_differ(tmp_path):
    model = small_model(dropout=0.1).train()
    model.dropout.p = 0.5
    model.decoder.layers[0].self_attention.attention.backend = "reference"
    model.save_pretrained(tmp_path)
    assert mt.Transformer.from_pretrained(tmp_path).dropout.p == 0.1


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

    for write in CHECKPOINTS:
        message = r"a test_saved_and_loaded.Line .* @minitransformer.r"
        assert_refused(write, trainer(), tmp_path, message)
    assert mt.register(Line) is Line
    first = trainer()
    fit(first, tmp_path / "saved", 3)
    resumed = resume(tmp_path / "saved", first)
    assert type(resumed.model) is Line
    assert_same_weights(resumed.model, first.model)


def test_class_that_is_gone_is_named(tmp_path, monkeypatch):
    trainer = begun("wider")
    fit(trainer, tmp_path / "saved", 1)
    folder(trainer, tmp_path / "folder", 1)
    monkeypatch.delitem(CLASSES, "test_saved_and_loaded.Wider")
    for path in ("saved", "folder"):
        with pytest.raises(ValueError, match=r"class test_saved_and_loaded.Wider is not known he"):
            mt.TextGenerator.load(tmp_path / path)


def test_constructor_that_needs_more_is_refused_at_once(tmp_path):
    class Needy(mt.DecoderOnlyTransformer):
        def __init__(self, config, needed):
            super().__init__(config)

    trainer = begun("decoder only")
    trainer.model = Needy(trainer.model.config, 1)
    assert_refused(fit, trainer, tmp_path, "Needy cannot be made of its configuration alone")
    for config in ({"d_model": 8}, mt.TransformerConfig):
        trainer = begun("decoder only")
        trainer.model.config = config
        message = "DecoderOnlyTransformer cannot be saved: its config must be a dataclass, got "
        with pytest.raises(ValueError, match=message):
            trainer.save(tmp_path / "saved")


def test_tokenizer_of_a_users_own_is_refused_at_once(tmp_path):
    class Spaced(mt.CharacterTokenizer):
        @staticmethod
        def split(text):
            return list(text.replace(" ", "_"))

    def tokens(trainer, path, until):
        parallel.write_tokens(TEXTS, trainer.tokenizers["text"], path)

    letters = Spaced(LETTERS.tokens[5:])
    for name, write in (("GPT2", fit), ("GPT2", folder), ("wider", folder), ("GPT2", tokens)):
        trainer = begun(name, tokenizer=letters)
        assert_refused(write, trainer, tmp_path, "a Spaced, cannot be saved")


# --- another training's file


def test_new_trainer_does_not_replace_what_another_has_trained(tmp_path):
    path = tmp_path / "saved"
    fit(begun("GPT2"), path, 3)
    before = path.read_bytes()
    for name in ("GPT2", "Llama"):
        with pytest.raises(ValueError, match=r"holds another training, of 3 steps, .*`resume`, na"):
            fit(begun(name), path, 3)
    further = begun("GPT2", settings=replace(STEPS, seed=1))
    further.fit(2, progress=False)
    with pytest.raises(ValueError, match=r"of 3 steps, which this one, at step 2, would replace"):
        fit(further, path, 3)
    assert path.read_bytes() == before
    resumed = resume(path, further)
    fit(resumed, path, 4)
    fit(resumed, path, 4)
    assert resume(path, further).step == 4


def test_best_state_of_the_same_training_is_replaced_that_of_another_is_not(tmp_path):
    stopping = mt.EarlyStopping("score", best=tmp_path / "best")
    callbacks = [mt.Evaluate(lambda: {"score": 1.0}, every=1), stopping]
    first = begun("GPT2")
    first.fit(1, checkpoint=tmp_path / "last", progress=False)
    first.fit(3, callbacks, progress=False)
    resume(tmp_path / "last", first).fit(4, callbacks, progress=False)  # killed in between
    with pytest.raises(ValueError, match="holds another training"):
        begun("GPT2").fit(3, callbacks, progress=False)


# --- tokens in files


def test_token_file_trains_saves_and_goes_on(tmp_path):
    parallel.write_tokens(TEXTS, LETTERS, tmp_path / "tokens")
    file = parallel.TokenFile(tmp_path / "tokens")
    straight, stopped = (begun("GPT2", nothing, file.tokenizer, STEPS, file.tokens) for _ in "ab")
    straight.fit(progress=False)
    fit(stopped, tmp_path / "saved", 2)
    resumed = mt.LanguageModelTrainer.resume(tmp_path / "saved", file.tokens)
    fit(resumed, tmp_path / "saved", 4)
    assert_same_weights(resumed.model, straight.model)
    trained = (straight.averaged(), straight.tokenizers)
    assert_same_model(load(tmp_path / "saved", straight), trained)


def test_published_tokenizer_is_written_with_tokens_and_beside_models(tmp_path):
    words = published_words("<s>", "</s>", words="abcd")
    parallel.write_tokens(TEXTS, words, tmp_path / "tokens")
    file = parallel.TokenFile(tmp_path / "tokens")
    assert file.tokens.tolist() == mt.token_stream(TEXTS, words).tolist()
    assert file.tokenizer.to_dict() == words.to_dict()
    for name, changes in (("GPT2", {}), ("decoder only", {"pad_id": -1})):
        model = made(name, words, **changes)
        model.save_pretrained(tmp_path / name, text=words)
        loaded = mt.TextGenerator.load(tmp_path / name)
        again, tokenizer = loaded.model, loaded.tokenizers["text"]
        assert tokenizer.encode("a b d") == words.encode("a b d")
        assert (tokenizer.bos_id, tokenizer.eos_id) == (words.bos_id, words.eos_id)
        assert_same_weights(again, model)


def test_no_texts_are_refused_and_leave_nothing(tmp_path):
    with pytest.raises(ValueError, match="texts must hold at least 1 text"):
        parallel.write_tokens([], LETTERS, tmp_path / "tokens")
    assert list(tmp_path.iterdir()) == []


# --- where to


@pytest.mark.parametrize("name", ["Transformer", "GPT2"])
def test_folder_without_a_name_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    trainer = begun(name)
    for do in (
        lambda: trainer.model.save_pretrained(""),
        lambda: type(trainer.model).from_pretrained(""),
        lambda: parallel.write_tokens(TEXTS, LETTERS, ""),
        lambda: load("", trainer),
    ):
        with pytest.raises(ValueError, match="must have a name, got ''"):
            do()
    assert list(Path().iterdir()) == []

"""The library `transformers` reads what is written for it, and computes the same."""

import pytest
import torch
from configurations import PROMPT_IDS, PROMPTS, SRC_IDS, TGT_IDS, causal, seq2seq, without_ends
from helpers import TEXTS, assert_same, refuses, shaken, small_config

import minitransformer as mt
from minitransformer.export import to_transformers

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

ENCODER_DECODERS = {
    "Marian": {},
    "Marian without biases": {"attention_bias": False, "activation": "gelu"},
    "Marian, one layer of six": {"num_encoder_layers": 1, "num_decoder_layers": 5, "d_ff": 44},
    "Pegasus": {"norm_first": True},
    "Pegasus, six heads": {"norm_first": True, "d_model": 24, "num_heads": 6, "activation": "silu"},
}
LLAMA = {
    "norm_first": True,
    "norm": "rms_norm",
    "activation": "swiglu",
    "positional_encoding": "rotary",
}
DECODER_ONLY = {
    "GPT2": {"norm_first": True, "positional_encoding": "learned"},
    "GPT2 with sinusoids": {"norm_first": True, "activation": "gelu_tanh"},
    "GPT2 without positions": {
        "norm_first": True,
        "positional_encoding": "none",
        "attention_bias": False,
        "tie_output": False,
    },
    "Llama": LLAMA,
    "Llama, grouped heads": LLAMA
    | {"num_kv_heads": 2, "num_heads": 6, "d_model": 24, "attention_bias": False},
    "Llama, another gate": LLAMA | {"num_kv_heads": 1, "activation": "geglu", "tie_output": False},
}


def shared_model(**changes):
    """An encoder-decoder with one vocabulary of 31 tokens."""
    sizes = {"src_vocab_size": 31, "tgt_vocab_size": 31, "share_embeddings": True}
    config = mt.TransformerConfig(**(vars(small_config(**changes)) | sizes))
    return shaken(mt.Transformer(config, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_seq2seq_model_computes_and_writes_the_same(name, tmp_path):
    model = shared_model(**ENCODER_DECODERS[name]).double().eval()
    to_transformers(model, tmp_path / "engine")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "engine", dtype=torch.float64
    ).eval()
    assert type(theirs).__name__.startswith(name.split(",")[0].split()[0])
    seen = (SRC_IDS != 0).long()
    with torch.inference_mode():
        logits = theirs(SRC_IDS, attention_mask=seen, decoder_input_ids=TGT_IDS).logits
        real = TGT_IDS != 0
        assert_same(logits[real], model(SRC_IDS, TGT_IDS)[real], 1e-6)  # its sinusoids: float32
    for num_beams in (1, 3):
        options = {"num_beams": num_beams, "max_new_tokens": 9}
        ours = mt.generate(model, SRC_IDS, length_penalty=0.0, **options)
        options |= {"do_sample": False, "suppress_tokens": [0], "length_penalty": 0.0}
        found = theirs.generate(SRC_IDS, attention_mask=seen, early_stopping="never", **options)
        assert without_ends(found[:, 1:]) == without_ends(ours)


@pytest.mark.parametrize("name", DECODER_ONLY)
def test_causal_model_computes_and_writes_the_same(name, tmp_path):
    model = causal(**DECODER_ONLY[name]).double()
    to_transformers(model, tmp_path / "engine")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "engine", dtype=torch.float64
    ).eval()
    assert type(theirs).__name__.startswith(name.split(",")[0].split()[0])
    ids = torch.tensor([[1, 7, 8, 11, 30], [1, 9, 10, 12, 5]])
    with torch.inference_mode():
        assert_same(theirs(ids).logits, model(ids), 1e-6)
    left = torch.tensor([[0] * (5 - len(row)) + row for row in PROMPTS])
    ours = mt.generate(model, PROMPT_IDS, max_new_tokens=6)
    options = {"max_new_tokens": 6, "do_sample": False, "suppress_tokens": [0]}
    found = theirs.generate(left, attention_mask=(left != 0).long(), **options)
    assert without_ends(found[:, 5:]) == without_ends(ours)


def test_tokenizer_reads_as_the_model_needs_it(tmp_path):
    words = mt.WordTokenizer.train(TEXTS)
    to_transformers(mt.Translator(shared_model(), words, words), tmp_path / "both")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "both")
    assert theirs("c a b").input_ids == [*words.encode("c a b"), 2]
    assert theirs.decode(theirs("c a b").input_ids, skip_special_tokens=True) == "c a b"
    batch = theirs(["c a b", "d"], padding=True)
    assert batch.input_ids[1] == [*words.encode("d"), 2, 0, 0]
    assert batch.attention_mask[1] == [1, 1, 0, 0]

    to_transformers(mt.TextGenerator(causal(norm_first=True), words), tmp_path / "text")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "text")
    assert theirs("c a b").input_ids == words.begin("c a b")


def exported(model, folder="never"):
    return lambda: to_transformers(model, folder)


WORDS = mt.WordTokenizer.train(TEXTS)
BOTH = mt.Translator(shared_model(), WORDS, mt.CharacterTokenizer.train(TEXTS))
ALIBI = {"positional_encoding": "alibi"}
test_what_the_architecture_does_not_have_is_named = refuses(
    ("Marian or Pegasus of transformers has share_embeddings=True, got F", exported(seq2seq())),
    ("norm='layer_norm', got 'rms_norm'", exported(seq2seq(norm="rms_norm"))),
    ("='sinusoidal', got 'alibi'", exported(seq2seq(**ALIBI))),
    ("activation='relu' or .*, got 'swiglu'", exported(seq2seq(activation="swiglu"))),
    ("num_kv_heads=None, got 1", exported(seq2seq(num_kv_heads=1))),
    ("GPT-2 of transformers has norm_first=True, got False", exported(causal())),
    ("or 'none', got 'alibi'", exported(causal(norm_first=True, **ALIBI))),
    ("Llama .*='rms_norm', got 'layer_norm'", exported(causal(**LLAMA | {"norm": "layer_norm"}))),
    (
        "has activation='swiglu' or .*, got 'relu'",
        exported(causal(**LLAMA | {"activation": "relu"})),
    ),
    ("one tokenizer for both sides, got two different ones", exported(BOTH)),
)

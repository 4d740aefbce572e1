"""What several test modules share: inputs, small models, and the same layers made of torch.nn.

No two axes of these inputs are equal, so that an axis taken for another cannot go unnoticed:
b=2, s=7, t=5, h=3, d=12, e=4, f=20, v=29 (source) and 31 (target).
"""

import copy
import json
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from minitransformer import (
    DecoderOnlyTransformer,
    TextPair,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    WordTokenizer,
    models,
    pad_rows,
)
from minitransformer.export.torch_export import OLDEST_TORCH
from minitransformer.models.registry import named_weights
from minitransformer.tasks.recipes import LONGER, Job, words

SRC_IDS = pad_rows([[8, 3, 28, 5, 11, 17, 2], [9, 22, 4, 2]]).to(torch.get_default_device())
TGT_IDS = pad_rows([[1, 30, 6, 19, 12], [1, 7, 25]]).to(torch.get_default_device())
PROMPTS = pad_rows([[8, 3, 28, 5, 11], [9, 22], [30, 6, 19, 12], [4]])
PROMPTS = PROMPTS.to(torch.get_default_device())
TEXTS = ("a", "b c", "c a b", "d b", "b a d c", "c", "a d", "d c a", "c b a d", "d")
PAIRS = [TextPair(text, text[::-1]) for text in TEXTS]
MODELS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True},
    "learned positions": {"positional_encoding": "learned"},
    "rotary": {"positional_encoding": "rotary"},
    "alibi": {"positional_encoding": "alibi"},
    "no positions": {"positional_encoding": "none"},
    "multi-query": {"num_kv_heads": 1},
    "all at once": {
        "norm_first": True,
        "norm": "rms_norm",
        "activation": "swiglu",
        "positional_encoding": "rotary",
        "num_kv_heads": 1,
    },
}
"""Changes to `small_config`: every law of the model holds for each of these."""
each_model = pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())
each_kind = pytest.mark.parametrize("kind", ["pairs", "texts"])
"""A `Transformer` on sources, or a `DecoderOnlyTransformer` on prompts: see `model_and_ids`."""
NEEDED = {"ctranslate2": ["ctranslate2"], "onnx": ["onnx", "onnxruntime", "onnxscript"]}
"""The libraries that tests of these exports need."""
LAYER = {"d_model": 12, "num_heads": 3, "d_ff": 20, "dropout": 0.0}


def can_export(engine):
    """A mark: skip where nothing can be written for "ctranslate2", "onnx" or "torch"."""
    missing = [name for name in NEEDED.get(engine, ()) if find_spec(name) is None]
    reason = f"{missing[0]} is not installed" if missing else ""
    if engine in ("onnx", "torch") and torch.__version__ < OLDEST_TORCH:
        reason = f"PyTorch {torch.__version__} is too old to trace our models"
    return pytest.mark.skipif(bool(reason), reason=reason)


def refuses(*cases):
    """A test of calls that are refused: each a pattern of the message, the call, maybe the error.

    The error is a ValueError if none is given.
    """

    @pytest.mark.parametrize("case", cases, ids=[case[0] for case in cases])
    def test(case):
        message, call, *error = case
        with pytest.raises(*error or [ValueError], match=message):
            call()

    return test


def randn(*shape, seed=0, dtype=torch.float32, grad=False):
    """Normal numbers that depend on the seed alone."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(dtype).requires_grad_(grad)


def assert_same(actual, expected, tolerance=1e-5):
    """Equal shapes and dtypes, and nowhere further apart than the tolerance."""
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def assert_same_weights(found, expected):
    """The same weights of two models, or by their names, to the last bit; compiled or not."""
    found, expected = (w if isinstance(w, dict) else named_weights(w) for w in (found, expected))
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert found[name].dtype == weight.dtype, name
        assert torch.equal(found[name], weight), name


def shaken(module, seed=1, scale=0.2):
    """The module with every parameter moved, for zero biases and gains of 1 hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return module


def small_config(**changes):
    """A configuration with different sizes everywhere and no dropout."""
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 3, "max_len": 16}
    return TransformerConfig(src_vocab_size=29, tgt_vocab_size=31, **(LAYER | sizes | changes))


def small_model(**changes):
    """A shaken model of `small_config`, always the same one."""
    return shaken(Transformer(small_config(**changes), torch.Generator().manual_seed(0)))


def decoder_only_model(**changes):
    """A shaken decoder-only model with the vocabulary of the targets, always the same one."""
    options = LAYER | {"num_layers": 2, "max_len": 16} | changes
    config = TransformerConfig.decoder_only(31, **options)
    return shaken(DecoderOnlyTransformer(config, torch.Generator().manual_seed(0)))


def model_and_ids(kind, **changes):
    """A small model in evaluation, and what it is given to decode from."""
    if kind == "pairs":
        return small_model(**changes).eval(), SRC_IDS
    return decoder_only_model(**changes).eval(), PROMPTS


def copying_trainer(steps=6, *, dropout=0.3, model_changes=None, **settings):
    """A trainer for `PAIRS`, 1 to 4 letters to be written backwards; 3 batches an epoch."""
    src, tgt = WordTokenizer.train(TEXTS), WordTokenizer.train(["e f", *TEXTS])
    sizes = {"d_model": 12, "num_heads": 3, "num_encoder_layers": 1, "num_decoder_layers": 2}
    sizes |= {"d_ff": 20, "max_len": 64, "norm_first": True} | (model_changes or {})
    config = TransformerConfig(
        src_vocab_size=src.vocab_size, tgt_vocab_size=tgt.vocab_size, dropout=dropout, **sizes
    )
    model = Transformer(config, torch.Generator().manual_seed(0))
    settings = {"batch_size": 4, "warmup_steps": 2, "seed": 5} | settings
    return Trainer(model, PAIRS, src, tgt, TrainingConfig(steps=steps, **settings))


SMALL_JOB = Job(
    lambda seed: dict.fromkeys(("train", "held_out", "composition", "longer"), PAIRS),
    words,
    model={"d_model": 12, "num_heads": 3, "num_encoder_layers": 1, "d_ff": 20, "max_len": 64},
    measured=("held_out", "composition", "longer"),
    remark=LONGER,
)
"""What the command line trains, with a few letters instead of numbers, and a model to match."""


SIZES = {"vocab_size": 31, "d_model": 12}
HEADS = SIZES | {"num_heads": 3, "d_ff": 20, "num_layers": 2}
SIDES = SIZES | {"encoder_num_heads": 3, "decoder_num_heads": 2, "encoder_d_ff": 20}
SIDES |= {"decoder_d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 2, "dropout": 0.0}
OF_T5 = {"d_k": 5, "num_heads": 3, "d_ff": 20, "num_encoder_layers": 2, "dropout": 0.0}
PUBLISHED = {
    "T5": (models.T5, models.T5Config(**SIZES, **OF_T5)),
    "Marian": (models.Marian, models.MarianConfig(**SIDES, pad_id=0, start_id=0)),
    "BART": (models.BART, models.BARTConfig(**SIDES, pad_id=0)),
    "GPT-2": (models.GPT2, models.GPT2Config(**HEADS, max_len=16, dropout=0.0)),
    "Llama": (models.Llama, models.LlamaConfig(**HEADS, num_kv_heads=1, max_len=16)),
    "Qwen 3": (models.Llama, models.Qwen3Config(**HEADS, num_kv_heads=1, d_k=6)),
}
each_published = pytest.mark.parametrize(
    ("kind", "config"), PUBLISHED.values(), ids=PUBLISHED.keys()
)
"""A class of published models that write texts, and a small configuration of it."""


def published_words(*special, words="ab"):
    """A tokenizer as others publish it: words after "?" and special tokens."""
    vocab = {token: index for index, token in enumerate([*special, "?", *words])}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": vocab[t], "content": t, "special": True} | flags for t in special]
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    content = {"added_tokens": added, "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    return models.PublishedTokenizer.from_dict(content)


def hugging_face(tokenizer):
    """The tokenizer of the library `tokenizers` made from our file."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(json.dumps(tokenizer.to_dict()))


def torch_norm(ours):
    """An nn.LayerNorm with our gain and bias."""
    twin = nn.LayerNorm(ours.weight.numel(), eps=ours.eps)
    twin.load_state_dict({"weight": ours.weight, "bias": ours.bias})
    return twin


def torch_attention(ours):
    """An nn.MultiheadAttention with our weights. Its boolean masks have True = hidden."""
    has_bias = ours.w_q.bias is not None
    width = ours.w_q.in_features
    twin = nn.MultiheadAttention(width, ours.num_heads, bias=has_bias, batch_first=True)
    projections = (ours.w_q, ours.w_k, ours.w_v)
    state = {
        "in_proj_weight": torch.cat([linear.weight for linear in projections]),
        "out_proj.weight": ours.w_o.weight,
    }
    if has_bias:
        state["in_proj_bias"] = torch.cat([linear.bias for linear in projections])
        state["out_proj.bias"] = ours.w_o.bias
    twin.load_state_dict(state)
    return twin


def torch_layer(ours, kind, activation):
    """An nn.TransformerEncoderLayer or nn.TransformerDecoderLayer with our weights."""
    width, inner = ours.feed_forward.w_1.in_features, ours.feed_forward.w_1.out_features
    twin = kind(
        width,
        ours.self_attention.num_heads,
        inner,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=ours.residual_1.norm_first,
    )
    twin.self_attn = torch_attention(ours.self_attention)
    twin.linear1 = copy.deepcopy(ours.feed_forward.w_1)
    twin.linear2 = copy.deepcopy(ours.feed_forward.w_2)
    twin.norm1, twin.norm2 = torch_norm(ours.residual_1.norm), torch_norm(ours.residual_2.norm)
    if kind is nn.TransformerDecoderLayer:
        twin.multihead_attn = torch_attention(ours.cross_attention)
        twin.norm3 = torch_norm(ours.residual_3.norm)
    return twin


def torch_transformer(ours, config):
    """An nn.Transformer with the weights of our encoder and decoder.

    nn.Transformer always ends each stack on a norm; the paper's post-norm stacks have none.
    """
    empty = {"custom_encoder": nn.Identity(), "custom_decoder": nn.Identity()}
    twin = nn.Transformer(config.d_model, config.num_heads, batch_first=True, **empty)
    for name, layer, stack in (
        ("encoder", nn.TransformerEncoderLayer, nn.TransformerEncoder),
        ("decoder", nn.TransformerDecoderLayer, nn.TransformerDecoder),
    ):
        our_stack = getattr(ours, name)
        layers = [torch_layer(own, layer, config.activation) for own in our_stack.layers]
        options = {"enable_nested_tensor": False} if name == "encoder" else {}
        torch_stack = stack(layers[0], len(layers), **options)
        torch_stack.layers = nn.ModuleList(layers)
        torch_stack.norm = torch_norm(our_stack.norm) if config.norm_first else None
        setattr(twin, name, torch_stack)  # not given to nn.Transformer: it draws new weights
    return twin


def real_texts(size):
    """About that many characters that every machine has: the documents and sources of Python."""
    import sysconfig
    from pathlib import Path
    from pydoc_data import topics

    texts = list(topics.topics.values())
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        if sum(map(len, texts)) >= size:
            break
        texts.append(path.read_text(encoding="utf-8", errors="ignore"))
    return texts

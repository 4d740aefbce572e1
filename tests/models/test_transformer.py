"""Both models obey the laws: they equal torch's, do not peek, and do not see padding."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    MODELS,
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    each_kind,
    each_model,
    randn,
    small_config,
    small_model,
    torch_layer,
    torch_norm,
    torch_transformer,
)
from torch import nn

import minitransformer as mt
from minitransformer.models.config import POSITIONAL_ENCODINGS

each_order = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
BUILD = {"pairs": small_model, "texts": decoder_only_model}


def scores(model, ids):
    """What either model makes of a target or a text."""
    return model(SRC_IDS, ids) if isinstance(model, mt.Transformer) else model(ids)


# --- equals torch.nn


def embedded(ids, weight):
    """Rows times √d_model, plus section 3.5's sines and cosines."""
    d_model = weight.size(1)
    angles = torch.arange(ids.size(1))[:, None] / 10_000 ** (torch.arange(0, d_model, 2) / d_model)
    positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return weight[ids] * math.sqrt(d_model) + positions


@each_order
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("attention_bias", [True, False], ids=["bias", "no bias"])
def test_model_equals_torch_with_gradients(norm_first, activation, attention_bias):
    changes = {"norm_first": norm_first, "activation": activation, "attention_bias": attention_bias}
    ours = small_model(**changes)
    torchs = torch_transformer(ours, small_config(**changes))
    tables = [ours.src_embedding.weight, ours.tgt_embedding.weight]
    src_table, tgt_table = twins = [table.detach().clone().requires_grad_() for table in tables]
    src_hidden = SRC_IDS == 0
    decoded = torchs(
        embedded(SRC_IDS, src_table),
        embedded(TGT_IDS, tgt_table),
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        src_key_padding_mask=src_hidden,
        memory_key_padding_mask=src_hidden,
    )
    logits, expected = ours(SRC_IDS, TGT_IDS), decoded @ tgt_table.T
    assert_same(logits, expected)

    weighting = 0.1 * randn(*logits.shape, seed=7)  # gradients of size 1
    gradients = torch.autograd.grad((logits * weighting).sum(), tables)
    torchs_gradients = torch.autograd.grad((expected * weighting).sum(), twins)
    for gradient, torchs_gradient in zip(gradients, torchs_gradients, strict=True):
        assert_same(gradient, torchs_gradient)


@each_order
@pytest.mark.parametrize("tie_output", [False, True], ids=["untied", "tied"])
def test_decoder_alone_equals_a_causal_encoder_of_torch(norm_first, tie_output):
    model = decoder_only_model(norm_first=norm_first, tie_output=tie_output)
    x = mt.SinusoidalPositionalEncoding(12)(model.embedding(TGT_IDS))
    for layer in model.decoder.layers:
        x = torch_layer(layer, nn.TransformerEncoderLayer, "relu")(x, src_mask=~mt.causal_mask(5))
    if norm_first:
        x = torch_norm(model.decoder.norm)(x)
    assert_same(model(TGT_IDS), x @ model.output_projection.weight.T)
    assert (model.output_projection.weight is model.embedding.weight) == tie_output


# --- no peeking


@each_kind
@each_model
def test_output_depends_on_its_own_token_and_on_none_after_it(kind, changes):
    model, ids = BUILD[kind](**changes), TGT_IDS.masked_fill(TGT_IDS == 0, 9)
    before = scores(model, ids)
    for position in range(5):
        changed = ids.clone()
        changed[:, position] = 23
        after = scores(model, changed)
        assert torch.equal(before[:, :position], after[:, :position])
        assert ((before - after).abs().amax(-1)[:, position:] > 1e-4).all()


def test_every_output_depends_on_every_source_token():
    model = small_model()
    before = model(SRC_IDS[:1], TGT_IDS[:1])
    for position in range(7):
        src = SRC_IDS[:1].clone()
        src[0, position] = 23
        assert ((before - model(src, TGT_IDS[:1])).abs().amax(-1) > 1e-5).all()


# --- padding is invisible


@each_model
def test_padding_of_pairs_is_invisible(changes):
    model = small_model(**changes)
    together = model(F.pad(SRC_IDS, (0, 4)), F.pad(TGT_IDS, (0, 4)))
    for row, (s, t) in enumerate(((7, 5), (4, 3))):
        alone = model(SRC_IDS[row : row + 1, :s], TGT_IDS[row : row + 1, :t])
        assert_same(together[row, :t], alone[0])


@each_model
@pytest.mark.parametrize("amount", [1, 4])
def test_padding_of_texts_is_invisible_on_either_side(changes, amount):
    model = decoder_only_model(**changes)
    alone = model(TGT_IDS)
    assert_same(model(F.pad(TGT_IDS, (0, amount)))[:, :5], alone)
    left = torch.full((2,), amount)
    moved = model.decode(F.pad(TGT_IDS, (amount, 0)), left_padding=left)
    assert_same(moved[:, amount:], alone)


def test_another_id_may_be_the_padding():
    swap = torch.arange(31)
    swap[[0, 9]] = torch.tensor([9, 0])
    plain, other = small_model(), small_model(pad_id=9)
    other.load_state_dict(plain.state_dict())
    with torch.no_grad():
        for table in (other.src_embedding.weight, other.tgt_embedding.weight):
            table[[0, 9]] = table[[9, 0]]
    expected = plain(SRC_IDS, TGT_IDS)[..., swap]
    assert_same(other(swap[SRC_IDS], swap[TGT_IDS]), expected)


@each_model
def test_source_of_padding_alone_gives_finite_logits_and_gradients(changes):
    model, src = small_model(**changes), SRC_IDS.clone()
    src[1] = 0
    logits = model(src, TGT_IDS)
    assert logits.isfinite().all()
    mt.label_smoothing_loss(logits, TGT_IDS).backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
    assert_same(logits[0], model(SRC_IDS, TGT_IDS)[0])


# --- a mask in place of the causal one

PREFIX = mt.causal_mask(5) | (torch.arange(5) < torch.tensor([3, 2])[:, None, None, None])


@each_model
def test_prefix_sees_itself_and_nothing_after_it(changes):
    model = decoder_only_model(**changes)
    for position in range(5):
        changed = TGT_IDS.clone()
        changed[:, position] = 23
        difference = (model(TGT_IDS, PREFIX) - model(changed, PREFIX)).abs().amax(-1)
        for row, length in enumerate((3, 2)):
            first = 0 if position < length else position
            assert (difference[row, first:] > 1e-4).all()
            assert (difference[row, :first] == 0).all()


@pytest.mark.parametrize("scheme", ["rotary", "alibi", "none"])
def test_documents_that_do_not_see_each_other_are_as_if_alone(scheme):
    model = decoder_only_model(positional_encoding=scheme)
    document = torch.tensor([0, 0, 1, 1, 1])
    together = model(TGT_IDS, (document[:, None] == document) & mt.causal_mask(5))
    assert_same(together, torch.cat([model(TGT_IDS[:, :2]), model(TGT_IDS[:, 2:])], dim=1))


@each_model
def test_mask_goes_together_with_a_cache_with_padding_on_the_left_and_with_the_loss(changes):
    model = decoder_only_model(**changes)
    everything = mt.causal_mask(5) | (torch.arange(5) < 3)
    caches = [mt.KVCache() for _ in model.decoder.layers]
    parts = [model.decode(TGT_IDS[:, :3], caches, mask=everything[:3, :3])]
    for n in (3, 4):
        parts.append(model.decode(TGT_IDS[:, [n]], caches, mask=everything[[n], : n + 1]))
    assert_same(torch.cat(parts, dim=1), model(TGT_IDS, everything))

    mask = F.pad(PREFIX, (2, 0, 2, 0), value=True)
    padded, left = F.pad(TGT_IDS, (2, 0)), torch.tensor([2, 2])
    moved = model.decode(padded, left_padding=left, mask=mask)
    assert_same(moved[:, 2:], model(TGT_IDS, PREFIX))

    targets = torch.tensor([[0, 9, 0, 0, 0], [3, 0, 11, 0, 0]])
    for mask in (torch.ones(5, 5, dtype=torch.bool), PREFIX, mt.causal_mask(5)):
        expected = mt.label_smoothing_loss(model(TGT_IDS, mask), targets, smoothing=0.2)
        assert_same(mt.next_token_loss(model, TGT_IDS, targets, smoothing=0.2, mask=mask), expected)


# --- gradients, dropout, precision


@each_model
def test_every_parameter_gets_a_gradient(changes):
    model = small_model(**changes, attention_bias=False, tie_output=False)
    mt.label_smoothing_loss(model(SRC_IDS, TGT_IDS), TGT_IDS).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_dropout_acts_on_embeddings_too_and_only_while_training():
    model = small_model(dropout=0.5)
    inputs = []
    for stack in (model.encoder, model.decoder):
        stack.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model.train()(SRC_IDS, TGT_IDS)
    for x in inputs:
        assert 0.3 < (x == 0).float().mean() < 0.7
    inputs.clear()
    assert torch.equal(model.eval()(SRC_IDS, TGT_IDS), model(SRC_IDS, TGT_IDS))
    for x in inputs:
        assert (x != 0).all()


@each_model
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.bfloat16, 0.15), (torch.float16, 0.05), (torch.float64, 1e-5)],
    ids=str,
)
def test_model_of_another_dtype_computes_the_same(changes, dtype, tolerance):
    model = small_model(**changes)

    def loss():
        return mt.next_token_loss(model, SRC_IDS, TGT_IDS, TGT_IDS, smoothing=0.1)

    expected, before = model(SRC_IDS, TGT_IDS), loss()
    model.to(dtype)
    logits, after = model(SRC_IDS, TGT_IDS), loss()
    assert logits.dtype == dtype
    assert_same(logits.float(), expected, tolerance * expected.std().item())
    assert_same(after.float(), before, tolerance)
    after.backward()
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


@pytest.mark.parametrize("scheme", ["sinusoidal", "rotary", "alibi"])
def test_positions_survive_another_dtype_and_back(scheme):
    model = small_model(positional_encoding=scheme)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = model(SRC_IDS, TGT_IDS)
    model.half().float().load_state_dict(weights)
    assert torch.equal(model(SRC_IDS, TGT_IDS), expected)
    with torch.device("meta"):
        empty = mt.Transformer(model.config)
    empty.to_empty(device=SRC_IDS.device).load_state_dict(weights)
    assert torch.equal(empty(SRC_IDS, TGT_IDS), expected)


TRACED = [("pairs", name) for name in ("post-norm", "rotary", "alibi")]
TRACED += [("texts", name) for name in MODELS]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), TRACED, ids=" ".join)
def test_model_can_be_compiled_and_exported(kind, name):
    if torch.__version__ < "2.6" and MODELS[name].get("norm") == "rms_norm":
        pytest.skip("PyTorch 2.5 exports this model for the sizes alone that it has seen")
    torch.compiler.reset()  # it counts how often it compiled the same lines
    layers = {"pairs": ("num_encoder_layers", "num_decoder_layers"), "texts": ("num_layers",)}
    model = BUILD[kind](**MODELS[name], **dict.fromkeys(layers[kind], 1)).eval()
    b, s, t = (torch.export.Dim(axis, min=2, max=16) for axis in "bst")
    src, tgt = (ids.repeat(2, 2).clamp(min=1) for ids in (SRC_IDS, TGT_IDS))  # no padding
    inputs = [(SRC_IDS, TGT_IDS), (src[:3, :11], tgt[:3, :9])]
    shapes = ({0: b, 1: s}, {0: b, 1: t})
    if kind == "texts":
        inputs, shapes = [ids[1:] for ids in inputs], shapes[1:]
    exported = torch.export.export(model, inputs[0], dynamic_shapes=shapes).module()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for ids in inputs:
        assert_same(exported(*ids), model(*ids), 4e-6)
        assert_same(compiled(*ids), model(*ids), 4e-6)


# --- parameters


COUNTED = [mt.TransformerConfig.base()]
for shared, *options in product([False, True], repeat=4):
    changes = dict(zip(("tie_output", "attention_bias", "norm_first"), options, strict=True))
    src_vocab_size = 31 if shared else 29
    COUNTED.append(
        replace(small_config(**changes), share_embeddings=shared, src_vocab_size=src_vocab_size)
    )


@pytest.mark.parametrize("c", COUNTED)
def test_models_have_as_many_parameters_as_by_hand(c):
    d, f, v = c.d_model, c.d_ff, c.tgt_vocab_size
    attention = 4 * d * d + (4 * d if c.attention_bias else 0)  # W^Q, W^K, W^V, W^O of all heads
    network, norm = 2 * d * f + f + d, 2 * d  # W₁, W₂, b₁, b₂; gain and bias
    total = c.num_encoder_layers * (attention + network + 2 * norm)
    total += c.num_decoder_layers * (2 * attention + network + 3 * norm)
    total += v * d  # target embedding
    total += 0 if c.share_embeddings else c.src_vocab_size * d  # source embedding
    total += 0 if c.tie_output else v * d  # output projection
    total += 2 * norm if c.norm_first else 0  # at the end of each stack
    with torch.device("meta"):
        weights = mt.Transformer(c).parameters()
    assert sum(weight.numel() for weight in weights) == total
    assert (total == 63_045_632) == (c == mt.TransformerConfig.base())


# --- initialisation


def initialised(seed=0, **changes):
    sizes = {"src_vocab_size": 500, "tgt_vocab_size": 700, "d_model": 64, "num_heads": 4}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 160}
    config = mt.TransformerConfig(**(sizes | changes))
    return mt.Transformer(config, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tie_output", [True, False])
def test_tables_start_normal_with_unit_rows(tie_output):
    model = initialised(tie_output=tie_output)
    for module in (model.src_embedding, model.tgt_embedding, model.output_projection):
        assert module.weight.std().item() == pytest.approx(1 / 8, rel=0.02)
        assert module.weight.mean().item() == pytest.approx(0, abs=0.003)


def test_matrices_start_uniform_biases_at_zero_and_norms_at_one():
    model = initialised(norm_first=True)
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert len(linears) == 6 + 10
    for linear in linears:
        bound = math.sqrt(6 / sum(linear.weight.shape))  # Glorot's
        assert 0.99 * bound < linear.weight.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name


def test_generator_alone_decides_the_start():
    models = []
    for global_seed, seed in ((1, 0), (2, 0), (2, 3)):
        torch.manual_seed(global_seed)
        models.append(initialised(seed, positional_encoding="learned").state_dict())
    for name, tensor in models[0].items():
        assert torch.equal(tensor, models[1][name]), name
        is_drawn = "norm" not in name and "bias" not in name
        assert torch.equal(tensor, models[2][name]) != is_drawn, name


# --- bad input

AT_LEAST_1 = ("d_model", "num_heads", "num_decoder_layers", "d_ff", "max_len")
BAD_VALUES = [
    *(({name: 0}, f"{name} must be at least 1, got 0") for name in AT_LEAST_1),
    ({"num_encoder_layers": -1}, "num_encoder_layers must be at least 0, got -1"),
    ({"num_heads": 5}, "num_heads must divide d_model, got 5 and 12"),
    ({"num_kv_heads": 2}, "num_kv_heads must divide num_heads, got 2 and 3"),
    ({"num_kv_heads": 0}, "num_kv_heads must be at least 1, got 0"),
    ({"positional_encoding": "sine"}, "one of .*'rotary', 'alibi', 'none'.*, got 'sine'"),
    ({"positional_encoding": "rotary", "num_heads": 4}, "even width d_model/num_heads, got 3"),
    ({"dropout": 1.0}, r"dropout must be at least 0 and below 1, got 1\.0"),
    ({"dropout": -0.1}, r"dropout must be at least 0 and below 1, got -0\.1"),
    ({"dropout": math.nan}, "dropout must be at least 0 and below 1, got nan"),
    ({"activation": "swish"}, r"activation must be one of .*'swiglu'.*, got 'swish'"),
    ({"share_embeddings": True}, "needs one vocabulary, got 29 and 31"),
    ({"pad_id": 29}, "pad_id must be below 29 tokens or -1, got 29"),
    ({"pad_id": -2}, "pad_id must be below 29 tokens or -1, got -2"),
    ({"norm": "batch"}, "norm must be one of .*'rms_norm'.*, got 'batch'"),
    ({"max_len": 10**13}, f"max_len times d_model must be at most {2**32}, .* {10**13} and 12"),
    ({"num_decoder_layers": 10**13}, "num_decoder_layers times d_model must be at most"),
    ({"d_model": 10**13}, "d_model times d_model must be at most"),
]
BAD_TYPES = [
    ({"num_heads": 3.0}, r"num_heads must be int, got 3\.0"),
    ({"d_ff": True}, "d_ff must be int, got True"),
    ({"max_len": "16"}, "max_len must be int, got '16'"),
    ({"num_kv_heads": 1.0}, r"num_kv_heads must be int or None, got 1\.0"),
    ({"norm_first": 1}, "norm_first must be bool, got 1"),
    ({"dropout": "0.1"}, r"dropout must be float, got '0\.1'"),
    ({"activation": ["relu"]}, r"activation must be str, got \['relu'\]"),
]


@pytest.mark.parametrize(
    ("error", "changes", "message"),
    [(ValueError, *row) for row in BAD_VALUES] + [(TypeError, *row) for row in BAD_TYPES],
    ids=str,
)
def test_bad_configuration_is_refused(error, changes, message):
    with pytest.raises(error, match=message):
        small_config(**changes)


def test_each_model_refuses_the_configuration_of_the_other():
    with pytest.raises(ValueError, match="num_encoder_layers must be 0, got 2"):
        mt.DecoderOnlyTransformer(small_config())
    with pytest.raises(ValueError, match="num_encoder_layers must be at least 1, got 0"):
        mt.Transformer(mt.TransformerConfig.decoder_only(31, d_model=12, num_heads=3))


SHAPE = r"{} must have shape \(b, length\), both at least 1, got {}"
BAD_PAIRS = [
    (ValueError, (SRC_IDS, TGT_IDS[:1]), "must have as many rows, got 2 and 1"),
    (ValueError, (SRC_IDS[:0], TGT_IDS[:0]), SHAPE.format("src_ids", r"\(0, 7\)")),
    (ValueError, (SRC_IDS[:, :0], TGT_IDS), SHAPE.format("src_ids", r"\(2, 0\)")),
    (ValueError, (SRC_IDS, TGT_IDS[:, :0]), SHAPE.format("tgt_ids", r"\(2, 0\)")),
    (ValueError, (SRC_IDS[0], TGT_IDS), SHAPE.format("src_ids", r"\(7,\)")),
    (ValueError, (SRC_IDS, TGT_IDS[:, 0]), SHAPE.format("tgt_ids", r"\(2,\)")),
    (ValueError, (SRC_IDS + 2, TGT_IDS), "id 30 lies outside the vocabulary of 29 tokens"),
    (ValueError, (SRC_IDS, TGT_IDS + 2), "id 32 lies outside the vocabulary of 31 tokens"),
    (ValueError, (SRC_IDS, TGT_IDS - 1), "id -1 lies outside the vocabulary of 31 tokens"),
    (TypeError, (None, TGT_IDS), "src_ids must be of type Tensor, got NoneType"),
    (TypeError, (SRC_IDS, TGT_IDS.tolist()), "tgt_ids must be of type Tensor, got list"),
]
BAD_TEXTS = [
    (ValueError, (TGT_IDS[0],), SHAPE.format("ids", r"\(5,\)")),
    (ValueError, (TGT_IDS + 1,), "id 31 lies outside the vocabulary of 31 tokens"),
    (ValueError, (TGT_IDS[:, :2].repeat(1, 10),), "20 positions is longer than max_len=16"),
    (TypeError, (TGT_IDS.float(),), r"int32 or int64, got torch\.float32"),
    (TypeError, (TGT_IDS, mt.causal_mask(5).float()), r"mask must be boolean .* torch\.float32"),
    (ValueError, (TGT_IDS, mt.causal_mask(4)), r"mask of shape \(4, 4\) does not broadcast"),
    (ValueError, (TGT_IDS, "diagonal"), "a boolean tensor or 'causal', got 'diagonal'"),
]


@pytest.mark.parametrize(
    ("kind", "error", "given", "message"),
    [("pairs", *row) for row in BAD_PAIRS] + [("texts", *row) for row in BAD_TEXTS],
)
def test_ids_and_masks_that_do_not_fit_are_refused(kind, error, given, message):
    with pytest.raises(error, match=message):
        BUILD[kind]()(*given)


@each_model
def test_longest_sequences_are_allowed_and_longer_ones_refused(changes):
    model = small_model(**changes)
    src, tgt = SRC_IDS[:, :4].repeat(1, 6), TGT_IDS[:, :2].repeat(1, 10)
    assert model(src[:, :16], tgt[:, :16]).shape == (2, 16, 31)
    if model.max_len == math.inf:  # no table of positions that could end
        assert changes["positional_encoding"] in ("alibi", "none")
        assert model(src, tgt).shape == (2, 20, 31)
        return
    assert model.max_len == 16
    for s, t in ((17, 16), (16, 17)):
        with pytest.raises(ValueError, match="17 positions is longer than max_len=16"):
            model(src[:, :s], tgt[:, :t])


# --- positions


@pytest.mark.parametrize("scheme", sorted({*POSITIONAL_ENCODINGS} - {"none"}))
def test_order_matters_through_positions(scheme):
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    src = SRC_IDS[:1]
    with_positions = small_model(positional_encoding=scheme)
    before, after = (with_positions.encode(ids)[0] for ids in (src, src[:, order]))
    assert not torch.allclose(after, before[:, order], atol=1e-3)
    without = small_model(positional_encoding="none")
    before, after = (without.encode(ids)[0] for ids in (src, src[:, order]))
    assert_same(after, before[:, order])


def test_settings_of_rotary_positions_reach_each_layer():
    changes = {"rotary_base": 50.0, "rotary_layout": "half"}
    model = small_model(positional_encoding="rotary", **changes)
    expected = mt.RotaryPositionalEncoding(4, 16, "half", base=50.0)
    for layer in (*model.encoder.layers, *model.decoder.layers):
        assert layer.self_attention.rotary.layout == "half"
        assert torch.equal(layer.self_attention.rotary.table, expected.table)

"""The whole model obeys the laws: it equals torch's, does not peek, and does not see padding."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    MODELS,
    SRC_IDS,
    TGT_IDS,
    assert_same,
    each_model,
    randn,
    small_config,
    small_model,
    torch_transformer,
)

from minitransformer import Transformer, TransformerConfig, label_smoothing_loss, next_token_loss
from minitransformer.models.config import POSITIONAL_ENCODINGS

each_order = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])


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
    config = small_config(
        norm_first=norm_first, activation=activation, attention_bias=attention_bias
    )
    ours = small_model(norm_first=norm_first, activation=activation, attention_bias=attention_bias)
    torchs = torch_transformer(ours, config)
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


# --- no peeking


@each_model
@pytest.mark.parametrize("position", range(5))
def test_output_depends_on_its_own_token_and_on_none_after_it(changes, position):
    model = small_model(**changes)
    tgt = TGT_IDS.masked_fill(TGT_IDS == 0, 9)
    changed = tgt.clone()
    changed[:, position] = 23
    before, after = model(SRC_IDS, tgt), model(SRC_IDS, changed)
    assert torch.equal(before[:, :position], after[:, :position])
    moved = (before - after).abs().amax(-1)
    assert (moved[:, position:] > 1e-4).all()


@pytest.mark.parametrize("position", range(7))
def test_every_output_depends_on_every_source_token(position):
    model, src = small_model(), SRC_IDS[:1].clone()
    before = model(src, TGT_IDS[:1])
    src[0, position] = 23
    assert ((before - model(src, TGT_IDS[:1])).abs().amax(-1) > 1e-5).all()


# --- padding is invisible


@each_model
def test_padding_is_invisible(changes):
    model = small_model(**changes)
    together = model(F.pad(SRC_IDS, (0, 4)), F.pad(TGT_IDS, (0, 4)))
    for row, (s, t) in enumerate(((7, 5), (4, 3))):
        alone = model(SRC_IDS[row : row + 1, :s], TGT_IDS[row : row + 1, :t])
        assert_same(together[row, :t], alone[0])


def test_content_of_source_padding_cannot_be_seen():
    model = small_model()
    before = model(SRC_IDS, TGT_IDS)
    with torch.no_grad():
        model.src_embedding.weight[0] += 5.0
    assert_same(model(SRC_IDS, TGT_IDS), before)


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
    label_smoothing_loss(logits, TGT_IDS).backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
    assert_same(logits[0], model(SRC_IDS, TGT_IDS)[0])


# --- gradients, dropout, precision


@each_model
def test_every_parameter_gets_a_gradient(changes):
    model = small_model(**changes, attention_bias=False, tie_output=False)
    label_smoothing_loss(model(SRC_IDS, TGT_IDS), TGT_IDS).backward()
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
    expected, loss = (
        model(SRC_IDS, TGT_IDS),
        next_token_loss(model, SRC_IDS, TGT_IDS, TGT_IDS, smoothing=0.1),
    )
    model.to(dtype)
    logits = model(SRC_IDS, TGT_IDS)
    assert logits.dtype == dtype
    assert_same(logits.float(), expected, tolerance * expected.std().item())
    again = next_token_loss(model, SRC_IDS, TGT_IDS, TGT_IDS, smoothing=0.1)
    assert_same(again.float(), loss, tolerance)
    again.backward()
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


def test_positions_survive_another_dtype_and_back():
    for scheme in ("sinusoidal", "rotary", "alibi"):
        model = small_model(positional_encoding=scheme)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        expected = model(SRC_IDS, TGT_IDS)
        model.half().float().load_state_dict(weights)
        assert torch.equal(model(SRC_IDS, TGT_IDS), expected)
        with torch.device("meta"):
            empty = Transformer(model.config)
        empty.to_empty(device="cpu").load_state_dict(weights)
        assert torch.equal(empty(SRC_IDS, TGT_IDS), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["post-norm", "rotary", "alibi"])
def test_model_can_be_compiled_and_exported(name):
    torch.compiler.reset()  # it counts how often it compiled the same lines
    model = small_model(**MODELS[name], num_encoder_layers=1, num_decoder_layers=1).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    b, s, t = (torch.export.Dim(axis, min=2, max=16) for axis in "bst")
    shapes = ({0: b, 1: s}, {0: b, 1: t})
    exported = torch.export.export(model, (SRC_IDS, TGT_IDS), dynamic_shapes=shapes).module()
    src, tgt = (ids.repeat(2, 2).clamp(min=1) for ids in (SRC_IDS, TGT_IDS))  # no padding
    for ids in ((SRC_IDS, TGT_IDS), (src[:3, :11], tgt[:3, :9])):
        assert_same(exported(*ids), model(*ids), 4e-6)
        assert_same(compiled(*ids), model(*ids), 4e-6)


# --- parameters


def count(config):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config).parameters())


def test_base_model_has_as_many_parameters_as_by_hand():
    v, d, f, n = 37_000, 512, 2048, 6
    embedding = v * d  # one matrix: source, target and output share it
    attention = 4 * d * d  # W^Q, W^K, W^V, W^O of all heads; the paper's have no biases
    network = 2 * d * f + f + d  # W₁, W₂, b₁, b₂
    norm = 2 * d  # gain and bias
    encoder_layer = attention + network + 2 * norm
    decoder_layer = 2 * attention + network + 3 * norm
    total = embedding + n * (encoder_layer + decoder_layer)
    assert total == 63_045_632
    assert count(TransformerConfig.base()) == total


@each_order
@pytest.mark.parametrize("attention_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("tie_output", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("share_embeddings", [True, False], ids=["shared", "apart"])
def test_small_models_have_as_many_parameters_as_by_hand(
    norm_first, attention_bias, tie_output, share_embeddings
):
    d, f, v = 12, 20, 31
    src = v if share_embeddings else 29
    attention = 4 * d * d + (4 * d if attention_bias else 0)
    network, norm = 2 * d * f + f + d, 2 * d
    total = 2 * (attention + network + 2 * norm)  # encoder layers
    total += 3 * (2 * attention + network + 3 * norm)  # decoder layers
    total += v * d  # target embedding
    total += 0 if share_embeddings else src * d  # source embedding
    total += 0 if tie_output else v * d  # output projection
    total += 2 * norm if norm_first else 0  # at the end of each stack
    config = TransformerConfig(
        src_vocab_size=src,
        tgt_vocab_size=v,
        d_model=d,
        num_heads=3,
        num_encoder_layers=2,
        num_decoder_layers=3,
        d_ff=f,
        norm_first=norm_first,
        attention_bias=attention_bias,
        tie_output=tie_output,
        share_embeddings=share_embeddings,
    )
    assert count(config) == total


# --- initialisation


def initialised(seed=0, **changes):
    config = TransformerConfig(
        src_vocab_size=500,
        tgt_vocab_size=700,
        d_model=64,
        num_heads=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_ff=160,
        **changes,
    )
    return Transformer(config, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tie_output", [True, False])
def test_tables_start_normal_with_unit_rows(tie_output):
    model = initialised(tie_output=tie_output)
    for module in (model.src_embedding, model.tgt_embedding, model.output_projection):
        assert module.weight.std().item() == pytest.approx(1 / 8, rel=0.02)
        assert module.weight.mean().item() == pytest.approx(0, abs=0.003)


def test_matrices_start_uniform_within_the_bound_of_glorot():
    linears = [m for m in initialised().modules() if isinstance(m, torch.nn.Linear)]
    assert len(linears) == 6 + 10
    for linear in linears:
        bound = math.sqrt(6 / sum(linear.weight.shape))
        assert 0.99 * bound < linear.weight.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_biases_start_at_zero_and_norms_at_one():
    for name, parameter in initialised(norm_first=True).named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name


def test_generator_alone_decides_the_start():
    models = []
    for global_seed, seed in ((1, 0), (2, 0), (2, 3)):
        torch.manual_seed(global_seed)
        models.append(initialised(seed).state_dict())
    for name, tensor in models[0].items():
        assert torch.equal(tensor, models[1][name]), name
        is_drawn = "norm" not in name and "bias" not in name
        assert torch.equal(tensor, models[2][name]) != is_drawn, name


# --- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: 0}, f"{name} must be at least 1, got 0")
            for name in (
                "d_model",
                "num_heads",
                "num_decoder_layers",
                "d_ff",
                "max_len",
            )
        ),
        ({"num_encoder_layers": -1}, "num_encoder_layers must be at least 0, got -1"),
        ({"num_heads": 5}, "num_heads must divide d_model, got 5 and 12"),
        ({"num_kv_heads": 2}, "num_kv_heads must divide num_heads, got 2 and 3"),
        ({"num_kv_heads": 0}, "num_kv_heads must be at least 1, got 0"),
        ({"positional_encoding": "sine"}, "one of .*'rotary', 'alibi', 'none'.*, got 'sine'"),
        (
            {"positional_encoding": "rotary", "num_heads": 4},
            "rotary needs heads of even width d_model/num_heads, got 3",
        ),
        ({"dropout": 1.0}, r"dropout must be at least 0 and below 1, got 1\.0"),
        ({"dropout": -0.1}, r"dropout must be at least 0 and below 1, got -0\.1"),
        ({"dropout": math.nan}, "dropout must be at least 0 and below 1, got nan"),
        ({"activation": "swish"}, r"activation must be one of .*'swiglu'.*, got 'swish'"),
        ({"share_embeddings": True}, "needs one vocabulary, got 29 and 31"),
        (
            {"pad_id": 29},
            "pad_id must be below 29 tokens or -1, got 29",
        ),
        ({"norm": "batch"}, "norm must be one of .*'rms_norm'.*, got 'batch'"),
        ({"max_len": 10**13}, f"max_len times d_model must be at most {2**32}, .* {10**13} and 12"),
        ({"num_decoder_layers": 10**13}, "num_decoder_layers times d_model must be at most"),
        ({"d_model": 10**13}, "d_model times d_model must be at most"),
        ({"pad_id": -2}, "pad_id must be below 29 tokens or -1, got -2"),
    ],
    ids=str,
)
def test_bad_configuration_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small_config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3.0}, r"num_heads must be int, got 3\.0"),
        ({"d_ff": True}, "d_ff must be int, got True"),
        ({"max_len": "16"}, "max_len must be int, got '16'"),
        ({"num_kv_heads": 1.0}, r"num_kv_heads must be int or None, got 1\.0"),
        ({"norm_first": 1}, "norm_first must be bool, got 1"),
        ({"dropout": "0.1"}, r"dropout must be float, got '0\.1'"),
        ({"activation": ["relu"]}, r"activation must be str, got \['relu'\]"),
    ],
    ids=str,
)
def test_configuration_of_other_types_is_refused(changes, message):
    with pytest.raises(TypeError, match=message):
        small_config(**changes)


SHAPE = r"{} must have shape \(b, length\), both at least 1, got {}"


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (SRC_IDS, TGT_IDS[:1], "must have as many rows, got 2 and 1"),
        (SRC_IDS[:0], TGT_IDS[:0], SHAPE.format("src_ids", r"\(0, 7\)")),
        (SRC_IDS[:, :0], TGT_IDS, SHAPE.format("src_ids", r"\(2, 0\)")),
        (SRC_IDS, TGT_IDS[:, :0], SHAPE.format("tgt_ids", r"\(2, 0\)")),
        (SRC_IDS[0], TGT_IDS[0, :1].expand(7), SHAPE.format("src_ids", r"\(7,\)")),
        (SRC_IDS, TGT_IDS[:, 0], SHAPE.format("tgt_ids", r"\(2,\)")),
        (SRC_IDS + 2, TGT_IDS, "id 30 lies outside the vocabulary of 29 tokens"),
        (SRC_IDS, TGT_IDS + 2, "id 32 lies outside the vocabulary of 31 tokens"),
        (SRC_IDS, TGT_IDS - 1, "id -1 lies outside the vocabulary of 31 tokens"),
        (SRC_IDS[:, :3].repeat(1, 7), TGT_IDS, "21 positions is longer than max_len=16"),
        (SRC_IDS, TGT_IDS[:, :2].repeat(1, 10), "20 positions is longer than max_len=16"),
    ],
)
def test_ids_that_do_not_fit_are_refused(src, tgt, message):
    with pytest.raises(ValueError, match=message):
        small_model()(src, tgt)


def test_ids_that_are_no_tensor_are_refused():
    with pytest.raises(TypeError, match="src_ids must be of type Tensor, got NoneType"):
        small_model().encode(None)
    with pytest.raises(TypeError, match="tgt_ids must be of type Tensor, got list"):
        small_model()(SRC_IDS, TGT_IDS.tolist())
    with pytest.raises(TypeError, match="targets must be of type Tensor, got NoneType"):
        next_token_loss(small_model(), SRC_IDS, TGT_IDS, None, smoothing=0.1)


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
    with pytest.raises(ValueError, match="17 positions is longer than max_len=16"):
        model(src[:, :17], tgt[:, :16])
    with pytest.raises(ValueError, match="17 positions is longer than max_len=16"):
        model(src[:, :16], tgt[:, :17])


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


@pytest.mark.parametrize("scheme", ["rotary", "alibi", "none"])
def test_relative_schemes_see_distances_alone(scheme):
    """The same tokens, further to the right behind keys that nobody may attend."""
    layers = small_model(positional_encoding=scheme).encoder.layers
    x, shift = randn(2, 5, 12), 4
    moved = torch.cat([randn(2, shift, 12, seed=1), x], dim=1)
    hidden = torch.arange(5 + shift) >= shift
    for layer in layers:
        x, moved = layer(x), layer(moved, hidden)
        assert_same(moved[:, shift:], x)

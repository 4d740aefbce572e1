"""Marian and BART of this book are those that were published: outputs, gradients, texts, files."""

import json
from types import SimpleNamespace

import pytest
import torch
from alike import (
    assert_close,
    assert_reads_back,
    assert_same_gradients,
    ids_of,
    loaded,
    published,
    transformers,
)
from safetensors.torch import load_file, save_file
from torch import nn

from minitransformer import (
    KVCache,
    generate,
    length_normalisation,
    next_token_loss,
    record_attention,
)
from minitransformer.models.marian import BART, BARTConfig, Marian, MarianConfig

SIZES = {
    "vocab_size": 37,
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 18,
    "forced_eos_token_id": None,  # else their longest texts end in it, whatever was more probable
}
OPUS = {"pad_token_id": 36, "decoder_start_token_id": 36, "eos_token_id": 0}
VARIANTS = {
    "as OPUS-MT": (Marian, OPUS | {"scale_embedding": True, "activation_function": "swish"}),
    "Marian, odd width": (
        Marian,
        OPUS | {"d_model": 9, "encoder_attention_heads": 1, "decoder_attention_heads": 3},
    ),
    "Marian, other ids": (
        Marian,
        {"pad_token_id": 5, "decoder_start_token_id": 4, "activation_function": "relu"},
    ),
    "as BART": (BART, {}),
    "BART, scaled": (BART, {"scale_embedding": True, "activation_function": "gelu_new"}),
    "BART, other ids": (BART, {"pad_token_id": 7, "decoder_layers": 1, "encoder_layers": 3}),
}
CLASSES = {
    Marian: (transformers.MarianConfig, transformers.MarianMTModel),
    BART: (transformers.BartConfig, transformers.BartForConditionalGeneration),
}


def theirs_of(kind, changes, seed=1):
    """A shaken model whose every token scores 0 on average, so that its texts are not all alike."""
    torch.manual_seed(seed)
    config_class, model_class = CLASSES[kind]
    theirs = model_class(config_class(**(SIZES | changes)))
    theirs.final_logits_bias = nn.Parameter(theirs.final_logits_bias)  # it is a buffer there
    theirs = published(theirs, seed)
    with torch.no_grad():
        if kind is Marian:  # its positions are no parameters here, and are not stored there
            for side in (theirs.model.encoder, theirs.model.decoder):
                side.embed_positions.weight.copy_(side.embed_positions.create_weight())
        src, tgt = ids_of(37, 8, 7, seed=4), ids_of(37, 8, 9, seed=5)
        scores = theirs(input_ids=src, decoder_input_ids=tgt).logits
        theirs.final_logits_bias -= scores.mean(dim=(0, 1))
    return theirs


def made(kind, changes, folder):
    theirs = theirs_of(kind, changes)
    ours = loaded(kind, theirs, folder / "theirs")
    pad_id, start_id = theirs.config.pad_token_id, theirs.config.decoder_start_token_id
    src = ids_of(31, 3, 7, low=8)  # of no special token
    src[1, 4:] = pad_id
    tgt = ids_of(31, 3, 5, low=8, seed=6)
    tgt[:, 0] = start_id
    return SimpleNamespace(
        theirs=theirs, ours=ours, folder=folder, src=src, tgt=tgt, pad_id=pad_id, start_id=start_id
    )


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def pair(request, tmp_path):
    return made(*request.param, tmp_path)


def logits_of(pair, src=None):
    """A function of either model: its logits for the targets of `pair`."""
    src = pair.src if src is None else src

    def run(model):
        if isinstance(model, Marian):
            return model(src, pair.tgt)
        mask = (src != pair.pad_id).long()
        return model(input_ids=src, attention_mask=mask, decoder_input_ids=pair.tgt).logits

    return run


def texts_of(model, pair, stop_id, *, length=9, **options):
    """What either writes, which never is padding; `alpha` is both's length penalty."""
    alpha = options.pop("alpha", 0.0)
    if isinstance(model, Marian):
        options |= {"length_penalty": alpha, "bos_id": pair.start_id, "stop_ids": [stop_id]}
        return generate(model, pair.src, max_new_tokens=length, **options)
    texts = model.generate(
        pair.src,
        attention_mask=(pair.src != pair.pad_id).long(),
        max_new_tokens=length,
        do_sample=False,
        eos_token_id=stop_id,
        bad_words_ids=[[pair.pad_id]],
        length_penalty=alpha,
        **options,
    )
    return texts[:, 1:]  # theirs begin with the begin


def assert_same_texts(pair, stop_id, **options):
    ours, theirs = (texts_of(model, pair, stop_id, **options) for model in (pair.ours, pair.theirs))
    assert torch.equal(ours, theirs)
    return ours


def test_logits_and_gradients_are_theirs_with_padding(pair):
    run = logits_of(pair)
    assert_close(run(pair.ours), run(pair.theirs))
    assert_same_gradients(pair.ours, pair.theirs, run)


def test_float32_too(pair):
    run = logits_of(pair)
    assert_close(run(pair.ours.float()), run(pair.theirs.float()), 1e-5)


def test_hidden_states_are_theirs(pair):
    found = []
    for layer in (*pair.ours.encoder.layers, *pair.ours.decoder.layers):
        layer.register_forward_hook(lambda _, inputs, output: found.append(output))
    pair.ours(pair.src, pair.tgt)
    expected = pair.theirs(
        input_ids=pair.src,
        attention_mask=(pair.src != pair.pad_id).long(),
        decoder_input_ids=pair.tgt,
        output_hidden_states=True,
    )
    states = (*expected.encoder_hidden_states[1:], *expected.decoder_hidden_states[1:])
    for ours, theirs in zip(found, states, strict=True):
        assert_close(ours, theirs)


def test_texts_are_theirs(pair):
    free = texts_of(pair.ours, pair, stop_id=3)
    assert free.unique().numel() > 3
    assert_same_texts(pair, stop_id=3)
    stop_id = int(free[0, 2])  # so that some rows end before others
    assert_same_texts(pair, stop_id)


def test_beams_of_four_find_what_theirs_find(pair):
    """Where both compare log-probabilities, with no regard to length."""
    free = texts_of(pair.ours, pair, stop_id=3)
    for stop_id in {3, *free[:, 2].tolist()} - {pair.pad_id}:
        assert_same_texts(pair, stop_id, num_beams=4)


def test_penalties_of_length_are_not_theirs(tmp_path):
    """Ours divides by ((5 + n) / 6)^α, as Wu et al.; theirs by n^α, and so writes longer texts."""
    pair = made(*VARIANTS["as OPUS-MT"], tmp_path)
    pair.src = ids_of(31, 40, 7, low=8)
    options = {"stop_id": 8, "num_beams": 4, "alpha": 1.0}
    texts = [texts_of(model, pair, **options).tolist() for model in (pair.ours, pair.theirs)]
    differ = 0
    for src, *both in zip(pair.src, *texts, strict=True):
        our_text, their_text = (without_padding(text, pair.pad_id) for text in both)
        if our_text != their_text:
            differ += 1
            (p, n), (q, m) = (log_probability(pair, src, text) for text in (our_text, their_text))
            assert p / length_normalisation(n, 1.0) > q / length_normalisation(m, 1.0)
            assert p / n < q / m
            assert n < m
    assert 5 < differ < 35


def without_padding(text, pad_id):
    return [token for token in text if token != pad_id]


@torch.no_grad()
def log_probability(pair, src, text):
    """Of a whole text, and its length."""
    scores = pair.ours(src[None], torch.tensor([[pair.start_id, *text[:-1]]]))[0].log_softmax(-1)
    return float(scores[range(len(text)), text].sum()), len(text)


def test_padding_is_never_written(pair):
    with torch.no_grad():
        pair.ours.output_projection.bias[pair.pad_id] = 100.0
    texts = generate(pair.ours, pair.src, bos_id=pair.start_id, stop_ids=[], max_new_tokens=6)
    assert not (texts == pair.pad_id).any()


def test_cached_is_full(pair):
    memory, mask = pair.ours.encode(pair.src)
    caches = [KVCache() for _ in pair.ours.decoder.layers]
    parts = [pair.ours.decode(p, memory, mask, caches) for p in pair.tgt.split([2, 1, 2], dim=1)]
    assert_close(torch.cat(parts, dim=1), logits_of(pair)(pair.ours))


def test_padding_is_invisible(pair):
    alone = pair.ours(pair.src[1:2, :4], pair.tgt[1:2])
    assert_close(logits_of(pair)(pair.ours)[1:2], alone)


def test_their_labels_are_our_targets(pair):
    """Theirs shifts `labels` right itself and omits -100; ours takes both rows, and padding."""
    targets = ids_of(31, 3, 5, low=8, seed=7)
    targets[2, 3:] = pair.pad_id
    tgt = torch.cat([torch.full((3, 1), pair.start_id), targets[:, :-1]], dim=1)
    labels = targets.masked_fill(targets == pair.pad_id, -100)
    mask = (pair.src != pair.pad_id).long()
    expected = pair.theirs(input_ids=pair.src, attention_mask=mask, labels=labels).loss
    found = next_token_loss(pair.ours, pair.src, tgt, targets)
    assert_close(found, expected)


def test_heads_look_where_theirs_look(pair):
    with record_attention(pair.ours) as maps:
        pair.ours(pair.src[:1], pair.tgt[:1])
    pair.theirs.set_attn_implementation("eager")
    expected = pair.theirs(
        input_ids=pair.src[:1], decoder_input_ids=pair.tgt[:1], output_attentions=True
    )
    found = [maps[name] for name in maps if name.endswith("cross_attention")]
    for ours, theirs in zip(found, expected.cross_attentions, strict=True):
        assert_close(ours, theirs)


# --- positions -------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [48, 9])
def test_sines_come_before_cosines(d_model):
    sizes = SIZES | OPUS | {"d_model": d_model, "max_position_embeddings": 300}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**(sizes | heads)))
    config = MarianConfig(
        vocab_size=37,
        d_model=d_model,
        num_encoder_layers=1,
        num_decoder_layers=1,
        encoder_num_heads=1,
        decoder_num_heads=1,
        encoder_d_ff=8,
        decoder_d_ff=8,
        max_len=300,
        pad_id=36,
        start_id=36,
    )
    table = Marian(config).positions.table
    assert_close(table, theirs.model.encoder.embed_positions.create_weight(), 1e-7)
    assert not table[0, : (d_model + 1) // 2].any()
    assert bool((table[0, (d_model + 1) // 2 :] == 1).all())


def test_each_side_of_bart_has_its_table_from_row_two_on(tmp_path):
    pair = made(*VARIANTS["as BART"], tmp_path)
    logits_of(pair)(pair.ours).sum().backward()
    for table, length in ((pair.ours.src_positions, 7), (pair.ours.tgt_positions, 5)):
        is_read = table.weight.grad.abs().sum(dim=1) > 0
        assert is_read.nonzero()[:, 0].tolist() == list(range(2, length + 2))


def test_positions_reach_to_the_last_and_no_further(pair):
    ids = ids_of(31, 1, 18, low=8)
    expected = pair.theirs(input_ids=ids, decoder_input_ids=ids).logits
    assert_close(pair.ours(ids, ids), expected)
    with pytest.raises(ValueError, match="a sequence of 19 positions is longer than max_len=18"):
        pair.ours(torch.cat([ids, ids[:, :1]], dim=1), ids)


# --- files -----------------------------------------------------------------------------------


def test_what_is_saved_reads_back_on_both_sides(pair):
    assert_reads_back(pair.ours, pair.theirs, logits_of(pair), pair.folder / "ours")


def test_settings_that_do_not_matter_are_kept(pair):
    pair.ours.save_pretrained(pair.folder / "ours")
    old, new = (
        json.loads((pair.folder / name / "config.json").read_text()) for name in ("theirs", "ours")
    )
    for key in ("eos_token_id", "attention_dropout", "decoder_start_token_id", "pad_token_id"):
        assert new[key] == old[key]


def test_file_of_the_model_without_its_head_is_read(pair):
    """As `BartModel` saves it: no prefix, and no bias, which is 0 then."""
    folder = pair.folder / "bare"
    pair.theirs.model.save_pretrained(folder)
    ours = type(pair.ours).from_pretrained(folder)
    assert not ours.output_projection.bias.any()
    bias = pair.theirs.final_logits_bias
    run = logits_of(pair)
    assert_close(run(ours) + bias[0], run(pair.theirs))


def test_old_file_that_names_tied_weights_is_read(pair):
    path = pair.folder / "theirs" / "model.safetensors"
    weights = load_file(path)
    for name in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = weights["model.shared.weight"].clone()
    if type(pair.ours) is Marian:
        table = pair.theirs.model.encoder.embed_positions.weight.detach()
        for side in ("encoder", "decoder"):
            weights[f"model.{side}.embed_positions.weight"] = table.clone()
    else:
        weights["model.encoder.version"] = torch.ones(1)
    save_file(weights, path)
    run = logits_of(pair)
    assert_close(run(type(pair.ours).from_pretrained(path.parent)), run(pair.ours))


def test_shards_are_read(pair):
    folder = pair.folder / "shards"
    ours = loaded(type(pair.ours), pair.theirs, folder, max_shard_size="5KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert_close(logits_of(pair)(ours), logits_of(pair)(pair.ours))


OLD_SETTINGS = {  # of the files on the Hub, as far as `transformers` 5 does not write them
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "bad_words_ids": [[36]],
    "classif_dropout": 0.0,
    "early_stopping": True,
    "extra_pos_embeddings": 37,
    "force_bos_token_to_be_generated": True,
    "forced_bos_token_id": 0,
    "gradient_checkpointing": False,
    "length_penalty": 2.0,
    "max_length": 512,
    "min_length": 2,
    "no_repeat_ngram_size": 3,
    "normalize_before": False,
    "num_beams": 6,
    "num_hidden_layers": 6,
    "save_step": 58,
    "torch_dtype": "float32",
}


def changed_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_settings_of_old_files_are_known(pair):
    folder = pair.folder / "theirs"
    changed_config(folder, normalize_embedding=type(pair.ours) is BART, **OLD_SETTINGS)
    run = logits_of(pair)
    assert_close(run(type(pair.ours).from_pretrained(folder)), run(pair.ours))


# --- what is refused -------------------------------------------------------------------------


@pytest.fixture(params=[Marian, BART])
def folder(request, tmp_path):
    theirs_of(request.param, OPUS).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()  # whose begin would count
    return SimpleNamespace(kind=request.param, path=tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clever_new_attention": True}, "these settings are not known: clever_new_attention"),
        ({"normalize_before": True}, "normalize_before is True, expected False"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm is True, expected False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, expected True"),
        ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings is False"),
        ({"decoder_vocab_size": 40}, "decoder_vocab_size is 40, expected vocab_size=37"),
        ({"model_type": "mbart"}, "model_type is 'mbart', expected (marian|bart)"),
        ({"encoder_attention_heads": 5}, "num_heads must divide d_model, got 5 and 12"),
        ({"encoder_layers": 1}, "16 weights have no place .* the first is "),
        ({"decoder_layers": 4}, "26 weights are missing; the first is decoder.layers.3"),
        ({"pad_token_id": 37}, "pad_id must lie in the vocabulary of 37 tokens, got 37"),
        (
            {"decoder_start_token_id": 99},
            "start_id must lie in the vocabulary of 37 tokens, got 99",
        ),
        ({"activation_function": "mish"}, "activation.* must be one of .*, got 'mish'"),
    ],
)
def test_configuration_that_does_not_fit_is_refused(folder, changes, message):
    changed_config(folder.path, **changes)
    with pytest.raises(ValueError, match=message):
        folder.kind.from_pretrained(folder.path)


def test_norms_of_embeddings_are_of_bart_alone(folder):
    changed_config(folder.path, normalize_embedding=folder.kind is Marian)
    with pytest.raises(ValueError, match="normalize_embedding is"):
        folder.kind.from_pretrained(folder.path)


def test_unknown_and_missing_weights_are_refused_by_name(folder):
    path = folder.path / "model.safetensors"
    weights = load_file(path)
    save_file(weights | {"model.encoder.layers.0.encoder_attn.k_proj.bias": torch.ones(12)}, path)
    with pytest.raises(
        ValueError,
        match=r"1 weights have no place .* the first is model.encoder.layers.0.encoder_attn",
    ):
        folder.kind.from_pretrained(folder.path)
    del weights["model.decoder.layers.1.fc1.bias"]
    save_file(weights, path)
    with pytest.raises(
        ValueError, match=r"1 weights are missing; the first is decoder.layers.1.feed"
    ):
        folder.kind.from_pretrained(folder.path)
    save_file({"final_logits_bias": weights["final_logits_bias"]}, path)
    with pytest.raises(ValueError, match=r"missing; the first is src_(embedding|positions).weight"):
        folder.kind.from_pretrained(folder.path)


def test_output_that_is_not_tied_is_refused(folder):
    path = folder.path / "model.safetensors"
    weights = load_file(path)
    save_file(weights | {"lm_head.weight": weights["model.shared.weight"] + 1}, path)
    with pytest.raises(ValueError, match="differs from the table that it is tied to"):
        folder.kind.from_pretrained(folder.path)


def test_what_would_be_lost_is_not_saved(folder):
    model = folder.kind.from_pretrained(folder.path)
    model.src_embedding.scale = 2.0
    with pytest.raises(ValueError, match=r"src_embedding.scale is not what .* 2.0, expected 1.0"):
        model.save_pretrained(folder.path)


# --- starting values -------------------------------------------------------------------------


def test_starting_values_are_the_published_ones():
    generator = torch.Generator().manual_seed(0)
    sizes = {"vocab_size": 200, "d_model": 60, "num_encoder_layers": 2, "num_decoder_layers": 3}
    sizes |= {"encoder_num_heads": 3, "decoder_num_heads": 2}
    sizes |= {"encoder_d_ff": 90, "decoder_d_ff": 80}
    marian = Marian(MarianConfig(**sizes, pad_id=199, start_id=199), generator)
    bart = BART(BARTConfig(**sizes), generator)
    for weight, std in (
        (bart.src_embedding.weight, 0.02),
        (bart.tgt_positions.weight, 0.02),
        (bart.decoder.layers[2].cross_attention.w_k.weight, 0.02),
        (marian.src_embedding.weight, 60**-0.5),
        (marian.encoder.layers[1].self_attention.w_q.weight, 60**-0.5),  # √(2 / (60 + 60))
        (marian.decoder.layers[0].feed_forward.w_1.weight, 70**-0.5),
    ):
        assert abs(float(weight.detach().std()) / std - 1) < 0.06
    for model in (marian, bart):
        assert model.tgt_embedding.weight is model.src_embedding.weight
        assert model.output_projection.weight is model.src_embedding.weight
        assert not model.src_embedding.weight[model.config.pad_id].any()
        assert not model.output_projection.bias.any()


def test_sizes_left_out_are_those_of_transformers():
    for kind, config in (
        (transformers.MarianConfig, MarianConfig()),
        (transformers.BartConfig, BARTConfig()),
    ):
        theirs = kind()
        found = config.to_published()
        for key in config.keys:
            assert getattr(theirs, key) == found[key], key

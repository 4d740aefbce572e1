"""Laws of every published family: it computes, writes and saves what `transformers` does."""

import dataclasses
import json
import re

import pytest
import torch
import torch.nn.functional as F
from alike import assert_close, ids_of, loaded, transformers
from families import (
    LLAMA3,
    SLIDING,
    VARIANTS,
    YARN,
    Pair,
    V,
    change_config,
    exact,
    theirs_of,
)
from helpers import randn
from safetensors.torch import load_file, save_file

from minitransformer import KVCache, Transformer, fast, generate, next_token_loss, pad_rows
from minitransformer import models as mm
from minitransformer.models import BART, BERT, GPT2, T5, Llama, Marian, ViT

READERS = [name for name, (kind, *_) in VARIANTS.items() if issubclass(kind, BERT)]
DECODERS = [name for name, (kind, *_) in VARIANTS.items() if kind in (GPT2, Llama)]
TRANSLATORS = [name for name, (kind, *_) in VARIANTS.items() if issubclass(kind, Transformer)]
WEIGHTS = "model.safetensors"


@pytest.fixture
def pair(request, tmp_path):
    return Pair(request.param, tmp_path)


each = pytest.mark.parametrize("pair", VARIANTS, indirect=True)
each_decoder = pytest.mark.parametrize("pair", DECODERS, indirect=True)
each_translator = pytest.mark.parametrize("pair", TRANSLATORS, indirect=True)
each_reader = pytest.mark.parametrize("pair", READERS, indirect=True)


# --- computes the same


@each
def test_outputs_and_gradients_are_theirs(pair):
    gradients = []
    for model in (pair.ours, pair.theirs):
        outputs = pair.run(model)
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype)
        (outputs.flatten() * weights).sum().backward()
        gradients.append(outputs.detach())
        for parameter in model.parameters():  # gradients take the place of weights, to be renamed
            grad = parameter.grad
            parameter.data = torch.zeros_like(parameter) if grad is None else grad
    assert_close(*gradients)
    pair.theirs.save_pretrained(pair.folder / "gradients")
    found = load_file(pair.folder / "gradients" / WEIGHTS)
    found |= {name: p.detach() for name, p in pair.theirs.named_parameters()}  # buffers of old
    expected = {name.removeprefix(pair.ours.prefix): grad for name, grad in found.items()}
    ours = pair.ours.published_weights()
    for name, grad in ours.items():
        assert_close(grad, expected[name.removeprefix(pair.ours.prefix)].view_as(grad))
    assert sum(bool(grad.any()) for grad in ours.values()) > len(ours) / 2


@each
def test_float32_is_as_near_as_theirs(pair):
    right = pair.run(pair.theirs).detach()
    single = pair.run(theirs_of(pair.name).float()).detach().double()
    of_the_library = float((single - right).abs().max())
    found = pair.run(pair.ours.float()).detach().double()
    assert_close(found, right, max(1e-5, 2 * of_the_library))
    assert of_the_library < 1e-2


@each_decoder
def test_texts_of_a_decoder_are_theirs(pair):
    ids, options = pair.given[0], {"max_new_tokens": 9}
    for num_beams in (1, 3):
        expected = pair.theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=num_beams,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )[:, ids.size(1) :]
        found = generate(pair.ours, ids, stop_ids=[], num_beams=num_beams, **options)
        assert torch.equal(found, expected)
        if num_beams == 1:
            again = generate(fast.prepare(pair.ours), ids, stop_ids=[], **options)
            assert torch.equal(again, found)


def ended(row, stop_id):
    """A text up to its end; behind it, theirs fills with another id than padding if that is 0."""
    ids = row.tolist()
    return ids[: ids.index(stop_id) + 1] if stop_id in ids else ids


@each_translator
def test_texts_of_a_translator_are_theirs(pair):
    """Padding is never written; theirs is told so. Without lengths, beams compare alike."""
    src = pair.given[0]

    def texts(stop_id, num_beams):
        expected = pair.theirs.generate(
            src,
            attention_mask=(src != pair.pad_id).long(),
            max_new_tokens=9,
            do_sample=False,
            num_beams=num_beams,
            eos_token_id=stop_id,
            pad_token_id=pair.pad_id,
            bad_words_ids=[[pair.pad_id]],
            length_penalty=0.0,
        )[:, 1:]
        options = {"bos_id": pair.start_id, "stop_ids": [stop_id], "length_penalty": 0.0}
        found = generate(pair.ours, src, max_new_tokens=9, num_beams=num_beams, **options)
        assert [ended(row, stop_id) for row in found] == [ended(row, stop_id) for row in expected]
        return found

    free = texts(3, 1)
    for stop_id in {3, *free[:, 2].tolist()} - {pair.pad_id}:  # so that some rows end before others
        texts(stop_id, 1)
        texts(stop_id, 4)


@each_decoder
def test_their_labels_are_our_targets_unshifted(pair):
    """Theirs moves `labels` by one inside; ours takes the ids that follow, -1 for none."""
    ids = pair.given[0]
    found = next_token_loss(pair.ours, ids[:, :-1], ids[:, 1:])
    assert_close(found.double(), pair.theirs(ids, labels=ids).loss.double(), 1e-5)
    some = ids[:, 1:].clone()
    some[0, 2:] = -1
    kept = F.cross_entropy(pair.ours(ids[:, :-1])[some >= 0], some[some >= 0])
    assert_close(next_token_loss(pair.ours, ids[:, :-1], some).to(kept.dtype), kept, 1e-5)


@each_translator
def test_their_labels_are_our_targets(pair):
    """Theirs shifts `labels` right itself and omits -100; ours takes both rows, and padding."""
    src, tgt = pair.given
    targets = ids_of(31, *tgt.shape, low=8, seed=7)
    targets[2, 3:] = pair.pad_id
    tgt = torch.cat([torch.full((3, 1), pair.start_id), targets[:, :-1]], dim=1)
    labels = targets.masked_fill(targets == pair.pad_id, -100)
    mask = (src != pair.pad_id).long()
    expected = pair.theirs(input_ids=src, attention_mask=mask, labels=labels).loss
    assert_close(next_token_loss(pair.ours, src, tgt, targets), expected)


# --- laws


@each_decoder
def test_cached_is_full_for_a_decoder(pair):
    ids = pair.given[0]
    caches = [KVCache() for _ in pair.ours.decoder.layers]
    parts = [pair.ours.decode(part, caches) for part in ids.split([3, 1, 3], dim=1)]
    assert_close(torch.cat(parts, dim=1), pair.ours(ids))


@each_translator
def test_cached_is_full_for_a_translator(pair):
    src, tgt = pair.given
    memory, mask = pair.ours.encode(src)
    caches = [KVCache() for _ in pair.ours.decoder.layers]
    parts = tgt.split([2, 1, tgt.size(1) - 3], dim=1)
    parts = [pair.ours.decode(part, memory, mask, caches) for part in parts]
    assert_close(torch.cat(parts, dim=1), pair.ours(src, tgt))


@each_decoder
def test_padding_of_a_decoder_is_minus_one_and_invisible(pair):
    ids = pair.given[0]
    padded = pad_rows([ids[0].tolist(), ids[1, :4].tolist()], pad_id=-1)
    assert_close(pair.ours(padded)[1, :4], pair.ours(ids[1:, :4])[0])
    texts = generate(pair.ours, padded, max_new_tokens=5, stop_ids=[])
    alone = generate(pair.ours, ids[1:, :4], max_new_tokens=5, stop_ids=[])
    assert torch.equal(texts[1], alone[0])


@pytest.mark.parametrize("pair", READERS + TRANSLATORS, indirect=True)
def test_padding_is_invisible(pair):
    first, second = pair.given
    length = 4 if isinstance(pair.ours, BERT) else None
    alone = pair.ours(first[1:2, :4], None if second is None else second[1:2, :length])
    assert_close(pair.ours(first, second)[1:2, : alone.size(1)], alone)


@pytest.mark.parametrize("pair", DECODERS + TRANSLATORS, indirect=True)
def test_no_peeking(pair):
    *source, ids = pair.given
    changed = ids.clone()
    changed[:, 4] = 8 + (changed[:, 4] - 7) % 23
    before, after = pair.ours(*source, ids), pair.ours(*source, changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert ((before - after).abs().amax(-1)[:, 4] > 1e-4).all()


# --- files


@each
def test_saved_is_read_on_both_sides(pair):
    """Bit by bit the same for us; theirs may multiply otherwise where weights lie elsewhere."""
    pair.ours.save_pretrained(pair.folder / "ours")
    again = type(pair.theirs).from_pretrained(pair.folder / "ours", dtype=torch.float64)
    assert_close(pair.run(exact(again.eval(), pair.ours)), pair.run(pair.theirs))
    back = type(pair.ours).from_pretrained(pair.folder / "ours")
    for (name, found), (other, expected) in zip(
        back.named_parameters(), pair.ours.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(found, expected), name
    theirs, ours = (
        json.loads((pair.folder / name / "config.json").read_text()) for name in ("theirs", "ours")
    )
    assert "head" not in ours
    for key, value in theirs.items():
        if isinstance(value, dict):
            assert value.items() <= ours[key].items(), key
        elif key not in SAID_OTHERWISE:
            assert ours.get(key) == value, key


SAID_OTHERWISE = {"max_window_layers", "tie_word_embeddings"}  # where theirs says what is not so


@each
def test_shards_are_read(pair):
    again = loaded(type(pair.ours), pair.theirs, pair.folder / "shards", max_shard_size="4KB")
    assert len(list((pair.folder / "shards").glob("model-*.safetensors"))) > 2
    assert_close(pair.run(again), pair.run(pair.ours))


CONFIGS = [
    (mm.BERTConfig, "Bert"),
    (mm.RoBERTaConfig, "Roberta"),
    (mm.DistilBERTConfig, "DistilBert"),
    (mm.GPT2Config, "GPT2"),
    (mm.LlamaConfig, "Llama"),
    (mm.MistralConfig, "Mistral"),
    (mm.Qwen2Config, "Qwen2"),
    (mm.Qwen3Config, "Qwen3"),
    (mm.MarianConfig, "Marian"),
    (mm.BARTConfig, "Bart"),
    (mm.T5Config, "T5"),
    (mm.ViTConfig, "ViT"),
]


@pytest.mark.parametrize(("kind", "family"), CONFIGS)
def test_what_a_file_leaves_out_is_what_transformers_takes(kind, family):
    theirs = getattr(transformers, f"{family}Config")()
    assert kind.from_published({"model_type": theirs.model_type}) == kind()
    expected, found = theirs.to_dict(), kind().to_published()
    same = {key for key in found.keys() & expected.keys() if found[key] == expected[key]}
    other = {
        "architectures",
        "rope_parameters",
        "pooler_output_size",
        "n_inner",
        "num_decoder_layers",
    }
    assert found.keys() & expected.keys() - same <= other
    assert len(same) >= 10


BASE = {
    BERT: "Bert Model as published",
    mm.BERTForMaskedLM: "Bert ForMaskedLM as published",
    GPT2: "GPT2 LMHeadModel as published",
    Llama: "Llama ForCausalLM as published",
    Marian: "Marian MTModel other ids",
    BART: "Bart ForConditionalGeneration as published",
    T5: "T5 ForConditionalGeneration as published",
    ViT: "ViT ForImageClassification square",
}
MORE = {
    "Roberta": "Roberta ForMaskedLM as published",
    "DistilBert": "DistilBert ForMaskedLM as published",
    "Mistral": "Mistral ForCausalLM no window",
    "Qwen2": "Qwen2 ForCausalLM as published",
    "Qwen3": "Qwen3 ForCausalLM as published",
}
T = True
REFUSED = [
    *((kind, {"clever_new": T}, "these settings are not known: clever_new=True") for kind in BASE),
    *((kind, {"model_type": "mbart"}, "model_type is 'mbart', expected ") for kind in BASE),
    (BERT, {"position_embedding_type": "relative_key"}, "relative_key', expected"),
    (BERT, {"is_decoder": T}, "is_decoder is True, expected False"),
    (BERT, {"num_attention_heads": 5}, "num_heads must divide d_model, got 5 and 12"),
    (BERT, {"hidden_act": "mish"}, "activation must be one of gelu, .*, got 'mish'"),
    (BERT, {"pad_token_id": "none"}, "pad_id must be int, got 'none'"),
    ("Roberta", {"num_hidden_layers": 3}, "16 weights are missing; the first is enc"),
    ("Roberta", {"max_position_embeddings": 18}, r"is \(16, 12\), expected \(18, 12"),
    ("DistilBert", {"layer_norm_eps": 1e-3}, "these settings are not known: layer_norm_eps"),
    ("DistilBert", {"dim": 9}, r"expected \(37, 9\) as configured"),
    (GPT2, {"scale_attn_weights": False}, "scale_attn_weights is False, expected True"),
    (GPT2, {"n_layer": "three"}, "num_layers must be int, got 'three'"),
    (GPT2, {"n_layer": 2}, r"12 weights have no place .* is transformer.h.2"),
    (GPT2, {"n_layer": 4}, "16 weights are missing; the first is decoder.layers.3"),
    (GPT2, {"n_positions": 21}, r"positions.weight is \(20, 12\), expected \(21, 12\)"),
    (Llama, {"quantization_config": {"bits": 4}}, r"quantised, quantization_config=\{'bits': 4\}"),
    (Llama, {"sliding_window": 3}, "settings are not known: sliding_window"),
    ("Mistral", {"attention_bias": T}, "settings are not known: attention_bias"),
    (Llama, {"rope_interleaved": T}, "rope_interleaved is True, expected False"),
    (Llama, {"num_key_value_heads": 4}, "num_kv_heads must divide num_heads, got 4 and 6"),
    (Llama, {"head_dim": 5}, "d_k must be even.*, got 5"),
    (
        Llama,
        {"rope_parameters": {"rope_type": "longrope", "factor": 2.0}},
        r"rope_type must be one of \['default', .*, got 'longrope'",
    ),
    (Llama, {"rope_parameters": YARN | {"mscale": 1.0}}, "settings of 'yarn' are not known: msc"),
    (
        Llama,
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "settings of 'default' are not known: partial_rotary_factor",
    ),
    (Llama, {"rope_parameters": LLAMA3 | {"factor": 0.5}}, "factor must be at least 1, got"),
    (Llama, {"rope_parameters": LLAMA3 | {"factor": None}}, "factor must be float, got None"),
    (
        "Qwen2",
        {"layer_types": ["sliding_attention"] + 2 * ["full_attention"], **SLIDING},
        r"layer_types is \['sliding_attention', .* expected \['full_attention'",
    ),
    (Llama, {"attention_bias": T}, "12 weights are missing"),
    ("Qwen3", {"head_dim": 6}, r"w_q.weight is \(48, 24\), expected \(36, 24\)"),
    ("Qwen2", {"model_type": "qwen3"}, "9 weights have no place"),
    *((kind, {"normalize_before": T}, "normalize_before is True") for kind in (Marian, BART)),
    (Marian, {"normalize_embedding": T}, "normalize_embedding is True, expected False"),
    (BART, {"normalize_embedding": False}, "normalize_embedding is False, expected True"),
    (Marian, {"tie_word_embeddings": False}, "tie_word_embeddings is False, expected True"),
    (Marian, {"decoder_vocab_size": 40}, "decoder_vocab_size is 40, expected vocab_size=37"),
    (Marian, {"encoder_layers": 1}, "16 weights have no place"),
    (BART, {"decoder_layers": 4}, "26 weights are missing; the first is decoder.layers.3"),
    (Marian, {"pad_token_id": 37}, "pad_id must lie in the vocabulary of 37 tokens, got 37"),
    (BART, {"decoder_start_token_id": 99}, "start_id must lie in the vocabulary of 37 tokens, got"),
    (T5, {"is_encoder_decoder": False}, "is_encoder_decoder is False, expected True"),
    (T5, {"feed_forward_proj": "gated-mish"}, "network must be one of .* got 'gated-mish'"),
    (T5, {"num_layers": 2}, "8 weights have no place"),
    (T5, {"num_decoder_layers": 4}, "13 weights are missing; the first is decoder.layers.3"),
    (T5, {"feed_forward_proj": "gated-gelu"}, "6 weights are missing; .*feed_forward.w_3"),
    (T5, {"d_kv": 6}, r"w_q.weight is \(15, 12\), expected \(18, 12\)"),
    (ViT, {"pooler_act": "relu"}, "pooler_act is 'relu', expected 'tanh'"),
    (ViT, {"qkv_bias": False}, "6 weights have no place"),
    (ViT, {"image_size": 10}, r"positions is \(1, 17, 12\), expected \(1, 26, 12\)"),
    (ViT, {"image_size": 9}, "patches must fill a picture, got 2 × 2 for 9 × 9 pixels"),
    (ViT, {"patch_size": 0}, "patches must fill a picture, got 0 × 0 for 8 × 8 pixels"),
    (ViT, {"num_channels": 3}, r"projection.weight is \(12, 1, 2, 2\), expected \(12, 3, 2, 2\)"),
    (ViT, {"id2label": {"0": "a"}}, r"head.weight is \(5, 12\), expected \(1, 12\)"),
]


def saved(kind, folder, **changes):
    """A folder of theirs, as the base of a family, or a named one, is saved; and the class."""
    name = MORE.get(kind) or BASE[kind]
    theirs = theirs_of(name, **changes)
    theirs.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)  # whose begin would count
    return theirs, VARIANTS[name][0]


@pytest.mark.parametrize(("kind", "changes", "message"), REFUSED, ids=str)
def test_settings_that_are_not_computed_are_refused_by_name_and_value(
    tmp_path, kind, changes, message
):
    _, ours = saved(kind, tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        ours.from_pretrained(tmp_path)


PLACELESS = {
    BERT: "bert.encoder.layer.2.output.dense.bias",
    GPT2: "transformer.extra.weight",
    Llama: "model.layers.0.self_attn.q_proj.bias",
    Marian: "model.encoder.layers.0.encoder_attn.k_proj.bias",
    T5: "encoder.extra.weight",
    ViT: "vit.pooler.dense.weight",
}


@pytest.mark.parametrize(("kind", "name"), PLACELESS.items())
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, kind, name):
    _, ours = saved(kind, tmp_path)
    path = tmp_path / WEIGHTS
    weights = load_file(path)
    one = next(iter(weights.values()))
    for changes, message in (
        ({name: torch.ones(12).double()}, f"1 weights have no place .* the first is {name}"),
        ({name: torch.ones(12, dtype=torch.int8)}, f"{name} holds torch.int8: .* quantised"),
        ({next(iter(weights)): one.half()}, "weights have several dtypes, .*; say which one by"),
    ):
        save_file(weights | changes, path)
        with pytest.raises(ValueError, match=message):
            ours.from_pretrained(tmp_path)
    first = next(key for key in weights if re.search("norm|ln_1", key.lower()))
    save_file({key: weight for key, weight in weights.items() if key != first}, path)
    with pytest.raises(ValueError, match="1 weights are missing; the first is "):
        ours.from_pretrained(tmp_path)
    path.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"only pytorch_model.bin, a pickle"):
        ours.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "tied"),
    [
        (Marian, "lm_head.weight", "model.shared.weight"),
        (BART, "lm_head.weight", "model.shared.weight"),
        (  # a table for each layer, as umT5 has it, is another model
            T5,
            "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
    ],
)
def test_tables_that_are_tied_must_be_equal(tmp_path, kind, name, tied):
    saved(kind, tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    save_file(weights | {name: weights[tied] + 1}, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match="differs from the table that it is tied to"):
        kind.from_pretrained(tmp_path)


# --- files as others wrote them


def old_gpt2(weights):
    """Without prefix, with masks, as the first files."""
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 20, 20) for i in range(3)}
    return {name.removeprefix("transformer."): w for name, w in weights.items()} | masks


def old_bert(weights):
    """Gammas and betas, and the numbers of positions."""
    numbers = {"bert.embeddings.position_ids": torch.arange(16)[None]}
    return numbers | {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): weight
        for name, weight in weights.items()
    }


def old_llama(weights):
    """Each layer with its table of angles."""
    name = "model.layers.{}.self_attn.rotary_emb.inv_freq"
    return weights | {name.format(i): torch.ones(2) for i in range(3)}


def old_marian(weights):
    """All names of the tied table, and positions that follow from a formula."""
    names = ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    tied = {f"{name}.weight": weights["model.shared.weight"].clone() for name in names}
    return {"model.encoder.embed_positions.weight": torch.ones(18, 12)} | weights | tied


def old_bart(weights):
    """The same, with a version, but without the bias of logits, which is 0 then."""
    del weights["final_logits_bias"]
    return old_marian(weights) | {"model.encoder.version": torch.ones(1)}


def old_t5(weights):
    """All names of the tied table, and an unused bias."""
    table = weights["shared.weight"]
    tied = {f"{side}.embed_tokens.weight": table.clone() for side in ("encoder", "decoder")}
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    return weights | tied | {"lm_head.weight": table.clone(), unused: torch.ones(32, 3)}


def old_vit(weights):
    """Without prefix."""
    return {name.removeprefix("vit."): weight for name, weight in weights.items()}


OLD_MARIAN = {  # of the files on the Hub, as far as `transformers` 5 does not write them
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
    "no_repeat_ngram_size": 3,
    "normalize_before": False,
    "num_beams": 6,
    "num_hidden_layers": 6,
    "save_step": 58,
    "torch_dtype": "float32",
}
OLD_BERT = {"position_embedding_type": "absolute", "directionality": "bidi", "pooler_fc_size": 768}
OLD_T5 = {"tie_word_embeddings": True, "n_positions": 512, "output_past": True}
SINCE = ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "is_decoder")
NO_CHANGE = {"rope_theta": 10_000.0, "rope_scaling": None}


@pytest.mark.parametrize(
    ("kind", "weights", "settings", "left_out"),
    [
        (GPT2, old_gpt2, {"n_ctx": 20}, ()),
        (BERT, old_bert, OLD_BERT, ()),
        (mm.BERTForMaskedLM, old_bert, OLD_BERT, ()),
        (Llama, old_llama, NO_CHANGE, ("rope_parameters",)),
        (Marian, old_marian, OLD_MARIAN | {"normalize_embedding": False}, ()),
        (BART, old_bart, OLD_MARIAN | {"normalize_embedding": True}, ()),
        (T5, old_t5, OLD_T5, SINCE),
        (ViT, old_vit, {"encoder_stride": 16}, ()),
    ],
)
def test_older_files_are_read(tmp_path, kind, weights, settings, left_out):
    saved(kind, tmp_path)
    expected = kind.from_pretrained(tmp_path)
    if kind is BART:
        torch.nn.init.zeros_(expected.output_projection.bias)
    save_file(weights(load_file(tmp_path / WEIGHTS)), tmp_path / WEIGHTS, {"format": "pt"})
    change_config(tmp_path, *left_out, **settings)
    found = kind.from_pretrained(tmp_path)
    for (name, weight), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(weight, other), name
    assert found.config == expected.config


@pytest.mark.parametrize("kind", [Llama, Marian, BART], ids=lambda kind: kind.__name__)
def test_model_without_head_is_read_where_the_output_is_tied(tmp_path, kind):
    """As `LlamaModel` and `BartModel` are saved: no prefix, no output, no bias of logits."""
    theirs, _ = saved(kind, tmp_path / "whole", tie_word_embeddings=True)
    theirs.model.save_pretrained(tmp_path / "bare")
    whole, bare = (kind.from_pretrained(tmp_path / name) for name in ("whole", "bare"))
    for (name, weight), other in zip(whole.named_parameters(), bare.parameters(), strict=True):
        assert torch.equal(weight, other) or name == "output_projection.bias", name


def test_one_file_counts_for_more_than_shards_that_are_there_still(tmp_path):
    theirs, _ = saved(Llama, tmp_path)
    whole = load_file(tmp_path / WEIGHTS)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    moved = {name: weight + 0.1 * randn(*weight.shape).double() for name, weight in whole.items()}
    save_file(moved, tmp_path / WEIGHTS, {"format": "pt"})
    found = Llama.from_pretrained(tmp_path).published_weights()
    assert all(torch.equal(weight, moved[name]) for name, weight in found.items())


def test_weights_read_are_laid_out_as_an_optimiser_expects_them(tmp_path):
    """Fused Adam takes a matrix that is stored transposed for another one, without a word."""
    saved(GPT2, tmp_path)
    model = GPT2.from_pretrained(tmp_path, dtype=torch.float32)
    assert all(parameter.is_contiguous() for parameter in model.parameters())
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    ids = ids_of(V, 4, 9)
    next_token_loss(model, ids[:, :-1], ids[:, 1:]).backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        moved, against = parameter.detach() - before[name], -parameter.grad.sign()
        asked = parameter.grad.abs() > 1e-6  # the first step is lr, whatever the gradient
        assert torch.equal(moved.sign()[asked], against[asked]), name


@pytest.mark.parametrize(
    ("kind", "field", "head"),
    [
        (ViT, "num_classes", "head"),
        (mm.BERTForSequenceClassification, "num_labels", "classifier"),
    ],
)
def test_names_of_classes_are_kept_and_a_classifier_of_others_has_none(tmp_path, kind, field, head):
    base = "ViT ForImageClassification square"
    _, config, model, settings = VARIANTS[
        base if kind is ViT else "Bert ForSequenceClassification as published"
    ]
    names = {0: "cat", 1: "dog", 2: "owl", 3: "emu"}
    settings = {key: value for key, value in settings.items() if key != "num_labels"}
    config = getattr(transformers, config)(**settings, id2label=names)
    ours = loaded(kind, getattr(transformers, model)(config), tmp_path / "theirs")
    assert getattr(ours.config, field) == 4
    ours.save_pretrained(tmp_path / "ours")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "ours").id2label == names
    setattr(ours, head, torch.nn.Linear(12, 3))
    ours.config = dataclasses.replace(ours.config, **{field: 3})
    ours.save_pretrained(tmp_path / "new")
    again = kind.from_pretrained(tmp_path / "new")
    assert torch.equal(again.get_submodule(head).weight, ours.get_submodule(head).weight)
    assert transformers.AutoConfig.from_pretrained(tmp_path / "new").num_labels == 3


# --- how training starts

SMALL = {"d_model": 60, "num_heads": 3, "num_layers": 2}
SIDES = {"vocab_size": 200, "d_model": 60, "num_encoder_layers": 2, "num_decoder_layers": 3}
SIDES |= {"encoder_num_heads": 3, "decoder_num_heads": 2, "encoder_d_ff": 90, "decoder_d_ff": 80}
T5_SIZES = {"d_model": 60, "d_k": 20, "num_heads": 5, "d_ff": 90, "num_encoder_layers": 2}
IN_LAYER = "decoder.layers.1."
STARTS = {
    GPT2: (
        mm.GPT2Config(vocab_size=200, **SMALL),
        {
            "embedding": 0.02,
            "positions": 0.02,
            f"{IN_LAYER}self_attention.w_q": 0.02,
            f"{IN_LAYER}self_attention.w_o": 0.01,  # 0.02 / √(2 · 2)
            f"{IN_LAYER}feed_forward.w_2": 0.01,
        },
    ),
    Llama: (
        mm.LlamaConfig(vocab_size=200, **SMALL, d_ff=90),
        {"embedding": 0.02, f"{IN_LAYER}feed_forward.w_3": 0.02},
    ),
    mm.BERTForMaskedLM: (  # 0.0176: σ = 0.02, cut at two of its σ
        mm.BERTConfig(vocab_size=900, **SMALL, d_ff=90),
        {"embedding": 0.0176, "encoder.layers.1.self_attention.w_q": 0.0176},
    ),
    BART: (
        mm.BARTConfig(**SIDES),
        {"src_embedding": 0.02, "tgt_positions": 0.02, f"{IN_LAYER}cross_attention.w_k": 0.02},
    ),
    Marian: (
        mm.MarianConfig(**SIDES, pad_id=199, start_id=199),
        {
            "src_embedding": 60**-0.5,
            "encoder.layers.1.self_attention.w_q": 60**-0.5,  # √(2 / (60 + 60))
            "decoder.layers.0.feed_forward.w_1": 70**-0.5,
        },
    ),
    T5: (
        mm.T5Config(vocab_size=300, **T5_SIZES, tie_output=False),
        {
            "src_embedding": 1.0,
            "output_projection": 60**-0.5,
            f"{IN_LAYER}self_attention.w_q": (60 * 20) ** -0.5,
            f"{IN_LAYER}cross_attention.w_q": (60 * 20) ** -0.5,
            f"{IN_LAYER}self_attention.w_k": 60**-0.5,
            f"{IN_LAYER}self_attention.w_o": 100**-0.5,
            f"{IN_LAYER}feed_forward.w_2": 90**-0.5,
            f"{IN_LAYER}self_attention.position_bias": 60**-0.5,
        },
    ),
    ViT: (
        mm.ViTConfig(image_size=16, patch_size=2, **SMALL, d_ff=200),
        {
            "embedding.projection": (3 * 2 * 2) ** -0.5,
            "encoder.layers.0.self_attention.w_q": (2 / 120) ** 0.5,
            "encoder.layers.0.feed_forward.w_1": (2 / 260) ** 0.5,
        },
    ),
}


@pytest.mark.parametrize(("kind", "start"), STARTS.items())
def test_starting_values_are_the_published_ones(kind, start):
    config, expected = start
    model, again = (kind(config, torch.Generator().manual_seed(0)) for _ in range(2))
    for name, std in expected.items():
        assert abs(float(model.get_submodule(name).weight.detach().std()) / std - 1) < 0.15, name
    for (name, parameter), other in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(parameter, other)
        if name.endswith("bias") and "position" not in name:
            assert not parameter.any(), name
        if "norm" in name and name.endswith("weight"):
            assert parameter.eq(1).all(), name
    if issubclass(kind, Marian):
        tables = {model.tgt_embedding.weight, model.output_projection.weight}
        assert tables == {model.src_embedding.weight}
        assert not model.src_embedding.weight[model.config.pad_id].any()
    if kind is ViT:
        assert abs(float(model.embedding.positions.detach().std()) / 0.02 - 1) < 0.06
        assert not model.head.weight.any()
        assert not model.embedding.class_token.any()

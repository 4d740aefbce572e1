"""Laws of every published family: it computes, writes and saves what `transformers` does."""

import dataclasses
import json
import re

import pytest
import torch
import torch.nn.functional as F
from alike import assert_close, ids_of, loaded, transformers
from families import LLAMA3, SLIDING, VARIANTS, YARN, V, change_config, exact, pair_of, theirs_of
from helpers import assert_same_weights, randn
from safetensors.torch import load_file, save_file

from minitransformer import KVCache, Transformer, fast, generate, next_token_loss, pad_rows
from minitransformer import models as mm
from minitransformer.models import BART, BERT, GPT2, T5, Llama, Marian, ViT

READERS = [name for name, (kind, *_) in VARIANTS.items() if issubclass(kind, BERT)]
DECODERS = [name for name, (kind, *_) in VARIANTS.items() if issubclass(kind, (GPT2, Llama))]
TRANSLATORS = [name for name, (kind, *_) in VARIANTS.items() if issubclass(kind, Transformer)]
WEIGHTS = "model.safetensors"


@pytest.fixture
def pair(request, tmp_path):
    return pair_of(request.param, tmp_path)


each = pytest.mark.parametrize("pair", VARIANTS, indirect=True)
each_decoder = pytest.mark.parametrize("pair", DECODERS, indirect=True)
each_translator = pytest.mark.parametrize("pair", TRANSLATORS, indirect=True)
each_reader = pytest.mark.parametrize("pair", READERS, indirect=True)


# --- computes the same


@each
def test_outputs_and_gradients_are_theirs(pair, tmp_path):
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
    pair.theirs.save_pretrained(tmp_path / "gradients")
    found = load_file(tmp_path / "gradients" / WEIGHTS)
    found |= {name: p.detach() for name, p in pair.theirs.named_parameters()}  # buffers of old
    expected = {name.removeprefix(pair.ours.prefix): grad for name, grad in found.items()}
    ours = pair.ours.published_weights()
    for name, grad in ours.items():
        assert_close(grad, expected[name.removeprefix(pair.ours.prefix)].view_as(grad))
    assert sum(bool(grad.any()) for grad in ours.values()) > len(ours) / 2


@each
def test_float32_is_as_near_as_theirs(pair, request):
    right = pair.run(pair.theirs).detach()
    single = pair.run(theirs_of(request.node.callspec.params["pair"]).float()).detach().double()
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
        if num_beams == 1 and not isinstance(pair.ours, mm.Mixtral):  # which it refuses
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


@pytest.mark.parametrize("pair", DECODERS + TRANSLATORS, indirect=True)
def test_cached_is_full(pair):
    *source, ids = pair.given
    memory = pair.ours.encode(*source) if source else ()
    caches = [KVCache() for _ in pair.ours.decoder.layers]
    parts = ids.split([2, 1, ids.size(1) - 3], dim=1)
    parts = [pair.ours.decode(part, *memory, caches) for part in parts]
    assert_close(torch.cat(parts, dim=1), pair.ours(*pair.given))


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
    assert_close(before[:, :4], after[:, :4])  # experts add up what they get in another order
    assert ((before - after).abs().amax(-1)[:, 4] > 1e-4).all()


# --- files


@each
def test_saved_is_read_on_both_sides(pair, tmp_path):
    """Bit by bit the same for us; theirs may multiply otherwise where weights lie elsewhere."""
    pair.ours.save_pretrained(tmp_path / "ours")
    again = type(pair.theirs).from_pretrained(tmp_path / "ours", dtype=torch.float64)
    assert_close(pair.run(exact(again.eval(), pair.ours)), pair.run(pair.theirs))
    assert_same_weights(type(pair.ours).from_pretrained(tmp_path / "ours"), pair.ours)
    theirs, ours = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "ours")
    )
    assert "head" not in ours
    for key, value in theirs.items():
        if isinstance(value, dict):
            assert value.items() <= ours[key].items(), key
        elif key not in SAID_OTHERWISE and (key, value) != ("head_dim", None):
            assert ours.get(key) == value, key


SAID_OTHERWISE = {"max_window_layers", "tie_word_embeddings"}  # where theirs says what is not so


@each
def test_shards_are_read(pair, tmp_path):
    again = loaded(type(pair.ours), pair.theirs, tmp_path / "shards", max_shard_size="4KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert_close(pair.run(again), pair.run(pair.ours))


CONFIGS = [mm.BERTConfig, mm.RoBERTaConfig, mm.DistilBERTConfig, mm.GPT2Config, mm.LlamaConfig]
CONFIGS += [mm.MistralConfig, mm.Qwen2Config, mm.Qwen3Config, mm.MarianConfig, mm.BARTConfig]
CONFIGS += [mm.T5Config, mm.ViTConfig, mm.MixtralConfig, mm.Qwen3MoeConfig]


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_a_file_leaves_out_is_what_transformers_takes(kind):
    theirs = transformers.AutoConfig.for_model(kind.model_type)
    assert kind.from_published({"model_type": theirs.model_type}) == kind()
    expected, found = theirs.to_dict(), kind().to_published()
    same = {key for key in found.keys() & expected.keys() if found[key] == expected[key]}
    other = {"architectures", "rope_parameters", "pooler_output_size", "n_inner"}
    other |= {"num_decoder_layers", "head_dim"}
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
T, ROPE = True, "rope_parameters"
HALF_TURNED = {"rope_type": "default", "partial_rotary_factor": 0.5}
LONGROPE = {"rope_type": "longrope", "factor": 2.0}
FIRST_SLIDES = SLIDING | {"layer_types": ["sliding_attention"] + 2 * ["full_attention"]}
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
    (Llama, {ROPE: LONGROPE}, r"rope_type must be one of \['default', .*, got 'longrope'"),
    (Llama, {ROPE: YARN | {"mscale": 1.0}}, "settings of 'yarn' are not known: mscale"),
    (Llama, {ROPE: HALF_TURNED}, "settings of 'default' are not known: partial_rotary_factor"),
    (Llama, {ROPE: LLAMA3 | {"factor": 0.5}}, "factor must be at least 1, got"),
    (Llama, {ROPE: LLAMA3 | {"factor": None}}, "factor must be float, got None"),
    ("Qwen2", FIRST_SLIDES, r"layer_types is \['sliding_attention', .* expected \['full_attent"),
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
    """A folder of theirs, as the base of a class, or the first of a family; and the class."""
    name = BASE.get(kind) or next(name for name in VARIANTS if name.startswith(f"{kind} "))
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
    first = next(key for key in weights if re.search("norm|ln_1", key.lower()))
    without = {key: weight for key, weight in weights.items() if key != first}
    for wrong, message in (
        (weights | {name: torch.ones(12).double()}, f"1 weights have .* the first is {name}"),
        (without, "1 weights are missing; the first is "),
    ):
        save_file(wrong, path)
        with pytest.raises(ValueError, match=message):
            ours.from_pretrained(tmp_path)
    path.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"only pytorch_model.bin, a pickle"):
        ours.from_pretrained(tmp_path)


BUCKETS = "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias.weight"


@pytest.mark.parametrize(
    ("kind", "name", "tied"),
    [
        (Marian, "lm_head.weight", "model.shared.weight"),
        (BART, "lm_head.weight", "model.shared.weight"),
        (T5, BUCKETS.format(1), BUCKETS.format(0)),  # umT5, with a table a layer, is another model
    ],
)
def test_tables_that_are_tied_must_be_equal(tmp_path, kind, name, tied):
    saved(kind, tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    save_file(weights | {name: weights[tied] + 1}, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match="differs from the table that it is tied to"):
        kind.from_pretrained(tmp_path)


# --- files as others wrote them


def older(kind, weights):
    """The same weights as in the first files of a family; `real_files` has their settings."""
    more = {}
    if kind is GPT2:  # without prefix, with masks
        weights = {name.removeprefix("transformer."): w for name, w in weights.items()}
        more = {f"h.{i}.attn.bias": torch.ones(1, 1, 20, 20) for i in range(3)}
    elif kind is ViT:
        weights = {name.removeprefix("vit."): weight for name, weight in weights.items()}
    elif kind is Llama:  # each layer with its table of angles
        name = "model.layers.{}.self_attn.rotary_emb.inv_freq"
        more = {name.format(i): torch.ones(2) for i in range(3)}
    elif kind is T5:  # all names of the tied table, and an unused bias
        tied = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
        more = {name: weights["shared.weight"].clone() for name in tied}
        more["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = randn(
            32, 3
        )
    elif issubclass(kind, Marian):  # the same, and positions that follow from a formula
        names = ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
        more = {f"{name}.weight": weights["model.shared.weight"].clone() for name in names}
        more |= {"model.encoder.embed_positions.weight": torch.ones(18, 12)}
    else:  # gammas and betas, and the numbers of positions
        for old, new in (("Norm.weight", "Norm.gamma"), ("Norm.bias", "Norm.beta")):
            weights = {name.replace(old, new): weight for name, weight in weights.items()}
        more = {"bert.embeddings.position_ids": torch.arange(16)[None]}
    if kind is BART:  # a version, but no bias of logits, which is 0 then
        del weights["final_logits_bias"]
        more |= {"model.encoder.version": torch.ones(1)}
        del more["model.encoder.embed_positions.weight"]
    return weights | more


@pytest.mark.parametrize("kind", BASE, ids=lambda kind: kind.__name__)
def test_older_files_are_read(tmp_path, kind):
    saved(kind, tmp_path)
    expected = kind.from_pretrained(tmp_path)
    if kind is BART:
        torch.nn.init.zeros_(expected.output_projection.bias)
    weights = older(kind, load_file(tmp_path / WEIGHTS))
    save_file(weights, tmp_path / WEIGHTS, {"format": "pt"})
    found = kind.from_pretrained(tmp_path)
    assert_same_weights(found, expected)
    assert found.config == expected.config


@pytest.mark.parametrize("kind", [Llama, Marian, BART], ids=lambda kind: kind.__name__)
def test_model_without_head_is_read_where_the_output_is_tied(tmp_path, kind):
    """As `LlamaModel` and `BartModel` are saved: no prefix, no output, no bias of logits."""
    theirs, _ = saved(kind, tmp_path / "whole", tie_word_embeddings=True)
    theirs.model.save_pretrained(tmp_path / "bare")
    whole, bare = (kind.from_pretrained(tmp_path / name) for name in ("whole", "bare"))
    if whole.output_projection.bias is not None:
        torch.nn.init.zeros_(whole.output_projection.bias)
    assert_same_weights(bare, whole)


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
    [(ViT, "num_classes", "head"), (mm.BERTForSequenceClassification, "num_labels", "classifier")],
)
def test_names_of_classes_are_kept_and_a_classifier_of_others_has_none(tmp_path, kind, field, head):
    name = BASE.get(kind, "Bert ForSequenceClassification as published")
    names = {0: "cat", 1: "dog", 2: "owl", 3: "emu"}
    theirs = theirs_of(name, id2label=names, num_labels=4)
    ours = loaded(kind, theirs, tmp_path / "theirs")
    assert getattr(ours.config, field) == 4
    ours.save_pretrained(tmp_path / "ours")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "ours").id2label == names
    setattr(ours, head, torch.nn.Linear(12, 3).double())
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
STARTING = {
    GPT2: mm.GPT2Config(vocab_size=200, **SMALL),
    Llama: mm.LlamaConfig(vocab_size=200, **SMALL, d_ff=90),
    mm.BERTForMaskedLM: mm.BERTConfig(vocab_size=900, **SMALL, d_ff=90),
    BART: mm.BARTConfig(**SIDES),
    Marian: mm.MarianConfig(**SIDES, pad_id=199, start_id=199),
    T5: mm.T5Config(vocab_size=300, **T5_SIZES, tie_output=False),
    ViT: mm.ViTConfig(image_size=16, patch_size=2, **SMALL, d_ff=200),
}
Q, K, OUT = (f"self_attention.w_{letter}" for letter in "qko")
STARTS = [  # σ of matrices, of the last layer of the decoder's or encoder's where they have many
    (GPT2, ("embedding", "positions", Q), 0.02),
    (GPT2, (OUT, "feed_forward.w_2"), 0.01),  # 0.02 / √(2 · 2)
    (Llama, ("embedding", "feed_forward.w_3"), 0.02),
    (mm.BERTForMaskedLM, ("embedding", Q), 0.0176),  # 0.02, cut at two of its σ
    (BART, ("src_embedding", "tgt_positions", "cross_attention.w_k"), 0.02),
    (Marian, ("src_embedding", Q), 60**-0.5),  # √(2 / (60 + 60))
    (Marian, ("feed_forward.w_1",), 70**-0.5),
    (T5, ("src_embedding",), 1.0),
    (T5, ("output_projection", K, "self_attention.position_bias"), 60**-0.5),
    (T5, (Q, "cross_attention.w_q"), (60 * 20) ** -0.5),
    (T5, (OUT,), 100**-0.5),
    (T5, ("feed_forward.w_2",), 90**-0.5),
    (ViT, ("embedding.projection",), (3 * 2 * 2) ** -0.5),
    (ViT, (Q,), (2 / 120) ** 0.5),
    (ViT, ("feed_forward.w_1",), (2 / 260) ** 0.5),
]


@pytest.mark.parametrize("kind", STARTING)
def test_starting_values_are_the_published_ones(kind):
    config = STARTING[kind]
    model, again = (kind(config, torch.Generator().manual_seed(0)) for _ in range(2))
    assert_same_weights(again, model)
    layer = (model.decoder if hasattr(model, "decoder") else model.encoder).layers[-1]
    for family, names, std in STARTS:
        for name in names if family is kind else ():
            part = layer if name.split(".")[0].endswith(("attention", "forward")) else model
            found = part.get_submodule(name).weight.detach().std()
            assert abs(float(found) / std - 1) < 0.15, name
    for name, parameter in model.named_parameters():
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

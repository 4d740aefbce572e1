"""GPT-2 of this book is GPT-2 as published: outputs, gradients, texts, files."""

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from alike import (
    assert_close,
    assert_reads_back,
    assert_same_gradients,
    assert_same_text,
    ids_of,
    loaded,
    published,
    transformers,
)
from safetensors.torch import load_file, save_file

from minitransformer import KVCache, TextGenerator, fast, generate, next_token_loss, pad_rows
from minitransformer.models import GPT2, GPT2Config
from minitransformer.tokenization.published import PublishedTokenizer

SIZES = {"vocab_size": 37, "n_embd": 12, "n_head": 3, "n_layer": 3, "n_positions": 20}
VARIANTS = {
    "as published": {},
    "other sizes": {"n_inner": 50, "layer_norm_epsilon": 1e-3, "activation_function": "relu"},
    "untied": {"tie_word_embeddings": False, "activation_function": "gelu"},
}
IDS = ids_of(37, 2, 7)


def theirs_of(changes, seed=1):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(**SIZES, bos_token_id=1, eos_token_id=2, **changes)
    return published(transformers.GPT2LMHeadModel(config), seed)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def pair(request, tmp_path):
    theirs = theirs_of(request.param)
    return SimpleNamespace(
        theirs=theirs, ours=loaded(GPT2, theirs, tmp_path / "theirs"), folder=tmp_path
    )


def logits(model):
    outputs = model(IDS)
    return outputs if isinstance(outputs, torch.Tensor) else outputs.logits


def test_logits_and_gradients_are_theirs(pair):
    assert_close(logits(pair.ours), logits(pair.theirs))
    assert_same_gradients(pair.ours, pair.theirs, logits)


def test_float32_too(pair):
    assert_close(logits(pair.ours.float()), logits(pair.theirs.float()), 1e-5)


def test_hidden_states_are_theirs(pair):
    found = []
    for layer in pair.ours.decoder.layers:
        layer.register_forward_hook(lambda _, inputs, output: found.append(output))
    pair.ours(IDS)
    expected = pair.theirs(IDS, output_hidden_states=True).hidden_states
    for ours, theirs in zip(found[:-1], expected[1:-1], strict=True):  # the last has been normed
        assert_close(ours, theirs)


def test_texts_are_theirs(pair):
    assert_same_text(pair.ours, pair.theirs, IDS)
    assert_same_text(fast.prepare(pair.ours), pair.theirs, IDS)


def test_cached_is_full(pair):
    caches = [KVCache() for _ in pair.ours.decoder.layers]
    parts = [pair.ours.decode(part, caches) for part in IDS.split([3, 1, 3], dim=1)]
    assert_close(torch.cat(parts, dim=1), pair.ours(IDS))


def test_padding_is_minus_one_and_invisible(pair):
    rows = [IDS[0].tolist(), IDS[1, :4].tolist()]
    padded = pad_rows(rows, pad_id=-1)
    assert_close(pair.ours(padded)[1, :4], pair.ours(IDS[1:, :4])[0])
    texts = generate(pair.ours, padded, max_new_tokens=5, stop_ids=[])
    for row, text in zip(rows, texts, strict=True):
        alone = generate(pair.ours, torch.tensor([row]), max_new_tokens=5, stop_ids=[])
        assert torch.equal(text, alone[0])


def test_ended_rows_are_filled_with_what_is_no_token(pair):
    free = generate(pair.ours, IDS, max_new_tokens=6, stop_ids=[])
    stop = int(free[0, 1])
    texts = generate(pair.ours, IDS, max_new_tokens=6, stop_ids=[stop])
    end = free[0].tolist().index(stop) + 1
    assert texts[0].tolist() == [*free[0, :end].tolist(), *[-1] * (texts.size(1) - end)]


def test_every_other_negative_id_is_refused(pair):
    with pytest.raises(ValueError, match="id -100 lies outside the vocabulary of 37"):
        pair.ours(IDS.clone().index_fill_(1, torch.tensor([3]), -100))


def test_their_labels_are_our_targets_unshifted(pair):
    """Theirs moves `labels` by one inside; ours takes the ids that follow, -1 for none."""
    expected = pair.theirs(IDS, labels=IDS).loss
    found = next_token_loss(pair.ours, IDS[:, :-1], IDS[:, 1:])
    assert_close(found, expected.to(found.dtype), 1e-5)
    some = IDS[:, 1:].clone()
    some[0, 2:] = -1
    kept = F.cross_entropy(pair.ours(IDS[:, :-1])[some >= 0], some[some >= 0])
    assert_close(next_token_loss(pair.ours, IDS[:, :-1], some).to(kept.dtype), kept, 1e-5)


def test_what_is_saved_reads_back_on_both_sides(pair):
    assert_reads_back(pair.ours, pair.theirs, logits, pair.folder / "ours")


def test_settings_that_do_not_matter_are_kept(pair):
    pair.ours.save_pretrained(pair.folder / "ours")
    content = json.loads((pair.folder / "ours" / "config.json").read_text())
    assert (content["bos_token_id"], content["eos_token_id"]) == (1, 2)


def test_file_without_prefix_and_with_masks_is_read(pair):
    """As the first files were written."""
    path = pair.folder / "theirs" / "model.safetensors"
    weights = {name.removeprefix("transformer."): w for name, w in load_file(path).items()}
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 20, 20) for i in range(3)}
    save_file(weights | masks, path, {"format": "pt"})
    assert_close(logits(GPT2.from_pretrained(path.parent)), logits(pair.ours))


def test_shards_are_read(pair):
    ours = loaded(GPT2, pair.theirs, pair.folder / "shards", max_shard_size="5KB")
    assert len(list((pair.folder / "shards").glob("model-*.safetensors"))) > 2
    assert_close(logits(ours), logits(pair.ours))


# --- what is refused -------------------------------------------------------------------------


def changed_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def folder(tmp_path):
    theirs_of({}).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clever_new_attention": True}, "these settings are not known: clever_new_attention"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False, expected True"),
        ({"model_type": "llama"}, "model_type is 'llama', expected gpt2"),
        ({"n_layer": "three"}, "num_layers must be int, got 'three'"),
        ({"n_head": 5}, "num_heads must divide d_model, got 5 and 12"),
        ({"n_layer": 2}, "12 weights have no place"),
        ({"n_layer": 4}, "16 weights are missing; the first is decoder.layers.3"),
        ({"n_positions": 21}, r"positions.weight is \(20, 12\), expected \(21, 12\)"),
        ({"activation_function": "mish"}, "activation must be one of gelu, .*, got 'mish'"),
    ],
)
def test_configuration_that_does_not_fit_is_refused(folder, changes, message):
    changed_config(folder, **changes)
    with pytest.raises(ValueError, match=message):
        GPT2.from_pretrained(folder)


def test_unknown_weight_is_refused_by_name(folder):
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"transformer.extra.weight": torch.ones(2)}, path)
    with pytest.raises(
        ValueError, match=r"1 weights have no place .* the first is transformer.extra"
    ):
        GPT2.from_pretrained(folder)


def test_pickles_are_never_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"only pytorch_model.bin, a pickle"):
        GPT2.from_pretrained(folder)


def test_what_would_be_lost_is_not_saved(folder):
    model = GPT2.from_pretrained(folder)
    model.decoder.norm.eps = 1e-3
    with pytest.raises(ValueError, match=r"decoder.norm.eps is not what .* 0.001, expected 1e-05"):
        model.save_pretrained(folder)


def test_starting_values_are_the_published_ones():
    config = GPT2Config(vocab_size=200, d_model=60, num_heads=3, num_layers=2)
    model = GPT2(config, torch.Generator().manual_seed(0))
    layer = model.decoder.layers[1]
    for weight, std in (
        (model.embedding.weight, 0.02),
        (model.positions.weight, 0.02),
        (layer.self_attention.w_q.weight, 0.02),
        (layer.self_attention.w_o.weight, 0.01),  # 0.02 / sqrt(2 * 2)
        (layer.feed_forward.w_2.weight, 0.01),
    ):
        assert abs(float(weight.detach().std()) / std - 1) < 0.06
    assert not layer.self_attention.w_q.bias.any()


def test_complete_writes_with_a_published_tokenizer(pair):
    """No text begins with a token of its own, no row is padded with one."""
    letters = {chr(ord("a") + index): index for index in range(26)}
    model = {"type": "BPE", "vocab": letters | {"<|endoftext|>": 26}, "merges": []}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": 26, "content": "<|endoftext|>", "special": True, **flags}]
    bytes_spelled = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps = {"pre_tokenizer": bytes_spelled, "decoder": bytes_spelled}
    state = {"model": model, "added_tokens": added, **steps}
    tokenizer = PublishedTokenizer.from_dict(state)
    assert tokenizer.begin("abc") == [0, 1, 2]
    with torch.no_grad():
        pair.ours.output_projection.weight[27:] = 0.0  # what has no letter is never best
    texts = TextGenerator(pair.ours, tokenizer).complete(["abc", "d"], max_new_tokens=4)
    for prompt, text in zip(("abc", "d"), texts, strict=True):
        alone = generate(
            pair.ours, torch.tensor([tokenizer.encode(prompt)]), max_new_tokens=4, stop_ids=[26]
        )
        assert text == tokenizer.decode(i for i in alone[0].tolist() if i >= 0)

"""ViT of this book is ViT as published: outputs, gradients, files; and its patches are tokens."""

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from alike import assert_close, assert_reads_back, loaded, published, transformers
from safetensors.torch import load_file, save_file

from minitransformer import record_attention
from minitransformer.models.vit import PatchEmbedding, Rectangle, ViT, ViTConfig

SIZES = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "num_labels": 5,
}
VARIANTS = {
    "square": {"image_size": 8, "patch_size": 2, "num_channels": 1},
    "rectangular": {
        "image_size": (6, 8),
        "patch_size": (3, 2),
        "num_channels": 2,
        "qkv_bias": False,
        "layer_norm_eps": 1e-6,
        "hidden_act": "relu",
        "pooler_output_size": 7,
    },
    "long": {
        "image_size": [4, 14],
        "patch_size": 2,
        "hidden_act": "gelu_new",
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
    },
}
KINDS = {
    "classifier": lambda config: transformers.ViTForImageClassification(config),
    "pooler": lambda config: transformers.ViTModel(config),
    "none": lambda config: transformers.ViTModel(config, add_pooling_layer=False),
}


def theirs_of(kind="classifier", seed=1, **changes):
    torch.manual_seed(seed)
    config = transformers.ViTConfig(**(SIZES | VARIANTS["square"] | changes))
    return published(KINDS[kind](config), seed)


def pictures_of(config, seed=3, batch=4):
    """Random pictures of the model's size."""
    size = (
        config.image_size if isinstance(config.image_size, Rectangle) else [config.image_size] * 2
    )
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, config.num_channels, *size)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def pair(request, kind, tmp_path):
    theirs = theirs_of(kind, **request.param)
    ours = loaded(ViT, theirs, tmp_path / "theirs")
    pictures = pictures_of(ours.config)

    def run(model, pictures=pictures, **options):
        outputs = model(pictures.to(next(model.parameters()).dtype), **options)
        if isinstance(outputs, torch.Tensor):
            return outputs
        if kind == "none":
            return outputs.last_hidden_state[:, 0]
        return outputs.logits if kind == "classifier" else outputs.pooler_output

    return SimpleNamespace(
        theirs=theirs, ours=ours, pictures=pictures, run=run, kind=kind, folder=tmp_path
    )


def test_outputs_are_theirs(pair):
    assert pair.ours.config.head == pair.kind
    assert_close(pair.run(pair.ours), pair.run(pair.theirs))
    assert_close(pair.run(pair.ours.float()), pair.run(pair.theirs.float()), 1e-5)


def test_gradients_are_theirs(pair):
    """Theirs has other names inside than in its files: there the gradients are compared."""
    gradients = []
    for model in (pair.ours, pair.theirs):
        outputs = pair.run(model)
        (outputs * torch.linspace(-1, 1, outputs.numel()).view_as(outputs)).sum().backward()
        for parameter in model.parameters():
            parameter.data = (
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )
        model.save_pretrained(pair.folder / "gradients")
        found = load_file(pair.folder / "gradients" / "model.safetensors")
        gradients.append({name.removeprefix("vit."): grad for name, grad in found.items()})
    ours, theirs = gradients
    assert ours.keys() == theirs.keys()
    for name, grad in ours.items():
        assert_close(grad, theirs[name])
        assert grad.any() or "key.bias" in name  # a constant in all keys: softmax takes it away


def test_hidden_states_are_theirs(pair):
    found = [pair.ours.embedding(pair.pictures)]
    for layer in pair.ours.encoder.layers:
        layer.register_forward_hook(lambda _, inputs, output: found.append(output))
    last = pair.ours.encode(pair.pictures)
    base = getattr(pair.theirs, "vit", pair.theirs)
    expected = base(pair.pictures, output_hidden_states=True)
    for ours, theirs in zip(found, expected.hidden_states, strict=True):
        assert_close(ours, theirs)
    assert_close(last, expected.last_hidden_state)


def test_what_is_saved_reads_back_on_both_sides(pair):
    assert_reads_back(pair.ours, pair.theirs, pair.run, pair.folder / "ours")
    theirs, ours = (
        json.loads((pair.folder / name / "config.json").read_text()) for name in ("theirs", "ours")
    )
    assert "head" not in ours
    for key in ("architectures", "image_size", "patch_size", "id2label", "qkv_bias", "hidden_act"):
        assert ours[key] == theirs[key]


def test_their_labels_are_targets_of_cross_entropy():
    theirs = theirs_of()
    labels = torch.tensor([4, 0, 2, 1])
    pictures = pictures_of(ViTConfig(image_size=8, patch_size=2, num_channels=1))
    expected = theirs(pictures, labels=labels)
    assert_close(F.cross_entropy(expected.logits, labels), expected.loss)


def test_shards_and_files_with_or_without_prefix_are_read(tmp_path):
    theirs = theirs_of()
    ours = loaded(ViT, theirs, tmp_path / "shards", max_shard_size="5KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    pictures = pictures_of(ours.config)
    assert_close(ours(pictures), theirs(pictures).logits)
    path = tmp_path / "plain" / "model.safetensors"
    theirs.save_pretrained(path.parent)
    weights = {name.removeprefix("vit."): weight for name, weight in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})
    assert_close(ViT.from_pretrained(path.parent)(pictures), ours(pictures))


def test_names_of_classes_are_kept(tmp_path):
    names = {0: "cat", 1: "dog", 2: "owl"}
    torch.manual_seed(1)
    config = transformers.ViTConfig(**(SIZES | VARIANTS["square"] | {"num_labels": 3}))
    config.id2label, config.label2id = names, {name: i for i, name in names.items()}
    ours = loaded(ViT, transformers.ViTForImageClassification(config), tmp_path / "theirs")
    assert ours.config.num_classes == 3
    ours.save_pretrained(tmp_path / "ours")
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path / "ours")
    assert again.config.id2label == names


def test_left_out_settings_are_those_of_transformers():
    ours, theirs = ViTConfig(), transformers.ViTConfig()
    for key, name in ViTConfig.keys.items():
        if key not in ("head", "pooler_output_size"):
            assert getattr(ours, name) == getattr(theirs, key)
    assert ViTConfig.from_published({"model_type": "vit"}) == ours


# --- other sizes of pictures -----------------------------------------------------------------


@pytest.mark.parametrize("size", [(8, 8), (12, 12), (4, 6), (10, 2), (6, 8)])
def test_positions_between_are_theirs(size, tmp_path):
    theirs = theirs_of()
    ours = loaded(ViT, theirs, tmp_path)
    pictures = torch.randn(2, 1, *size, dtype=torch.float64, requires_grad=True)
    found = ours(pictures, interpolate=True)
    expected = theirs(pictures, interpolate_pos_encoding=True).logits
    assert_close(found, expected)
    if size == (8, 8):
        assert torch.equal(found, ours(pictures))
    for outputs, gradients in ((found, []), (expected, [])):
        gradients.extend(torch.autograd.grad(outputs.sum(), pictures))
        assert gradients[0].isfinite().all()


def test_positions_of_a_rectangle_are_stretched_as_one():
    """Where theirs takes its table for a square: twice as wide is twice as wide."""
    embedding = PatchEmbedding(Rectangle(4, 6), 2, 1, 5).double()
    with torch.no_grad():  # positions that are their column
        columns = torch.tensor([0.0, 1, 2]).repeat(2)
        embedding.positions[0, 1:] = columns[:, None]
    rows = embedding.positions_of(Rectangle(3, 6))[0, 1:, 0].unflatten(0, (3, 6))
    assert_close(rows, rows[:1].expand(3, -1))  # nothing changes from row to row
    assert (rows[0].diff() > 0).all()
    assert_close(embedding.positions_of(Rectangle(3, 6))[:, 0], embedding.positions[:, 0])


# --- the laws --------------------------------------------------------------------------------


def small(seed=0, **changes):
    options = {"d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "num_classes": 5}
    config = ViTConfig(
        image_size=Rectangle(6, 8), patch_size=Rectangle(3, 2), **(options | changes)
    )
    return published(ViT(config, torch.Generator().manual_seed(seed)))


def test_patches_are_cut_row_by_row_and_multiplied():
    """Loop = convolution = reshaping and one matrix."""
    model = small()
    embed, pictures = model.embedding, pictures_of(model.config)
    weight, bias = embed.projection.weight, embed.projection.bias
    tokens = (embed(pictures) - embed.positions)[:, 1:]
    index = 0
    for row in range(2):
        for column in range(4):
            patch = pictures[:, :, 3 * row : 3 * row + 3, 2 * column : 2 * column + 2]
            assert_close(tokens[:, index], patch.flatten(1) @ weight.flatten(1).T + bias)
            index += 1
    assert index == tokens.size(1)
    cut = pictures.unflatten(2, (2, 3)).unflatten(4, (4, 2)).permute(0, 2, 4, 1, 3, 5)
    assert_close(tokens, F.linear(cut.flatten(3).flatten(1, 2), weight.flatten(1), bias))


def test_order_matters_only_through_positions():
    model = small()
    tokens = model.embedding(pictures_of(model.config)) - model.embedding.positions
    order = torch.cat([torch.tensor([0]), 1 + torch.randperm(8)])
    assert_close(model.encoder(tokens[:, order])[:, 0], model.encoder(tokens)[:, 0])
    x, shuffled = (tokens + model.embedding.positions, tokens[:, order] + model.embedding.positions)
    assert (model.encoder(x) - model.encoder(shuffled))[:, 0].abs().max() > 1e-3


def test_every_pixel_matters_and_nothing_of_other_pictures():
    model = small()
    pictures = pictures_of(model.config).requires_grad_()
    scores = model(pictures)
    (grad,) = torch.autograd.grad(scores[1].square().sum(), pictures)
    assert grad[1].all()
    assert not grad[[0, 2, 3]].any()
    assert_close(model(pictures[1:2]), scores[1:2])


def test_maps_have_a_row_for_the_class_token_and_each_patch():
    model = small()
    with record_attention(model) as maps:
        model(pictures_of(model.config))
    assert {tuple(weights.shape) for weights in maps.values()} == {(4, 3, 9, 9)}
    assert len(maps) == 2


def test_starting_values_are_the_authors():
    config = ViTConfig(
        image_size=16, patch_size=2, d_model=120, num_heads=3, num_layers=1, d_ff=200
    )
    model = ViT(config, torch.Generator().manual_seed(0))
    layer = model.encoder.layers[0]
    for weight, std in (
        (model.embedding.projection.weight, (3 * 2 * 2) ** -0.5),
        (model.embedding.positions, 0.02),
        (layer.self_attention.w_q.weight, (2 / 240) ** 0.5),
        (layer.feed_forward.w_1.weight, (2 / 320) ** 0.5),
    ):
        assert abs(weight.std().item() / std - 1) < 0.06
    for zero in (model.head.weight, model.embedding.class_token, layer.feed_forward.w_1.bias):
        assert not zero.any()
    again = ViT(config, torch.Generator().manual_seed(0))
    for ours, same in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, same)


@pytest.mark.slow
def test_it_learns_where_a_bright_patch_is():
    model = ViT(
        ViTConfig(
            image_size=6,
            patch_size=2,
            num_channels=1,
            num_classes=9,
            d_model=24,
            num_heads=3,
            num_layers=2,
            d_ff=48,
            eps=1e-6,
        ),
        torch.Generator().manual_seed(0),
    )
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(600):
        classes = torch.randint(9, (32,), generator=generator)
        grid = 2.0 * F.one_hot(classes, 9).view(-1, 1, 3, 3)
        pictures = grid.repeat_interleave(2, 2).repeat_interleave(2, 3)
        pictures = pictures + 0.3 * torch.randn(pictures.shape, generator=generator)
        loss = F.cross_entropy(model(pictures), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-50:]) / 50 < 1 < 2 < losses[0]


# --- what is refused -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    theirs_of().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clever_new_attention": True}, "these settings are not known: clever_new_attention"),
        ({"pooler_act": "relu"}, "pooler_act is 'relu', expected 'tanh'"),
        ({"model_type": "deit"}, "model_type is 'deit', expected vit"),
        ({"num_attention_heads": 5}, "num_heads must divide d_model, got 5 and 12"),
        ({"num_hidden_layers": 1}, r"16 weights have no place"),
        ({"num_hidden_layers": 3}, r"16 weights are missing; the first is encoder\.layers\.2"),
        ({"qkv_bias": False}, r"6 weights have no place"),
        ({"image_size": 10}, r"positions is \(1, 17, 12\), expected \(1, 26, 12\)"),
        ({"image_size": 9}, "patches must fill a picture, got 2 × 2 for 9 × 9 pixels"),
        ({"patch_size": 0}, "patches must fill a picture, got 0 × 0 for 8 × 8 pixels"),
        ({"num_channels": 3}, r"projection.weight is \(12, 1, 2, 2\), expected \(12, 3, 2, 2\)"),
        ({"hidden_act": "mish"}, "activation must be one of .*, got 'mish'"),
        ({"id2label": {"0": "a"}}, r"head.weight is \(5, 12\), expected \(1, 12\)"),
    ],
)
def test_configuration_that_does_not_fit_is_refused(folder, changes, message):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        ViT.from_pretrained(folder)


@pytest.mark.parametrize("extra", ["vit.embeddings.mask_token", "vit.pooler.dense.weight"])
def test_weight_without_a_place_is_refused_by_name(folder, extra):
    path = folder / "model.safetensors"
    save_file(load_file(path) | {extra: torch.ones(12, 12).double()}, path)
    with pytest.raises(ValueError, match=r"1 weights have no place .* the first is vit"):
        ViT.from_pretrained(folder)


def test_what_would_be_lost_is_not_saved(folder):
    model = ViT.from_pretrained(folder)
    model.encoder.norm.eps = 1e-3
    with pytest.raises(ValueError, match=r"encoder.norm.eps is not what .* 0.001, expected 1e-12"):
        model.save_pretrained(folder)


def test_unknown_head_is_refused():
    with pytest.raises(ValueError, match=r"head must be one of .*'none'\), got 'mean'"):
        ViTConfig(head="mean")
    with pytest.raises(TypeError, match=r"image_size must be int or Rectangle, got \(6, 8\)"):
        ViTConfig(image_size=(6, 8))


@pytest.mark.parametrize(
    ("shape", "interpolate", "message"),
    [
        ((2, 6, 8), False, r"pictures must be \(b, 3, height, width\), got \(2, 6, 8\)"),
        ((2, 1, 6, 8), False, r"pictures must be \(b, 3, height, width\), got \(2, 1, 6, 8\)"),
        ((2, 3, 8, 6), False, "pictures must be 6 × 8 pixels, got 8 × 6; with interpolate=True"),
        ((2, 3, 6, 7), True, "patches must fill a picture, got 3 × 2 for 6 × 7 pixels"),
        ((2, 1, 9, 8), True, r"pictures must be \(b, 3, height, width\), got \(2, 1, 9, 8\)"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(shape, interpolate, message):
    with pytest.raises(ValueError, match=message):
        small()(torch.zeros(shape).double(), interpolate=interpolate)

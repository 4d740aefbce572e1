"""What ViT has beside the laws of all published families: its patches are tokens."""

import pytest
import torch
import torch.nn.functional as F
from alike import assert_close, published
from families import Pair

from minitransformer.models.vit import PatchEmbedding, Rectangle, ViT, ViTConfig


def pictures_of(batch=4):
    """Random pictures of the size of `small`."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, 3, 6, 8, generator=generator, dtype=torch.float64)


# --- other sizes of pictures -----------------------------------------------------------------


@pytest.mark.parametrize("size", [(8, 8), (12, 12), (4, 6), (10, 2), (6, 8)])
def test_positions_between_are_theirs(size, tmp_path):
    pair = Pair("ViT ForImageClassification square", tmp_path)
    theirs, ours = pair.theirs, pair.ours
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
    embed, pictures = model.embedding, pictures_of()
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
    tokens = model.embedding(pictures_of()) - model.embedding.positions
    order = torch.cat([torch.tensor([0]), 1 + torch.randperm(8)])
    assert_close(model.encoder(tokens[:, order])[:, 0], model.encoder(tokens)[:, 0])
    x, shuffled = (tokens + model.embedding.positions, tokens[:, order] + model.embedding.positions)
    assert (model.encoder(x) - model.encoder(shuffled))[:, 0].abs().max() > 1e-3


def test_every_pixel_matters_and_nothing_of_other_pictures():
    model = small()
    pictures = pictures_of().requires_grad_()
    scores = model(pictures)
    (grad,) = torch.autograd.grad(scores[1].square().sum(), pictures)
    assert grad[1].all()
    assert not grad[[0, 2, 3]].any()
    assert_close(model(pictures[1:2]), scores[1:2])


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

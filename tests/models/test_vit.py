"""What ViT has beside the laws of all published families: its patches are tokens."""

import pytest
import torch
import torch.nn.functional as F
from alike import assert_close, published
from families import pair_of
from helpers import randn, refuses

from minitransformer.models.vit import PatchEmbedding, Rectangle, ViT, ViTConfig


@pytest.mark.parametrize("size", [(8, 8), (12, 12), (4, 6), (10, 2), (6, 8)])
def test_positions_between_are_theirs(size, tmp_path):
    pair = pair_of("ViT ForImageClassification square", tmp_path)
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


def small():
    sizes = {"d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "num_classes": 5}
    config = ViTConfig(image_size=Rectangle(6, 8), patch_size=Rectangle(3, 2), **sizes)
    return published(ViT(config, torch.Generator().manual_seed(0)))


def test_patches_are_cut_row_by_row_and_multiplied():
    """Loop = convolution = reshaping and one matrix."""
    embed, pictures = small().embedding, randn(4, 3, 6, 8, dtype=torch.float64)
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


def pixels(*shape, interpolate=False):
    """A call with pictures of that shape."""
    return lambda: small()(torch.zeros(shape).double(), interpolate=interpolate)


SIZE = r"image_size must be int or Rectangle, got \(6, 8\)"
PICTURES = r"pictures must be \(b, 3, height, width\), got "
test_what_does_not_fit_is_refused = refuses(
    (r"head must be one of .*'none'\), got 'mean'", lambda: ViTConfig(head="mean")),
    (PICTURES + r"\(2, 6, 8\)", pixels(2, 6, 8)),
    (PICTURES + r"\(2, 1, 6, 8\)", pixels(2, 1, 6, 8)),
    (PICTURES + r"\(2, 1, 9, 8\)", pixels(2, 1, 9, 8, interpolate=True)),
    ("pictures must be 6 × 8 pixels, got 8 × 6; with interpolate=True", pixels(2, 3, 8, 6)),
    ("must fill a picture, got 3 × 2 for 6 × 7 pixels", pixels(2, 3, 6, 7, interpolate=True)),
    (SIZE, lambda: ViTConfig(image_size=(6, 8)), TypeError),
)

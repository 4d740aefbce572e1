"""Embedding is a scaled lookup; the output projection may share its table."""

import math

import pytest
import torch
from helpers import assert_same, randn

from minitransformer import OutputProjection, TokenEmbedding

IDS = torch.tensor([[3, 30, 0, 3, 7], [1, 1, 2, 29, 30]])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_each_id_becomes_its_row_times_root_of_width(dtype):
    embedding = TokenEmbedding(31, 12)
    output = embedding(IDS.to(dtype))
    assert output.shape == (2, 5, 12)
    for b, row in enumerate(IDS.tolist()):
        for q, token in enumerate(row):
            assert_same(output[b, q], embedding.weight[token] * math.sqrt(12))


def test_gradient_reaches_the_looked_up_rows_as_often_as_they_occur():
    embedding = TokenEmbedding(31, 12)
    embedding(IDS).sum().backward()
    times = torch.bincount(IDS.flatten(), minlength=31)
    assert_same(embedding.weight.grad, (times * math.sqrt(12))[:, None].expand(31, 12))


def test_new_rows_have_length_about_one():
    weight = TokenEmbedding(1000, 64).weight
    assert weight.std().item() == pytest.approx(1 / math.sqrt(64), rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=0.003)


def test_no_tokens_give_no_vectors():
    assert TokenEmbedding(31, 12)(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, 12)


@pytest.mark.parametrize("bad", [-1, 31, 400])
def test_id_outside_the_vocabulary_is_refused(bad):
    ids = IDS.clone()
    ids[1, 2] = bad
    with pytest.raises(ValueError, match=f"id {bad} lies outside the vocabulary of 31 tokens"):
        TokenEmbedding(31, 12)(ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
def test_ids_that_are_no_integers_are_refused(dtype):
    with pytest.raises(TypeError, match=f"ids must be int32 or int64, got {dtype}"):
        TokenEmbedding(31, 12)(IDS.to(dtype))


def test_logits_are_products_with_the_rows():
    project, x = OutputProjection(31, 12), randn(2, 5, 12)
    assert_same(project(x), torch.einsum("bqd,vd->bqv", x, project.weight))


def test_tied_projection_is_the_embedding_without_its_factor():
    embedding = TokenEmbedding(31, 12)
    project = OutputProjection(31, 12, tied_to=embedding)
    assert project.weight is embedding.weight
    assert_same(project(torch.eye(12)), embedding(torch.arange(31)[None])[0].T / math.sqrt(12))


def test_untied_projections_share_nothing():
    assert not torch.equal(OutputProjection(31, 12).weight, OutputProjection(31, 12).weight)


def test_tied_embedding_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"shape \(31, 12\), got \(29, 12\)"):
        OutputProjection(31, 12, tied_to=TokenEmbedding(29, 12))

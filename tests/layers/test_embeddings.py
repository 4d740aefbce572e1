"""Embedding is a scaled lookup; the output projection may share its table."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import SRC_IDS, TGT_IDS, assert_same, randn, refuses, small_config
from torch import nn

from minitransformer import OutputProjection, TokenEmbedding, Transformer

IDS = torch.tensor([[3, 30, 0, 3, 7], [1, 1, 2, 29, 30]])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
def test_lookup_is_the_scaled_product_with_one_hot_rows(dtype, scale):
    embedding, arriving = TokenEmbedding(31, 12, scale=scale), randn(2, 5, 12)
    weight = embedding.weight.detach().clone().requires_grad_()
    output = embedding(IDS.to(dtype))
    product = F.one_hot(IDS, 31).float() @ weight * (math.sqrt(12) if scale is None else scale)
    assert_same(output, product)
    output.backward(arriving)
    product.backward(arriving)
    assert_same(embedding.weight.grad, weight.grad)


def test_new_rows_have_length_about_one():
    weight = TokenEmbedding(1000, 64).weight
    assert weight.std().item() == pytest.approx(1 / math.sqrt(64), rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=0.003)


def looked_up(ids):
    return lambda: TokenEmbedding(31, 12)(ids)


test_what_does_not_fit_is_refused = refuses(
    ("id -1 lies outside the vocabulary of 31 tokens", looked_up(IDS - 1)),
    ("id 31 lies outside the vocabulary of 31 tokens", looked_up(IDS + 1)),
    ("ids must be int32 or int64, got torch.float32", looked_up(IDS.float()), TypeError),
    ("ids must be int32 or int64, got torch.bool", looked_up(IDS > 0), TypeError),
    ("ids must be int32 or int64, got torch.uint8", looked_up(IDS.byte()), TypeError),
    (
        r"shape \(31, 12\), got \(29, 12\)",
        lambda: OutputProjection(31, 12, tied_to=TokenEmbedding(29, 12)),
    ),
)


@pytest.mark.slow
def test_lookup_can_be_compiled_and_mapped():
    embedding = TokenEmbedding(31, 12)
    assert embedding(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, 12)
    compiled = torch.compile(embedding, fullgraph=True, backend="eager")
    assert torch.equal(compiled(IDS), embedding(IDS))
    assert torch.equal(torch.func.vmap(embedding)(IDS), embedding(IDS))


# --- the output projection


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_are_products_with_the_rows(tied, bias):
    embedding, x = TokenEmbedding(31, 12), randn(2, 5, 12)
    project = OutputProjection(31, 12, tied_to=embedding if tied else None, bias=bias)
    assert (project.weight is embedding.weight) == tied
    expected = torch.einsum("bqd,vd->bqv", x, project.weight)
    if bias:
        assert torch.equal(project.bias, torch.zeros(31))
        project.bias.data = randn(31)
        expected = expected + project.bias
    assert_same(project(x), expected)
    assert (project.bias is not None) == bias


def tied_pair():
    """An embedding and the projection that shares its table."""
    embedding = TokenEmbedding(31, 12)
    return nn.ModuleList([embedding, OutputProjection(31, 12, tied_to=embedding)])


def loaded(pair):
    """Another tied pair with the same numbers, by way of a state_dict."""
    other = tied_pair()
    other.load_state_dict(pair.state_dict())
    return other


def trained(pair):
    """The pair after a step that uses both of its members."""
    optimizer = torch.optim.AdamW(pair.parameters(), lr=0.1)
    embedding, project = pair
    project(embedding(IDS)).square().mean().backward()
    optimizer.step()
    return pair


@pytest.mark.parametrize("change", [nn.Module.double, copy.deepcopy, loaded, trained])
def test_tie_survives(change):
    embedding, project = changed = change(tied_pair())
    assert project.weight is embedding.weight
    assert sum(parameter.numel() for parameter in changed.parameters()) == 31 * 12


def test_gradient_of_a_shared_table_is_the_sum_of_both_roles():
    shared = tied_pair()
    apart = TokenEmbedding(31, 12), OutputProjection(31, 12)
    for module in apart:
        module.load_state_dict(shared[0].state_dict())
    for first, last in (shared, apart):
        last(first(IDS).tanh()).logsumexp(dim=-1).sum().backward()
    assert_same(shared[0].weight.grad, apart[0].weight.grad + apart[1].weight.grad)


@pytest.mark.parametrize("tie_output", [False, True])
def test_padding_row_is_taught_by_a_tied_output_alone(tie_output):
    model = Transformer(small_config(tie_output=tie_output), torch.Generator().manual_seed(0))
    logits = model(SRC_IDS, TGT_IDS)[:, :-1]
    F.cross_entropy(logits.flatten(0, 1), TGT_IDS[:, 1:].flatten(), ignore_index=0).backward()
    assert model.src_embedding.weight.grad[0].eq(0).all()
    assert model.tgt_embedding.weight.grad[0].ne(0).any() == tie_output

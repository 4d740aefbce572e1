"""What Mixtral, Qwen 3 MoE and DeepSeek-V3's layer have beside the laws of all families."""

import json

import pytest
import torch
from alike import assert_close, ids_of, published, transformers
from families import theirs_of
from helpers import randn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from minitransformer import FeedForward, next_token_loss
from minitransformer.layers import MixtureOfExperts, load_balancing_loss, route
from minitransformer.models import Mixtral, Qwen3Moe, Qwen3MoeConfig

QWEN = "Qwen3Moe ForCausalLM as published"


@pytest.mark.parametrize("groups", [(1, 1), (3, 2), (2, 1)])
@pytest.mark.parametrize("normalise", [True, False])
def test_deepseek_s_layer_is_ours(groups, normalise):
    """Its router computes in float32, whatever its input is."""
    settings = {"hidden_size": 12, "moe_intermediate_size": 20, "n_shared_experts": 2}
    settings |= {"n_routed_experts": 12, "num_experts_per_tok": 3, "norm_topk_prob": normalise}
    settings |= {"n_group": groups[0], "topk_group": groups[1], "routed_scaling_factor": 2.5}
    config = transformers.DeepseekV3Config(**settings, experts_implementation="eager")
    theirs = DeepseekV3MoE(config)
    for parameter in theirs.parameters():  # which a model would draw
        torch.nn.init.zeros_(parameter)
    theirs = published(theirs)
    theirs.gate.e_score_correction_bias = randn(12, seed=5)
    options = {"scoring": "sigmoid", "top_k": 3, "normalise": normalise, "scale": 2.5}
    ours = MixtureOfExperts(
        12,
        [FeedForward(12, 20, activation="swiglu") for _ in range(12)],
        shared=FeedForward(12, 40, activation="swiglu"),
        load_bias=True,
        num_groups=groups[0],
        top_groups=groups[1],
        **options,
    ).double()
    with torch.no_grad():
        ours.router.weight.copy_(theirs.gate.weight)
        ours.load_bias.copy_(theirs.gate.e_score_correction_bias)
        for index, expert in enumerate(ours.experts):
            both = theirs.experts.gate_up_proj[index].chunk(2)
            for own, weight in zip((expert.w_1, expert.w_3), both, strict=True):
                own.weight.copy_(weight)
            expert.w_2.weight.copy_(theirs.experts.down_proj[index])
        for own, name in zip(("w_1", "w_3", "w_2"), ("gate", "up", "down"), strict=True):
            weight = getattr(theirs.shared_experts, f"{name}_proj").weight
            getattr(ours.shared, own).weight.copy_(weight)
    x = randn(2, 5, 12, seed=3).double()
    assert_close(ours(x), theirs(x), 1e-6)


def test_balance_loss_is_theirs_of_one_layer():
    """Theirs counts each of the k choices, so that an even load has k; padding is left out."""
    logits = randn(10, 6)
    real = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    scores, _, chosen = route(logits[real.flatten() > 0], 3)
    theirs = load_balancing_loss_func((logits,), 6, 3, attention_mask=real)
    assert_close(3 * load_balancing_loss(scores, chosen), theirs, 1e-6)


def test_a_training_step_balances_as_configured(tmp_path):
    theirs = theirs_of(QWEN, router_aux_loss_coef=0.5)
    theirs.save_pretrained(tmp_path)
    ours = Qwen3Moe.from_pretrained(tmp_path)
    ids = ids_of(37, 2, 7)
    plain = next_token_loss(ours, ids[:, :-1], ids[:, 1:])
    balanced = next_token_loss(ours.train(), ids[:, :-1], ids[:, 1:])
    terms = [layer.feed_forward.balance_loss for layer in ours.decoder.layers]
    assert_close(balanced - plain, sum(terms), 1e-6)
    assert all(0.4 < term < 2 for term in terms)


def test_files_on_the_hub_name_the_experts_otherwise_than_today_s_library(tmp_path):
    """`num_experts` there, `num_local_experts` here: both are read, and both are written."""
    theirs_of(QWEN).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    number = content.pop("num_local_experts")
    path.write_text(json.dumps(content | {"num_experts": number}))
    said = Qwen3Moe.from_pretrained(tmp_path).config.to_published()
    assert (said["num_experts"], said["num_local_experts"]) == (number, number)


def test_layers_without_experts_are_refused():
    for said in ({"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}):
        with pytest.raises(ValueError, match=f"{next(iter(said))} is .* expected"):
            Qwen3MoeConfig.from_published(said)


def test_too_many_experts_are_asked_for():
    config = {"model_type": "mixtral", "num_experts_per_tok": 9}
    with pytest.raises(ValueError, match=r"top_k must be at most 8, .* got 9"):
        Mixtral.from_published(config, {})

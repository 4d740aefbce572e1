"""One place says which parameter is treated how; each optimiser does what its formula says."""

from io import BytesIO

import pytest
import torch
from helpers import (
    assert_same,
    assert_same_weights,
    copying_trainer,
    decoder_only_model,
    each_model,
    small_model,
)
from torch import nn

from minitransformer import TrainingConfig
from minitransformer.models.registry import named_weights
from minitransformer.training import optimizers

OPTIMIZERS = ["adam", "adamw", "muon"]
RATE, DECAY = 4e-3, 0.3


def stepped(optimizer, decay=0.0, steps=1):
    """The weights before and after some steps at a constant rate."""
    trainer = copying_trainer(optimizer=optimizer, weight_decay=decay, dropout=0.0)
    weights = named_weights(trainer.model)
    before = {name: p.detach().clone() for name, p in weights.items()}
    for group in trainer.optimizer.param_groups:
        group["lr"] = RATE
    for _ in range(steps):
        trainer.optimizer.zero_grad()
        trainer.loss(trainer.examples).backward()
        trainer.optimizer.step()
    return before, {name: p.detach() for name, p in weights.items()}


@each_model
@pytest.mark.parametrize("build", [small_model, decoder_only_model])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_layers_matrices_and_nothing_else_are_decayed_and_muons(build, changes, optimizer):
    config = TrainingConfig(optimizer=optimizer, weight_decay=0.1)
    for model in (build(**changes), build(**changes, tie_output=False)):
        rules, weights = optimizers.parameter_rules(model, config), named_weights(model)
        assert rules.keys() == weights.keys()
        for name, rule in rules.items():
            in_layer = name.startswith(("encoder.layers.", "decoder.layers."))
            is_matrix = in_layer and model.get_parameter(name).dim() == 2
            method = "muon" if is_matrix and optimizer == "muon" else "adam"
            assert rule == (method, 0.1 if is_matrix else 0.0), name
        assert {rule.weight_decay for rule in rules.values()} == {0.0, 0.1}
        groups = optimizers.new_optimizer(model, config).param_groups
        given = {id(p): (g["method"], g["weight_decay"]) for g in groups for p in g["params"]}
        assert given == {id(weights[name]): rule for name, rule in rules.items()}
        assert sum(len(group["params"]) for group in groups) == len(given)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "model",
    [nn.Linear(3, 5, bias=False), nn.LayerNorm(5), nn.Embedding(7, 5), nn.Linear(3, 5)],
    ids=["only matrices", "only gains", "only a table", "matrix and bias"],
)
def test_every_optimizer_steps_every_kind_of_model(optimizer, model):
    made = optimizers.new_optimizer(model, TrainingConfig(optimizer=optimizer))
    before = [p.detach().clone() for p in model.parameters()]
    for group in made.param_groups:
        group["lr"] = RATE
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.5)
    made.step()
    assert not any(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))


def test_what_no_optimizer_can_move_is_refused():
    with pytest.raises(ValueError, match="at least 1 parameter, got Identity with 0"):
        optimizers.new_optimizer(nn.Identity(), TrainingConfig())
    with pytest.raises(ValueError, match=r"Muon is for matrices, got shape \(3,\)"):
        optimizers.Muon([nn.Parameter(torch.zeros(3))], lr=0.1)


def test_adamw_without_decay_is_adam():
    _, adam = stepped("adam", steps=4)
    _, adamw = stepped("adamw", steps=4)
    assert_same_weights(adamw, adam)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_decay_takes_a_share_of_the_weight_and_of_nothing_else(optimizer):
    before, plain = stepped(optimizer)
    _, decayed = stepped(optimizer, DECAY)
    for name, weight in plain.items():
        share = RATE * DECAY if ".layers." in name and weight.dim() == 2 else 0.0
        assert_same(decayed[name], weight - share * before[name], 1e-6)
        assert (share == 0) == torch.equal(decayed[name], weight), name


def test_first_average_is_the_weights_to_the_last_bit():
    layer, average = nn.Linear(3, 5), {}
    optimizers.move_average(average, layer, 0.999, 1)
    assert_same_weights(average, layer)
    assert not any(mean.requires_grad for mean in average.values())


def test_copy_has_the_weights_given_and_leaves_the_model_alone():
    model = small_model()
    before = {name: p.detach().clone() for name, p in named_weights(model).items()}
    model.src_embedding.weight.grad = torch.ones_like(model.src_embedding.weight)
    given = {"tgt_embedding.weight": torch.full_like(model.tgt_embedding.weight, 0.5)}
    found = optimizers.copy_with(given, model)
    assert found.src_embedding.weight.grad is None is not model.src_embedding.weight.grad
    assert (found.output_projection.weight == 0.5).all()  # it is tied
    assert_same_weights(found, before | given)
    assert_same_weights(model, before)


SHAPES = ((6, 6), (6, 9), (6, 6), (9, 6), (6, 9))


def matrices():
    """Parameters of several shapes, drawn from one seed."""
    generator = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def step(optimizer, parameters, seed):
    """A step with gradients that depend on the seed alone."""

    def closure():
        generator = torch.Generator().manual_seed(seed)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        return 0.25

    assert optimizer.step(closure) == 0.25


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_muon_is_that_of_pytorch(decay):
    ours, theirs, begun = matrices(), matrices(), matrices()
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": decay}
    one = optimizers.Muon(ours, **options)
    other = torch.optim.Muon(theirs, **options, adjust_lr_fn="match_rms_adamw")
    for seed in range(5):
        step(one, ours, seed)
        step(other, theirs, seed)
    for a, b, start in zip(ours, theirs, begun, strict=True):
        assert (a - b).norm() < 0.03 * (b - start).norm()  # products of eight bits


@pytest.mark.parametrize("fused", [False, True])
def test_other_parameters_of_muon_are_stepped_by_adamw(fused):
    ours, theirs, begun = matrices(), matrices(), matrices()
    options = {"lr": 0.05, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6, "fused": fused}
    one = optimizers.Muon([{"params": ours[:2]}, {"params": ours[2:], "method": "adam"}], **options)
    other = torch.optim.AdamW(theirs, **options)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.7) for each in (one, other)]
    for seed in range(5):
        step(one, ours, seed)
        step(other, theirs, seed)
        for scheduler in schedulers:
            scheduler.step()
    assert not any(torch.equal(a, b) for a, b in zip(ours, begun, strict=True))
    for a, b in zip(ours[2:], theirs[2:], strict=True):
        assert torch.equal(a, b)
        assert all(torch.equal(one.state[a][key], value) for key, value in other.state[b].items())


def test_muon_goes_on_from_its_state():
    """With another copy of the parameters, through a file, as PyTorch's optimisers do."""

    def made(parameters):
        groups = [{"params": parameters[:3]}, {"params": parameters[3:], "method": "adam"}]
        return optimizers.Muon(groups, lr=0.05, fused=True)

    whole = matrices()
    optimizer = made(whole)
    step(optimizer, whole, 0)
    file = BytesIO()
    torch.save([optimizer.state_dict(), whole], file)
    file.seek(0)
    state, resumed = torch.load(file, weights_only=False)
    again = made(resumed)
    again.load_state_dict(state)
    again.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = 0.02
    for seed in (1, 2):
        step(optimizer, whole, seed)
        step(again, resumed, seed)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def test_orthogonalise_keeps_directions_and_evens_out_lengths():
    generator = torch.Generator().manual_seed(1)
    u, _ = torch.linalg.qr(torch.randn(7, 7, dtype=torch.float64, generator=generator))
    v, _ = torch.linalg.qr(torch.randn(11, 7, dtype=torch.float64, generator=generator))
    values = torch.tensor([5.0, 3.0, 2.0, 1.0, 0.5, 0.3, 0.2], dtype=torch.float64)
    stack = torch.stack([u * values @ v.T, torch.roll(u, 1, 1) * values @ v.T])
    both = optimizers.orthogonalise(stack)
    torch.testing.assert_close(optimizers.orthogonalise(stack.mT), both.mT)
    torch.testing.assert_close(optimizers.orthogonalise(stack[1]), both[1])  # they do not mix
    found = u.T @ both[0] @ v
    assert ((found.diagonal() > 0.6) & (found.diagonal() < 1.25)).all()
    assert (found - found.diagonal().diag()).abs().max() < 1e-9


def test_gradients_of_zero_and_none_move_nothing():
    one, other = matrices()[:2]
    before = one.detach().clone(), other.detach().clone()
    one.grad = torch.zeros(6, 6)
    optimizers.Muon([one, other], lr=0.1).step()
    assert torch.equal(one, before[0])
    assert torch.equal(other, before[1])


def test_half_precision_only_where_it_is_fast(monkeypatch):
    cpu = torch.device("cpu")
    for capability, has, wanted in (
        ("AVX512", True, torch.bfloat16),
        ("AVX512", False, torch.float32),
        ("AVX2", True, torch.float32),
    ):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
        said = {"avx512_bf16": has}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda s=said: s, raising=False)
        assert optimizers.product_dtype(cpu) == wanted
        assert optimizers.product_dtype(torch.device("cuda")) == torch.bfloat16

"""One place says which parameter is treated how; each optimiser does what its formula says."""

import pytest
import torch
from helpers import assert_same, copying_trainer, decoder_only_model, each_model, small_model
from torch.torch_version import TorchVersion

from minitransformer import TrainingConfig, new_optimizer, parameter_rules
from minitransformer.optimizers import OLDEST_TORCH, copy_with, move_average
from minitransformer.pretrained import named_weights

NEEDS_MUON = pytest.mark.skipif(
    torch.__version__ < OLDEST_TORCH, reason=f"PyTorch {torch.__version__} has no Muon"
)
OPTIMIZERS = ["adam", "adamw", pytest.param("muon", marks=NEEDS_MUON)]
RATE, DECAY = 4e-3, 0.3


def stepped(optimizer, decay=0.0, steps=1):
    """The weights before and after some steps at a constant rate, and the last gradients."""
    trainer = copying_trainer(optimizer=optimizer, weight_decay=decay, dropout=0.0)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for group in trainer.optimizer.param_groups:
        group["lr"] = RATE
    for _ in range(steps):
        trainer.optimizer.zero_grad()
        trainer.loss(trainer.examples).backward()
        trainer.optimizer.step()
    parameters = dict(trainer.model.named_parameters())
    gradients = {name: p.grad for name, p in parameters.items()}
    return before, {name: p.detach() for name, p in parameters.items()}, gradients


# --- which parameter is treated how


@each_model
@pytest.mark.parametrize("changes_too", [{}, {"tie_output": False}], ids=str)
@pytest.mark.parametrize("build", [small_model, decoder_only_model])
def test_layers_matrices_and_nothing_else_are_decayed(build, changes, changes_too):
    model = build(**(changes | changes_too))
    rules = parameter_rules(model, TrainingConfig(optimizer="adamw", weight_decay=0.1))
    assert rules.keys() == named_weights(model).keys()
    for name, rule in rules.items():
        in_layer = name.startswith(("encoder.layers.", "decoder.layers."))
        is_matrix = in_layer and name.endswith(".weight")
        assert rule == ("adam", 0.1 if is_matrix else 0.0), name
    assert {rule.weight_decay for rule in rules.values()} == {0.0, 0.1}


@each_model
def test_muon_gets_what_is_decayed(changes):
    model = small_model(**changes)
    config = TrainingConfig(optimizer="muon", weight_decay=0.1)
    for name, rule in parameter_rules(model, config).items():
        assert (rule.method == "muon") == (rule.weight_decay > 0), name
        assert rule.method == "adam" or model.get_parameter(name).dim() == 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_every_parameter_is_in_one_group(optimizer, decay):
    if optimizer == "adam" and decay:
        return
    model = small_model(share_embeddings=False)
    config = TrainingConfig(optimizer=optimizer, weight_decay=decay)
    groups = new_optimizer(model, config).param_groups
    given = [id(p) for group in groups for p in group["params"]]
    assert sorted(given) == sorted(map(id, named_weights(model).values()))
    rules, weights = parameter_rules(model, config), named_weights(model)
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert {name: decays[id(p)] for name, p in weights.items()} == {
        name: rule.weight_decay for name, rule in rules.items()
    }


# --- what they do


def test_adamw_without_decay_is_adam():
    _, adam, _ = stepped("adam", steps=4)
    _, adamw, _ = stepped("adamw", steps=4)
    for name, weight in adam.items():
        assert torch.equal(weight, adamw[name]), name


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=NEEDS_MUON)])
def test_decay_takes_a_share_of_the_weight_and_of_nothing_else(optimizer):
    before, plain, _ = stepped(optimizer)
    _, decayed, _ = stepped(optimizer, DECAY)
    for name, weight in plain.items():
        share = RATE * DECAY if ".layers." in name and name.endswith(".weight") else 0.0
        assert_same(decayed[name], weight - share * before[name], 1e-6)
        assert (share == 0) == torch.equal(decayed[name], weight), name


@NEEDS_MUON
def test_muon_moves_matrices_equally_far_in_all_directions_and_the_rest_as_adam_does():
    before, after, gradients = stepped("muon")
    _, adam, _ = stepped("adam")
    for name, weight in after.items():
        if not (".layers." in name and name.endswith(".weight")):
            assert torch.equal(weight, adam[name]), name
            continue
        step = (before[name] - weight) / (0.2 * max(weight.shape) ** 0.5 * RATE)
        left, sizes, right = torch.linalg.svd(gradients[name], full_matrices=False)
        found = torch.diag(left.T @ step @ right.T)[sizes > sizes[0] / 20]
        assert len(found) > 1
        assert 0.5 < found.min() < found.max() < 1.3, name  # in bfloat16, to a third
        assert (before[name] - weight).square().mean().sqrt() < 0.23 * RATE, name


def test_muon_names_the_version_that_it_needs(monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.8.0"))
    message = r"optimizer 'muon' needs PyTorch 2\.9 or newer, got 2\.8\.0; 'adam' and 'adamw' do"
    with pytest.raises(ImportError, match=message):
        copying_trainer(optimizer="muon")
    copying_trainer(optimizer="adamw")


# --- the average of weights


@pytest.mark.parametrize("beta", [0.3, 0.9, 0.999])
def test_average_is_its_formula(beta):
    layer, average, seen = torch.nn.Linear(3, 5), {}, []
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 8):
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
        seen.append({name: p.detach().double().clone() for name, p in layer.named_parameters()})
        move_average(average, layer, beta, step)
        counts = [beta ** (step - i) for i in range(1, step + 1)]
        for name, mean in average.items():
            total = sum(count * at[name] for count, at in zip(counts, seen, strict=True))
            assert_same(mean.double(), total / sum(counts), 1e-6)
    assert step == 7


def test_first_average_is_the_weights_to_the_last_bit():
    layer, average = torch.nn.Linear(3, 5), {}
    move_average(average, layer, 0.999, 1)
    assert all(torch.equal(average[name], p) for name, p in layer.named_parameters())
    assert not any(mean.requires_grad for mean in average.values())


def test_copy_has_the_weights_given_and_leaves_the_model_alone():
    model = small_model()
    before = {name: p.detach().clone() for name, p in named_weights(model).items()}
    model.src_embedding.weight.grad = torch.ones_like(model.src_embedding.weight)
    given = {"tgt_embedding.weight": torch.full_like(model.tgt_embedding.weight, 0.5)}
    found = copy_with(given, model)
    assert found.src_embedding.weight.grad is None is not model.src_embedding.weight.grad
    assert (found.output_projection.weight == 0.5).all()  # it is tied
    for name, weight in named_weights(found).items():
        assert torch.equal(weight, given.get(name, before[name])), name
        assert torch.equal(named_weights(model)[name], before[name]), name

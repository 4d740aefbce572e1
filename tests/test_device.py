"""Any device computes what the CPU does: `pytest tests/test_device.py --device cuda`.

Models are made on the CPU, where generators give the same numbers everywhere, and moved.
`--device second` stands in for a GPU (`second_device.py`); `make everything` runs that too. On the
CPU itself the tests say that moving changes nothing.
"""

import copy

import pytest
import torch
from helpers import (
    PAIRS,
    SRC_IDS,
    TEXTS,
    TGT_IDS,
    assert_same,
    copying_trainer,
    decoder_only_model,
    each_model,
    randn,
    small_model,
)

from minitransformer import (
    Dropout,
    LanguageModelTrainer,
    TextGenerator,
    Trainer,
    TrainingConfig,
    Transformer,
    Translator,
    causal_mask,
    generate,
    label_smoothing_loss,
    next_token_loss,
    scaled_dot_product_attention,
    trace,
)
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.mixture_of_experts import MixtureOfExperts
from minitransformer.training import (
    AnswerTrainer,
    collate_answers,
    encode_answer,
    grpo_step,
    sequence_log_probs,
)
from minitransformer.training.loss import linear_cross_entropy

pytestmark = pytest.mark.slow

# Products on a GPU may round inputs to 10 bits of mantissa (TF32), where a program allows it. Tests
# do not; their sums have another order, and that is all.
TOLERANCE = 1e-4


def kinds(changes):
    """Both models with these changes, each with inputs for its loss."""
    shifted = TGT_IDS.roll(-1, dims=1)
    shifted[:, -1] = 0
    yield small_model(**changes), (SRC_IDS, TGT_IDS, shifted)
    yield decoder_only_model(**changes), (TGT_IDS, shifted)


@each_model
def test_logits_and_gradients(device, changes):
    for model, ids in kinds(changes):
        there, moved = copy.deepcopy(model).to(device), [part.to(device) for part in ids]
        for ours, theirs in (
            (model(*ids[:-1]), there(*moved[:-1])),
            (next_token_loss(model, *ids), next_token_loss(there, *moved)),
        ):
            assert theirs.device == device
            assert_same(theirs.detach().cpu(), ours.detach(), TOLERANCE)
        ours.backward()
        theirs.backward()
        for parameter, moved in zip(model.parameters(), there.parameters(), strict=True):
            assert moved.grad is None or moved.grad.device == device
            gradient = None if moved.grad is None else moved.grad.cpu()
            assert_same(gradient, parameter.grad, TOLERANCE)


@each_model
@pytest.mark.parametrize("num_beams", [1, 3])
def test_texts(device, changes, num_beams):
    """The same ones, in double precision, where no two scores are near enough to change places."""
    for model, ids in kinds(changes):
        model, there = model.double(), copy.deepcopy(model).double().to(device)
        options = {"max_new_tokens": 9, "min_new_tokens": 3, "num_beams": num_beams}
        texts = generate(there, ids[0].to(device), **options)
        assert texts.device == device
        assert torch.equal(texts.cpu(), generate(model, ids[0], **options))


def test_drawn_texts_follow_the_generator(device):
    model, ids = small_model().to(device), SRC_IDS.to(device)
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "temperature": 1.5, "top_p": 0.9}
    texts = [
        generate(model, ids, generator=torch.Generator(device).manual_seed(seed), **options)
        for seed in (3, 3, 4)
    ]
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


PADDING = torch.arange(7) < torch.tensor([[[[7]]], [[[4]]]])
MASKS = {"none": None, "causal": "causal", "built": causal_mask(5, 7), "padding": PADDING}
MASKS["empty row"] = PADDING & (torch.arange(5) != 2)[:, None]


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_attention(device, backend, dtype, mask):
    inputs = [randn(2, 3, n, 8, seed=seed) for seed, n in enumerate((5, 7, 7))]
    there = mask.to(device) if isinstance(mask, torch.Tensor) else mask
    moved = [x.to(device, dtype) for x in inputs]
    output = scaled_dot_product_attention(*moved, there, backend=backend)
    expected = scaled_dot_product_attention(*inputs, mask, backend="reference")
    tolerance = TOLERANCE if dtype == torch.float32 else 2e-2
    assert_same(output.float().cpu(), expected, tolerance)


def test_chunked_loss(device):
    hidden, weight = randn(3, 4, 8), randn(50, 8, seed=1)
    targets = torch.arange(12).view(3, 4)
    expected = label_smoothing_loss(hidden @ weight.T, targets)
    loss = linear_cross_entropy(hidden.to(device), weight.to(device), targets.to(device))
    assert_same(loss.cpu(), expected, TOLERANCE)


def test_dropout(device):
    torch.manual_seed(0)
    x = Dropout(0.25)(torch.ones(400, 1000, device=device))
    assert x.device == device
    assert sorted(set(x.flatten().tolist())) == pytest.approx([0, 4 / 3])
    assert abs((x == 0).float().mean().item() - 0.25) < 0.005


def test_trace(device):
    rows = trace(small_model().to(device), SRC_IDS.to(device), TGT_IDS.to(device))
    assert str(rows) == str(trace(small_model(), SRC_IDS, TGT_IDS))


SETTINGS = {
    "adam": {},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "muon, average": {"optimizer": "muon", "ema_decay": 0.8},
    "parts, by tokens": {"gradient_accumulation_steps": 2, "max_tokens_per_batch": 40},
    "bf16": {"precision": "bf16"},
}
"""Changes to `TrainingConfig`."""


def trainer_on(device, kind, config, dropout=0.0):
    """A trainer with one kind of texts, always the same one, on a device."""
    made = copying_trainer(dropout=dropout)
    if kind is Trainer:
        return Trainer(made.model.to(device), PAIRS, *made.tokenizers.values(), config)
    model, words = decoder_only_model().to(device), made.tokenizers["tgt"]
    if kind is AnswerTrainer:
        return AnswerTrainer(model, PAIRS, words, config)
    return LanguageModelTrainer(model, TEXTS * 3, words, config)


@pytest.mark.parametrize("kind", [Trainer, LanguageModelTrainer, AnswerTrainer])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_training(device, kind, settings, tmp_path):
    """The same losses, weights and averages, and where it was interrupted it goes on there."""
    config = TrainingConfig(steps=4, batch_size=4, warmup_steps=2, context_length=8, **settings)
    here, there = (trainer_on(place, kind, config) for place in ("cpu", device))
    tolerance = 2e-2 if "precision" in settings else 10 * TOLERANCE
    here.fit(progress=False)
    there.fit(2, progress=False)
    there.save(tmp_path / "a.safetensors")
    there = kind.resume(tmp_path / "a.safetensors", there.texts, device)
    assert there.device == device
    there.fit(progress=False)
    losses = [[row["loss"] for row in trainer.history] for trainer in (here, there)]
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)
    for one, other in ((here.model, there.model), (here.averaged(), there.averaged())):
        for name, weight in other.named_parameters():
            assert weight.device == device
            # Adam makes a step of any gradient, and this one is 0 but for rounding.
            if not name.endswith("w_k.bias"):
                assert_same(weight.detach().cpu(), one.get_parameter(name).detach(), tolerance)


def test_answers_are_scored_and_rewarded_there(device):
    policy, prompts = decoder_only_model().eval(), [[1, 8, 3], [1, 30]]
    there, start = (copy.deepcopy(policy).to(device) for _ in range(2))
    rows = collate_answers([encode_answer(prompt, [5, 11, 2]) for prompt in prompts])
    found = sequence_log_probs(there, *(part.to(device) for part in rows))
    assert found.device == device
    assert_same(found.detach().cpu(), sequence_log_probs(policy, *rows).detach(), TOLERANCE)
    optimizer = torch.optim.Adam(there.parameters(), lr=1e-2)
    options = {"max_new_tokens": 5, "generator": torch.Generator(device).manual_seed(0)}
    row = grpo_step(there, start, optimizer, prompts, lambda _, a: len({*a}), updates=2, **options)
    assert row["reward"] > 1
    moved = sequence_log_probs(there, *(part.to(device) for part in rows))
    assert moved.isfinite().all()
    assert not torch.equal(moved.cpu(), found.cpu())


def test_dropout_is_drawn_there(device, tmp_path):
    """Resumed, the training ends at the same weights; and what it saved is read on the CPU."""
    config = copying_trainer().config
    whole, begun = (trainer_on(device, Trainer, config, dropout=0.3) for _ in range(2))
    whole.fit(progress=False)
    begun.fit(3, progress=False)
    begun.save(tmp_path / "a.safetensors")
    resumed = Trainer.resume(tmp_path / "a.safetensors", PAIRS, device)
    resumed.fit(progress=False)
    for weight, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert_same(weight, expected, 0.0 if device.type == "cpu" else TOLERANCE)
    model = Translator.load(tmp_path / "a.safetensors").model
    assert next(model.parameters()).device.type == "cpu"


def test_folder_is_read_there(device, tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    there = Transformer.from_pretrained(tmp_path, device)
    logits = there(SRC_IDS.to(device), TGT_IDS.to(device))
    assert_same(logits.detach().cpu(), model(SRC_IDS, TGT_IDS).detach(), TOLERANCE)


def test_texts_are_translated_and_scored(device, trained):
    """The pairs that a model knows by heart, it knows there."""
    here = Translator(trained.model, *trained.tokenizers.values())
    there = Translator(copy.deepcopy(trained.model).to(device), *trained.tokenizers.values())
    assert there.exact_match(PAIRS) == 1.0
    assert there.translate(["b c", "d"], num_beams=2) == ["c b", "d"]
    assert there.held_out_loss(PAIRS) == pytest.approx(here.held_out_loss(PAIRS), rel=TOLERANCE)
    words = trained.tokenizers["tgt"]
    here = TextGenerator(decoder_only_model(), words)
    there = TextGenerator(decoder_only_model().to(device), words)
    assert there.complete(["a b", "c"]) == here.complete(["a b", "c"])
    expected = here.bits_per_character(TEXTS, context_length=8)
    assert there.bits_per_character(TEXTS, context_length=8) == pytest.approx(expected, 1e-4)


def test_mixture_of_experts(device):
    options = {"scoring": "sigmoid", "load_bias": True, "num_groups": 2, "top_groups": 2}
    found = []
    for where in ("cpu", device):
        torch.manual_seed(0)
        experts = [FeedForward(12, 20) for _ in range(4)]
        layer = MixtureOfExperts(12, experts, capacity_factor=1.0, **options).to(where)
        out = layer(randn(2, 5, 12).to(where))
        (out.square().sum() + layer.balance_loss).backward()
        layer.move_bias()
        kept = (out, layer.balance_loss, layer.load_bias, layer.router.weight.grad)
        found.append([part.detach().cpu() for part in kept])
    for ours, expected in zip(*found, strict=True):
        assert_same(ours, expected, TOLERANCE)

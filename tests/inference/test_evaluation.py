"""What was held out is measured as defined."""

import pytest
import torch
import torch.nn.functional as F
from helpers import PAIRS, copying_trainer

from minitransformer import Translator, collate, encode_pairs


def expected_loss(trainer, pairs):
    batch = collate(encode_pairs(pairs, *trainer.tokenizers.values()))
    trainer.model.eval()
    with torch.no_grad():
        logits = trainer.model(batch.src, batch.tgt_input)
    return F.cross_entropy(logits.transpose(1, 2), batch.tgt_output, ignore_index=0).item()


@pytest.mark.parametrize("batch_size", [1, 3, 4, 64])
def test_held_out_loss_is_the_mean_over_tokens_in_any_batches(batch_size):
    trainer = copying_trainer()
    found = trainer.trained().held_out_loss(iter(PAIRS), batch_size=batch_size)
    assert found == pytest.approx(expected_loss(trainer, PAIRS), rel=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_measuring_leaves_the_model_as_it_is(training):
    trainer = copying_trainer()
    trainer.model.train(training)
    before = torch.get_rng_state()
    translator = Translator(trainer.model, *trainer.tokenizers.values())
    first, second = (translator.held_out_loss(PAIRS) for _ in range(2))
    assert first == second
    assert trainer.model.training == training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_held_out_loss_of_nothing_is_refused():
    trainer = copying_trainer()
    with pytest.raises(ValueError, match="pairs must hold at least 1 pair, got 0"):
        trainer.trained().held_out_loss([])
    with pytest.raises(ValueError, match="10 examples and batch_size=0"):
        trainer.trained().held_out_loss(PAIRS, batch_size=0)
    with pytest.raises(TypeError, match="pairs must be of two texts each, but number 0 is 'a'"):
        trainer.trained().held_out_loss(["a"])


def test_a_model_of_any_class_that_generates_is_taken():
    class Mine(torch.nn.Module):
        """A class that a reader wrote, with the methods of the package's."""

        def __init__(self, model):
            super().__init__()
            self.config, self.model = model.config, model

    trainer = copying_trainer()
    tokenizers = trainer.tokenizers.values()
    assert Translator(Mine(trainer.model), *tokenizers).device == trainer.device
    with pytest.raises(TypeError, match="model must generate text, got a Linear"):
        Translator(torch.nn.Linear(2, 2), *tokenizers)

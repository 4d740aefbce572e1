"""Recipes of the command line begin the same from a seed."""

from dataclasses import replace

import pytest
import torch

import minitransformer as mt
from minitransformer.tasks.recipes import RECIPES


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("task", RECIPES["usual"])
def test_training_begins_the_same_from_a_seed(task, recipe):
    few, seeds = mt.number_words(4, num_train=300, num_held_out=5), []
    job = replace(RECIPES[recipe][task], splits=lambda seed: seeds.append(seed) or few)
    config = mt.TrainingConfig(**(job.settings | {"seed": 4}))
    trainers = [job.new_trainer(config) for _ in range(2)]  # with another global generator
    for trainer in trainers:
        trainer.train_step(trainer.examples[:2])
    assert seeds == [4, 4]
    both = zip(*(trainer.model.parameters() for trainer in trainers), strict=True)
    assert all(torch.equal(parameter, same) for parameter, same in both)

"""Every test: one thread (the tensors are tiny), and no window for figures."""

import matplotlib
import pytest
import torch
from helpers import copying_trainer


@pytest.fixture(autouse=True, scope="session")
def _quick_and_windowless():
    torch.set_num_threads(1)
    matplotlib.use("Agg")


@pytest.fixture(scope="session")
def trained(_quick_and_windowless):
    """A trainer whose model has learned its few pairs by heart. Tests only read it."""
    wider = {"d_model": 24, "d_ff": 40}
    settings = {"batch_size": 10, "warmup_steps": 10, "peak_learning_rate": 1e-2}
    trainer = copying_trainer(120, dropout=0.0, model_changes=wider, **settings)
    trainer.fit(progress=False)
    return trainer

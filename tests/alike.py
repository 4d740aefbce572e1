"""Published models for tests, made by `transformers` from random configurations: without a hub."""

import logging
import warnings

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)

EXACT = 1e-10  # in float64


def with_plain_experts(model):
    """The model; its experts, if any, computed in a way that knows float64."""
    if hasattr(model, "set_experts_implementation") and hasattr(model.config, "num_local_experts"):
        model.set_experts_implementation("eager")
    return model


def published(model, seed=1, scale=0.3, dtype=torch.float64):
    """A model, theirs or ours, in evaluation mode, each parameter moved by random numbers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(scale * noise.to(parameter.dtype))
    return with_plain_experts(model.to(dtype).eval())


def loaded(kind, theirs, folder, **options):
    """Ours, with what theirs saves into that folder; `options` are of `save_pretrained`."""
    theirs.save_pretrained(folder, **options)
    return kind.from_pretrained(folder)


def ids_of(vocab_size, *shape, seed=2, low=0):
    """Random ids that depend on the seed alone."""
    return torch.randint(low, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def assert_close(ours, theirs, tolerance=EXACT):
    """Equal shapes and dtypes; nowhere further apart than the tolerance, for numbers near 1."""
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)

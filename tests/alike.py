"""What the tests of all families share: a published model of `transformers`, and ours beside it.

There is no hub in a test. `transformers` makes each model from a random configuration, all its
parameters are shaken, so that no zero and no one hides a mistake, and it is saved as it publishes.
"""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minitransformer import generate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)

EXACT = 1e-10  # in float64
ROUNDED = 1e-6  # where transformers itself computes angles or norms in float32


def published(theirs: Any, seed: int = 1, scale: float = 0.3, dtype: Any = torch.float64) -> Any:
    """A model of `transformers` in evaluation mode, each parameter moved by random numbers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in theirs.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(scale * noise.to(parameter.dtype))
    return theirs.to(dtype).eval()


def loaded(kind: Any, theirs: Any, folder: Path, **options: Any) -> Any:
    """Ours, with what theirs saves into that folder; `options` are of `save_pretrained`."""
    theirs.save_pretrained(folder, **options)
    return kind.from_pretrained(folder)


def ids_of(vocab_size: int, *shape: int, seed: int = 2, low: int = 0) -> Tensor:
    """Random ids that depend on the seed alone."""
    return torch.randint(low, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float = EXACT) -> None:
    """Equal shapes and dtypes; nowhere further apart than the tolerance, for numbers near 1."""
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def assert_same_gradients(
    ours: Any, theirs: Any, run: Callable[[Any], Tensor], tolerance: float = EXACT
) -> None:
    """Gradients of the same loss by each parameter, under its published name.

    Args:
        ours: our model.
        theirs: theirs.
        run: outputs of either.
        tolerance: see `assert_close`.
    """
    for model in (ours, theirs):
        model.zero_grad()
        outputs = run(model)
        weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype)
        (outputs.flatten() * weights).sum().backward()
    for parameter in ours.parameters():  # the gradients take the weights' place, to be renamed
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.data = grad
    found = ours.published_weights()
    names = dict(theirs.named_parameters())
    for name, grad in found.items():
        expected = names[name].grad
        assert_close(grad, torch.zeros_like(grad) if expected is None else expected, tolerance)


def assert_reads_back(ours: Any, theirs: Any, run: Callable[[Any], Tensor], folder: Path) -> None:
    """What ours saves is theirs again for `transformers`, and bit by bit the same for us.

    Outputs may differ by rounding: some processors multiply otherwise where weights lie elsewhere.
    """
    ours.save_pretrained(folder)
    again = type(theirs).from_pretrained(folder, dtype=next(theirs.parameters()).dtype).eval()
    assert_close(run(again), run(theirs))
    back = type(ours).from_pretrained(folder)
    for (name, found), (other, expected) in zip(
        back.named_parameters(), ours.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(found, expected), name


def assert_same_text(ours: Any, theirs: Any, ids: Tensor, length: int = 6, **options: Any) -> None:
    """The same ids written greedily, by our caches and by theirs, nothing ending the text."""
    expected = theirs.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=length,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    new = expected[:, ids.size(1) :] if ours.config.num_encoder_layers == 0 else expected[:, 1:]
    found = generate(ours, ids, max_new_tokens=length, stop_ids=[], **options)
    assert torch.equal(found, new)

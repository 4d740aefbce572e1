"""What the tests of all exports share: models of many kinds, ragged ids, and texts without ends."""

import pytest
import torch
from helpers import decoder_only_model, small_model

from minitransformer import pad_rows

SOURCES = [[8, 3, 28, 5, 11, 17, 2], [9, 22, 4, 2], [6, 2], [13, 7, 7, 21, 2]]
PROMPTS = [[1, 30, 6, 19, 12], [1, 7, 25], [1], [1, 5, 28, 3]]
SRC_IDS = pad_rows(SOURCES)
PROMPT_IDS = pad_rows(PROMPTS)
TGT_IDS = pad_rows([[1, 30, 6, 19, 12, 8], [1, 7, 25, 4], [1, 9, 9, 9, 27], [1]])

SETTINGS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True},
    "learned positions": {"positional_encoding": "learned"},
    "no positions": {"positional_encoding": "none"},
    "multi-query": {"num_kv_heads": 1},
    "grouped heads": {"d_model": 24, "num_heads": 6, "num_kv_heads": 2},
    "gated": {"activation": "swiglu"},
    "another gate": {"activation": "geglu", "norm_first": True},
    "gelu": {"activation": "gelu_tanh"},
    "RMSNorm": {"norm": "rms_norm", "norm_first": True},
    "no biases": {"attention_bias": False},
    "not tied": {"tie_output": False},
}
IN_ATTENTION = {
    "rotary": {"positional_encoding": "rotary"},
    "alibi": {"positional_encoding": "alibi"},
    "all at once": {
        "norm_first": True,
        "norm": "rms_norm",
        "activation": "swiglu",
        "positional_encoding": "rotary",
        "num_kv_heads": 1,
    },
}
"""Positions that not every engine has in an encoder."""
DEEP_DECODER = {"num_encoder_layers": 1, "num_decoder_layers": 4}


def seq2seq(**changes):
    """The small shaken encoder-decoder with these changes, in evaluation mode."""
    return small_model(**changes).eval()


def causal(**changes):
    """The small shaken decoder-only model with these changes, in evaluation mode."""
    return decoder_only_model(**changes).eval()


MODELS = {
    **{name: (seq2seq, changes) for name, changes in (SETTINGS | IN_ATTENTION).items()},
    "deep decoder": (seq2seq, DEEP_DECODER),
    **{f"{name}, causal": (causal, c) for name, c in (SETTINGS | IN_ATTENTION).items()},
}


def small(name):
    """A model of MODELS with few layers, for engines where each takes seconds to be written."""
    kind, changes = MODELS[name]
    few = {"num_encoder_layers": 1, "num_decoder_layers": 2} if kind is seq2seq else {}
    return kind(**few | changes)


def first_of(*names):
    """Names as parameters of tests: the first for `make test`, the others for all of it."""
    return [names[0], *(pytest.param(name, marks=pytest.mark.everything) for name in names[1:])]


def without_ends(rows, ends=(0, 2)):
    """Rows of ids as lists, without padding and <eos>."""
    rows = rows.tolist() if isinstance(rows, torch.Tensor) else rows
    return [[index for index in row if index not in ends] for row in rows]

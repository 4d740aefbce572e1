"""Decoding: a model generates text, one token after the other (chapter 10)."""

from minitransformer.inference.beam_search import beam_search, length_normalisation
from minitransformer.inference.decoding import CachedDecoding
from minitransformer.inference.generate import GenerationConfig, generate
from minitransformer.inference.logits_processors import (
    no_repeat_ngrams,
    occurrence_penalty,
    repetition_penalty,
    suppress_tokens,
)
from minitransformer.inference.sampling import (
    min_p_filter,
    next_token_probs,
    top_k_filter,
    top_p_filter,
)

__all__ = [
    "CachedDecoding",
    "GenerationConfig",
    "beam_search",
    "generate",
    "length_normalisation",
    "min_p_filter",
    "next_token_probs",
    "no_repeat_ngrams",
    "occurrence_penalty",
    "repetition_penalty",
    "suppress_tokens",
    "top_k_filter",
    "top_p_filter",
]

"""minitransformer: the Transformer, built chapter by chapter.

A quick start, from texts to a translator; each name has its own `help`, with an example.

Texts become integers, and integers texts (chapter 1):

>>> import minitransformer as mt
>>> pairs = [mt.TextPair("one", "eins"), mt.TextPair("two", "zwei"), mt.TextPair("ten", "zehn")]
>>> english = mt.WordTokenizer.train(pair.src for pair in pairs)
>>> german = mt.CharacterTokenizer.train(pair.tgt for pair in pairs)
>>> german.labels(german.encode("zwei"))
['z', 'w', 'e', 'i']

A model is its configuration and its parameters (chapters 2 to 8); the configuration has the
paper's sizes unless it is told others:

>>> import torch
>>> config = mt.TransformerConfig(
...     src_vocab_size=english.vocab_size,
...     tgt_vocab_size=german.vocab_size,
...     d_model=32,
...     num_heads=4,
...     num_encoder_layers=1,
...     num_decoder_layers=1,
...     d_ff=64,
...     dropout=0.0,
...     norm_first=True,
... )
>>> model = mt.Transformer(config, torch.Generator().manual_seed(0))

The trainer makes batches, loss and steps of the pairs (chapter 9). Three are learned by heart:

>>> settings = mt.TrainingConfig(steps=60, warmup_steps=10, peak_learning_rate=1e-2)
>>> trainer = mt.Trainer(model, pairs, english, german, settings)
>>> history = trainer.fit(progress=False)
>>> translator = mt.Translator(model, english, german)
>>> translator.exact_match(pairs)
1.0

The model generates text, one token after the other (chapter 10):

>>> translator.translate(["ten", "two"])
['zehn', 'zwei']

It is saved in a folder and loaded again (chapter 9), here or from the Hugging Face Hub:

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     translator.save(folder)
...     again = mt.Translator.load(folder)
>>> again.translate(["one"])
['eins']

Where to look further: `trace(model, src_ids, tgt_ids)` lists the shape of every tensor, and
`record_attention(model)` collects what looks at what. A model without encoder is a
`DecoderOnlyTransformer`, with `LanguageModelTrainer` and `TextGenerator`. `python -m
minitransformer train` trains a real translator in minutes.

Each folder keeps what chapters of the book build, and imports from those above it only. What is not
among the names at the top is a name of its folder: `mt.training.Muon`,
`mt.layers.rotary_frequencies`.

| folder | chapter | what it holds |
| --- | --- | --- |
| `tokenization` | 1 | text to integers: characters, words, learned pieces |
| `layers` | 2 to 8 | embeddings, positions, attention, feed-forward, norms, their stacks |
| `inspection` | 4, 8, 19 | attention, shapes and activations of a model that runs; interventions |
| `efficient_attention` | 15 | attention in blocks, by patterns, linear; smaller caches |
| `models` | 8, 11 to 14 | the two models, and BERT, GPT-2, Llama, T5, Marian, BART, ViT |
| `fast` | | one text decoded with less around the products |
| `inference` | 10 | the next token: chosen, drawn, searched for |
| `training` | 9 | batches, loss, optimisers, the loop, checkpoints; a translator |
| `diagnosis` | 17 | what to check before the first step; faults that raise no error |
| `planning` | 18 | what a training takes: operations, memory, time, money |
| `tasks` | 8, 9, 13 | number words, the grammar's sentences, Multi30k |
| `plotting` | all | the figures |
| `export`, `parallel` | | to other engines; on many processes |

Masks are boolean and True means "may attend", everywhere.
"""

from minitransformer import efficient_attention as efficient_attention
from minitransformer import export as export
from minitransformer import fast as fast
from minitransformer import parallel as parallel
from minitransformer import tasks as tasks
from minitransformer.diagnosis.diagnose import diagnose
from minitransformer.inference.beam_search import length_normalisation
from minitransformer.inference.generate import generate
from minitransformer.inspection.record import record_attention, trace
from minitransformer.layers.attention import (
    ScaledDotProductAttention,
    SelfAttention,
    attention_weights,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from minitransformer.layers.cache import KVCache
from minitransformer.layers.embeddings import OutputProjection, TokenEmbedding
from minitransformer.layers.encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.layer_norm import Dropout, LayerNorm, RMSNorm
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.layers.positional_encoding import (
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
    sinusoidal_positions,
)
from minitransformer.models.config import TransformerConfig
from minitransformer.models.registry import register
from minitransformer.models.transformer import DecoderOnlyTransformer, Transformer
from minitransformer.planning import HARDWARE, plan
from minitransformer.plotting import plot_attention, use_book_style
from minitransformer.tasks.grammar import grammar_sentences
from minitransformer.tasks.number_words import number_in_words, number_words
from minitransformer.tokenization.byte_pair_encoding import BPETokenizer
from minitransformer.tokenization.tokenizer import CharacterTokenizer, Tokenizer, pad_rows
from minitransformer.tokenization.wordpiece import WordPieceTokenizer
from minitransformer.tokenization.words import WordTokenizer
from minitransformer.training.callbacks import Callback, Checkpoint, EarlyStopping, Evaluate
from minitransformer.training.config import TrainingConfig
from minitransformer.training.data import (
    Batch,
    Example,
    TextPair,
    collate,
    encode_pairs,
    epoch_batches,
    token_stream,
)
from minitransformer.training.language_model import LanguageModelTrainer
from minitransformer.training.loss import label_smoothing_loss, next_token_loss
from minitransformer.training.schedules import cosine_schedule
from minitransformer.training.trainer import Trainer
from minitransformer.training.translator import TextGenerator, Translator

__version__ = "0.1.0"

__all__ = [
    "HARDWARE", "BPETokenizer", "Batch", "Callback", "CharacterTokenizer", "Checkpoint",
    "Decoder", "DecoderLayer", "DecoderOnlyTransformer", "Dropout", "EarlyStopping", "Encoder",
    "EncoderLayer", "Evaluate", "Example", "FeedForward", "KVCache", "LanguageModelTrainer",
    "LayerNorm", "MultiHeadAttention", "OutputProjection", "RMSNorm",
    "RotaryPositionalEncoding", "ScaledDotProductAttention", "SelfAttention",
    "SinusoidalPositionalEncoding", "TextGenerator", "TextPair", "TokenEmbedding", "Tokenizer",
    "Trainer", "TrainingConfig", "Transformer", "TransformerConfig", "Translator",
    "WordPieceTokenizer", "WordTokenizer", "attention_weights", "causal_mask", "collate",
    "cosine_schedule", "diagnose", "encode_pairs", "epoch_batches", "generate",
    "grammar_sentences", "label_smoothing_loss", "length_normalisation", "next_token_loss",
    "number_in_words", "number_words", "pad_rows", "padding_mask", "plan", "plot_attention",
    "record_attention", "register", "scaled_dot_product_attention", "sinusoidal_positions",
    "token_stream", "trace", "use_book_style",
]  # fmt: skip


def __dir__() -> list[str]:
    """What completion offers: the names and the folders, and no module beside them."""
    folders = "diagnosis efficient_attention export inference inspection layers models parallel"
    return [*__all__, *folders.split(), "fast", "tasks", "tokenization", "training"]

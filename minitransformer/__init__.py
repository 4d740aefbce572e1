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
...     english.vocab_size,
...     german.vocab_size,
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

The model writes, one token after the other (chapter 10):

>>> translator.translate(["ten", "two"])
['zehn', 'zwei']

It goes into a folder, and comes back (chapter 9), here or through the Hugging Face Hub:

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

Each module keeps what a chapter of the book builds, as plainly as the chapter says it. Rooms lie
beside them (see their own `help`): `tasks` has the data; `models` has the
relatives, whose published weights `published` reads; `efficient_attention` has attentions for long
texts; `export` writes a trained model for other engines; `parallel` trains on many processes.

| module | chapter | what it holds |
| --- | --- | --- |
| `tokenization`, `words` | 1 | text to integers: characters, words |
| `byte_pair_encoding`, `wordpiece` | 1 | tokens learned by merging pairs of bytes, of characters |
| `tokenizer_file` | 1 | a tokenizer's file |
| `embeddings`, `positional_encoding`, `rotary` | 2, 3 | of tokens; of positions: four kinds |
| `attention` | 4 | masks, scaled dot-product attention |
| `checks` | 3, 4, 9 | what does not fit together is refused |
| `inspection` | 4, 8 | attention maps and tensor shapes of a model that runs |
| `multi_head_attention` | 5 | several attentions side by side |
| `feed_forward` | 6 | the position-wise network |
| `dropout`, `layer_norm` | 7 | dropout; layer normalisation, residual connections |
| `encoder_decoder`, `config`, `transformer` | 8 | stacks of layers; settings; the whole model |
| `data`, `loss`, `training` | 9 | examples and batches; the loss of a batch; settings |
| `trainer`, `callbacks` | 9 | the loop; what happens between its steps |
| `optimizers`, `schedules` | 9 | what moves a weight, and how fast |
| `translator` | 9, 10 | a model with its tokenizers: texts in, texts out |
| `checkpoint`, `files` | 9 | saving a training; files that are whole, or not there |
| `pretrained`, `model_card`, `registry`, `as_configured` | 9 | a model for others, and back |
| `decoder_only`, `language_model` | 10 | the model without encoder; its training on text |
| `cache`, `decoding` | 10 | keys and values of earlier positions; texts while they are decoded |
| `sampling`, `logits_processors`, `beam_search` | 10 | the next token: drawn, forbidden, searched |
| `inference` | 10 | decoding with a trained model |
| `diagnosis`, `laws`, `case` | 17 | what to check before the first step |
| `planner`, `counting` | 18 | what a training takes: operations, memory, time, money |
| `plotting` | all | the figures |
| `tasks` | 8, 9 | a room: number words, the grammar's sentences, Multi30k |
| `efficient_attention` | 15 | a room: attention in blocks, by patterns, linear; smaller caches |
| `exercises` | 17 | a room: faults that raise no error |
| `models` | | a room: BERT, GPT-2, Llama, T5, Marian, BART, ViT |
| `published` | | a room: what their files hold |
| `parallel` | | a room: training on many processes, by PyTorch's engine |
| `packing` | | a batch without its padding |
| `fast` | | one text decoded with less around the products |
| `export` | | a room: to other engines |

Masks are boolean and True means "may attend", everywhere.
"""

from minitransformer import efficient_attention as efficient_attention
from minitransformer import export as export
from minitransformer import models as models
from minitransformer import parallel as parallel
from minitransformer.attention import (
    ScaledDotProductAttention,
    SelfAttention,
    attention_weights,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from minitransformer.beam_search import beam_search, length_normalisation
from minitransformer.byte_pair_encoding import BPETokenizer
from minitransformer.cache import KVCache
from minitransformer.callbacks import Callback, Checkpoint, EarlyStopping, Evaluate
from minitransformer.checkpoint import load_checkpoint, save_checkpoint
from minitransformer.config import TransformerConfig
from minitransformer.data import (
    Batch,
    Example,
    TextPair,
    collate,
    encode_pairs,
    epoch_batches,
    token_batches,
    token_stream,
)
from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.diagnosis import Diagnosis, Finding, diagnose
from minitransformer.dropout import Dropout
from minitransformer.embeddings import OutputProjection, TokenEmbedding
from minitransformer.encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from minitransformer.feed_forward import FeedForward
from minitransformer.inference import generate
from minitransformer.inspection import Trace, TracedTensor, record_attention, trace
from minitransformer.language_model import LanguageModelTrainer, stream_batches
from minitransformer.layer_norm import LayerNorm, ResidualConnection, RMSNorm, layer_norm, rms_norm
from minitransformer.logits_processors import (
    no_repeat_ngrams,
    occurrence_penalty,
    repetition_penalty,
    suppress_tokens,
)
from minitransformer.loss import label_smoothing_loss, linear_cross_entropy, next_token_loss
from minitransformer.multi_head_attention import MultiHeadAttention
from minitransformer.optimizers import ParameterRule, new_optimizer, parameter_rules
from minitransformer.packing import PackedMask, Packing
from minitransformer.planner import HARDWARE, Hardware, Plan, plan
from minitransformer.plotting import (
    plot_attention,
    plot_attention_grid,
    plot_history,
    running_mean,
    use_book_style,
)
from minitransformer.positional_encoding import (
    ALiBi,
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
    alibi_slopes,
    sinusoidal_positions,
)
from minitransformer.registry import register
from minitransformer.rotary import RotaryPositionalEncoding, rotary_frequencies
from minitransformer.sampling import min_p_filter, next_token_probs, top_k_filter, top_p_filter
from minitransformer.schedules import cosine_schedule, linear_schedule, noam_schedule
from minitransformer.tasks.grammar import grammar_sentences
from minitransformer.tasks.multi30k import multi30k
from minitransformer.tasks.number_words import HELD_OUT_PAIRS, number_in_words, number_words
from minitransformer.tasks.span_corruption import corrupt_spans, draw_spans, restore_spans
from minitransformer.tasks.text_to_text import text_to_text
from minitransformer.tokenization import CharacterTokenizer, Tokenizer, pad_rows
from minitransformer.trainer import Trainer
from minitransformer.training import TrainingConfig
from minitransformer.transformer import Transformer
from minitransformer.translator import TextGenerator, Translator
from minitransformer.wordpiece import WordPieceTokenizer
from minitransformer.words import WordTokenizer

__version__ = "0.1.0"

__all__ = [
    "HARDWARE",
    "HELD_OUT_PAIRS",
    "ALiBi",
    "BPETokenizer",
    "Batch",
    "Callback",
    "CharacterTokenizer",
    "Checkpoint",
    "Decoder",
    "DecoderLayer",
    "DecoderOnlyTransformer",
    "Diagnosis",
    "Dropout",
    "EarlyStopping",
    "Encoder",
    "EncoderLayer",
    "Evaluate",
    "Example",
    "FeedForward",
    "Finding",
    "Hardware",
    "KVCache",
    "LanguageModelTrainer",
    "LayerNorm",
    "LearnedPositionalEncoding",
    "MultiHeadAttention",
    "OutputProjection",
    "PackedMask",
    "Packing",
    "ParameterRule",
    "Plan",
    "RMSNorm",
    "ResidualConnection",
    "RotaryPositionalEncoding",
    "ScaledDotProductAttention",
    "SelfAttention",
    "SinusoidalPositionalEncoding",
    "TextGenerator",
    "TextPair",
    "TokenEmbedding",
    "Tokenizer",
    "Trace",
    "TracedTensor",
    "Trainer",
    "TrainingConfig",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "WordPieceTokenizer",
    "WordTokenizer",
    "alibi_slopes",
    "attention_weights",
    "beam_search",
    "causal_mask",
    "collate",
    "corrupt_spans",
    "cosine_schedule",
    "diagnose",
    "draw_spans",
    "encode_pairs",
    "epoch_batches",
    "generate",
    "grammar_sentences",
    "label_smoothing_loss",
    "layer_norm",
    "length_normalisation",
    "linear_cross_entropy",
    "linear_schedule",
    "load_checkpoint",
    "min_p_filter",
    "multi30k",
    "new_optimizer",
    "next_token_loss",
    "next_token_probs",
    "no_repeat_ngrams",
    "noam_schedule",
    "number_in_words",
    "number_words",
    "occurrence_penalty",
    "pad_rows",
    "padding_mask",
    "parameter_rules",
    "plan",
    "plot_attention",
    "plot_attention_grid",
    "plot_history",
    "record_attention",
    "register",
    "repetition_penalty",
    "restore_spans",
    "rms_norm",
    "rotary_frequencies",
    "running_mean",
    "save_checkpoint",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
    "stream_batches",
    "suppress_tokens",
    "text_to_text",
    "token_batches",
    "token_stream",
    "top_k_filter",
    "top_p_filter",
    "trace",
    "use_book_style",
]

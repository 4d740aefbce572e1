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

Each module keeps what a chapter of the book builds; the subpackages have their own `help`.
What is not among the names below is imported from its module: `mt.plotting.plot_history`, or
`from minitransformer.sampling import top_k_filter`.

| module | chapter | what it holds |
| --- | --- | --- |
| `tokenization`, `words`, `tokenizer_file` | 1 | text to integers: characters, words; a file |
| `byte_pair_encoding`, `wordpiece` | 1 | tokens learned by merging pairs of bytes, of characters |
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
| `inference`, `cache`, `decoding` | 10 | texts that a model writes; keys of earlier positions |
| `sampling`, `logits_processors`, `beam_search` | 10 | the next token: drawn, forbidden, searched |
| `diagnosis`, `laws` | 17 | what to check before the first step |
| `planner` | 18 | what a training takes: operations, memory, time, money |
| `plotting` | all | the figures |
| `tasks` | 8, 9 | number words, the grammar's sentences, Multi30k |
| `efficient_attention` | 15 | attention in blocks, by patterns, linear; smaller caches |
| `exercises` | 17 | faults that raise no error |
| `models` | | BERT, GPT-2, Llama, T5, Marian, BART, ViT |
| `published` | | what their files hold |
| `parallel` | | training on many processes, by PyTorch's engine |
| `packing` | | a batch without its padding |
| `fast` | | one text decoded with less around the products |
| `export` | | to other engines |

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
from minitransformer.beam_search import length_normalisation
from minitransformer.byte_pair_encoding import BPETokenizer
from minitransformer.cache import KVCache
from minitransformer.callbacks import Callback, Checkpoint, EarlyStopping, Evaluate
from minitransformer.config import TransformerConfig
from minitransformer.data import (
    Batch,
    Example,
    TextPair,
    collate,
    encode_pairs,
    epoch_batches,
    token_stream,
)
from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.diagnosis import diagnose
from minitransformer.dropout import Dropout
from minitransformer.embeddings import OutputProjection, TokenEmbedding
from minitransformer.encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from minitransformer.feed_forward import FeedForward
from minitransformer.inference import generate
from minitransformer.inspection import record_attention, trace
from minitransformer.language_model import LanguageModelTrainer
from minitransformer.layer_norm import LayerNorm, RMSNorm
from minitransformer.loss import label_smoothing_loss, next_token_loss
from minitransformer.multi_head_attention import MultiHeadAttention
from minitransformer.planner import HARDWARE, plan
from minitransformer.plotting import plot_attention, use_book_style
from minitransformer.positional_encoding import SinusoidalPositionalEncoding, sinusoidal_positions
from minitransformer.registry import register
from minitransformer.rotary import RotaryPositionalEncoding
from minitransformer.schedules import cosine_schedule
from minitransformer.tasks.grammar import grammar_sentences
from minitransformer.tasks.number_words import number_in_words, number_words
from minitransformer.tokenization import CharacterTokenizer, Tokenizer, pad_rows
from minitransformer.trainer import Trainer
from minitransformer.training import TrainingConfig
from minitransformer.transformer import Transformer
from minitransformer.translator import TextGenerator, Translator
from minitransformer.wordpiece import WordPieceTokenizer
from minitransformer.words import WordTokenizer

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
    """What completion offers: the names and the subpackages, and no other module."""
    return [*__all__, "efficient_attention", "export", "models", "parallel", "tasks"]

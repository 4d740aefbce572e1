"""Tokenizers in the shapes that others publish, trained on small texts: there is no hub here.

Each is the content of a `tokenizer.json`: the vocabulary is our own, all steps are the published
ones, down to their options.
"""

import json
import tempfile
import warnings
from functools import cache
from pathlib import Path

import pytest
from helpers import real_texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors as post

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    model_proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto

QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OTHER_WORDS = [
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "いろはにほへと ちりぬるを、東京と大阪。 我能吞下玻璃而不伤身体。",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. דג סקרן שט בים מאוכזב",
    "don't we'll they've I'm he'd it's DON'T 12 345 6789 x²+½ 3.14 😀👍🏽 naïve café",
]


@cache
def texts():
    """What they are trained on."""
    return [line for text in real_texts(150_000) for line in text.split("\n")] + OTHER_WORDS * 9


def special(*contents, **flags):
    return [AddedToken(content, special=True, normalized=False, **flags) for content in contents]


def byte_level_bpe(pre_tokenizer, specials):
    """Byte-level BPE with these settings."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    settings = {"initial_alphabet": pre.ByteLevel.alphabet(), "show_progress": False}
    learn = trainers.BpeTrainer(vocab_size=800, special_tokens=specials, **settings)
    tokenizer.train_from_iterator(texts(), learn)
    return tokenizer


def gpt2():
    specials = special("<|endoftext|>")
    tokenizer = byte_level_bpe(pre.ByteLevel(add_prefix_space=False), specials)
    tokenizer.post_processor = post.ByteLevel(trim_offsets=False)
    return tokenizer


def roberta():
    specials = [*special("<s>", "<pad>", "</s>", "<unk>"), *special("<mask>", lstrip=True)]
    tokenizer = byte_level_bpe(pre.ByteLevel(add_prefix_space=False), specials)
    tokenizer.post_processor = post.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return tokenizer


def qwen2():
    cut = pre.Split(Regex(QWEN2_PATTERN), "isolated")
    byte_level = pre.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer = byte_level_bpe(pre.Sequence([cut, byte_level]), [])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<think>")])
    tokenizer.post_processor = post.ByteLevel(trim_offsets=False)
    return tokenizer


def llama2():
    """BPE of characters with a way out in bytes."""
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.pre_tokenizer = pre.Metaspace()
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    learn = trainers.BpeTrainer(
        vocab_size=900, special_tokens=specials, limit_alphabet=90, show_progress=False
    )
    learner.train_from_iterator(texts(), learn)
    state = json.loads(learner.to_str())
    state["model"] |= {"fuse_unk": True, "byte_fallback": True}
    state["added_tokens"] = state["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    joined = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*joined, decoders.Strip(" ", 1, 0)])
    visible = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(visible)
    tokenizer.post_processor = post.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def bert():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre.BertPreTokenizer()
    learn = trainers.WordPieceTrainer(
        vocab_size=1200,
        special_tokens=special("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), learn)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = post.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


@cache
def sentence_piece(vocab_size=700, **options):
    """The file of a SentencePiece model with T5's special tokens."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "texts.txt")
        path.write_text("\n".join(texts()[::2] + OTHER_WORDS), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(path),
            model_prefix=str(Path(folder, "spiece")),
            vocab_size=vocab_size,
            minloglevel=2,
            num_threads=1,
            **({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} | options),
        )
        return Path(folder, "spiece.model").read_bytes()


def t5():
    """Unigram with the map of characters that its SentencePiece model has."""
    content = model_proto.FromString(sentence_piece())
    vocab = [(piece.piece, piece.score) for piece in content.pieces]
    vocab += [(f"<extra_id_{number}>", 0.0) for number in reversed(range(100))]
    tokenizer = Tokenizer(models.Unigram(vocab, 2, False))
    normalizer = normalizers.Precompiled(content.normalizer_spec.precompiled_charsmap)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(special("<pad>", "</s>", "<unk>"))
    tokenizer.add_special_tokens(special(*(f"<extra_id_{n}>" for n in reversed(range(100)))))
    tokenizer.post_processor = post.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


KINDS = {kind.__name__: kind for kind in (gpt2, roberta, qwen2, llama2, bert, t5)}


@cache
def trained(kind):
    """One of these tokenizers, of the library, and the content of its file."""
    tokenizer = KINDS[kind]()
    return tokenizer, json.loads(tokenizer.to_str())


def write(folder, **files):
    """Write files, JSON where the content is no text; a _ in a name stands for the dot."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        stem, _, ending = name.rpartition("_")
        path = folder / f"{stem}.{ending}"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            written = content if isinstance(content, str) else json.dumps(content)
            path.write_text(written, encoding="utf-8", newline="")
    return folder


def t5_folder(folder):
    """T5's one file."""
    return write(folder, spiece_model=sentence_piece(), config_json={"model_type": "t5"})


def llama_folder(folder):
    """The file of Llama 1 and 2, whose unknown characters become bytes."""
    options = {"pad_id": -1, "eos_id": 2, "unk_id": 0, "bos_id": 1, "model_type": "bpe"}
    options |= {"byte_fallback": True, "normalization_rule_name": "identity"}
    options |= {"remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True}
    return write(folder, tokenizer_model=sentence_piece(900, **options))


def marian_folder(folder):
    """Two models with some pieces in common, and a vocabulary of all."""
    source = sentence_piece(400, bos_id=-1, pad_id=-1, eos_id=0, unk_id=1)
    target = sentence_piece(300, bos_id=-1, pad_id=-1, eos_id=0, unk_id=1)
    pieces = ["</s>", "<unk>", ">>de<<"]
    for file in (source, target):
        model = sentencepiece.SentencePieceProcessor(model_proto=file)
        pieces += [model.id_to_piece(index) for index in range(2, model.get_piece_size())]
    vocab = {piece: index for index, piece in enumerate([*dict.fromkeys(pieces), "<pad>"])}
    return write(
        folder,
        source_spm=source,
        target_spm=target,
        vocab_json=vocab,
        tokenizer_config_json={"source_lang": "en", "target_lang": "de"},
        config_json={"model_type": "marian", "pad_token_id": len(vocab) - 1, "eos_token_id": 0},
    )

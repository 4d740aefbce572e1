"""Texts of published models: what they begin and end with, and how what follows is decoded."""

import io
import json
import warnings
from pathlib import Path

import pytest
import torch
from alike import transformers
from tokenizers import Tokenizer, decoders, normalizers, trainers
from tokenizers import models as kinds
from tokenizers import pre_tokenizers as pre
from tokenizers import processors as post

from minitransformer import (
    DecoderOnlyTransformer,
    LanguageModelTrainer,
    TextGenerator,
    Trainer,
    TrainingConfig,
    TransformerConfig,
    Translator,
    encode_pairs,
    generate,
    token_stream,
)
from minitransformer.models import BART, GPT2, T5, GPT2Config, Marian, PublishedTokenizer

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")

PAIRS = [
    ("The town lies between two hills", "Die Stadt liegt zwischen zwei Hügeln"),
    ("two hills", "zwei Hügel"),
    ("one", "eins 😀"),
]
TEXTS = [text for pair in PAIRS for text in pair]


def trained(model, trainer, vocab_size, specials, **steps):
    """A small tokenizer of the library, with these steps."""
    tokenizer = Tokenizer(model)
    for name, step in steps.items():
        setattr(tokenizer, name, step)
    options = {"special_tokens": specials, "show_progress": False, "vocab_size": vocab_size}
    if trainer is trainers.BpeTrainer:
        options["initial_alphabet"] = pre.ByteLevel.alphabet()
    else:
        options["unk_token"] = "<unk>"
    tokenizer.train_from_iterator(TEXTS, trainer(**options))
    return tokenizer


def byte_level(specials, processor=None):
    """Byte-level BPE, as of GPT-2, BART and Qwen."""
    steps = {"pre_tokenizer": pre.ByteLevel(add_prefix_space=False)}
    tokenizer = trained(
        kinds.BPE(), trainers.BpeTrainer, 300, specials, decoder=decoders.ByteLevel(), **steps
    )
    if processor is not None:
        tokenizer.post_processor = processor
    return tokenizer


def bart():
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    return byte_level(specials, post.RobertaProcessing(("</s>", 2), ("<s>", 0)))


def unigram(specials, begin, end):
    """Pieces of SentencePiece, which spell a space before each word as "▁"."""
    tokenizer = trained(
        kinds.Unigram(),
        trainers.UnigramTrainer,
        80,
        specials,
        pre_tokenizer=pre.Metaspace(),
        decoder=decoders.Metaspace(),
    )
    ids = [(token, tokenizer.token_to_id(token)) for token in (begin, end) if token]
    single = " ".join(filter(None, [begin, "$A", end]))
    tokenizer.post_processor = post.TemplateProcessing(
        single=single, pair=f"{single} $B:1", special_tokens=ids
    )
    return tokenizer


def llama2():
    """Its space is written by the normalizer, and taken away by the decoder."""
    tokenizer = unigram(["<unk>", "<s>", "</s>"], "<s>", None)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    state = json.loads(tokenizer.to_str()) | {"pre_tokenizer": None}
    tokenizer = Tokenizer.from_str(json.dumps(state))
    joined = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*joined, decoders.Strip(" ", 1, 0)])
    return tokenizer


def ours(tokenizer):
    """The same tokenizer, read by us, with the end that GPT-2 and Llama have."""
    ends = [
        token for token in ("<|endoftext|>", "</s>") if tokenizer.token_to_id(token) is not None
    ]
    files = {"tokenizer.json": tokenizer.to_str().encode()}
    if ends:
        files["tokenizer_config.json"] = json.dumps({"eos_token": ends[0]}).encode()
    return PublishedTokenizer(files)


CONTINUING = {
    "GPT-2": lambda: byte_level(["<|endoftext|>"]),
    "BART": bart,
    "T5": lambda: unigram(["<pad>", "</s>", "<unk>"], None, "</s>"),
    "TinyLlama": lambda: unigram(["<unk>", "<s>", "</s>"], "<s>", None),
    "Llama 2": llama2,
}
each_continuing = pytest.mark.parametrize("make", CONTINUING.values(), ids=CONTINUING.keys())


# --- pairs


def saved(folder, tokenizer, **roles):
    """The tokenizer of `transformers` in a folder, where ours finds it."""
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)
    theirs.save_pretrained(folder)
    return theirs


def spm(texts):
    """The file of a small SentencePiece model as Marian has them."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=file,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **{"bos_id": -1, "pad_id": -1, "eos_id": 0, "unk_id": 1},
    )
    return file.getvalue()


def marian_tokenizer(folder):
    """Two models, and the one vocabulary of both."""
    files = {name: spm([pair[i] for pair in PAIRS]) for i, name in enumerate(("source", "target"))}
    pieces = ["</s>", "<unk>"]
    for name, file in files.items():
        Path(folder, f"{name}.spm").write_bytes(file)
        model = sentencepiece.SentencePieceProcessor(model_proto=file)
        pieces += [model.id_to_piece(index) for index in range(2, model.get_piece_size())]
    vocab = {piece: index for index, piece in enumerate([*dict.fromkeys(pieces), "<pad>"])}
    Path(folder, "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    settings = {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return transformers.MarianTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module", params=[BART, T5, Marian])
def family(request, tmp_path_factory):
    """A family: ours, its tokenizers for both sides, and the model and tokenizer of theirs."""
    folder = tmp_path_factory.mktemp(request.param.__name__)
    both = {"d_model": 32, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    sides = ("encoder", "decoder")
    for name, size in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 64)):
        both |= {f"{side}_{name}": size for side in sides}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Marian's recommends a library
        if request.param is BART:
            tokenizer = saved(
                folder,
                bart(),
                **{"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"},
                **{"unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"},
            )
            theirs = transformers.BartForConditionalGeneration(
                transformers.BartConfig(vocab_size=len(tokenizer), **both)
            )
        elif request.param is T5:
            tokenizer = saved(
                folder,
                CONTINUING["T5"](),
                **{"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
            )
            sizes = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 64, "num_layers": 1}
            settings = {"dropout_rate": 0.0, "decoder_start_token_id": 0}
            theirs = transformers.T5ForConditionalGeneration(
                transformers.T5Config(vocab_size=len(tokenizer), **sizes, **settings)
            )
        else:
            tokenizer = marian_tokenizer(folder)
            pad = tokenizer.pad_token_id
            special = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
            theirs = transformers.MarianMTModel(
                transformers.MarianConfig(vocab_size=len(tokenizer), **special, **both)
            )
    theirs.save_pretrained(folder)
    model = request.param.from_pretrained(folder)
    source = PublishedTokenizer.from_pretrained(folder)
    if request.param is Marian:
        return (
            model,
            source,
            PublishedTokenizer.from_pretrained(folder, side="target"),
            *(
                theirs,
                tokenizer,
            ),
        )
    return model, source, source, theirs, tokenizer


def test_pairs_are_encoded_as_theirs(family):
    model, source, target, theirs, tokenizer = family
    pairs = [*PAIRS, ("two", "")]
    for pair, example in zip(pairs, encode_pairs(pairs, source, target, model.config), strict=True):
        labels = tokenizer(text_target=pair[1])["input_ids"]
        read = theirs.prepare_decoder_input_ids_from_labels(labels=torch.tensor([labels]))
        assert example.src == tokenizer(pair[0])["input_ids"]
        assert example.tgt[1:] == labels
        assert example.tgt[:-1] == read[0].tolist()


def test_pairs_learned_by_heart_are_translated(family):
    model, source, target, *_ = family
    config = TrainingConfig(
        steps=160,
        warmup_steps=10,
        peak_learning_rate=5e-3,
        label_smoothing=0.0,
        batch_size=3,
    )
    history = Trainer(model, PAIRS, source, target, config).fit(progress=False)
    assert history[-1]["loss"] < 0.2
    assert Translator(model, source, target).held_out_loss(PAIRS) < 0.2
    sources, targets = zip(*PAIRS, strict=True)
    assert Translator(model, source, target).translate(sources) == [
        target.decode(target.encode(text)) for text in targets
    ]


# --- running text


def test_a_text_without_begin_begins_with_the_end_of_the_one_before():
    tokenizer = ours(byte_level(["<|endoftext|>"]))
    end, one, two = tokenizer.eos_id, tokenizer.encode("one"), tokenizer.encode("two hills")
    assert token_stream(["one", "two hills"], tokenizer).tolist() == [*one, end, *two, end]
    assert tokenizer.begin("one") == one
    assert tokenizer.begin("") == [end]
    model = GPT2(GPT2Config(vocab_size=tokenizer.vocab_size, d_model=12, num_heads=3, num_layers=1))
    assert len(TextGenerator(model, tokenizer).complete(["", "two"], max_new_tokens=4)) == 2
    # Its first token is to be predicted as all the others are.
    ids = torch.tensor([[end, *one, end]])
    with torch.no_grad():
        scores = model.eval()(ids[:, :-1]).log_softmax(-1)
    bits = -scores.gather(2, ids[:, 1:, None]).sum().item() / torch.tensor(2.0).log().item()
    assert TextGenerator(model, tokenizer).bits_per_character(["one"]) == pytest.approx(
        bits / 3, rel=1e-5
    )


def test_a_begin_is_written_where_there_is_one():
    tokenizer = ours(unigram(["<unk>", "<s>", "</s>"], "<s>", None))
    ids = tokenizer.encode("two")
    assert token_stream(["two"], tokenizer).tolist() == [1, *ids, 2]
    assert tokenizer.begin("") == [1]


def test_without_an_end_no_training_begins():
    tokenizer = ours(byte_level([]))
    config = TransformerConfig.decoder_only(
        tokenizer.vocab_size, d_model=12, num_heads=3, num_layers=1, pad_id=-1
    )
    model = DecoderOnlyTransformer(config)
    settings = TrainingConfig(steps=2, warmup_steps=1, context_length=4)
    with pytest.raises(ValueError, match="the tokenizer has no token that ends a text"):
        LanguageModelTrainer(model, TEXTS, tokenizer, settings)
    with pytest.raises(ValueError, match="the tokenizer has no token that begins a text"):
        TextGenerator(model, tokenizer).complete([""])


def test_a_model_of_ours_ends_texts_with_its_tokenizers_end():
    tokenizer = ours(byte_level(["a", "b", "c", "<|endoftext|>"]))
    config = TransformerConfig.decoder_only(
        tokenizer.vocab_size, d_model=12, num_heads=3, num_layers=1, pad_id=-1
    )
    assert TextGenerator(DecoderOnlyTransformer(config), tokenizer).stop_ids == [3]


# --- what follows


@each_continuing
def test_a_text_goes_on_where_its_prompt_ends(make):
    tokenizer = ours(make())
    for text in TEXTS:
        text = tokenizer.decode(tokenizer.encode(text))
        for end in [place for place, character in enumerate(text) if character == " "]:
            prompt = tokenizer.begin(text[:end])
            added = tokenizer.encode(text)[len(tokenizer.encode(text[:end])) :]
            assert text[:end] + tokenizer.decode_after(prompt, added) == text


@each_continuing
def test_completions_read_as_one_with_their_prompts(make):
    tokenizer = ours(make())
    text = "The town lies between two hills"
    config = GPT2Config(vocab_size=tokenizer.vocab_size, d_model=12, num_heads=3, num_layers=1)
    model, prompt = GPT2(config), "The town lies between"
    rest = tokenizer.encode(text)[len(tokenizer.encode(prompt)) :]

    start = len(tokenizer.begin(prompt))

    def scripted(ids, logits):
        at = ids.size(1) - start
        token = rest[at] if at < len(rest) else tokenizer.last_id
        return torch.full_like(logits, -torch.inf).index_fill(1, torch.tensor([token]), 0.0)

    written = TextGenerator(model, tokenizer).complete([prompt], logits_processors=[scripted])
    assert prompt + written[0] == text


@each_continuing
def test_parts_are_the_whole_and_no_part_ends_in_half_a_character(make):
    tokenizer = ours(make())
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(tokenizer.vocab_size, (40, 9), generator=generator).tolist()
    for ids in [*map(tokenizer.encode, TEXTS), *drawn]:
        before, parts = tokenizer.begin("two"), [tokenizer.decode(tokenizer.begin("two"))]
        for index in ids:
            parts.append(tokenizer.decode_after(before, [index]))
            before.append(index)
            assert not parts[-1].endswith("\ufffd")
        whole = tokenizer.decode([*tokenizer.begin("two"), *ids])
        assert "".join(parts) == whole.rstrip("\ufffd")


# --- ends


def test_texts_end_as_the_model_says_and_as_the_user_says_first(monkeypatch):
    tokenizer = ours(byte_level(["<|endoftext|>"]))
    config = GPT2Config(vocab_size=tokenizer.vocab_size, d_model=12, num_heads=3, num_layers=1)
    model, prompt = GPT2(config, torch.Generator().manual_seed(0)), torch.tensor([[5, 6]])
    options = {"max_new_tokens": 8, "temperature": 2.0}
    free = [
        generate(model, prompt, generator=torch.Generator().manual_seed(7), stop_ids=[], **options),
        TextGenerator(model, tokenizer).complete(
            ["two"], generator=torch.Generator().manual_seed(7), stop_ids=[], **options
        ),
    ]
    assert free[0].size(1) == 8
    monkeypatch.setattr(GPT2Config, "eos_ids", (), raising=False)
    monkeypatch.setattr(GPT2, "stop_ids", (int(free[0][0, 3]),))
    drawn = generate(model, prompt, generator=torch.Generator().manual_seed(7), **options)
    first = free[0][0].tolist().index(model.stop_ids[0])
    assert drawn.tolist() == free[0][:, : first + 1].tolist()
    assert set(TextGenerator(model, tokenizer).stop_ids) == {*model.stop_ids, tokenizer.eos_id}
    again = TextGenerator(model, tokenizer).complete(
        ["two"], generator=torch.Generator().manual_seed(7), stop_ids=[], **options
    )
    assert again == free[1]

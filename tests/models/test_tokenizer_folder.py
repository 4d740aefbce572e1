"""Folders as they are published: older files too, the tokens that are special, and back again."""

import json
import random
import re
import shutil
import warnings

import pytest
from test_published_tokenizer import ODD, mixed_text
from tokenizer_kinds import OTHER_WORDS, sentence_piece, sentencepiece, texts, trained
from tokenizers import Tokenizer as Library

from minitransformer.tokenizers.published_tokenizer import PublishedTokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers import AutoTokenizer, MarianTokenizer, PreTrainedTokenizerFast
transformers.logging.set_verbosity_error()

ROLES = ("pad", "bos", "eos", "unk", "mask", "cls", "sep")
generator = random.Random(1)
TEXTS = [*ODD, "", *(mixed_text(generator, ["<mask>", "[MASK]", "</s>"]) for _ in range(300))]


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


def ids_of(tokenizer):
    """The special ids that are not None, by role."""
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
    return {role: index for role, index in ids.items() if index is not None}


def assert_same(ours, theirs):
    """The same ids as a tokenizer of `transformers`, and the same texts from them."""
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text, parse_special=True, add_special_tokens=True) == ids, text
        skipped = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == skipped


# --- tokenizer.json


def test_what_is_saved_is_what_was_read(tmp_path):
    for kind in ("gpt2", "llama3", "bert", "t5"):
        _, state = trained(kind)
        more = {"tokenizer_config_json": {"a": 1}, "chat_template_jinja": "{{ messages }}"}
        folder = write(tmp_path / kind, tokenizer_json=state, **more)
        ours = PublishedTokenizer.from_pretrained(folder)
        ours.save_pretrained(tmp_path / "new" / kind)
        for file in folder.iterdir():
            assert (tmp_path / "new" / kind / file.name).read_bytes() == file.read_bytes()
        again = Library.from_file(str(tmp_path / "new" / kind / "tokenizer.json"))
        assert again.to_str() == Library.from_str(json.dumps(state)).to_str()
        loaded = AutoTokenizer.from_pretrained(tmp_path / "new" / kind)
        assert type(loaded).__name__ in ("TokenizersBackend", "PreTrainedTokenizerFast")
        assert loaded("two hundred")["input_ids"] == ours.encode(
            "two hundred", add_special_tokens=True
        )


def test_what_transformers_saves_is_read(tmp_path):
    for kind in ("gpt2", "qwen2", "smollm2", "llama2", "bert", "t5"):
        _, state = trained(kind)
        write(tmp_path, tokenizer_json=state)
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
        theirs(["a", "b c"], padding=False)
        theirs.save_pretrained(tmp_path / kind)
        ours = PublishedTokenizer.from_pretrained(tmp_path / kind)
        for text in TEXTS[:60]:
            assert ours.encode(text, parse_special=True, add_special_tokens=True) == theirs.encode(
                text
            )


@pytest.mark.parametrize("key", ["single", "pair"])
def test_an_empty_template_adds_nothing(key):
    _, state = trained("smollm2")
    parts = [{"Sequence": {"id": name, "type_id": kind}} for name, kind in (("A", 0), ("B", 1))]
    template = {"type": "TemplateProcessing", "special_tokens": {}, "single": [], "pair": []}
    template |= {"single": parts[:1], "pair": parts}
    ours, plain = (
        PublishedTokenizer(state | {"post_processor": template}),
        PublishedTokenizer(state),
    )
    assert ours.encode("a b", add_special_tokens=True) == plain.encode("a b")
    assert ours.encode_pair("a", "b") == plain.encode_pair("a", "b")


# --- which tokens are special


@pytest.mark.parametrize(
    ("kind", "files", "expected"),
    [
        ("gpt2", {}, {}),
        ("gpt2", {"config_json": {"bos_token_id": 0, "eos_token_id": 0}}, {"bos": 0, "eos": 0}),
        ("gpt2", {"config_json": {"pad_token_id": -1, "eos_token_id": [0, 1]}}, {}),
        ("bert", {}, {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}),
        ("llama2", {}, {"unk": 0, "bos": 1, "eos": 2}),
        ("t5", {}, {"pad": 0, "eos": 1, "unk": 2}),
        (
            "llama2",
            {
                "tokenizer_config_json": {"bos_token": "<s>", "pad_token": None},
                "special_tokens_map_json": {"eos_token": {"content": "</s>", "lstrip": False}},
                "config_json": {"pad_token_id": 0},
            },
            {"bos": 1, "eos": 2, "unk": 0},
        ),
        (
            "roberta",
            {
                "special_tokens_map_json": {
                    **{"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>"},
                    **{"eos_token": "</s>", "mask_token": {"content": "<mask>", "lstrip": True}},
                    **{"pad_token": "<pad>", "unk_token": "<unk>", "other_token": "x"},
                }
            },
            {"bos": 0, "cls": 0, "pad": 1, "eos": 2, "sep": 2, "unk": 3, "mask": 4},
        ),
        ("qwen2", {"tokenizer_config_json": {"eos_token": "<|im_end|>"}}, {"eos": 802}),
    ],
)
def test_special_ids_are_read_where_they_are(kind, files, expected, tmp_path):
    write(tmp_path, tokenizer_json=trained(kind)[1], **files)
    assert ids_of(PublishedTokenizer.from_pretrained(tmp_path)) == expected


# --- vocab.json with merges.txt


def byte_level_files(kind):
    """The two older files of a tokenizer."""
    model = trained(kind)[1]["model"]
    merges = "\n".join(["#version: 0.2", *map(" ".join, model["merges"]), ""])
    return {"vocab_json": model["vocab"], "merges_txt": merges}


@pytest.mark.parametrize(
    ("kind", "settings", "name"),
    [
        ("gpt2", {}, "GPT2Tokenizer"),
        ("gpt2", {"add_prefix_space": True}, "GPT2Tokenizer"),
        ("roberta", {}, "RobertaTokenizer"),
        ("roberta", {"add_prefix_space": True}, "RobertaTokenizer"),
        ("roberta", {}, "BartTokenizer"),
    ],
)
def test_vocabulary_and_merges(kind, settings, name, tmp_path):
    settings = {"tokenizer_class": name} | settings
    write(tmp_path, **byte_level_files(kind), tokenizer_config_json=settings)
    ours = PublishedTokenizer.from_pretrained(tmp_path)
    library = Library.from_str(json.dumps(ours.to_dict()))
    for text in TEXTS:
        found = library.encode(text).ids
        assert ours.encode(text, parse_special=True, add_special_tokens=True) == found
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    if kind == "gpt2":
        assert_same(ours, theirs)
    else:  # there, a <mask> leaves the space before it alone, as the published file does not
        for text in TEXTS:
            if not re.search(r"\s<mask>", text):
                found = theirs(text)["input_ids"]
                assert ours.encode(text, parse_special=True, add_special_tokens=True) == found
        assert ours.encode_pair("a", "b")[0] == theirs("a", "b")["input_ids"]
    ours.save_pretrained(tmp_path / "new")
    again = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert again("two hundred")["input_ids"] == ours.encode("two hundred", add_special_tokens=True)


def test_tokens_added_to_a_vocabulary(tmp_path):
    files = byte_level_files("gpt2")
    size = len(files["vocab_json"])
    decoder = {str(size): {"__type": "AddedToken", "content": "<a>", "special": False}}
    write(
        tmp_path,
        **files,
        added_tokens_json={"<a>": size, "<b>": size + 1, "<pad>": size + 2, "<c>": size + 3},
        special_tokens_map_json={"pad_token": "<pad>", "additional_special_tokens": ["<c>"]},
        tokenizer_config_json={"added_tokens_decoder": decoder},
    )
    ours = PublishedTokenizer.from_pretrained(tmp_path)
    assert ours.encode("<a><b>") == [size, size + 1]
    assert ours.pad_id == size + 2
    assert ours.encode("<pad>", parse_special=True) == [size + 2] != ours.encode("<pad>")
    assert ours.special_tokens == ("<|endoftext|>", "<pad>", "<c>")


# --- vocab.txt


@pytest.mark.parametrize(
    "settings", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"do_lower_case": True}]
)
@pytest.mark.parametrize("name", ["BertTokenizer", "DistilBertTokenizer"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_vocabulary_of_bert(settings, name, ending, tmp_path):
    kind = "bert cased" if settings.get("do_lower_case") is False else "bert"
    vocab = trained(kind)[1]["model"]["vocab"]
    lines = "".join(token + ending for token in sorted(vocab, key=vocab.get))
    write(tmp_path, vocab_txt=lines, tokenizer_config_json={"tokenizer_class": name} | settings)
    ours = PublishedTokenizer.from_pretrained(tmp_path)
    assert ids_of(ours) == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    for text in TEXTS:
        found = theirs(text)["input_ids"]
        assert ours.encode(text, parse_special=True, add_special_tokens=True) == found
    pair = theirs("two hundred", "a dog", return_token_type_ids=True)
    assert ours.encode_pair("two hundred", "a dog") == (
        pair["input_ids"],
        pair["token_type_ids"],
    )
    library = Library.from_str(json.dumps(ours.to_dict()))
    ids = ours.encode("two don't, x!")
    assert ours.decode(ids) == library.decode(ids)


# --- SentencePiece


def test_t5_by_the_library_sentencepiece(tmp_path):
    write(tmp_path, spiece_model=sentence_piece(), config_json={"model_type": "t5"})
    ours = PublishedTokenizer.from_pretrained(tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=sentence_piece())
    for text in [*ODD, *OTHER_WORDS, *texts()[:300]]:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        known = [index for index in ids if index != ours.unk_id]
        assert ours.decode(known) == theirs.decode(known).strip()
    assert (ours.pad_id, ours.eos_id, ours.unk_id) == (0, 1, 2)
    assert ours.vocab_size == 800
    assert ours.ids["<extra_id_0>"] == 799
    fast = trained("t5")[0]
    fast.encode_special_tokens = False
    for text in ("two <extra_id_0> hundred <extra_id_1>", "a</s>"):
        found = ours.encode(text, parse_special=True, add_special_tokens=True)
        assert found == fast.encode(text).ids
    assert ours.encode("</s>").count(1) == 0
    assert "".join(ours.labels(ours.encode("two days"))) == " two days"
    with pytest.raises(ValueError, match=r"SentencePiece has no tokenizer.json: use save_pretra"):
        ours.save(tmp_path / "tokenizer.json")
    ours.save_pretrained(tmp_path / "new")
    again = PublishedTokenizer.from_pretrained(tmp_path / "new")
    assert again.encode("two hundred") == ours.encode("two hundred")


def marian_folder(folder):
    """Two models with some pieces in common, and a vocabulary of all."""
    source = sentence_piece(400, bos_id=-1, pad_id=-1, eos_id=0, unk_id=1)
    target = sentence_piece(300, bos_id=-1, pad_id=-1, eos_id=0, unk_id=1)
    pieces = ["</s>", "<unk>", ">>de<<"]
    for file in (source, target):
        model = sentencepiece.SentencePieceProcessor(model_proto=file)
        pieces += [model.id_to_piece(index) for index in range(2, model.get_piece_size())]
    vocab = {piece: index for index, piece in enumerate([*dict.fromkeys(pieces), "<pad>"])}
    settings = {"source_lang": "en", "target_lang": "de"}
    return write(
        folder,
        source_spm=source,
        target_spm=target,
        vocab_json=vocab,
        tokenizer_config_json=settings,
        config_json={"model_type": "marian", "pad_token_id": len(vocab) - 1, "eos_token_id": 0},
    )


def test_marian_by_the_library_sentencepiece(tmp_path):
    folder = marian_folder(tmp_path / "old")
    source = PublishedTokenizer.from_pretrained(folder)
    target = PublishedTokenizer.from_pretrained(folder, side="target")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a library
        theirs = MarianTokenizer.from_pretrained(folder)
    differ = 0
    for text in [*ODD, *OTHER_WORDS, *texts()[:300], ">>de<< two", ">>xx<< a", "a >>de<<"]:
        ids = theirs(text)["input_ids"]
        assert source.encode(text, parse_special=True, add_special_tokens=True) == ids
        assert source.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        ids = theirs(text_target=text)["input_ids"]
        assert target.encode(text, parse_special=True, add_special_tokens=True) == ids
        differ += ids != source.encode(text, add_special_tokens=True)
    assert differ > 100
    assert (source.pad_id, source.bos_id, source.eos_id, source.unk_id) == (
        theirs.pad_token_id,
        None,
        0,
        1,
    )
    source.save_pretrained(tmp_path / "new")
    for file in folder.iterdir():
        if file.name != "config.json":  # which is the model's
            assert (tmp_path / "new" / file.name).read_bytes() == file.read_bytes()


# --- what is refused


def test_folders_without_a_tokenizer_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer: no tokenizer.json, or sourc"):
        PublishedTokenizer.from_pretrained(write(tmp_path, vocab_json={"a": 0}))
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        PublishedTokenizer.from_pretrained(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"tokenizer_config_json": {"tokenizer_class": "CLIPTokenizer"}},
            "tokenizer_class is 'CLIPTokenizer'; without a tokenizer.json, vocab.json is read for "
            "GPT2Tokenizer or RobertaTokenizer or BartTokenizer",
        ),
        (
            {"config_json": {"model_type": "qwen2"}},
            "model_type is 'qwen2'; without a tokenizer.json, vocab.json is read for gpt2 or robe",
        ),
        ({"merges_txt": "a\n"}, r"a merge joins 2 tokens, got \['a'\]"),
        ({"merges_txt": "a ☃\n"}, "merge 'a' [+] '☃': '☃' is no token"),
        ({"vocab_json": b"{"}, "vocab.json is damaged or no JSON file"),
        ({"tokenizer_json": {"model": {"type": "Z", "vocab": {}}}}, "model is 'Z', expected one"),
    ],
)
def test_files_that_are_not_known_are_refused_by_name(files, message, tmp_path):
    write(tmp_path, **(byte_level_files("gpt2") | files))
    with pytest.raises(ValueError, match=message) as caught:
        PublishedTokenizer.from_pretrained(tmp_path)
    assert len(str(caught.value)) < 500


def test_a_vocabulary_without_its_special_tokens_is_refused(tmp_path):
    write(tmp_path, vocab_txt="[UNK]\na\n")
    with pytest.raises(ValueError, match=r"vocab.txt lacks \[CLS\], \[SEP\]"):
        PublishedTokenizer.from_pretrained(tmp_path)


def test_sides_are_for_marian(tmp_path):
    write(tmp_path, **byte_level_files("gpt2"))
    with pytest.raises(ValueError, match=r"side is 'target', but .* has one tokenizer for both"):
        PublishedTokenizer.from_pretrained(tmp_path, side="target")
    folder = marian_folder(tmp_path / "marian")
    with pytest.raises(ValueError, match="side is 'left'"):
        PublishedTokenizer.from_pretrained(folder, side="left")
    shutil.copy(folder / "vocab.json", folder / "target_vocab.json")
    with pytest.raises(ValueError, match="has a vocabulary for each side, expected one for both"):
        PublishedTokenizer.from_pretrained(folder)


def test_sentencepiece_is_asked_for_by_name(tmp_path, monkeypatch):
    write(tmp_path, spiece_model=b"damaged")
    with pytest.raises(ValueError, match=r"the SentencePiece model \(7 bytes\) is damaged"):
        PublishedTokenizer.from_pretrained(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    with pytest.raises(ImportError, match="pip install sentencepiece"):
        PublishedTokenizer.from_pretrained(tmp_path)

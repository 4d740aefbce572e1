"""Files say what they hold that we do not do; they are written whole or not at all."""

import copy
import json
import warnings

import pytest

from minitransformer import (
    BPETokenizer,
    CharacterTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from minitransformer.tokenizer_file import NOTHING_ADDED, check_same, read_json, write_json

STATES = {
    "word": json.loads(json.dumps(WordTokenizer.train(["ein zwei"]).to_dict())),
    "bpe": json.loads(json.dumps(BPETokenizer.train(["ein zwei"], 263).to_dict())),
}


def changed(kind, *path, value):
    """The content of a file with one entry changed."""
    state = copy.deepcopy(STATES[kind])
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return state


@pytest.mark.parametrize(
    ("kind", "path", "value", "message"),
    [
        ("word", ["normalizer"], {"type": "NFC"}, "normalizer is {'type': 'NFC'}, expected None"),
        ("word", ["version"], "2.0", "version is '2.0', expected '1.0'"),
        (
            "word",
            ["model", "unk_token"],
            "[UNK]",
            r"model.unk_token is '\[UNK\]', expected '<unk>'",
        ),
        ("word", ["decoder"], None, "decoder is None, expected {'type': 'Sequence'"),
        (
            "word",
            ["added_tokens", 1, "content"],
            "<s>",
            r"added_tokens\[1\].content is '<s>', expected '<bos>'",
        ),
        ("word", ["added_tokens"], [], r"added_tokens is \[\], expected \[{'id': 0"),
        (
            "word",
            ["model", "merges"],
            [["a", "b"]],
            r"model.merges is \[\['a', 'b'\]\], expected None",
        ),
        ("bpe", ["model", "dropout"], 0.1, "model.dropout is 0.1, expected None"),
        ("bpe", ["model", "new"], 1, "model.new is 1, expected None"),
        (
            "bpe",
            ["pre_tokenizer", "add_prefix_space"],
            True,
            "pre_tokenizer.add_prefix_space is True, expected False",
        ),
        ("bpe", ["model", "vocab"], None, "model.vocab must give each of its n tokens"),
        ("bpe", ["model", "vocab", "a"], 999, "model.vocab must give each of its n tokens"),
        ("bpe", ["model", "vocab", "a"], 0, "model.vocab must give each of its n tokens"),
        ("bpe", ["model", "merges"], [["e", "☃"]], "merge 'e' [+] '☃': '☃' is no token"),
    ],
)
def test_what_is_not_done_here_is_named(kind, path, value, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_dict(changed(kind, *path, value=value))


def test_special_tokens_must_come_first():
    state = copy.deepcopy(STATES["word"])
    vocab = state["model"]["vocab"]
    vocab["<pad>"], vocab["ein"] = vocab["ein"], vocab["<pad>"]
    message = "the ids of model.vocab.<pad> is 5, expected 0"
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_dict(state)


def test_entries_left_out_count_as_null():
    state = copy.deepcopy(STATES["bpe"])
    del state["truncation"], state["model"]["dropout"]
    assert Tokenizer.from_dict(state).to_dict() == Tokenizer.from_dict(STATES["bpe"]).to_dict()


def test_merges_of_older_files_are_read():
    state = changed("bpe", "model", "merges", value=["e i"])
    assert Tokenizer.from_dict(state).merges[0] == ("e", "i")


def test_differences_are_found_at_any_depth():
    check_same({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}], "c": None})
    with pytest.raises(ValueError, match=r"^file.a\[1\].b is 3, expected 2$"):
        check_same({"a": [1, {"b": 3}]}, {"a": [1, {"b": 2}]}, "file")


def test_errors_show_the_beginning_of_what_is_long():
    tokens = [{"id": index, "content": f"<{index}>"} for index in range(256)]
    with pytest.raises(
        ValueError, match=r"added_tokens is \[{'id': 0, .*… \(8,?\d+ characters"
    ) as e:
        Tokenizer.from_dict(changed("bpe", "added_tokens", value=tokens))
    assert len(str(e.value)) < 300
    with pytest.raises(
        ValueError, match=r"^a is 'xx.*… \(40,002 characters\), expected None$"
    ) as e:
        check_same({"a": "x" * 40_000}, {})
    assert len(str(e.value)) < 200


@pytest.mark.parametrize("kind", STATES)
def test_a_post_processor_that_adds_nothing_is_as_good_as_none(kind):
    state = changed(kind, "post_processor", value=copy.deepcopy(NOTHING_ADDED))
    assert Tokenizer.from_dict(state).to_dict() == Tokenizer.from_dict(STATES[kind]).to_dict()
    state["post_processor"]["single"].append({"SpecialToken": {"id": "<eos>", "type_id": 0}})
    with pytest.raises(ValueError, match=r"post_processor is {'type': 'TemplateProcessing'"):
        Tokenizer.from_dict(state)


@pytest.mark.parametrize(
    "tokenizer",
    [
        CharacterTokenizer.train(["ein zwei"]),
        WordTokenizer.train(["ein zwei"]),
        WordPieceTokenizer.train(["ein zwei"], 40),
        BPETokenizer.train(["ein zwei ein zwei"], 266),
    ],
    ids=lambda tokenizer: type(tokenizer).__name__,
)
@pytest.mark.parametrize("named", [True, False])
def test_what_transformers_saved_again_loads_back(tokenizer, named, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizer.save(tmp_path / "tokenizer.json")
    names = ("pad", "bos", "eos", "unk", "mask") if named else ()
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        **{f"{name}_token": f"<{name}>" for name in names},
    )
    theirs.save_pretrained(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again" / "tokenizer.json")
    assert type(again) is type(tokenizer)
    assert again.to_dict() == tokenizer.to_dict()
    assert again.encode("zwei ein") == theirs("zwei ein")["input_ids"]


# --- reading and writing


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no tokenizer at .*nowhere.json"):
        Tokenizer.load(tmp_path / "nowhere.json")
    path = tmp_path / "nowhere" / "tokenizer.json"
    with pytest.raises(
        FileNotFoundError, match=r"folder of the tokenizer does not exist: .*nowhere"
    ):
        Tokenizer.from_dict(STATES["word"]).save(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"PK\x03\x04"])
def test_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer.json is damaged or no JSON file: "):
        Tokenizer.load(path)


def test_other_json_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"tokenizer.json holds a list, expected an object"):
        read_json(path)


def test_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "tokenizer.json"
    write_json({"a": "ß"}, path)
    with pytest.raises(TypeError):
        write_json({"a": 1, "b": object()}, path)
    assert read_json(path) == {"a": "ß"}
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]

"""Files say what they hold that we do not do; they are written whole or not at all."""

import copy

import pytest
from helpers import refuses

from minitransformer import (
    BPETokenizer,
    CharacterTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)
from minitransformer.files import read_json, write_json
from minitransformer.tokenization.tokenizer_file import NOTHING_ADDED, check_same

TOKENIZERS = {
    "character": CharacterTokenizer.train(["ein zwei"]),
    "word": WordTokenizer.train(["ein zwei"]),
    "wordpiece": WordPieceTokenizer.train(["ein zwei"], 40),
    "bpe": BPETokenizer.train(["ein zwei"], 263),
}


def changed(kind, *path, value):
    """The content of a file with one entry changed."""
    state = copy.deepcopy(TOKENIZERS[kind].to_dict())
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return state


UNKNOWN = [
    ("word", "normalizer", {"type": "NFC"}, "normalizer is {'type': 'NFC'}, expected None"),
    ("word", "model unk_token", "[?]", r"model.unk_token is '\[\?\]', expected '<unk>'"),
    ("word", "decoder", None, "decoder is None, expected {'type': 'Sequence'"),
    ("word", "added_tokens", [], r"added_tokens is \[\], expected \[{'id': 0"),
    ("word", "model merges", [["a", "b"]], r"model.merges is \[\['a', 'b'\]\], expected None"),
    ("word", "model vocab <pad>", 6, "model.vocab must give each of its n tokens"),
    ("bpe", "model dropout", 0.1, "model.dropout is 0.1, expected None"),
    ("bpe", "pre_tokenizer add_prefix_space", True, "prefix_space is True, expected False"),
    ("bpe", "model vocab", None, "model.vocab must give each of its n tokens"),
    ("bpe", "model merges", [["e", "☃"]], "merge 'e' [+] '☃': '☃' is no token"),
    ("bpe", "model type", "Unigram", "model.type is 'Unigram', expected (WordL|BPE|, | or )"),
    ("bpe", "model", None, "model.type is None, expected "),
]


@pytest.mark.parametrize(("kind", "path", "value", "message"), UNKNOWN)
def test_what_is_not_done_here_is_named(kind, path, value, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_dict(changed(kind, *path.split(), value=value))


class Mine(Tokenizer):
    split = join = list


SWAPPED = changed("word", "model", "vocab", "<pad>", value=5)
SWAPPED["model"]["vocab"]["ein"] = 0
test_file_of_another_kind_is_refused = refuses(
    (r"added_tokens\[0\].id is 0, expected 1", lambda: Tokenizer.from_dict(SWAPPED)),
    (
        "model.type is 'BPE', expected WordLevel",
        lambda: WordTokenizer.from_dict(TOKENIZERS["bpe"].to_dict()),
    ),
    (
        "pre_tokenizer.pattern.Regex is ",
        lambda: WordTokenizer.from_dict(TOKENIZERS["character"].to_dict()),
    ),
    ("tokenizers of these kinds have a file: Char", lambda: Mine(["a"]).to_dict(), TypeError),
)


def test_entries_left_out_count_as_null():
    state = copy.deepcopy(TOKENIZERS["bpe"].to_dict())
    del state["truncation"], state["model"]["dropout"]
    state["model"]["merges"] = [" ".join(pair) for pair in state["model"]["merges"]]  # until 2024
    assert Tokenizer.from_dict(state).to_dict() == TOKENIZERS["bpe"].to_dict()


def test_differences_are_found_at_any_depth():
    check_same({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}], "c": None})
    with pytest.raises(ValueError, match=r"^file.a\[1\].b is 3, expected 2$"):
        check_same({"a": [1, {"b": 3}]}, {"a": [1, {"b": 2}]}, "file")
    message = r"^a is 'xx.*… \(40,002 characters\), expected None$"
    with pytest.raises(ValueError, match=message) as error:
        check_same({"a": "x" * 40_000}, {})
    assert len(str(error.value)) < 200


def test_a_post_processor_that_adds_nothing_is_as_good_as_none():
    state = changed("word", "post_processor", value=copy.deepcopy(NOTHING_ADDED))
    assert Tokenizer.from_dict(state).to_dict() == TOKENIZERS["word"].to_dict()
    state["post_processor"]["single"].append({"SpecialToken": {"id": "<eos>", "type_id": 0}})
    with pytest.raises(ValueError, match=r"post_processor is {'type': 'TemplateProcessing'"):
        Tokenizer.from_dict(state)


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere.json"):
        Tokenizer.load(tmp_path / "nowhere.json")
    with pytest.raises(FileNotFoundError, match=r"tokenizer.json does not exist: .*nowhere"):
        TOKENIZERS["word"].save(tmp_path / "nowhere" / "tokenizer.json")
    path = tmp_path / "tokenizer.json"
    message = r"tokenizer.json (is damaged or no JSON file: |holds a list, expected an object)"
    for content in (b"", b"{", b"\xff\xfe", b"[1, 2]"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            Tokenizer.load(path)


def test_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "tokenizer.json"
    write_json({"a": "ß"}, path)
    with pytest.raises(TypeError):
        write_json({"a": 1, "b": object()}, path)
    assert read_json(path) == {"a": "ß"}
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]

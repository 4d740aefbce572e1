"""Tokens in a file are the tokens in memory: the same batches, the same weights."""

import os

import pytest
import torch
from helpers import TEXTS
from many import assert_equal_outcome, letters_trainer, outcome

from minitransformer import CharacterTokenizer, LanguageModelTrainer, token_stream
from minitransformer.parallel import (
    ParallelTrainer,
    TokenFile,
    join_processes,
    paragraphs,
    write_tokens,
)

LETTERS = CharacterTokenizer.train(TEXTS)


@pytest.fixture
def folder(tmp_path):
    write_tokens(iter(TEXTS), LETTERS, tmp_path / "tokens")
    return tmp_path / "tokens"


def file_trainer(folder, steps=6, **settings):
    """A trainer of the file, as `letters_trainer` is one of the texts."""
    plain = letters_trainer(steps, **settings)
    file = TokenFile(folder)
    return LanguageModelTrainer(plain.model, file.tokens, file.tokenizer, plain.config)


def test_file_holds_the_stream(folder):
    file = TokenFile(folder)
    assert file.tokens.tolist() == token_stream(TEXTS, LETTERS).tolist()
    assert file.tokenizer.to_dict() == LETTERS.to_dict()
    assert sorted(os.listdir(folder)) == ["about.json", "tokenizer.json", "tokens.bin"]


@pytest.mark.parametrize(("vocab_size", "size"), [(2**16, 2), (2**16 + 1, 4)])
def test_numbers_are_as_small_as_the_vocabulary_allows(tmp_path, vocab_size, size):
    tokenizer = CharacterTokenizer(map(chr, range(0x10000, 0x10000 + vocab_size - 5)))
    last = chr(0x10000 + vocab_size - 6)
    write_tokens([last], tokenizer, tmp_path / "tokens")
    assert (tmp_path / "tokens" / "tokens.bin").stat().st_size == 3 * size
    assert TokenFile(tmp_path / "tokens").tokens.tolist() == [1, vocab_size - 1, 2]


def test_batches_are_those_of_the_texts(folder):
    plain, trainer = letters_trainer(), file_trainer(folder)
    for epoch in (0, 1, 5):
        expected, batches = plain.epoch(epoch), trainer.epoch(epoch)
        assert len(batches) == len(expected) > 2
        assert all(map(torch.equal, batches, expected))


@pytest.mark.slow
def test_weights_are_those_of_the_texts_also_when_stopped(folder, tmp_path):
    plain = letters_trainer()
    plain.fit(progress=False)
    write_tokens([*TEXTS, "d"], LETTERS, tmp_path / "other")
    with join_processes() as processes:
        for step in (4, 6):
            trainer = file_trainer(folder)
            parallel = ParallelTrainer(trainer, processes)
            parallel.fit(step, checkpoint=tmp_path / "to", progress=False)
        assert_equal_outcome(outcome(trainer), outcome(plain))
        other = ParallelTrainer(file_trainer(tmp_path / "other"), processes)
        with pytest.raises(ValueError, match="is of another training: its data is 56 tokens"):
            other.fit(checkpoint=tmp_path / "to", progress=False)


def test_missing_and_damaged_tokens_are_told(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="there are no tokens in"):
        TokenFile(tmp_path)
    path = folder / "tokens.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"tokens\.bin is damaged: its SHA-256 is .*, expected"):
        TokenFile(folder)


def test_nothing_is_written_over_and_no_half_of_a_folder_stays(folder, tmp_path):
    with pytest.raises(FileExistsError, match="is there already"):
        write_tokens(TEXTS, LETTERS, folder)
    with pytest.raises((AttributeError, TypeError)):
        write_tokens(["a", None], LETTERS, tmp_path / "none")
    assert os.listdir(tmp_path) == ["tokens"]


def test_blank_lines_part_texts(tmp_path):
    (tmp_path / "a").write_text("\n\none\n two \n\n \nthree\n")
    (tmp_path / "b").write_text("four")
    assert list(paragraphs([tmp_path / "a", tmp_path / "b"])) == ["one\n two ", "three", "four"]

"""What GPT-2 has beside the laws of all published families."""

import pytest
import torch
from families import pair_of
from helpers import published_words

from minitransformer import TextGenerator, generate


@pytest.fixture
def pair(tmp_path):
    return pair_of("GPT2 LMHeadModel as published", tmp_path)


def test_ended_rows_are_filled_with_what_is_no_token(pair):
    free = generate(pair.ours, pair.given[0], max_new_tokens=6, stop_ids=[])
    stop = int(free[0, 1])
    texts = generate(pair.ours, pair.given[0], max_new_tokens=6, stop_ids=[stop])
    end = free[0].tolist().index(stop) + 1
    assert texts[0].tolist() == [*free[0, :end].tolist(), *[-1] * (texts.size(1) - end)]


def test_every_other_negative_id_is_refused(pair):
    with pytest.raises(ValueError, match="id -100 lies outside the vocabulary of 37"):
        pair.ours(pair.given[0].clone().index_fill_(1, torch.tensor([3]), -100))


def test_complete_writes_with_a_published_tokenizer(pair):
    """No text begins with a token of its own, no row is padded with one."""
    tokenizer = published_words("</s>", words="abcdefgh")
    assert tokenizer.begin("a b c") == [2, 3, 4]
    with torch.no_grad():
        pair.ours.output_projection.weight[10:] = 0.0  # what has no letter is never best
    texts = TextGenerator(pair.ours, tokenizer).complete(["a b c", "d"], max_new_tokens=4)
    for prompt, text in zip(("a b c", "d"), texts, strict=True):
        ids = tokenizer.encode(prompt)
        new = generate(pair.ours, torch.tensor([ids]), max_new_tokens=4, stop_ids=[0])[0].tolist()
        whole = tokenizer.decode([*ids, *(i for i in new if i >= 0)])
        assert text == whole.removeprefix(prompt)


def test_rows_of_the_table_without_a_token_leave_no_trace(pair):
    """Published tables are rounded up: the model may draw an id that no token has."""
    tokenizer = published_words("<s>", "</s>", words="abcd")
    options = {"max_new_tokens": 9, "temperature": 1.0, "stop_ids": ()}
    options["generator"] = torch.Generator().manual_seed(0)
    drawn = generate(pair.ours, torch.full((8, 1), 5), **options)
    assert (drawn >= tokenizer.vocab_size).any()  # so it does
    texts = TextGenerator(pair.ours, tokenizer).complete(["a b"] * 8, **options)
    assert set(" ".join(texts).split()) <= {"?", *"abcd"}

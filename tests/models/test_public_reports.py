"""What people reported of other programs, tried with this one: published models in daily use."""

import dataclasses
import os

import pytest
import torch
import transformers
from helpers import randn
from safetensors.torch import save_file
from torch import nn

import minitransformer as mt
from minitransformer.models import (
    BERT,
    GPT2,
    BERTForSequenceClassification,
    Llama,
    PublishedTokenizer,
    ViT,
)

TEXTS = ["the town lies between two rivers and a hill", "snow is white and cold"] * 9
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A folder with a byte-level tokenizer of 270 tokens."""
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("words")
    bpe = ByteLevelBPETokenizer()
    end = ["<|endoftext|>"]
    bpe.train_from_iterator(TEXTS, vocab_size=270, special_tokens=end, show_progress=False)
    bpe.save(str(folder / "tokenizer.json"))
    return folder


def gpt2(folder, vocab_size=270):
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 32}
    config = transformers.GPT2Config(vocab_size=vocab_size, **shape, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


def test_weights_read_are_laid_out_as_an_optimiser_expects_them(tmp_path):
    """Fused Adam takes a matrix that is stored transposed for another one, without a word."""
    gpt2(tmp_path)
    model = GPT2.from_pretrained(tmp_path)
    assert all(parameter.is_contiguous() for parameter in model.parameters())
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(1, 270, (4, 9))
    mt.next_token_loss(model, ids[:, :-1], ids[:, 1:]).backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        moved, against = parameter.detach() - before[name], -parameter.grad.sign()
        asked = parameter.grad.abs() > 1e-6  # the first step is lr, whatever the gradient
        assert torch.equal(moved.sign()[asked], against[asked]), name


def test_a_model_that_was_read_resumes_as_if_never_stopped(words, tmp_path):
    gpt2(tmp_path)
    tokenizer = PublishedTokenizer.from_pretrained(words)
    config = mt.TrainingConfig(steps=4, warmup_steps=1, batch_size=2, context_length=8)
    straight, stopped = (
        mt.LanguageModelTrainer(GPT2.from_pretrained(tmp_path), TEXTS, tokenizer, config)
        for _ in range(2)
    )
    straight.fit(progress=False)
    stopped.fit(2, progress=False)
    stopped.save(tmp_path / "c.safetensors")
    resumed = mt.LanguageModelTrainer.resume(tmp_path / "c.safetensors", TEXTS)
    resumed.fit(progress=False)
    for (name, ours), other in zip(
        straight.model.named_parameters(), resumed.model.parameters(), strict=True
    ):
        assert torch.equal(ours, other), name


def test_one_file_counts_for_more_than_shards_that_lie_there_still(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=100, num_hidden_layers=2, **SIZES)
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.tensor([[5, 6, 7]])
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * randn(*parameter.shape))
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    found = Llama.from_pretrained(tmp_path)(ids)
    assert torch.allclose(found, model(ids).logits, atol=1e-5)


def test_rows_of_the_table_without_a_token_leave_no_trace(words, tmp_path):
    """Published tables are rounded up: the model may draw an id that no token has."""
    gpt2(tmp_path, vocab_size=288)
    model, tokenizer = GPT2.from_pretrained(tmp_path), PublishedTokenizer.from_pretrained(words)
    g = torch.Generator().manual_seed(0)
    options = {"max_new_tokens": 20, "temperature": 1.0, "generator": g, "stop_ids": ()}
    drawn = mt.generate(model, torch.full((8, 1), 5), **options)
    assert (drawn >= tokenizer.vocab_size).any()  # so it does
    assert len(mt.TextGenerator(model, tokenizer).complete(["the town"] * 8, **options)) == 8


@pytest.mark.parametrize("kind", ["vit", "bert"])
def test_a_classifier_of_other_classes_is_saved_and_read(tmp_path, kind):
    sizes = SIZES | {"num_hidden_layers": 1, "num_labels": 5}
    if kind == "vit":
        config = transformers.ViTConfig(**sizes, image_size=16, patch_size=4)
        transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
        model = ViT.from_pretrained(tmp_path)
        model.head = nn.Linear(16, 3)
        model.config = dataclasses.replace(model.config, num_classes=3)
    else:
        config = transformers.BertConfig(**sizes, vocab_size=50)
        transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
        model = BERTForSequenceClassification.from_pretrained(tmp_path)
        model.classifier = nn.Linear(16, 3)
        model.config = dataclasses.replace(model.config, num_labels=3)
    model.save_pretrained(tmp_path / "new")
    again = type(model).from_pretrained(tmp_path / "new")
    head = "head.weight" if kind == "vit" else "classifier.weight"
    assert torch.equal(again.get_parameter(head), model.get_parameter(head))
    assert transformers.AutoConfig.from_pretrained(tmp_path / "new").num_labels == 3


def test_a_tokenizer_in_a_used_folder_is_the_one_that_is_read(words, tmp_path):
    used = tmp_path / "used"
    PublishedTokenizer.from_pretrained(words).save_pretrained(used)
    model = {"type": "WordLevel", "vocab": {"?": 0, "the": 1}, "unk_token": "?"}
    PublishedTokenizer.from_dict({"model": model}).save_pretrained(used)
    assert PublishedTokenizer.from_pretrained(used).encode("the") == [1]
    assert sorted(os.listdir(used)) == ["tokenizer.json"]


def test_an_encoder_is_the_beginning_of_a_classifier(tmp_path):
    """One that was published without a head names the way; what it computes stays."""
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20}
    config = transformers.BertConfig(vocab_size=30, num_hidden_layers=1, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="BertModel has no head for BERTForSequenceClassificat"):
        BERTForSequenceClassification.from_pretrained(tmp_path)
    encoder = BERT.from_pretrained(tmp_path)
    model = BERTForSequenceClassification(encoder.config).eval()
    named = model.load_state_dict(encoder.state_dict(), strict=False)
    assert (named.missing_keys, named.unexpected_keys) == (
        ["classifier.weight", "classifier.bias"],
        [],
    )
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(model.encode(ids), encoder.encode(ids))

"""The law of exported graphs: they compute what the model computes, read in steps of any lengths.

A runner is a function from a graph's name and its inputs, as tensors, to its outputs: for PyTorch's
programs, for ONNX Runtime's sessions, and for the modules before they are traced. Texts are written
with it as the page "Use it" does.
"""

import torch
from configurations import PROMPT_IDS, PROMPTS, SRC_IDS, TGT_IDS, without_ends
from helpers import assert_same

import minitransformer as mt

BOS, EOS = 1, 2
CHUNKS = ([6], [1] * 6, [2, 1, 3])


def empty_past(model, rows):
    """A past of no position yet, (2, N, b, h, 0, e)."""
    attention = model.decoder.layers[0].self_attention
    sizes = (2, len(model.decoder.layers), rows, attention.num_kv_heads, 0, attention.d_k)
    return torch.zeros(sizes)


def logits_in_chunks(run, model, ids, sources, chunks):
    """Logits of all positions of ids, (b, t, v), read in steps of these lengths."""
    name, fixed = "decoder_only", (torch.zeros(len(ids), dtype=torch.int64),)
    if sources is not None:
        name, fixed = "decoder", tuple(run("encoder", sources))
    past, found = empty_past(model, len(ids)), []
    for part in ids.split(chunks, dim=1):
        logits, past = run(name, part, past, *fixed)
        found.append(logits)
    return torch.cat(found, dim=1)


def written(run, model, ids, max_new_tokens, padding=None):
    """New tokens, greedily: a target for each source, or what follows prompts that end together."""
    past = empty_past(model, len(ids))
    if model.config.num_encoder_layers:
        name, fixed = "decoder", tuple(run("encoder", ids))
        ids = torch.full((len(ids), 1), BOS)
    else:
        name, fixed = "decoder_only", (padding,)
    texts = [[] for _ in ids]
    for _ in range(max_new_tokens):
        logits, past = run(name, ids, past, *fixed)
        scores = logits[:, -1].clone()
        scores[:, max(model.config.pad_id, 0)] = -torch.inf  # as `generate`, which never writes it
        ids = scores.argmax(dim=-1, keepdim=True)
        for text, token in zip(texts, ids[:, 0].tolist(), strict=True):
            text.append(token)
    return [text[: text.index(EOS)] if EOS in text else text for text in texts]


@torch.inference_mode()
def assert_same_logits(run, model, chunks=CHUNKS, ids=TGT_IDS, bound=1e-5):
    """In steps of each of these lengths, and a row alone, without its padding."""
    sources = SRC_IDS if model.config.num_encoder_layers else None
    expected = model(ids) if sources is None else model(sources, ids)
    for lengths in chunks:
        assert_same(logits_in_chunks(run, model, ids, sources, lengths), expected, bound)
    if sources is not None:
        one = logits_in_chunks(run, model, ids[2:3], sources[2:3, :2], [6])
        assert_same(one, expected[2:3], bound)


@torch.inference_mode()
def assert_same_texts(run, model):
    """What `generate` writes; of two tokens that score the same, either."""
    if model.config.num_encoder_layers:
        ours = mt.generate(model, SRC_IDS, max_new_tokens=8)
        read = torch.cat([torch.full((len(ours), 1), BOS), ours[:, :-1]], dim=1)
        scores = logits_in_chunks(run, model, read, SRC_IDS, [1] * ours.size(1))
        chosen = scores.gather(-1, ours[..., None])[..., 0]
        best = scores[..., 1:].amax(dim=-1)  # but for padding, which is never written
        assert ((chosen > best - 1e-4) | (ours == 0)).all()
    else:
        ours = mt.generate(model, PROMPT_IDS, max_new_tokens=8)
        padding = torch.tensor([5 - len(row) for row in PROMPTS])
        left = torch.tensor([[0] * (5 - len(row)) + row for row in PROMPTS])
        assert written(run, model, left, 8, padding) == without_ends(ours)

"""Writing with exported graphs, as the page "Use it" does: for PyTorch's and ONNX Runtime's alike.

A runner is a function from a graph's name and its inputs, as tensors, to its outputs.
"""

import torch

BOS, EOS = 1, 2


def empty_past(model, rows):
    """A past of no position yet, (2, N, b, h, 0, e)."""
    attention = model.decoder.layers[0].self_attention
    sizes = (2, len(model.decoder.layers), rows, attention.num_kv_heads, 0, attention.d_k)
    return torch.zeros(sizes)


def logits_in_chunks(run, model, ids, sources, chunks, padding=None):
    """Logits of all positions of ids, (b, t, v), read in steps of these lengths."""
    name, fixed = "decoder", ()
    if sources is None:
        none = torch.zeros(len(ids), dtype=torch.int64)
        name, fixed = "decoder_only", (none if padding is None else padding,)
    else:
        fixed = tuple(run("encoder", sources))
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

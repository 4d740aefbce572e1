"""Right answers to the exercises of chapter 10, written differently from the solutions."""

import math

import numpy as np
import torch

BOS, EOS = 1, 2

# Changes of these answers that change nothing.
SAME = {
    "a_small_model_drafts_1: line +1",
    "a_small_model_drafts_1: line 3",
    "a_small_model_drafts_1: line 5",
    "a_small_model_drafts_2: line 3",
    "a_small_model_drafts_2: line 5",
    "temperature_and_entropy_1: line -1",
    "temperature_and_entropy_2: line -1",
    "temperature_and_entropy_2: line 20000",
    "temperature_and_entropy_2: line 20002",
    "temperature_and_entropy_2: line 4",
    "temperature_and_entropy_2: line 6",
    "temperature_and_entropy_2: line np.linspace(5, -5, 20001)",
    "temperature_and_entropy_2: line np.maximum(1e-300, p / p.sum(1, keepdims=True))",
    "a_small_model_drafts_1: line -1",
    "a_small_model_drafts_2: line -1",
    "drafts_for_sampling_1: line np.minimum(q.numpy() / p.numpy(), 1)",
    "drafts_for_sampling_1: line np.maximum(q.numpy() - p.numpy(), 0)",
    "drafts_for_sampling_2: line max(b - a, 0.0)",
    "drafts_for_sampling_2: line b > a",
    "temperature_and_entropy_1: line 1001.0",
    "temperature_and_entropy_1: line 999.0",
    "temperature_and_entropy_1: line 51",
    "temperature_and_entropy_1: line 49",
    "temperature_and_entropy_1: line torch.special.entr(p).sum() / math.log(2) <= bits",
}


def how_much_room_1(config, b, n, s):
    head = config.d_model // config.num_heads
    a_position = 2 * head * (config.num_kv_heads or config.num_heads)
    return config.num_decoder_layers * b * (n * a_position + s * a_position)


def how_much_room_2(config, b, n, s):
    heads = config.num_heads if config.num_kv_heads is None else config.num_kv_heads
    shapes = [(b, heads, length, config.d_model // config.num_heads) for length in (n, n, s, s)]
    return sum(math.prod(shape) for shape in shapes * config.num_decoder_layers)


def temperature_and_entropy_1(logits, bits):
    low, high = 1e-3, 1e3
    for _ in range(50):
        middle = math.sqrt(low * high)
        p = (logits.double() / middle).softmax(0)
        if torch.special.entr(p).sum() / math.log(2) < bits:
            low = middle
        else:
            high = middle
    return high


def temperature_and_entropy_2(logits, bits):
    temperatures = np.exp(np.linspace(-5, 5, 20_001))[:, None]
    z = logits.double().numpy() / temperatures
    p = np.exp(z - z.max(1, keepdims=True))
    p = np.maximum(p / p.sum(1, keepdims=True), 1e-300)
    return float(temperatures[np.argmin(np.abs(-(p * np.log2(p)).sum(1) - bits)), 0])


def min_p_1(logits, m):
    likely = logits - logits.amax(-1, keepdim=True) >= math.log(m)
    return logits.where(likely, torch.tensor(-math.inf))


def min_p_2(logits, m):
    if logits.dim() > 1:
        return torch.stack([min_p_2(row, m) for row in logits])
    best = max(logits.tolist())
    return torch.tensor([z if math.exp(z - best) >= m else -math.inf for z in logits.tolist()])


def a_small_model_drafts_1(large, small_one, src, longest, draft_length=4):
    text, passes = [], 0
    while len(text) < longest and EOS not in text:
        draft = []
        for _ in range(draft_length):
            scores = small_one(src, torch.tensor([[BOS, *text, *draft]]))
            draft.append(int(scores[0, -1].argmax()))
        choices = large(src, torch.tensor([[BOS, *text, *draft]]))[0, len(text) :].argmax(-1)
        differ = [n for n, token in enumerate(draft) if token != choices[n]]
        agreed = differ[0] if differ else len(draft)
        text = text + choices[: agreed + 1].tolist()
        passes += 1
    if EOS in text:
        text = text[: text.index(EOS) + 1]
    return text[:longest], passes


def a_small_model_drafts_2(large, small_one, src, longest, draft_length=4):
    ids, passes, written = torch.tensor([[BOS]]), 0, 0
    while written < longest and ids[0, -1] != EOS:
        draft = ids
        for _ in range(draft_length):
            token = small_one(src, draft)[:, -1:].argmax(-1)
            draft = torch.cat([draft, token], 1)
        choices = large(src, draft).argmax(-1)[:, written:]
        agree = (choices[:, :-1] == draft[:, written + 1 :]).int().cumprod(1).sum()
        new = choices[:, : agree + 1]
        if (new == EOS).any():
            new = new[:, : int((new == EOS).int().argmax()) + 1]
        ids, passes = torch.cat([ids, new], 1), passes + 1
        written = ids.size(1) - 1
    return [ids[0, 1 : longest + 1], passes]


def drafts_for_sampling_1(p, q):
    keep = np.minimum(1, q.numpy() / p.numpy())
    left = np.maximum(0, q.numpy() - p.numpy())
    return keep, left / left.sum()


def drafts_for_sampling_2(p, q):
    keep = [1.0 if b >= a else b / a for a, b in zip(p.tolist(), q.tolist(), strict=True)]
    left = [max(0.0, b - a) for a, b in zip(p.tolist(), q.tolist(), strict=True)]
    return [keep, [x / sum(left) for x in left]]

"""Right answers to the exercises of chapter 8, written differently from the solutions."""

import numpy as np
import torch

# Changes of these answers that change nothing.
SAME = {
    "count_any_model_2: line -1",
    "the_other_order_1: line layer.self_attention(x, x, x, tgt_mask)",
    "the_other_order_2: line layer.self_attention(y, y, y, tgt_mask)",
    "who_can_influence_whom_2: line -1",
}


def count_any_model_1(config):
    d, f = config.d_model, config.d_ff
    attention = 4 * d * (d + config.attention_bias)
    layer = attention + d * f + f + f * d + d + 2 * d + 2 * d
    total = config.num_encoder_layers * layer
    total += config.num_decoder_layers * (layer + attention + 2 * d)
    tables = config.tgt_vocab_size * (2 - config.tie_output)
    tables += 0 if config.share_embeddings else config.src_vocab_size
    return total + tables * d + 4 * d * config.norm_first


def count_any_model_2(config):
    d, f = config.d_model, config.d_ff
    shapes = []
    for norms, layers in ((2, config.num_encoder_layers), (3, config.num_decoder_layers)):
        attention = [(d, d)] * 4 + [(d,)] * (4 if config.attention_bias else 0)
        feed_forward = [(d, f), (f,), (f, d), (d,)]
        shapes += (attention * (norms - 1) + feed_forward + [(2, d)] * norms) * layers
    if config.norm_first:
        shapes += [(d,)] * 4
    shapes += [(config.tgt_vocab_size, d)] * (1 if config.tie_output else 2)
    if not config.share_embeddings:
        shapes += [(config.src_vocab_size, d)]
    return sum(int(np.prod(shape)) for shape in shapes)


def the_memory_is_a_set_1(model, src_ids, tgt_ids, order):
    memory, mask = model.encode(src_ids)
    memory, mask = memory.index_select(1, order), mask.index_select(-1, order)
    return memory, mask, model.decode(tgt_ids, memory, mask)


def the_memory_is_a_set_2(model, src_ids, tgt_ids, order):
    with torch.no_grad():
        memory, mask = model.encode(src_ids)
        memory[:] = memory[:, order]
        mask = mask[:, :, :, order]
        return [memory.numpy(), mask.numpy(), model.decode(tgt_ids, memory, mask).numpy()]


def who_can_influence_whom_1(f, x):
    jacobian = torch.autograd.functional.jacobian(f, x)
    return jacobian.abs().amax((0, 2, 3, 5)) > 0


def who_can_influence_whom_2(f, x):
    rows = []
    for i in range(f(x).shape[1]):
        leaf = x.clone().requires_grad_()
        f(leaf)[0, i].square().sum().backward()
        rows.append([bool(g.ne(0).any()) for g in leaf.grad[0]])
    return rows


def one_stack_does_both_1(s, t):
    rows = [[1] * s + [0] * t for _ in range(s)]
    return rows + [[1] * (s + i + 1) + [0] * (t - i - 1) for i in range(t)]


def one_stack_does_both_2(s, t):
    mask = np.tril(np.ones((s + t, s + t), dtype=bool))
    return mask | (np.arange(s + t) < s)


def the_other_order_1(layer, tgt, memory, tgt_mask, memory_mask):
    x = layer.residual_2(tgt, lambda x: layer.cross_attention(x, memory, memory, memory_mask))
    x = layer.residual_1(x, lambda x: layer.self_attention(x, x, x, tgt_mask))
    return layer.residual_3(x, layer.feed_forward)


def the_other_order_2(layer, tgt, memory, tgt_mask, memory_mask):
    before = layer.residual_1.norm_first

    def read(norm, x):
        return norm(x) if before else x

    def write(norm, x, y):
        return x + y if before else norm(x + y)

    one, two, three = layer.residual_1.norm, layer.residual_2.norm, layer.residual_3.norm
    x = write(two, tgt, layer.cross_attention(read(two, tgt), memory, memory, memory_mask))
    y = read(one, x)
    x = write(one, x, layer.self_attention(y, y, y, tgt_mask))
    return write(three, x, layer.feed_forward(read(three, x)))

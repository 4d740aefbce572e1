"""What is counted is what lives at the same time, and nothing that was there before."""

import torch

from minitransformer.efficient_attention import PeakMemory


def test_only_what_lives_together_adds_up():
    with PeakMemory() as memory:
        for _ in range(3):
            x = torch.zeros(100, dtype=torch.float64)  # while it is made, the last one lives
        del x
    assert (memory.peak, memory.now) == (1600, 0)


def test_views_take_nothing_and_what_was_there_is_not_counted():
    before = torch.zeros(1000)
    with PeakMemory() as memory:
        view = before.view(10, 100).T
        row = view[:, :5] + 1
    assert (memory.peak, memory.now, memory.largest) == (2000, 2000, 1000)
    assert row.shape == (100, 5)


def test_what_waits_for_the_backward_pass_is_counted():
    x = torch.ones(50, requires_grad=True)
    with PeakMemory() as memory:
        y = x.exp().exp()
        assert memory.now == 400
        y.sum().backward()
    assert memory.peak >= 600

"""Exercises that answer back: each chapter's tasks, checked by what they do.

    from minitransformer.exercises import check

    check.attention.sliding_window(window_mask)      what is wrong, in words, or that it is right
    check.attention.sliding_window.hint()            one hint more at each call
    check.progress()                                 what has been solved in this folder

A check prints and raises nothing, so that a notebook goes on.
"""

from minitransformer.exercises.checking import check

__all__ = ["check"]

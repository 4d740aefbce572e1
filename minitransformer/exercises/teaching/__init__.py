"""For those who teach with the book: exercises as notebooks without solutions, and grading."""

from minitransformer.exercises.teaching.grading import GRADED, grade, write_csv
from minitransformer.exercises.teaching.handouts import write_handouts

__all__ = ["GRADED", "grade", "write_csv", "write_handouts"]

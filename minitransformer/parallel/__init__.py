"""Training on many processes, on one machine or several: PyTorch's engine under our trainers.

`torchrun --nproc-per-node 2 -m minitransformer train` starts two. What the plain `Trainer` says
stays true: the same batches, the same loss, the same weights at the end, to rounding; stopped and
started again, it loses nothing but the steps since its last checkpoint.
"""

from minitransformer.parallel.checkpoints import gather
from minitransformer.parallel.processes import Processes, join_processes
from minitransformer.parallel.token_file import TokenFile, paragraphs, write_tokens
from minitransformer.parallel.trainer import ParallelTrainer

__all__ = [
    "ParallelTrainer",
    "Processes",
    "TokenFile",
    "gather",
    "join_processes",
    "paragraphs",
    "write_tokens",
]

"""Training on many processes, on one machine or several: PyTorch's engine under our trainers.

`torchrun --nproc-per-node 2 -m minitransformer train` starts two. What the plain `Trainer` says
stays true: the same batches, the same loss, the same weights at the end, to rounding; stopped and
started again, it loses nothing but the steps since its last checkpoint.

| module | what it does |
| --- | --- |
| `processes` | joins the processes, and notices that one is silent |
| `layers` | shares layers out among them (FSDP2), computes them again, compiles them |
| `checkpoints` | saves and loads them, each process its share |
| `trainer` | trains: parts of batches, one loss |
| `token_file` | texts that do not fit into memory |
"""

from minitransformer.parallel.checkpoints import gather
from minitransformer.parallel.processes import Processes, join_processes
from minitransformer.parallel.token_file import (
    TokenFile,
    paragraphs,
    write_tokens,
)
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

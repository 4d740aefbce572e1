"""What a model does while it runs: attention maps, shapes of tensors (chapters 4 and 8)."""

from minitransformer.inspection.record import *

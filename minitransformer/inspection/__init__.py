"""What a model does while it runs: shapes, attention, activations, interventions (ch. 4, 8, 19)."""

from minitransformer.inspection.activations import *
from minitransformer.inspection.readout import *
from minitransformer.inspection.record import *

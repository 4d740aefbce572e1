"""What to check when a model does not learn (chapter 17)."""

from minitransformer.diagnosis.diagnose import Diagnosis, Finding, diagnose
from minitransformer.diagnosis.faults import FAULTY_BATCHES, FAULTY_LOSSES, FAULTY_MODELS
from minitransformer.diagnosis.laws import LAWS, Case, Found, change

__all__ = [
    "FAULTY_BATCHES",
    "FAULTY_LOSSES",
    "FAULTY_MODELS",
    "LAWS",
    "Case",
    "Diagnosis",
    "Finding",
    "Found",
    "change",
    "diagnose",
]

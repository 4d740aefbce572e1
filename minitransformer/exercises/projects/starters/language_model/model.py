"""A language model of bytes. Train it on train.txt, save it beside this file, and load it here."""

from torch import Tensor

SECONDS = None  # how long your training took, on two cores


def log_probabilities(text: Tensor) -> Tensor:
    """Log-probabilities of each byte, given those before it in its row.

    Args:
        text: bytes, (b, n), with n up to 256.

    Returns:
        (b, n, 256). Position i is the prediction of byte i, so position 0 has seen nothing.
    """

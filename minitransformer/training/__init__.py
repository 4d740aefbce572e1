"""Data, loss, optimisers and the loop that trains a model (chapter 9)."""

from minitransformer.training.answers import AnswerTrainer, collate_answers, encode_answer
from minitransformer.training.callbacks import (
    BalanceExperts,
    Callback,
    Checkpoint,
    EarlyStopping,
    Evaluate,
)
from minitransformer.training.checkpoint import Resumable, load_checkpoint, save_checkpoint
from minitransformer.training.config import TrainingConfig
from minitransformer.training.data import (
    Batch,
    Example,
    TextPair,
    collate,
    encode_pairs,
    epoch_batches,
    in_parts,
    token_batches,
    token_stream,
)
from minitransformer.training.language_model import LanguageModelTrainer, stream_batches
from minitransformer.training.loss import (
    label_smoothing_loss,
    linear_cross_entropy,
    next_token_loss,
)
from minitransformer.training.optimizers import Muon, ParameterRule, new_optimizer, parameter_rules
from minitransformer.training.preferences import (
    dpo_loss,
    group_advantages,
    grpo_loss,
    grpo_step,
    sample_answers,
    sequence_log_probs,
    token_log_probs,
)
from minitransformer.training.schedules import cosine_schedule, linear_schedule, noam_schedule
from minitransformer.training.trainer import Trainer
from minitransformer.training.translator import TextGenerator, TextModel, Translator

# fmt: off
__all__ = [
    "AnswerTrainer", "BalanceExperts", "Batch", "Callback", "Checkpoint", "EarlyStopping",
    "Evaluate", "Example", "LanguageModelTrainer", "Muon", "ParameterRule", "Resumable",
    "TextGenerator", "TextModel", "TextPair", "Trainer", "TrainingConfig", "Translator", "collate",
    "collate_answers", "cosine_schedule", "dpo_loss", "encode_answer", "encode_pairs",
    "epoch_batches", "group_advantages", "grpo_loss", "grpo_step", "in_parts",
    "label_smoothing_loss", "linear_cross_entropy", "linear_schedule", "load_checkpoint",
    "new_optimizer", "next_token_loss", "noam_schedule", "parameter_rules", "sample_answers",
    "save_checkpoint", "sequence_log_probs", "stream_batches", "token_batches", "token_log_probs",
    "token_stream",
]

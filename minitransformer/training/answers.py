"""Supervised fine-tuning: a decoder-only model learns to answer, with the loss on answers alone.

Built in chapter 12, on the page about answers. Paper: Ouyang et al. (2022), section 3.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from minitransformer.models.transformer import DecoderOnlyTransformer
from minitransformer.tokenization.tokenizer import Tokenizer, pad_rows
from minitransformer.training.config import TrainingConfig
from minitransformer.training.data import Example, as_pairs, check_lengths
from minitransformer.training.loss import next_token_loss
from minitransformer.training.trainer import Trainer

__all__ = ["AnswerTrainer", "collate_answers", "encode_answer"]


def encode_answer(prompt: Sequence[int], answer: Sequence[int]) -> Example:
    """A prompt and its answer in one row, for a decoder-only model.

    `src` is all that the model reads: the row without its last token. `tgt` is the answer, from the
    token before it on, as a target of a translation begins with a token that is only read.

    Raises:
        ValueError: if the prompt or the answer is empty.

    Example:
        >>> encode_answer([1, 7, 8], [20, 21, 2])
        Example(src=[1, 7, 8, 20, 21], tgt=[8, 20, 21, 2])
    """
    if not prompt or not answer:
        raise ValueError(
            "prompt and answer must have at least 1 token, "
            f"got {len(prompt)} and {len(answer)} tokens"
        )
    return Example([*prompt, *answer][:-1], [prompt[-1], *answer])


def collate_answers(examples: Sequence[Example], pad_id: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of prompts with their answers, and targets that are padding until the answer begins.

    Returns:
        What is read and what is to be predicted, both (b, t), int64. Every loss of the package
        leaves padding out, so the prompt is read and not learned.

    Raises:
        ValueError: if there are no examples.

    Example:
        >>> ids, targets = collate_answers([encode_answer([1, 7, 8], [20, 21, 2])])
        >>> ids.tolist(), targets.tolist()
        ([[1, 7, 8, 20, 21]], [[0, 0, 20, 21, 2]])
    """
    ids = pad_rows([example.src for example in examples], pad_id)  # (b, t)
    answers = (example.tgt[1:] for example in examples)
    rows = zip(examples, answers, strict=True)
    return ids, pad_rows([[pad_id] * (len(e.src) - len(a)) + a for e, a in rows], pad_id)


class AnswerTrainer(Trainer):
    """Trains a `DecoderOnlyTransformer` to answer: supervised fine-tuning on pairs of texts.

    It is a `Trainer` whose rows hold a question and its answer, with the loss on the answer's
    tokens and its end.

    Raises:
        TypeError: if a pair is not two texts.
        ValueError: if there are no pairs, or a pair or the tokenizer does not fit the model.

    Example:
        >>> from minitransformer import CharacterTokenizer, TransformerConfig
        >>> letters = CharacterTokenizer.train(["1+2=3"])
        >>> config = TransformerConfig.decoder_only(letters.vocab_size, d_model=8, num_heads=2)
        >>> model, config = DecoderOnlyTransformer(config), TrainingConfig(steps=3, warmup_steps=1)
        >>> trainer = AnswerTrainer(model, [("1+2=", "3"), ("1+1=", "2")], letters, config)
        >>> [row["step"] for row in trainer.fit(progress=False)]
        [1, 2, 3]

    Paper: Ouyang et al. (2022), section 3.4.
    """

    default_smoothing = 0.0

    def __init__(
        self,
        model: DecoderOnlyTransformer,
        pairs: Iterable[tuple[str, str]],
        tokenizer: Tokenizer,
        config: TrainingConfig,
    ) -> None:
        pairs = as_pairs(pairs)
        self.set_up(model, pairs, {"text": tokenizer}, config)
        self.examples = [
            encode_answer(tokenizer.begin(question), tokenizer.sequence_ids(answer))
            for question, answer in pairs
        ]
        check_lengths(pairs, self.examples, model.max_len)
        self.epoch(0)  # fail now if an example does not fit into a batch

    def loss(self, batch: Any) -> Tensor:
        """The loss of a batch, on its answers."""
        pad_id = self.model.config.pad_id
        ids, targets = (part.to(self.device) for part in collate_answers(batch, pad_id))
        return next_token_loss(self.model, ids, targets, smoothing=self.smoothing)

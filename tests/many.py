"""Starting several processes that train one model, and what they train."""

import gc
import multiprocessing
import os
import pickle
import secrets
import socket
import time
import traceback
import warnings
from contextlib import suppress
from functools import partialmethod
from tempfile import TemporaryDirectory

import pytest
import torch
from helpers import TEXTS, assert_same, copying_trainer

from minitransformer import (
    CharacterTokenizer,
    DecoderOnlyTransformer,
    LanguageModelTrainer,
    TrainingConfig,
    TransformerConfig,
)
from minitransformer.parallel import (
    ParallelTrainer,
    TokenFile,
    join_processes,
    write_tokens,
)
from minitransformer.parallel.layers import OLDEST_TORCH, full

LIMIT = 600  # seconds; whatever takes longer hangs, on a machine with much else to do as well
NEEDS_FSDP = pytest.mark.skipif(
    torch.__version__ < OLDEST_TORCH, reason=f"PyTorch {torch.__version__} has no FSDP2 for all"
)
COMPILE = torch.nn.Module.compile
CONTEXT = multiprocessing.get_context("forkserver")
SERVER_HAS = ["minitransformer.__main__", "pytest", "fsspec", "torch._dynamo"]
SERVER_HAS += ["torch.distributed.checkpoint", "torch.distributed.fsdp"]
CONTEXT.set_forkserver_preload(SERVER_HAS)  # this folder's modules it does not find


def free_port():
    """A port of this machine that nobody listens to, and below those that connections are given."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def together(count, function, *arguments, errors=False, wanted=None):
    """What the function returns in each of `count` processes, which find each other.

    An error of one is raised here, or stands among the results if `errors` are asked for; that of
    one that was killed is an EOFError. Only the first `wanted` are waited for, if that is given.
    """
    port, ends, started = free_port(), [], []
    for rank in range(count):
        here, there = CONTEXT.Pipe(duplex=False)
        job = (there, rank, count, port, function, arguments)
        process = CONTEXT.Process(target=in_a_process, args=job, daemon=True)
        process.start()
        there.close()
        ends.append(here)
        started.append(process)
    deadline = time.monotonic() + LIMIT
    try:
        results = []
        for rank, end in enumerate(ends[:wanted]):
            if not end.poll(max(0, deadline - time.monotonic())):
                raise TimeoutError(f"process {rank} of {count} took more than {LIMIT} s")
            try:
                results.append(pickle.loads(end.recv_bytes()))
            except EOFError as error:
                results.append(error)
    finally:
        for process in started:
            process.kill()
            process.join()
    for result in results:
        if isinstance(result, BaseException) and not errors:
            raise result
    return results


def in_a_process(end, rank, count, port, function, arguments):
    """The life of one of them."""
    gc.freeze()  # what the server has imported need not be looked through again and again
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    try:
        result = function(*arguments)
    except (Exception, KeyboardInterrupt) as error:
        error.add_note(traceback.format_exc())
        result = error
    end.send_bytes(pickle.dumps(result))  # not `send`: a tensor's memory ends with its process
    time.sleep(LIMIT)  # the first one's store serves the others until they have what they need


def letters_trainer(steps=6, *, dropout=0.3, **settings):
    """A language model's trainer; its last batch of an epoch has a row less."""
    tokenizer = CharacterTokenizer.train(TEXTS)
    sizes = {"num_layers": 2, "d_model": 12, "num_heads": 3, "d_ff": 20, "dropout": dropout}
    config = TransformerConfig.decoder_only(tokenizer.vocab_size, **sizes, norm_first=True)
    model = DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
    settings = {"batch_size": 3, "warmup_steps": 2, "context_length": 5, "seed": 5} | settings
    return LanguageModelTrainer(model, TEXTS, tokenizer, TrainingConfig(steps=steps, **settings))


def tokens_trainer(*arguments, **options):
    """The same trainer, whose texts are tokens in a file."""
    plain = letters_trainer(*arguments, **options)
    with TemporaryDirectory() as folder:
        write_tokens(TEXTS, plain.tokenizers["text"], f"{folder}/tokens")
        file = TokenFile(f"{folder}/tokens")
        return LanguageModelTrainer(plain.model, file.tokens, file.tokenizer, plain.config)


TRAINERS = {"copying": copying_trainer, "letters": letters_trainer, "tokens": tokens_trainer}


def outcome(trainer):
    """The history and the whole weights of a trainer."""
    named = trainer.model.named_parameters()
    return trainer.history, {name: full(p.detach()).clone() for name, p in named}


def train(processes, kind, options, engine, *, trouble=None, fit=None, **how):
    """Train in this process and the others, with some trouble; what came out."""
    trainer = TRAINERS[kind](**options)
    if how.get("compiled"):  # traced only: generating code takes three times as long
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        torch.nn.Module.compile = partialmethod(COMPILE, backend="aot_eager")
    parallel = ParallelTrainer(trainer, processes, engine, **how)
    if trouble is not None:
        trouble(trainer, processes)
    parallel.fit(progress=False, **(fit or {}))
    return outcome(trainer)


def train_all(cases, time_limit=LIMIT):
    """One run after the other: starting processes takes longer than these do."""
    with join_processes(time_limit=time_limit) as processes:
        return {name: train(processes, *case[:3], **case[3]) for name, case in cases.items()}


def train_one(kind, options, engine, how, time_limit=LIMIT):
    """A single run."""
    return train_all({"": (kind, options, engine, how)}, time_limit)[""]


def assert_same_outcome(found, expected, bound):
    """The same history, and the same weights but for rounding.

    The biases of keys are left out: softmax does not see them, so that their gradient is nothing
    but rounding, of which Adam makes steps as large as any.
    """
    (history, weights), (other_history, other_weights) = found, expected
    assert [row["step"] for row in history] == [row["step"] for row in other_history]
    for row, other in zip(history, other_history, strict=True):
        assert row == pytest.approx(other, rel=10 * bound)
    assert weights.keys() == other_weights.keys()
    for name, weight in weights.items():
        if not name.endswith("w_k.bias"):
            assert_same(weight, other_weights[name], bound)


def assert_equal_outcome(found, expected):
    """The same history and weights, to the last bit."""
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    for name, weight in found[1].items():
        assert torch.equal(weight, expected[1][name]), name

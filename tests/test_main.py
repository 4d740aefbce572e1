"""The command line trains, uses, exports and plans; bad input is answered with one line."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from threading import Thread
from unittest.mock import Mock

import pytest
import torch
from helpers import SMALL_JOB, TEXTS, copying_trainer, published_words

import minitransformer as mt
import minitransformer.__main__ as command_line
from minitransformer import TextGenerator, TrainingConfig, models, parallel
from minitransformer.__main__ import main
from minitransformer.export.folder import export_folder, exportable
from minitransformer.tasks import recipes
from minitransformer.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.slow

CPU = ["--device", "cpu"]


@pytest.fixture
def small_job(monkeypatch):
    """The main job with a few letters instead of numbers, and a model to match."""
    monkeypatch.setitem(command_line.JOBS, "number-words", SMALL_JOB)


def run(capsys, *arguments):
    """Run a command that must not fail; return what it printed."""
    main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def fails(capsys, *arguments):
    """Run a command that must fail with status 1 and one line; return that line."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert printed.out == ""
    message = caught.value.code  # Python prints a string and exits with status 1
    assert isinstance(message, str)
    assert message.startswith("minitransformer: ")
    assert "\n" not in message
    return message


# --- every command takes every checkpoint and folder, or says in a line why not

WORDS = mt.WordTokenizer.train(TEXTS)
THEIRS = published_words("<pad>", "</s>")
SIZES = {"vocab_size": WORDS.vocab_size, "d_model": 12, "num_heads": 3}
GPT2 = models.GPT2Config(**SIZES, num_layers=1, max_len=32)
T5 = models.T5Config(**SIZES, num_encoder_layers=1, d_ff=20)
BERT = models.BERTConfig(**SIZES, num_layers=1, d_ff=20, max_len=32)


def writer():
    letters = mt.CharacterTokenizer.train(TEXTS)
    sizes = {"d_model": 12, "num_heads": 3, "num_layers": 1, "d_ff": 20, "norm_first": True}
    config = mt.TransformerConfig.decoder_only(letters.vocab_size, **sizes)
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
    settings = TrainingConfig(steps=2, warmup_steps=1, context_length=3)
    return mt.LanguageModelTrainer(model, TEXTS, letters, settings)


def save(kind, path):
    """Write a checkpoint or a folder of this kind."""
    name, _, how = kind.partition(" ")
    if name in ("translator", "writer"):
        trainer = copying_trainer() if name == "translator" else writer()
        (trainer if how == "checkpoint" else trainer.trained()).save(path)
    elif name == "untokenized":
        copying_trainer().model.save_pretrained(path)
    elif name == "BERT":
        models.BERT(BERT).save_pretrained(path)
    else:
        tokenizer = THEIRS if how else WORDS
        if name == "GPT-2":
            models.GPT2(GPT2).save_pretrained(path, text=tokenizer)
        else:
            models.T5(T5).save_pretrained(path, src=tokenizer, tgt=tokenizer)


TRANSLATORS = ["translator checkpoint", "translator folder", "T5", "T5 published tokenizer"]
WRITERS = ["writer checkpoint", "writer folder", "GPT-2", "GPT-2 published tokenizer"]
KINDS = [*TRANSLATORS, *WRITERS, "untokenized", "BERT"]
COMMANDS = {
    "translate x --max-new-tokens 3 --device cpu --checkpoint KIND": TRANSLATORS,
    "complete x --max-new-tokens 3 --device cpu --checkpoint KIND": WRITERS,
    "export KIND --to torch engine": TRANSLATORS + WRITERS,
    "export KIND --to transformers engine": WRITERS[:2],
    "plan KIND --tokens 1e6": [*TRANSLATORS[:2], *WRITERS, "untokenized"],
}


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
def test_command_takes_what_is_saved_or_says_why_not(line, kind, tmp_path, capsys, monkeypatch):
    def export_without_tracing(model, folder):
        with export_folder(folder, exportable(model)[1]):
            pass

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(command_line.ENGINES, "torch", export_without_tracing)
    path = "model.safetensors" if kind.endswith("checkpoint") else "model"
    save(kind, path)
    arguments = [{"x": "a b", "KIND": path}.get(word, word) for word in line.split()]
    if kind in COMMANDS[line]:
        assert run(capsys, *arguments).endswith("\n")
    else:
        assert fails(capsys, *arguments)
        assert os.listdir() == [path]


def test_translation_and_completion_are_what_the_models_write(tmp_path, capsys, trained):
    trained.save(tmp_path / "backwards")
    options = ["--checkpoint", tmp_path / "backwards", *CPU]
    assert run(capsys, "translate", "c b a d", "a", *options) == "d a b c\na\n"
    model = writer()
    model.save(tmp_path / "writer")
    options = ["--checkpoint", tmp_path / "writer", *CPU, "--temperature", 2, "--seed", 3]
    torch.manual_seed(3)
    text = "a b" + model.trained().complete(["a b"], temperature=2.0)[0]
    assert run(capsys, "complete", "a b", *options) == f"{text}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "b zebra c"], "'b zebra c' has a word never seen in training: b <unk> c"),
        (["translate", "  "], "every text must have at least one token, got '  '"),
        (["translate", "a " * 64], "65 positions is longer than max_len=64"),
        (["translate", "a", "--device", "nonsense"], "device 'nonsense' cannot be used"),
        (["export", "--to", "transformers"], "of transformers has share_embeddings=True"),
        (["export", "--to", "torch", "--quantization", "int8"], "is for --to ctranslate2, not for"),
        (["export", "--to", "onnx"], "this takes onnx: pip install 'minitransformer[export]'"),
        (["plan", "--tokens", "0"], "tokens must be"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    copying_trainer().save("model")
    place = {"export": ["model", "engine"], "plan": ["model"]}
    arguments += place.get(arguments[0], ["--checkpoint", "model"])
    assert message in fails(capsys, *arguments)
    assert os.listdir() == ["model"]


@pytest.mark.usefixtures("small_job")
def test_damaged_checkpoint_is_named(capsys, tmp_path):
    path = tmp_path / "damaged"
    path.write_bytes(b"\x80\x04junk" * 9)
    for command in (["translate", "a"], ["complete", "a"], ["train"]):
        message = fails(capsys, *command, *CPU, "--checkpoint", path)
        assert f"{path} (54 bytes) is damaged" in message


# --- train


@pytest.mark.usefixtures("small_job")
def test_training_reports_every_split_and_goes_on_after_the_last_checkpoint(capsys, tmp_path):
    path = tmp_path / "model.safetensors"
    stopped = copying_trainer(8, batch_size=128, warmup_steps=2, seed=0)
    assert stopped.config == TrainingConfig(steps=8, warmup_steps=2)
    stopped.history = [{"step": 6, "loss": 1.5}]
    stopped.save(path)
    first, second, *rows, remark = run(
        capsys, "train", "--steps", 8, "--checkpoint", path, *CPU
    ).splitlines()
    assert first == f"{path}: going on after step 6 of 8"
    assert second == f"trained 8 steps; saved to {path}"
    assert remark.startswith("longer: millions and thousands in one number, which training")
    for line, name in zip(rows, ["held_out", "composition", "longer"], strict=True):
        assert re.fullmatch(rf"exact match, {name} +\d+\.\d\d% of 10", line)
    state = load_checkpoint(path)[1]
    assert [row["step"] for row in state["history"]] == [6, 7, 8]


@pytest.mark.usefixtures("small_job")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--steps 9", "was trained with steps=8, not 9;"),
        ("--steps 8 --seed 3", "was trained with seed=0, not 3; give the same settings"),
        ("--steps 0", "steps must be at least 1, got 0"),
        ("--steps 1", "warmup_steps must be below steps, got 1 and 1"),
        ("--compile", "--compile would have no effect"),
        ("--recompute --time-limit 5", "--recompute --time-limit would have no effect"),
        ("--tokens nowhere --recipe fast", "--recipe fast is for a --task"),
        ("--checkpoint nowhere/model", "the folder of the checkpoint does not exist: nowhere"),
    ],
)
def test_settings_that_do_not_fit_are_refused(capsys, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_line.Trainer, "train_step", None)
    copying_trainer(8, batch_size=128, warmup_steps=2, seed=0).save("number-words.safetensors")
    content = Path("number-words.safetensors").read_bytes()
    assert message in fails(capsys, "train", *CPU, *options.split())
    assert os.listdir() == ["number-words.safetensors"]
    assert Path("number-words.safetensors").read_bytes() == content


def test_whatever_stops_training_is_told_in_a_line(monkeypatch, tmp_path):
    for error, message in (
        (FloatingPointError("step 3: loss nan"), "minitransformer: step 3: loss nan"),
        (OSError(28, "No space left"), "minitransformer: [Errno 28] No space left"),
        (KeyboardInterrupt(), "\nminitransformer: stopped; the same command goes on"),
    ):
        job = replace(SMALL_JOB, splits=Mock(side_effect=error))
        monkeypatch.setitem(command_line.JOBS, "number-words", job)
        with pytest.raises(SystemExit) as caught:
            main(["train", "--checkpoint", str(tmp_path / "model.safetensors")])
        assert caught.value.code.startswith(message)


@pytest.mark.usefixtures("small_job")
def test_warm_up_shrinks_with_the_steps():
    for steps, warmup in ((2, 1), (399, 99), (400, 100)):
        args = command_line.parser().parse_args(["train", "--steps", str(steps)])
        config = command_line.settings(args)
        assert (config.steps, config.warmup_steps) == (steps, warmup)


@pytest.mark.usefixtures("small_job")
def test_parallel_without_torchrun_is_one_process(capsys, tmp_path):
    path = tmp_path / "model.safetensors"
    options = ["--steps", 8, "--checkpoint", path, *CPU]
    printed = run(capsys, "train", *options, "--parallel", "ddp", "--parts", 2, "--recompute")
    assert printed.startswith(f"trained 8 steps; saved to {path}\n")
    state = load_checkpoint(path)[1]
    assert (state["step"], state["parts"]) == (8, 2)
    path.unlink()
    run(capsys, "train", *options)  # also without saying so it goes on from the shares
    assert load_checkpoint(path)[1] == state


@pytest.mark.parametrize(("task", "recipe"), [("grammar", "usual"), ("number-words", "fast")])
def test_task_trains_with_its_own_settings(capsys, tmp_path, monkeypatch, task, recipe):
    own = recipes.RECIPES[recipe][task].settings
    small = replace(SMALL_JOB, settings=own, measured=(), remark="")
    monkeypatch.setitem(recipes.RECIPES[recipe], task, small)
    monkeypatch.chdir(tmp_path)
    options = ["--task", task, "--recipe", recipe, "--steps", 8, *CPU]
    saved = f"{task}.safetensors"
    assert run(capsys, "train", *options) == f"trained 8 steps; saved to {saved}\n"
    found = load_checkpoint(saved)[1]["training"]
    wanted = own | {"steps": 8, "warmup_steps": 2}
    assert {name: found[name] for name in wanted} == wanted


# --- tokens

TEXT = "one two\n\n" * 40 + "ten"
NO_TEXT = {
    b"": "there is no text in .*text",
    b"\n \n\n": "there is no text in .*text",
    "eins\n\nzwölf".encode("latin-1"): "text is not UTF-8: byte 0xf6 in line 3, column 3",
    "one".encode("utf-16"): "text is not UTF-8: byte 0xff in line 1, column 1",
}


def test_what_is_no_text_is_refused_and_leaves_no_folder(capsys, tmp_path):
    for content, message in NO_TEXT.items():
        (tmp_path / "text").write_bytes(content)
        told = fails(capsys, "tokens", tmp_path / "text", "--to", tmp_path / "to")
        assert re.search(message, told)
        assert os.listdir(tmp_path) == ["text"]


def token_ids(folder):
    return parallel.TokenFile(folder).tokens.tolist()


def test_pipe_and_marked_file_are_read_as_a_file_is(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("plain").write_text(TEXT, encoding="utf-8")
    Path("marked").write_text(TEXT, encoding="utf-8-sig")
    names = ["plain", "marked"]
    if sys.platform != "win32":
        os.mkfifo("pipe")
        names.append("pipe")
    for options in (["--vocab-size", "280"], ["--tokenizer", "plain.tokens/tokenizer.json"]):
        for name in names:
            if name == "pipe":
                Thread(target=Path(name).write_text, args=[TEXT]).start()
            folder = f"{name}.{'tokens' if options[0] == '--vocab-size' else 'given'}"
            run(capsys, "tokens", name, "--to", folder, *options)
            assert token_ids(folder) == token_ids("plain.tokens")


def test_tokens_of_files_train_a_language_model(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        Path(name).write_text("\n\n".join([*TEXTS, name] * 4))
    tokens = ["tokens", "one", "two", "--to", "made", "--vocab-size", 262]
    printed = run(capsys, *tokens)
    assert printed == f"made: {len(token_ids('made'))} tokens of a vocabulary of 262\n"
    assert "is there already" in fails(capsys, *tokens)
    train = ["train", "--tokens", "made", "--steps", 8, *CPU]
    saved = "language-model.safetensors"
    assert run(capsys, *train) == f"trained 8 steps; saved to {saved}\n"
    assert TextGenerator.load(saved).tokenizers["text"].vocab_size == 262
    history = load_checkpoint(saved)[1]["history"]
    assert history[-1]["loss"] < history[0]["loss"]
    rmtree("language-model.shares")  # the file alone is enough to go on from
    assert f"{saved}: going on after step 8 of 8" in run(capsys, *train)
    assert load_checkpoint(saved)[1]["history"] == history


USAGE = {"--version": f"minitransformer {mt.__version__}\n", "--help": "plan"}
WRONG = ["", "bake", "translate", "train --steps many", "tokens x --tokenizer y --vocab-size 3"]


@pytest.mark.parametrize("line", [*USAGE, *WRONG])
def test_version_and_help_are_printed_and_wrong_usage_shows_the_usage(capsys, line):
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == (2 if line in WRONG else 0)
    printed = capsys.readouterr()
    assert USAGE.get(line, "usage: minitransformer") in (printed.err or printed.out)


def test_module_runs_as_a_program(tmp_path):
    command = [sys.executable, "-m", "minitransformer", "translate", "one"]
    failed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (failed.returncode, failed.stdout) == (1, "")
    expected = "minitransformer: there is no checkpoint at number-words.safetensors; .* makes one\n"
    assert re.fullmatch(expected, failed.stderr)

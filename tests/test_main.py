"""The command line translates and trains, and answers bad input with one line."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from threading import Thread

import pytest
import torch
from helpers import SMALL_JOB, TEXTS, can_export, copying_trainer

import minitransformer as mt
import minitransformer.__main__ as command_line
from minitransformer import (
    TextGenerator,
    TrainingConfig,
    grammar_sentences,
    load_checkpoint,
    number_words,
    parallel,
)
from minitransformer.__main__ import main
from minitransformer.tasks import jobs

pytestmark = pytest.mark.slow

STEPS = 103


@pytest.fixture
def checkpoint(tmp_path, trained):
    path = tmp_path / "model.safetensors"
    trained.save(path)
    return str(path)


@pytest.fixture
def small_job(monkeypatch):
    """The main job with a few letters instead of numbers, and a model to match."""
    monkeypatch.setitem(command_line.JOBS, "number-words", SMALL_JOB)


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


# --- translate


def test_translations_are_printed_a_line_each(capsys, checkpoint):
    main(["translate", "c b a d", "a", "--checkpoint", checkpoint, "--device", "cpu"])
    assert capsys.readouterr().out == "d a b c\na\n"


def test_word_never_seen_is_named(capsys, checkpoint):
    message = fails(capsys, "translate", "a", "b zebra c", "--checkpoint", checkpoint)
    assert "'b zebra c' has a word never seen in training: b <unk> c" in message


@pytest.mark.parametrize("text", ["", "   "])
def test_empty_text_is_refused(capsys, checkpoint, text):
    message = fails(capsys, "translate", text, "--checkpoint", checkpoint)
    assert f"every text must have at least one token, got {text!r}" in message


def test_text_too_long_is_refused(capsys, checkpoint):
    message = fails(capsys, "translate", "a " * 64, "--checkpoint", checkpoint)
    assert "65 positions is longer than max_len=64" in message


def test_missing_checkpoint_is_named_with_the_way_to_make_one(capsys, tmp_path):
    path = tmp_path / "nowhere.safetensors"
    message = fails(capsys, "translate", "a", "--checkpoint", path)
    assert f"there is no checkpoint at {path}; 'python -m minitransformer train'" in message


@pytest.mark.parametrize("command", [["translate", "a"], ["train"]])
@pytest.mark.parametrize("content", [b"", b"\x80\x04junk" * 9])
def test_damaged_checkpoint_is_named(capsys, tmp_path, command, content, small_job):
    path = tmp_path / "damaged"
    path.write_bytes(content)
    message = fails(capsys, *command, "--checkpoint", path)
    assert f"{path} ({len(content)} bytes) is damaged" in message


def test_unknown_device_is_refused(capsys, checkpoint):
    message = fails(capsys, "translate", "a", "--checkpoint", checkpoint, "--device", "nonsense")
    assert "nonsense" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_missing_gpu_is_refused(capsys, checkpoint):
    message = fails(capsys, "translate", "a", "--checkpoint", checkpoint, "--device", "cuda")
    assert re.search("CUDA|NVIDIA driver", message)  # a build without CUDA, or one without a GPU


# --- export


FILES = {
    "ctranslate2": "config.json, model.bin, source_vocabulary.json, src_tokenizer.json, ",
    "onnx": "decoder.onnx, encoder.onnx, src_tokenizer.json, tgt_tokenizer.json",
    "torch": "decoder.pt2, encoder.pt2, src_tokenizer.json, tgt_tokenizer.json",
}


@pytest.mark.parametrize(
    ("engine", "files"),
    [pytest.param(engine, files, marks=can_export(engine)) for engine, files in FILES.items()],
)
def test_export_names_its_files(capsys, checkpoint, tmp_path, engine, files):
    folder = tmp_path / "engine"
    main(["export", checkpoint, "--to", engine, str(folder)])
    assert capsys.readouterr().out.startswith(f"{folder}: {files}")
    message = fails(capsys, "export", checkpoint, "--to", engine, folder)
    assert f"{folder} is there already" in message


@can_export("ctranslate2")
def test_folder_of_a_model_is_exported_too(capsys, trained, tmp_path):
    trained.model.save_pretrained(tmp_path / "model", **trained.tokenizers)
    arguments = ["--to", "ctranslate2", tmp_path / "engine", "--quantization", "int8"]
    main(["export", *map(str, [tmp_path / "model", *arguments])])
    assert "model.bin" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "transformers"], "Marian or Pegasus of transformers has share_embeddings=True"),
        (["--to", "torch", "--quantization", "int8"], "is for --to ctranslate2, not for torch"),
        pytest.param(
            ["--to", "ctranslate2", "--quantization", "int3"],
            "quantization must be one of",
            marks=can_export("ctranslate2"),
        ),
    ],
)
def test_what_cannot_be_exported_is_told_in_a_line(capsys, checkpoint, tmp_path, options, message):
    folder = tmp_path / "engine"
    assert message in fails(capsys, "export", checkpoint, folder, *options)
    assert not folder.exists()


def test_missing_library_is_told_in_a_line(capsys, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    message = fails(capsys, "export", checkpoint, "--to", "onnx", tmp_path / "engine")
    assert "this takes onnx: pip install 'minitransformer[export]'" in message


# --- train


@pytest.mark.usefixtures("small_job")
def test_training_saves_and_reports_every_split(capsys, tmp_path):
    path = tmp_path / "model.safetensors"
    main(["train", "--steps", str(STEPS), "--checkpoint", str(path), "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"trained {STEPS} steps; saved to {path}"
    assert lines[-1].startswith("longer: millions and thousands in one number, which training")
    for line, name in zip(lines[1:-1], ["held_out", "composition", "longer"], strict=True):
        assert re.fullmatch(rf"exact match, {name} +\d+\.\d\d% of 10", line)
    _, state = load_checkpoint(path)
    assert state["training"]["steps"] == state["step"] == STEPS


@pytest.mark.usefixtures("small_job")
def test_training_goes_on_after_the_last_checkpoint(capsys, tmp_path):
    stopped = copying_trainer(STEPS, batch_size=128, warmup_steps=STEPS // 4, seed=0)
    assert stopped.config == TrainingConfig(steps=STEPS, warmup_steps=STEPS // 4)
    path = tmp_path / "model.safetensors"
    stopped.history = [{"step": STEPS - 2, "loss": 1.5}]
    stopped.save(path)
    main(["train", "--steps", str(STEPS), "--checkpoint", str(path), "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        f"{path}: going on after step {STEPS - 2} of {STEPS}",
        f"trained {STEPS} steps; saved to {path}",
    ]
    history = load_checkpoint(path)[1]["history"]
    assert [row["step"] for row in history] == [STEPS - 2, STEPS - 1, STEPS]


@pytest.mark.usefixtures("small_job")
@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (["--steps", "104"], f"steps={STEPS}, not 104, warmup_steps=25, not 26"),
        (["--steps", str(STEPS), "--seed", "3"], "seed=0, not 3"),
        (
            ["--steps", str(STEPS), "--precision", "bf16", "--seed", "3"],
            "precision='fp32', not 'bf16', seed=0, not 3",
        ),
    ],
)
def test_other_settings_on_resuming_are_refused(capsys, tmp_path, options, difference):
    path = tmp_path / "model.safetensors"
    copying_trainer(STEPS, batch_size=128, warmup_steps=25, seed=0).save(path)
    content = path.read_bytes()
    message = fails(capsys, "train", *options, "--checkpoint", path)
    assert f"{path} was trained with {difference}; give the same settings" in message
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("0", "steps must be at least 1, got 0"),
        ("1", "warmup_steps must be below steps, got 1 and 1"),
    ],
)
def test_bad_settings_are_refused(capsys, tmp_path, steps, message):
    path = tmp_path / "model.safetensors"
    assert message in fails(capsys, "train", "--steps", steps, "--checkpoint", path)
    assert not path.exists()


@pytest.mark.usefixtures("small_job")
def test_missing_folder_is_refused_before_any_training(capsys, tmp_path, monkeypatch):
    def train_step(*_):
        pytest.fail("trained although the checkpoint cannot be saved")

    monkeypatch.setattr(command_line.Trainer, "train_step", train_step)
    path = tmp_path / "nowhere" / "model.safetensors"
    message = fails(capsys, "train", "--checkpoint", path)
    assert f"the folder of the checkpoint does not exist: {path.parent}" in message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FloatingPointError("step 3: loss nan"), "minitransformer: step 3: loss nan"),
        (OSError(28, "No space left"), "minitransformer: [Errno 28] No space left"),
        (KeyboardInterrupt(), "\nminitransformer: stopped; the same command goes on"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_whatever_stops_training_is_told_in_a_line(monkeypatch, tmp_path, error, message):
    def splits(seed):
        raise error

    monkeypatch.setitem(command_line.JOBS, "number-words", replace(SMALL_JOB, splits=splits))
    with pytest.raises(SystemExit) as caught:
        main(["train", "--checkpoint", str(tmp_path / "model.safetensors")])
    assert caught.value.code.startswith(message)


@pytest.mark.usefixtures("small_job")
@pytest.mark.parametrize(("steps", "warmup"), [(2, 1), (50, 12), (103, 25), (399, 99), (400, 100)])
def test_warm_up_shrinks_with_the_steps(tmp_path, monkeypatch, steps, warmup):
    configs = []
    monkeypatch.setattr(command_line.Trainer, "fit", lambda self, **_: configs.append(self.config))
    path = str(tmp_path / "model.safetensors")
    main(["train", "--steps", str(steps), "--checkpoint", path, "--device", "cpu"])
    assert [(config.steps, config.warmup_steps) for config in configs] == [(steps, warmup)]
    assert command_line.JOBS["number-words"].settings == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--compile"], "--compile would have no effect"),
        (["--parts", "0"], "--parts would have no effect"),
        (["--recompute", "--time-limit", "5"], "--recompute --time-limit would have no effect"),
        (["--tokens", "nowhere", "--recipe", "fast"], "--recipe fast is for a --task"),
    ],
)
def test_options_without_effect_are_refused(capsys, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "train", "--device", "cpu", *options)
    assert list(tmp_path.iterdir()) == []


# --- tokens


TEXT = "one two\n\n" * 40 + "ten"
MADE_OF = {
    "empty": (b"", "there is no text in .*text"),
    "blank lines": (b"\n \n\n", "there is no text in .*text"),
    "Latin-1": (
        "eins\n\nzwölf".encode("latin-1"),
        "text is not UTF-8: byte 0xf6 in line 3, column 3",
    ),
    "UTF-16": ("one".encode("utf-16"), "text is not UTF-8: byte 0xff in line 1, column 1"),
}


@pytest.mark.parametrize(("content", "message"), MADE_OF.values(), ids=MADE_OF.keys())
def test_what_is_no_text_is_refused_and_leaves_no_folder(capsys, tmp_path, content, message):
    (tmp_path / "text").write_bytes(content)
    (tmp_path / "good").write_text(TEXT)
    told = fails(capsys, "tokens", tmp_path / "text", "--to", tmp_path / "to")
    assert re.search(message, told)
    assert {path.name for path in tmp_path.iterdir()} == {"text", "good"}
    main(["tokens", str(tmp_path / "good"), "--to", str(tmp_path / "to"), "--vocab-size", "262"])


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes")
@pytest.mark.parametrize("given", [False, True], ids=["new tokenizer", "tokenizer given"])
def test_pipe_is_read_as_a_file_is(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a few words\n\nof a file")
    Path("b.txt").write_text(TEXT)
    os.mkfifo("pipe")
    options = ["--vocab-size", "280"]
    main(["tokens", "a.txt", "b.txt", "--to", "first", *options])
    if given:
        options = ["--tokenizer", "first/tokenizer.json"]
    found = []
    for second in ("b.txt", "pipe"):
        if second == "pipe":
            Thread(target=Path("pipe").write_text, args=[TEXT]).start()
        main(["tokens", "a.txt", second, "--to", f"of {second}", *options])
        file = parallel.TokenFile(f"of {second}")
        found.append((file.tokens.tolist(), file.tokenizer.decode(file.tokens.tolist())))
    assert found[0] == found[1]
    assert found[0][1].endswith("ten")


def test_byte_order_mark_is_no_token(capsys, tmp_path):
    for name, encoding in (("plain", "utf-8"), ("marked", "utf-8-sig")):
        (tmp_path / name).write_text(TEXT, encoding=encoding)
        main(["tokens", str(tmp_path / name), "--to", str(tmp_path / f"{name}.tokens")])
    tokens = [
        parallel.TokenFile(tmp_path / f"{name}.tokens").tokens for name in ("plain", "marked")
    ]
    assert tokens[0].tolist() == tokens[1].tolist()


def test_size_of_a_given_tokenizer_is_its_own(capsys, tmp_path):
    options = ["--to", "to", "--tokenizer", "tokenizer.json", "--vocab-size", "300"]
    assert "--vocab-size is for a new tokenizer" in fails(capsys, "tokens", "text", *options)


def test_tokens_of_files_train_a_language_model(capsys, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text("\n\n".join([*TEXTS, name] * 4))
    paths = [str(tmp_path / name) for name in ("one", "two", "tokens", "model.safetensors")]
    main(["tokens", *paths[:2], "--to", paths[2], "--vocab-size", "262"])
    number = len(parallel.TokenFile(paths[2]).tokens)
    assert capsys.readouterr().out == f"{paths[2]}: {number} tokens of a vocabulary of 262\n"
    options = ["--steps", str(STEPS), "--checkpoint", paths[3], "--device", "cpu"]
    main(["train", "--tokens", paths[2], *options])
    assert capsys.readouterr().out == f"trained {STEPS} steps; saved to {paths[3]}\n"
    tokenizer = TextGenerator.load(paths[3]).tokenizers["text"]
    assert tokenizer.vocab_size == 262
    history = load_checkpoint(paths[3])[1]["history"]
    assert history[-1]["loss"] < history[0]["loss"] / 2
    rmtree(tmp_path / "model.shares")  # the file alone is enough to go on from
    main(["train", "--tokens", paths[2], *options])
    assert f"{paths[3]}: going on after step {STEPS} of {STEPS}" in capsys.readouterr().out
    assert load_checkpoint(paths[3])[1]["history"] == history


def test_tokenizer_of_a_file_is_taken(capsys, tmp_path, trained):
    trained.tokenizers["src"].save(tmp_path / "tokenizer.json")
    (tmp_path / "text").write_text("a b\n\nc")
    arguments = [tmp_path / "text", "--to", tmp_path / "to"]
    main(["tokens", *map(str, [*arguments, "--tokenizer", tmp_path / "tokenizer.json"])])
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'to'}: 7 tokens of a vocabulary of")
    assert "is there already" in fails(capsys, "tokens", *arguments)


@pytest.mark.usefixtures("small_job")
def test_parallel_without_torchrun_is_one_process(capsys, tmp_path):
    path = tmp_path / "model.safetensors"
    options = ["--steps", str(STEPS), "--checkpoint", str(path), "--device", "cpu"]
    main(["train", *options, "--parallel", "ddp", "--parts", "2", "--recompute"])
    assert capsys.readouterr().out.startswith(f"trained {STEPS} steps; saved to {path}\n")
    _, state = load_checkpoint(path)
    assert (state["step"], state["parts"]) == (STEPS, 2)
    path.unlink()
    main(["train", *options])  # also without saying so it goes on from the shares
    assert load_checkpoint(path)[1] == state


# --- as a program


@pytest.mark.parametrize("arguments", [[], ["bake"], ["translate"], ["train", "--steps", "many"]])
def test_wrong_usage_shows_the_usage(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: minitransformer" in capsys.readouterr().err


def test_version_is_said(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (
        0,
        f"minitransformer {mt.__version__}\n",
    )


PRESS = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
@pytest.mark.parametrize("installed", [False, True], ids=["-m", "installed"])
def test_interrupt_while_it_loads_is_one_line(tmp_path, installed):
    (tmp_path / "torch.py").write_text(PRESS)  # Ctrl-C, as soon as PyTorch is asked for
    (tmp_path / "minitransformer").write_text("from minitransformer.__main__ import main\nmain()")
    program = [str(tmp_path / "minitransformer")] if installed else ["-m", "minitransformer"]
    path = os.pathsep.join([str(tmp_path), str(Path(mt.__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, *program, "train"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert (done.stdout, done.stderr) == ("", "\nminitransformer: stopped\n")
    assert done.returncode == -signal.SIGINT


def test_module_runs_as_a_program(tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "minitransformer", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    helped = run("--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "train" in helped.stdout
    assert "translate" in helped.stdout
    assert "export" in helped.stdout

    failed = run("translate", "one")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert re.fullmatch(
        r"minitransformer: there is no checkpoint at number-words\.safetensors; .* makes one\n",
        failed.stderr,
    )


@pytest.mark.parametrize("recipe", command_line.RECIPES)
@pytest.mark.parametrize("name", command_line.JOBS)
def test_job_begins_the_same_from_a_seed(name, recipe):
    seeds, few = [], {"train": number_words(4, num_train=300, num_held_out=5)["train"]}
    job = command_line.RECIPES[recipe][name]
    job = replace(job, splits=lambda seed: seeds.append(seed) or few)
    config = TrainingConfig(**(job.settings | {"seed": 4}))
    torch.manual_seed(1)
    trainer = job.new_trainer(config)
    torch.manual_seed(2)
    again = job.new_trainer(config)
    assert seeds == [4, 4]
    assert len(trainer.examples) == 300
    assert trainer.train_step(trainer.examples[:2])["loss"] > 0
    again.train_step(again.examples[:2])
    for parameter, same in zip(trainer.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(parameter, same)


def test_fast_recipe_is_asked_the_same():
    usual, fast = (jobs.RECIPES[name]["number-words"] for name in ("usual", "fast"))
    splits = [job.splits(2) for job in (usual, fast)]
    assert splits[0]["train"] != splits[1]["train"]
    for name in fast.measured:
        assert splits[0][name] == splits[1][name]
    assert any("million" in p.src and "thousand" in p.src for p in splits[1]["train"])
    assert fast.remark == ""


def test_fast_recipe_trains_with_its_own_settings(capsys, tmp_path, monkeypatch):
    settings = jobs.FAST["number-words"].settings
    small = replace(SMALL_JOB, settings=settings, measured=(), remark="")
    monkeypatch.setitem(jobs.FAST, "number-words", small)
    monkeypatch.chdir(tmp_path)
    main(["train", "--recipe", "fast", "--steps", "40", "--device", "cpu"])
    assert capsys.readouterr().out == "trained 40 steps; saved to number-words.safetensors\n"
    config = load_checkpoint("number-words.safetensors")[1]["training"]
    assert (config["optimizer"], config["schedule"]) == ("muon", "linear")
    told = fails(capsys, "train", "--steps", 103, "--device", "cpu")
    assert "number-words.safetensors was trained on other texts" in told


def test_jobs_have_the_splits_that_they_measure(monkeypatch):
    monkeypatch.setattr(
        jobs,
        "grammar_sentences",
        lambda seed, num_train: grammar_sentences(seed, num_train=3, num_held_out=2),
    )
    for job in (command_line.JOBS["number-words"], command_line.JOBS["grammar"]):
        assert list(job.splits(0)) == ["train", *job.measured]


def test_task_trains_with_its_own_settings(capsys, tmp_path, monkeypatch):
    job = replace(SMALL_JOB, settings=command_line.JOBS["grammar"].settings, measured=(), remark="")
    monkeypatch.setitem(command_line.JOBS, "grammar", job)
    monkeypatch.chdir(tmp_path)
    main(["train", "--task", "grammar", "--steps", str(STEPS), "--device", "cpu"])
    assert capsys.readouterr().out == f"trained {STEPS} steps; saved to grammar.safetensors\n"
    config = load_checkpoint("grammar.safetensors")[1]["training"]
    assert (config["batch_size"], config["label_smoothing"]) == (96, 0.0)
    main(["translate", "c a", "--checkpoint", "grammar.safetensors", "--device", "cpu"])
    assert capsys.readouterr().out.endswith("\n")

"""The command line translates and trains, and answers bad input with one line."""

import re
import subprocess
import sys

import pytest
import torch
from helpers import PAIRS, can_export, copying_trainer

import minitransformer.__main__ as command_line
from minitransformer import TrainingConfig, load_checkpoint, number_words
from minitransformer.__main__ import main
from minitransformer.export import folder as folder_of_exports

pytestmark = pytest.mark.slow

STEPS = 103  # more than the warm-up of the command line's settings


@pytest.fixture
def checkpoint(tmp_path, trained):
    path = tmp_path / "model.safetensors"
    trained.save(path)
    return str(path)


@pytest.fixture
def small_job(monkeypatch):
    """The main job with a few letters instead of numbers, and a model to match."""

    def new_trainer(config, device):
        trainer = copying_trainer(6, dropout=0.1)
        trainer.config = config
        return trainer

    splits = dict.fromkeys(("train", "held_out", "composition", "longer"), PAIRS)
    monkeypatch.setattr(command_line, "new_trainer", new_trainer)
    monkeypatch.setattr(command_line, "number_words", lambda seed: splits)


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
    monkeypatch.setattr(folder_of_exports, "find_spec", lambda name: None)
    message = fails(capsys, "export", checkpoint, "--to", "onnx", tmp_path / "engine")
    assert "this export needs onnx: pip install 'minitransformer[export]'" in message


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
    stopped = copying_trainer(STEPS, batch_size=128, warmup_steps=100, seed=0)
    assert stopped.config == TrainingConfig(steps=STEPS)
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
        (["--steps", "400"], f"steps={STEPS}, not 400"),
        (["--steps", str(STEPS), "--seed", "3"], "seed=0, not 3"),
        (
            ["--steps", str(STEPS), "--precision", "bf16", "--seed", "3"],
            "precision='fp32', not 'bf16', seed=0, not 3",
        ),
    ],
)
def test_other_settings_on_resuming_are_refused(capsys, tmp_path, options, difference):
    path = tmp_path / "model.safetensors"
    copying_trainer(STEPS, batch_size=128, warmup_steps=100, seed=0).save(path)
    content = path.read_bytes()
    message = fails(capsys, "train", *options, "--checkpoint", path)
    assert f"{path} was trained with {difference}; give the same settings" in message
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("0", "steps must be at least 1, got 0"),
        ("100", "warmup_steps must be below steps, got 100 and 100"),
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
    def new_trainer(*_):
        raise error

    monkeypatch.setattr(command_line, "new_trainer", new_trainer)
    with pytest.raises(SystemExit) as caught:
        main(["train", "--checkpoint", str(tmp_path / "model.safetensors")])
    assert caught.value.code.startswith(message)


# --- as a program


@pytest.mark.parametrize("arguments", [[], ["bake"], ["translate"], ["train", "--steps", "many"]])
def test_wrong_usage_shows_the_usage(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: minitransformer" in capsys.readouterr().err


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


def test_new_trainer_holds_the_main_job(monkeypatch):
    few = number_words(4, num_train=300, num_held_out=5)
    seeds = []
    monkeypatch.setattr(command_line, "number_words", lambda seed: seeds.append(seed) or few)
    torch.manual_seed(1)
    trainer = command_line.new_trainer(TrainingConfig(seed=4))
    torch.manual_seed(2)
    again = command_line.new_trainer(TrainingConfig(seed=4))
    assert seeds == [4, 4]
    assert len(trainer.examples) == 300
    assert trainer.tokenizers["tgt"].vocab_size == command_line.TGT_VOCAB_SIZE
    for parameter, same in zip(trainer.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(parameter, same)

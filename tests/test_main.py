"""The command line trains, uses, exports and plans; bad input is answered with one line."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from threading import Thread

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


def writer():
    letters = mt.CharacterTokenizer.train(TEXTS)
    sizes = {"d_model": 12, "num_heads": 3, "num_layers": 1, "d_ff": 20, "norm_first": True}
    config = mt.TransformerConfig.decoder_only(letters.vocab_size, **sizes)
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
    settings = TrainingConfig(steps=2, warmup_steps=1, context_length=3)
    return mt.LanguageModelTrainer(model, TEXTS, letters, settings)


def published(kind, config, tokenizer, path):
    sides = ("src", "tgt") if config.num_encoder_layers else ("text",)
    kind(config).save_pretrained(path, **dict.fromkeys(sides, tokenizer))


WORDS = mt.WordTokenizer.train(TEXTS)
THEIRS = published_words("<pad>", "</s>")
SIZES = {"vocab_size": WORDS.vocab_size, "d_model": 12, "num_heads": 3, "max_len": 32}
GPT2 = models.GPT2Config(**SIZES, num_layers=1)
T5 = models.T5Config(
    vocab_size=WORDS.vocab_size, d_model=12, num_heads=3, num_encoder_layers=1, d_ff=20
)
BERT = models.BERTConfig(**SIZES, num_layers=1, d_ff=20)
KINDS = {
    "translator.safetensors": lambda path: copying_trainer().save(path),
    "translator": lambda path: copying_trainer().trained().save(path),
    "writer.safetensors": lambda path: writer().save(path),
    "writer": lambda path: writer().trained().save(path),
    "GPT-2": lambda path: published(models.GPT2, GPT2, WORDS, path),
    "GPT-2 with a published tokenizer": lambda path: published(models.GPT2, GPT2, THEIRS, path),
    "T5": lambda path: published(models.T5, T5, WORDS, path),
    "T5 with a published tokenizer": lambda path: published(models.T5, T5, THEIRS, path),
    "no tokenizers": lambda path: copying_trainer().model.save_pretrained(path),
    "BERT": lambda path: models.BERT(BERT).save_pretrained(path),
}
OURS = {"translator.safetensors", "translator", "writer.safetensors", "writer"}
TRANSLATORS = {name for name in KINDS if name.startswith(("translator", "T5"))}
T5S = {"T5", "T5 with a published tokenizer"}
WRITERS = {name for name in KINDS if name.startswith(("writer", "GPT-2"))}
COMMANDS = {
    "translate": ("translate x --max-new-tokens 3 --device cpu --checkpoint KIND", TRANSLATORS),
    "complete": ("complete x --max-new-tokens 3 --device cpu --checkpoint KIND", WRITERS),
    "export of graphs": ("export KIND --to torch engine", TRANSLATORS | WRITERS),
    "export of layers": ("export KIND --to transformers engine", OURS & WRITERS),
    "plan": ("plan KIND --tokens 1e6", {*KINDS} - T5S - {"BERT"}),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
def test_command_takes_what_is_saved_or_says_why_not(command, kind, tmp_path, capsys, monkeypatch):
    def export_without_tracing(model, folder):
        with export_folder(folder, exportable(model)[1]):
            pass

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(command_line.ENGINES, "torch", export_without_tracing)
    KINDS[kind](Path(kind))
    line, takes = COMMANDS[command]
    arguments = [{"x": "a b", "KIND": kind}.get(word, word) for word in line.split()]
    if kind in takes:
        assert run(capsys, *arguments).endswith("\n")
    else:
        assert fails(capsys, *arguments)
        assert os.listdir() == [kind]


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


@pytest.mark.parametrize("command", [["translate", "a"], ["complete", "a"], ["train"]])
@pytest.mark.parametrize("content", [b"", b"\x80\x04junk" * 9])
@pytest.mark.usefixtures("small_job")
def test_damaged_checkpoint_is_named(capsys, tmp_path, command, content):
    path = tmp_path / "damaged"
    path.write_bytes(content)
    message = fails(capsys, *command, *CPU, "--checkpoint", path)
    assert f"{path} ({len(content)} bytes) is damaged" in message


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
def test_warm_up_shrinks_with_the_steps(steps, warmup):
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


@pytest.mark.parametrize("recipe", command_line.RECIPES)
@pytest.mark.parametrize("name", command_line.JOBS)
def test_job_begins_the_same_from_a_seed(name, recipe):
    seeds, few = [], {"train": mt.number_words(4, num_train=300, num_held_out=5)["train"]}
    job = command_line.RECIPES[recipe][name]
    job = replace(job, splits=lambda seed: seeds.append(seed) or few)
    config = TrainingConfig(**(job.settings | {"seed": 4}))
    trainers = []
    for _ in range(2):  # with another global generator
        trainers.append(job.new_trainer(config))
        trainers[-1].train_step(trainers[-1].examples[:2])
    assert seeds == [4, 4]
    assert len(trainers[0].examples) == 300
    both = zip(*(trainer.model.parameters() for trainer in trainers), strict=True)
    assert all(torch.equal(parameter, same) for parameter, same in both)


def test_fast_recipe_is_asked_the_same():
    usual, fast = (recipes.RECIPES[name]["number-words"] for name in ("usual", "fast"))
    splits = [job.splits(2) for job in (usual, fast)]
    assert list(splits[0]) == list(splits[1]) == ["train", *fast.measured]
    assert splits[0]["train"] != splits[1]["train"]
    assert all(splits[0][name] == splits[1][name] for name in fast.measured)
    assert any("million" in p.src and "thousand" in p.src for p in splits[1]["train"])


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
    options = ["--steps", str(16), "--checkpoint", paths[3], "--device", "cpu"]
    main(["train", "--tokens", paths[2], *options])
    assert capsys.readouterr().out == f"trained {16} steps; saved to {paths[3]}\n"
    tokenizer = TextGenerator.load(paths[3]).tokenizers["text"]
    assert tokenizer.vocab_size == 262
    history = load_checkpoint(paths[3])[1]["history"]
    assert history[-1]["loss"] < history[0]["loss"] / 2
    rmtree(tmp_path / "model.shares")  # the file alone is enough to go on from
    main(["train", "--tokens", paths[2], *options])
    assert f"{paths[3]}: going on after step {16} of {16}" in capsys.readouterr().out
    assert load_checkpoint(paths[3])[1]["history"] == history


def test_tokenizer_of_a_file_is_taken(capsys, tmp_path, trained):
    trained.tokenizers["src"].save(tmp_path / "tokenizer.json")
    (tmp_path / "text").write_text("a b\n\nc")
    arguments = [tmp_path / "text", "--to", tmp_path / "to"]
    main(["tokens", *map(str, [*arguments, "--tokenizer", tmp_path / "tokenizer.json"])])
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'to'}: 7 tokens of a vocabulary of")
    assert "is there already" in fails(capsys, "tokens", *arguments)


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

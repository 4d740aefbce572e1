"""The command line: train a model, use it, export it to other engines, and plan a larger one.

python -m minitransformer train
python -m minitransformer train --recipe fast
python -m minitransformer train --task grammar
torchrun --nproc-per-node 2 -m minitransformer train
python -m minitransformer translate "three hundred forty-two"
python -m minitransformer complete "The town lies between" --checkpoint openai-community/gpt2
python -m minitransformer show number-words.safetensors --text "forty-two"
python -m minitransformer export number-words.safetensors --to ctranslate2 numbers-ctranslate2
python -m minitransformer plan number-words.safetensors --tokens 1e9 --hardware H100
python -m minitransformer exercises attention mine.py
python -m minitransformer project dates my-dates
python -m minitransformer grade attention submissions --csv grades.csv
"""

import argparse
import os
import runpy
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from minitransformer import __version__, export, parallel
from minitransformer.exercises import check
from minitransformer.exercises.projects import PROJECTS, check_project, write_starter
from minitransformer.exercises.teaching import GRADED, grade, write_csv, write_handouts
from minitransformer.files import new_folder
from minitransformer.models.config import TransformerConfig
from minitransformer.models.transformer import DecoderOnlyTransformer
from minitransformer.parallel.token_file import read_once
from minitransformer.planning import HARDWARE, plan
from minitransformer.show import page_server, write_page
from minitransformer.tasks.recipes import JOBS, RECIPES, Job
from minitransformer.tokenization.byte_pair_encoding import BPETokenizer
from minitransformer.tokenization.tokenizer import Tokenizer
from minitransformer.training.checkpoint import load_model
from minitransformer.training.config import TrainingConfig
from minitransformer.training.language_model import LanguageModelTrainer
from minitransformer.training.trainer import Trainer
from minitransformer.training.translator import TextGenerator, TextModel, Translator

ENGINES: dict[str, Callable[..., None]] = {
    "ctranslate2": export.to_ctranslate2,
    "onnx": export.to_onnx,
    "torch": export.to_torch,
    "transformers": export.to_transformers,
}
NUMBER_WORDS, LANGUAGE_MODEL = "number-words", "language-model"
LANGUAGE_MODEL_SIZES: dict[str, Any] = {
    "num_layers": 4,
    "d_model": 160,
    "num_heads": 5,
    "d_ff": 640,
    "dropout": 0.15,
    "norm_first": True,
    "positional_encoding": "rotary",
    "max_len": 256,
}
LANGUAGE_MODEL_SETTINGS: dict[str, Any] = {
    "batch_size": 32,
    "context_length": 128,
    "optimizer": "muon",
    "schedule": "linear",
    "peak_learning_rate": 8e-3,
}
Loaded = TypeVar("Loaded", bound=TextModel)
OF_MANY = ("parts", "recompute", "compile", "time_limit")  # options of `train_together` alone


def train(args: argparse.Namespace) -> None:
    """Train, or go on from the checkpoint, and report exact match where it says something."""
    usable_device(args.device)
    if args.checkpoint is None:
        args.checkpoint = Path(f"{LANGUAGE_MODEL if args.tokens else args.task}.safetensors")
    shares = args.checkpoint.with_suffix(".shares")
    # torchrun sets RANK in each process it starts; shares were saved by an earlier such run.
    together = args.parallel or args.tokens or "RANK" in os.environ or shares.exists()
    if args.tokens and args.recipe is not None:
        raise ValueError(f"--recipe {args.recipe} is for a --task: --tokens has no recipe")
    idle = [f"--{name}" for name in OF_MANY if getattr(args, name) is not None]
    if idle and not together:
        raise ValueError(
            f"{' '.join(idle).replace('_', '-')} would have no effect on one process by itself: "
            "give --parallel too, or start it with torchrun"
        )
    if together:
        trained = train_together(args, shares)
    else:
        trainer = begun_trainer(args, args.device)
        trainer.fit(checkpoint=args.checkpoint)
        trained = trainer.trained()
    if trained is None:  # another process has it
        return
    print(f"trained {settings(args).steps} steps; saved to {args.checkpoint}")
    if isinstance(trained, Translator):
        job = job_of(args)
        splits = job.splits(args.seed) if job.measured else {}
        for name in job.measured:
            share = trained.exact_match(splits[name])
            print(f"exact match, {name:<12} {share:7.2%} of {len(splits[name])}")
        if job.remark:
            print(job.remark)


def job_of(args: argparse.Namespace) -> Job:
    """The task of the command, trained as its recipe says."""
    return RECIPES[args.recipe or "usual"][args.task]


def settings(args: argparse.Namespace) -> TrainingConfig:
    """How the job is trained, as far as the command says nothing else."""
    own = LANGUAGE_MODEL_SETTINGS if args.tokens else job_of(args).settings
    given = {"seed": args.seed, "precision": args.precision}
    if args.steps is not None:  # fewer than the warm-up may be asked for: it shrinks with them
        warmup = own.get("warmup_steps", TrainingConfig.warmup_steps)
        given |= {"steps": args.steps, "warmup_steps": min(warmup, max(1, args.steps // 4))}
    return TrainingConfig(**(own | given))


def begun_trainer(args: argparse.Namespace, device: torch.device | str) -> Trainer:
    """The trainer of the command, new, or as its checkpoint left it."""
    config, path = settings(args), args.checkpoint
    trainer: Trainer
    if args.tokens:
        file = parallel.TokenFile(args.tokens)
        if not path.exists():
            shape = TransformerConfig.decoder_only(
                file.tokenizer.vocab_size, **LANGUAGE_MODEL_SIZES
            )
            generator = torch.Generator().manual_seed(config.seed)
            model = DecoderOnlyTransformer(shape, generator).to(device)
            return LanguageModelTrainer(model, file.tokens, file.tokenizer, config)
        trainer = LanguageModelTrainer.resume(path, file.tokens, device)
    else:
        job = job_of(args)
        if not path.exists():
            return job.new_trainer(config, device)
        trainer = Trainer.resume(path, job.splits(args.seed)["train"], device)
    if trainer.config != config:
        old, new = asdict(trainer.config), asdict(config)
        other = ", ".join(f"{k}={old[k]!r}, not {new[k]!r}" for k in old if old[k] != new[k])
        raise ValueError(
            f"{path} was trained with {other}; give the same settings, or another --checkpoint"
        )
    if not is_another_process():
        print(f"{path}: going on after step {trainer.step} of {config.steps}")
    return trainer


def train_together(args: argparse.Namespace, shares: Path) -> TextModel | None:
    """Train in all processes; the first one gets the model that comes out, the others None."""
    with parallel.join_processes(args.device, time_limit=args.time_limit or 600.0) as processes:
        trainer = parallel.ParallelTrainer(
            begun_trainer(args, processes.device),
            processes,
            args.parallel or "ddp",
            parts=args.parts,
            recompute=bool(args.recompute),
            compiled=bool(args.compile),
        )
        trainer.fit(checkpoint=shares)
    if is_another_process():
        return None
    parallel.gather(shares, args.checkpoint)
    return TextModel.load(args.checkpoint, processes.device)


def is_another_process() -> bool:
    """Whether this is one of several processes, and not the one that writes and prints."""
    return int(os.environ.get("RANK", 0)) > 0


def usable_device(name: str) -> torch.device:
    """The device of that name, once something could be put on it."""
    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used: {reason}") from error


def loaded(kind: type[Loaded], args: argparse.Namespace) -> Loaded:
    """What `--checkpoint` names, on the device of the command."""
    path = Path(args.checkpoint)
    if path.suffix == ".safetensors" and not path.exists():
        raise FileNotFoundError(
            f"there is no checkpoint at {path}; 'python -m minitransformer train' makes one"
        )
    return kind.load(path, usable_device(args.device))


def translate(args: argparse.Namespace) -> None:
    """Print the translation of each text, one a line."""
    translator = loaded(Translator, args)
    tokenizer = translator.tokenizers["src"]
    for text in args.text:
        ids = tokenizer.encode(text)
        if tokenizer.unk_id in ids:
            words = " ".join(tokenizer.labels(ids))
            raise ValueError(f"{text!r} has a word never seen in training: {words}")
    print(*translator.translate(args.text, max_new_tokens=args.max_new_tokens), sep="\n")


def complete(args: argparse.Namespace) -> None:
    """Print each prompt and its continuation."""
    options = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature}
    torch.manual_seed(args.seed)
    found = loaded(TextGenerator, args).complete(args.text, **options)
    print(*map(str.__add__, args.text, found), sep="\n")


def plan_training(args: argparse.Namespace) -> None:
    """Print what training a model like that of a checkpoint or folder takes."""
    model, _ = load_model(args.checkpoint, "cpu")
    options = {name: getattr(args, name) for name in ("tokens", "gpus", "batch_size", "length")}
    print(plan(model.config, hardware=HARDWARE[args.hardware], **options))


def write_tokens(args: argparse.Namespace) -> None:
    """Write the tokens of text files, whose texts end at blank lines, and print their number."""
    with new_folder(args.folder) as unfinished, read_once(args.text) as texts:
        tokenizer: Tokenizer
        if args.tokenizer is None:
            tokenizer = BPETokenizer.train(texts(), args.vocab_size)
        else:
            tokenizer = Tokenizer.load(args.tokenizer)
        parallel.write_tokens(texts(), tokenizer, unfinished)
    number = len(parallel.TokenFile(args.folder).tokens)
    print(f"{args.folder}: {number} tokens of a vocabulary of {tokenizer.vocab_size}")


def export_model(args: argparse.Namespace) -> None:
    """Write a trained model and its tokenizers for another engine, and name the files."""
    if args.quantization is not None and args.to != "ctranslate2":
        raise ValueError(f"--quantization is for --to ctranslate2, not for {args.to}")
    options = {} if args.quantization is None else {"quantization": args.quantization}
    ENGINES[args.to](TextModel.load(args.checkpoint), args.folder, **options)
    print(f"{args.folder}: {', '.join(sorted(path.name for path in args.folder.iterdir()))}")


def show_model(args: argparse.Namespace) -> None:
    """Write the live page for a model, or serve it on this machine until it is stopped."""
    about = {"name": Path(args.checkpoint).stem, "text": args.text}
    text_model = TextModel.load(args.checkpoint)
    if args.save is not None:
        write_page(text_model, args.save, **about)
        print(f"{args.save}: python -m http.server --bind 127.0.0.1 --directory {args.save}")
        return
    with TemporaryDirectory() as folder:
        write_page(text_model, page := Path(folder) / "page", **about)
        with page_server(page, args.port) as server:
            address = f"http://127.0.0.1:{server.server_port}/"
            print(f"{address} shows {args.checkpoint} until Ctrl+C", flush=True)
            if not args.no_browser:
                webbrowser.open(address)
            with suppress(KeyboardInterrupt):
                server.serve_forever()


def check_exercises(args: argparse.Namespace) -> None:
    """Check a file's answers to a chapter's exercises, and say what has been solved."""
    mine = runpy.run_path(str(args.file))
    chapter = getattr(check, args.chapter)
    for name in dir(chapter):
        if (exercise := getattr(chapter, name)).function in mine:
            print(f"{name}: ", end="")
            exercise(mine[exercise.function])
    check.progress(args.chapter)


def do_project(args: argparse.Namespace) -> None:
    """Write a project's starter into a folder that is not there yet; check one that is."""
    if args.folder.exists():
        sys.exit(not check_project(args.project, args.folder, args.hint))
    write_starter(args.project, args.folder)
    print(f"{args.folder}: {', '.join(sorted(path.name for path in args.folder.iterdir()))}")
    print("The same command checks what you make of it.")


def hand_out(args: argparse.Namespace) -> None:
    """Write the exercises as notebooks, and print how many there are, with minutes to plan."""
    for name, number, minutes in write_handouts(args.folder, args.chapters):
        print(f"{name:<36}{number} exercises, {minutes} min")


def grade_submissions(args: argparse.Namespace) -> None:
    """Print a table of what each submission has solved."""
    rows = []
    for row in grade(args.what, args.folder, args.seconds):
        rows.append(row)
        print(row, flush=True)
    if args.csv is not None:
        write_csv(rows, args.csv)


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    main_parser = argparse.ArgumentParser(
        prog="minitransformer", description="Train a Transformer, use it, export it, plan one."
    )
    main_parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    command = main_parser.add_subparsers(required=True, metavar="command").add_parser

    sub = command("train", help="train a model; started again, it goes on where it was stopped")
    what = sub.add_mutually_exclusive_group()
    what.add_argument("--task", choices=JOBS, default=NUMBER_WORDS, help="%(default)s if left out")
    what.add_argument(
        "--tokens", type=Path, metavar="FOLDER", help="train a language model on these instead"
    )
    sub.add_argument(
        "--recipe", choices=RECIPES, help="fast: what chapter 16 found; usual if left out"
    )
    steps = "as many as the task needs if left out; at most a quarter of them warm up"
    sub.add_argument("--steps", type=int, help=steps)
    sub.add_argument("--seed", type=int, default=TrainingConfig.seed)
    sub.add_argument("--precision", choices=("fp32", "bf16"), default=TrainingConfig.precision)
    many = sub.add_argument_group(
        "on many processes", "torchrun --nproc-per-node 2 -m minitransformer train ..."
    )
    kinds = "each has the whole model (ddp), or a share"
    many.add_argument("--parallel", choices=("ddp", "fsdp"), help=kinds)
    many.add_argument("--parts", type=int, help="of a batch; as many as processes, or a multiple")
    flag: dict[str, Any] = {"action": "store_true", "default": None}
    many.add_argument("--recompute", **flag, help="compute layers again to keep less in memory")
    many.add_argument("--compile", **flag, help="have PyTorch compile the layers")
    limit = "seconds to wait for another process; 600 if left out"
    many.add_argument("--time-limit", type=float, help=limit)
    use_model(sub, train)

    sub = command("tokens", help="write the tokens of text files")
    sub.add_argument("text", type=Path, nargs="+", help="a file; blank lines part texts")
    sub.add_argument("--to", dest="folder", type=Path, required=True, help="a new folder")
    made = sub.add_mutually_exclusive_group()
    made.add_argument("--vocab-size", type=int, default=1000, help="of a new tokenizer")
    made.add_argument("--tokenizer", type=Path, help="the file of one, instead")
    sub.set_defaults(run=write_tokens)

    sub = command("translate", help="translate texts with a trained model")
    sub.add_argument("text", nargs="+", help='such as "three hundred forty-two"')
    use_model(sub, translate, NUMBER_WORDS)

    sub = command("complete", help="continue texts with a trained model")
    sub.add_argument("text", nargs="+", help='such as "The town lies between"')
    sub.add_argument("--temperature", type=float, default=0.0, help="0 draws nothing")
    sub.add_argument("--seed", type=int, default=0, help="of the draws")
    use_model(sub, complete, LANGUAGE_MODEL)

    sub = command("plan", help="what training such a model takes")
    sub.add_argument("checkpoint", help="or the folder of a model, or its name on the Hub")
    sub.add_argument("--tokens", type=float, required=True, help="of the whole training")
    sub.add_argument("--gpus", type=int, default=1)
    sub.add_argument("--hardware", choices=HARDWARE, default="A100")
    sub.add_argument("--batch-size", type=int, default=1, help="rows that each GPU has")
    sub.add_argument("--length", type=int, help="tokens of a row; max_len if left out")
    sub.set_defaults(run=plan_training)

    sub = command("export", help="write a trained model for another engine")
    sub.add_argument("checkpoint", help="or the folder of a model, or its name on the Hub")
    sub.add_argument("--to", choices=ENGINES, required=True)
    sub.add_argument("folder", type=Path, help="a new one")
    sub.add_argument("--quantization", help='of ctranslate2, such as "int8"')
    sub.set_defaults(run=export_model)

    sub = command("show", help="show a trained model at work in the browser, on this machine alone")
    sub.add_argument("checkpoint", help="or the folder of a model, or its name on the Hub")
    sub.add_argument("--text", default="", help="what the model reads first")
    sub.add_argument("--port", type=int, default=0, help="of 127.0.0.1; a free one if left out")
    sub.add_argument("--no-browser", action="store_true", help="print the address alone")
    sub.add_argument("--save", type=Path, metavar="FOLDER", help="write the page there instead")
    sub.set_defaults(run=show_model)

    sub = command("exercises", help="check your answers to the exercises of a chapter")
    sub.add_argument("chapter", choices=dir(check))
    sub.add_argument("file", type=Path, help="Python, with functions called as in the chapter")
    sub.set_defaults(run=check_exercises)

    sub = command("project", help="begin one of the longer projects, or check yours")
    sub.add_argument("project", choices=PROJECTS)
    sub.add_argument("folder", type=Path, help="a new one gets the starter; another is checked")
    hint = "of bug_hunt: which files have bugs left; twice: which laws they break"
    sub.add_argument("--hint", action="count", default=0, help=hint)
    sub.set_defaults(run=do_project)

    sub = command("handout", help="write the exercises as notebooks without solutions")
    sub.add_argument("folder", type=Path, help="a new one")
    sub.add_argument("--chapters", type=Path, help="of a copy of the repository, if not this one's")
    sub.set_defaults(run=hand_out)

    sub = command("grade", help="print what each submission in a folder has solved")
    sub.add_argument("what", choices=GRADED, help="a chapter or a project", metavar="what")
    sub.add_argument("folder", type=Path, help="files .py or .ipynb; for a project, folders")
    sub.add_argument("--seconds", type=float, help="for each; 60, or 1200 for a project")
    sub.add_argument("--csv", type=Path, help="write the table to this file, too")
    sub.set_defaults(run=grade_submissions)
    return main_parser


def use_model(
    sub: argparse.ArgumentParser, run: Callable[..., None], name: str | None = None
) -> None:
    """Let a command train a checkpoint, or decode with the one of that name."""
    default = None if name is None else Path(f"{name}.safetensors")
    sub.add_argument("--checkpoint", type=Path, default=default)
    sub.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    if name is not None:
        sub.add_argument("--max-new-tokens", type=int, help="longest text; usually 64")
    sub.set_defaults(run=run)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; bad input ends it with one line on stderr and exit status 1."""
    args = None
    try:
        args = parser().parse_args(arguments)
        args.run(args)
    except (ImportError, TypeError, ValueError, OSError, FloatingPointError) as error:
        # What can only happen to all of them together, the first process says alone.
        by_all = isinstance(error, FloatingPointError)
        sys.exit(1 if by_all and is_another_process() else f"minitransformer: {error}")
    except KeyboardInterrupt as error:
        what = f"{str(error) or 'stopped'}; the same command goes on from the last checkpoint"
        what = what if args and args.run is train else "stopped"
        sys.exit(1 if is_another_process() else f"\nminitransformer: {what}")


if __name__ == "__main__":
    main()

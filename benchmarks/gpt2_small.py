"""A language model of the size of GPT-2's smallest on text of your own: loss, speed, use of a GPU.

python -m minitransformer tokens text*.txt --to tokens --vocab-size 50257
python benchmarks/gpt2_small.py tokens --compile                      one GPU
torchrun --nproc-per-node 8 benchmarks/gpt2_small.py tokens --parallel fsdp
python benchmarks/gpt2_small.py tokens --small --steps 50             the same program on a CPU

Ten times in the training it prints the loss, tokens a second, which part of the device's peak that
is, with operations counted as `plan` counts them, and the most memory in use. The first of the ten
lines contains the compilation; the others are the speed. A checkpoint is kept beside the tokens: a
training that is stopped goes on from it.
"""

import argparse
import time
from pathlib import Path

import torch

import minitransformer as mt
from minitransformer.parallel import ParallelTrainer, TokenFile, join_processes

LARGE = {"num_layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 3072, "max_len": 1024}
SMALL = {"num_layers": 2, "d_model": 64, "num_heads": 4, "d_ff": 256, "max_len": 128}
TOKENS_A_STEP = {"large": 2**19, "small": 2**12}
TIMES = 10


def peak(device: torch.device, precision: str) -> float | None:
    """Operations a second that the device could do; None for one that `HARDWARE` lacks."""
    if device.type != "cuda":
        return None
    called = torch.cuda.get_device_name(device)
    for name, hardware in mt.HARDWARE.items():
        if name in called:
            return hardware.flops if precision == "bf16" else hardware.flops_float32
    return None


def new_trainer(args: argparse.Namespace, device: torch.device) -> mt.LanguageModelTrainer:
    """The model and its training from the beginning."""
    file = TokenFile(args.tokens)
    sizes = SMALL if args.small else LARGE
    config = mt.TransformerConfig.decoder_only(
        file.tokenizer.vocab_size, norm_first=True, activation="gelu", dropout=0.0, **sizes
    )
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(args.seed))
    settings = mt.TrainingConfig(
        steps=args.steps,
        batch_size=TOKENS_A_STEP["small" if args.small else "large"] // sizes["max_len"],
        warmup_steps=max(1, args.steps // 20),
        peak_learning_rate=3e-3 if args.small else 6e-4,
        context_length=sizes["max_len"],
        precision="bf16" if device.type == "cuda" else "fp32",
        seed=args.seed,
    )
    return mt.LanguageModelTrainer(model.to(device), file.tokens, file.tokenizer, settings)


def main() -> None:
    """Train, and say ten times how it goes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokens", type=Path, help="what `minitransformer tokens` wrote")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--parts", type=int, help="of a batch; more of them need less memory")
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_float32_matmul_precision("high")
    with join_processes("cuda" if torch.cuda.is_available() else "cpu") as processes:
        device = processes.device
        trainer = new_trainer(args, device)
        config = trainer.config
        if args.parts is None:  # 16 rows at once
            args.parts = max(processes.count, config.batch_size // 16)
        parallel = ParallelTrainer(
            trainer,
            processes,
            args.parallel,
            parts=args.parts,
            recompute=args.recompute,
            compiled=args.compile,
        )
        model_config = trainer.model.config
        a_step = config.batch_size * config.context_length
        counted = mt.plan(model_config, a_step, length=config.context_length)
        if processes.is_first:
            print(f"{counted.parameters:,} parameters, {a_step:,} tokens a step, {device}")
        folder = args.tokens / "training"
        parallel.fit(0, checkpoint=folder, progress=False)  # goes on from what is there
        done = trainer.step
        for part in range(1, TIMES + 1):
            begin = time.perf_counter()
            until = config.steps * part // TIMES
            history = parallel.fit(until, progress=False)
            seconds, steps = time.perf_counter() - begin, trainer.step - done
            done = trainer.step
            parallel.fit(done, checkpoint=folder, progress=False)  # saves; that is not timed
            if not processes.is_first or not steps:
                continue
            speed = steps * a_step / seconds
            line = f"step {done:>6}  loss {history[-1]['loss']:.3f}  {speed:>11,.0f} tokens/s"
            if top := peak(device, config.precision):
                share = speed * counted.flops_per_token / (top * processes.count)
                most = torch.cuda.max_memory_allocated(device) / 2**30
                line += f"  {share:.0%} of the peak  {most:.1f} GiB"
            print(line, flush=True)


if __name__ == "__main__":
    main()

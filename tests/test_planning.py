"""What a training takes: counted exactly where it can be, and compared with published runs."""

from dataclasses import replace

import pytest
import torch
from helpers import refuses
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

import minitransformer as mt
from minitransformer.efficient_attention import PeakMemory
from minitransformer.layers import attention
from minitransformer.models import (
    GPT2,
    BERTConfig,
    GPT2Config,
    Llama,
    LlamaConfig,
    MistralConfig,
    Mixtral,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3Moe,
    Qwen3MoeConfig,
)
from minitransformer.planning import parts_of

SMALL = {"d_model": 24, "num_heads": 4, "d_ff": 44, "dropout": 0.0}
DECODERS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True},
    "gelu": {"activation": "gelu"},
    "swiglu": {"activation": "swiglu", "norm_first": True},
    "reglu": {"activation": "reglu"},
    "no biases, untied": {"attention_bias": False, "tie_output": False},
    "learned": {"positional_encoding": "learned", "max_len": 13},
    "alibi, shared keys": {"positional_encoding": "alibi", "num_kv_heads": 2},
    "rotary, one key": {"positional_encoding": "rotary", "num_kv_heads": 1, "norm_first": True},
    "rms": {"norm": "rms_norm", "norm_first": True},
}
TRANSLATORS = {
    "base": {},
    "pre-norm, unequal": {"norm_first": True, "num_encoder_layers": 3, "num_decoder_layers": 2},
    "one vocabulary": {"src_vocab_size": 37, "share_embeddings": True},
    "untied, learned": {"tie_output": False, "positional_encoding": "learned", "max_len": 13},
    "gated, rms, shared keys": {"activation": "geglu", "norm": "rms_norm", "num_kv_heads": 2},
}
TINY = {"vocab_size": 37, "d_model": 24, "num_heads": 4, "num_layers": 3}
GATED = {**TINY, "d_ff": 44, "max_len": 13}
PUBLISHED = {
    "gpt2": GPT2Config(**TINY, max_len=13, dropout=0.0),
    "gpt2 untied": GPT2Config(**TINY, d_ff=50, tie_output=False, activation="relu", dropout=0.0),
    "llama": LlamaConfig(**GATED),
    "llama wide": LlamaConfig(**GATED, d_k=10, num_kv_heads=2, tie_output=True),
    "llama biases": LlamaConfig(**GATED, attention_bias=True, mlp_bias=True, activation="relu"),
    "mistral": MistralConfig(**GATED, num_kv_heads=2),
    "qwen2": Qwen2Config(**GATED, num_kv_heads=2),
    "qwen3": Qwen3Config(**GATED, num_kv_heads=2, d_k=10),
    "mixtral": MixtralConfig(**GATED, num_kv_heads=2, num_experts=5),
    "qwen3 moe": Qwen3MoeConfig(**GATED, num_kv_heads=2, num_experts=6, top_k=3),
}


def decoder(**options):
    """A small configuration without encoder."""
    return mt.TransformerConfig.decoder_only(37, num_layers=3, **{**SMALL, **options})


def translator(**options):
    """A small configuration with an encoder."""
    sizes = {"src_vocab_size": 31, "tgt_vocab_size": 37, "num_encoder_layers": 2}
    return mt.TransformerConfig(**{**sizes, "num_decoder_layers": 3, **SMALL, **options})


CONFIGS = {
    **{name: decoder(**options) for name, options in DECODERS.items()},
    **{f"encoder, {name}": translator(**options) for name, options in TRANSLATORS.items()},
    **PUBLISHED,
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def build(config):
    """The model of a configuration, and a run of its plain loss on (b, t) = (5, 11)."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 31, (5, 11), generator=generator)
    if isinstance(config, LlamaConfig):
        kinds = {MixtralConfig: Mixtral, Qwen3MoeConfig: Qwen3Moe}
        model = kinds.get(type(config), Llama)(config, generator)
    elif isinstance(config, GPT2Config):
        model = GPT2(config, generator)
    elif config.num_encoder_layers:
        model = mt.Transformer(config, generator)
        return model, lambda: mt.label_smoothing_loss(model(ids, ids), ids)
    else:
        model = mt.DecoderOnlyTransformer(config, generator)
    return model, lambda: mt.label_smoothing_loss(model(ids), ids)


def saved_bytes(model, run):
    """Bytes of what autograd keeps, without parameters and buffers, each storage once."""
    known = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers())}
    kept = {}

    def pack(x):
        if x.untyped_storage().data_ptr() not in known:
            kept[x.untyped_storage().data_ptr()] = x  # alive, so that no address comes back
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = run()
    assert loss.isfinite()
    return sum(x.untyped_storage().nbytes() for x in kept.values())


# --- counted exactly ------------------------------------------------------------------------------


def test_parameters_of_published_sizes():
    assert mt.plan(GPT2Config(), 1e9).parameters == 124_439_808
    assert mt.plan(LlamaConfig(), 1e9).parameters == 6_738_415_616
    wide = LlamaConfig(d_model=8192, num_heads=64, num_layers=80, d_ff=22_016)
    assert mt.plan(wide, 1e9).parameters == 65_285_660_672
    sparse = mt.plan(MixtralConfig(), 1e9)
    assert (sparse.parameters, sparse.active) == (46_702_792_704, 12_879_925_248)
    assert "46,702,792,704; active 12,879,925,248\n" in str(sparse)
    assert "active" not in str(mt.plan(wide, 1e9))


def use_reference(model):
    """Attention by the formula, whose products PyTorch counts."""
    for module in model.modules():
        if isinstance(module, mt.ScaledDotProductAttention):
            module.backend = "reference"


@each_config
def test_parameters_and_operations_are_those_that_pytorch_counts(config):
    model, run = build(config)
    assert mt.plan(config, 1e6).parameters == sum(p.numel() for p in model.parameters())
    use_reference(model)
    with FlopCounterMode(display=False) as counted:
        run().backward()
    assert counted.get_total_flops() == 55 * mt.plan(config, 1e6, length=11).flops_per_token


def checkpointed(config):
    """The same, with layers that are computed again in the backward pass."""
    model, run = build(config)
    for layer in model.decoder.layers:
        layer.forward = lambda *x, again=layer.forward: checkpoint(again, *x, use_reentrant=False)
    return model, run


def test_operations_with_checkpointing():
    config = decoder(norm_first=True)
    model, run = checkpointed(config)
    use_reference(model)
    with set_checkpoint_early_stop(False), FlopCounterMode(display=False) as counted:
        run().backward()
    settings = {"tokens": 55, "length": 11, "utilisation": 1.0}
    plain, again = mt.plan(config, **settings), mt.plan(config, **settings, checkpointing=True)
    assert again.flops == plain.flops
    assert counted.get_total_flops() == pytest.approx(plain.flops * again.seconds / plain.seconds)


@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_states_are_those_of_a_real_model(precision):
    config = decoder(norm_first=True)
    model, run = build(config)
    masters = list(model.parameters())
    if precision == "mixed":  # as engines do it: Adam steps float32 copies of 16-bit weights
        masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
        model.bfloat16()
    run().backward()
    own = {x.untyped_storage().data_ptr() for x in model.parameters()}
    optimiser = torch.optim.AdamW(masters)
    for master, parameter in zip(masters, model.parameters(), strict=True):
        master.grad = parameter.grad.to(master.dtype)
    gradients = sum(p.grad.nbytes for p in model.parameters())
    optimiser.step()
    state = [x for p in masters for name, x in optimiser.state[p].items() if name != "step"]
    state += [x for x in masters if x.untyped_storage().data_ptr() not in own]
    memory = mt.plan(config, 1e6, precision=precision).memory
    assert memory["parameters"] == sum(p.nbytes for p in model.parameters())
    assert memory["gradients"] == gradients
    assert memory["optimiser"] == sum(x.nbytes for x in state)


@each_config
def test_activations_are_what_autograd_keeps(config, monkeypatch):
    """But for a few numbers a position, see `planning`."""
    monkeypatch.setattr(attention, "known", lambda _: None)  # as a GPU does it, which is not asked
    model, run = build(config)
    memory = mt.plan(config, 1e6, precision="float32", batch_size=5, length=11).memory
    # The CPU's RMS norm, which is not one kernel, keeps its result before the gain too.
    inputs = []
    for module in model.modules():
        if isinstance(module, mt.RMSNorm):
            module.register_forward_hook(lambda m, args, y: inputs.append(y.nbytes))
    measured = saved_bytes(model, run) - sum(inputs)
    if config.positional_encoding == "alibi":
        measured -= 3 * 4 * (5 * 4 * 11 * 11)  # the CPU has no fused attention with a bias
    few = 55 * 4 * (26 + 8 * 4 + 22)  # norms' means and deviations, sums of weights, ids, masks
    few += 55 * 4 * 3 * 9 * getattr(config, "top_k", 0)  # whole numbers that say who goes where
    expected = memory["activations"] + memory["logits"] / 2  # that are kept; half is gradient
    assert expected <= measured <= expected + few


@pytest.mark.parametrize("in_chunks", [True, False])
def test_total_is_a_bound_of_the_peak(in_chunks):
    sizes = {"num_layers": 5, "d_model": 96, "num_heads": 6, "d_ff": 400, "norm_first": True}
    config = mt.TransformerConfig.decoder_only(211, dropout=0.0, **sizes)
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
    ids = torch.randint(1, 211, (4, 190), generator=torch.Generator().manual_seed(0))
    memory = mt.plan(config, 1e6, precision="float32", batch_size=4, length=190).memory
    with PeakMemory() as measured:
        if in_chunks:
            mt.next_token_loss(model, ids, ids).backward()
        else:
            mt.label_smoothing_loss(model(ids), ids).backward()
    most = memory["total"] - memory["parameters"] - memory["optimiser"]  # which are there before
    assert memory["activations"] < measured.peak < most
    assert measured.peak > 0.85 * most


def test_what_checkpointing_leaves():
    config = decoder(norm_first=True)
    options = {"precision": "float32", "batch_size": 5, "length": 11}
    memory = mt.plan(config, 1e6, **options, checkpointing=True).memory
    inside = 55 * 4 * parts_of(config)[0][0].saved  # computed again in the backward pass
    expected = memory["activations"] - inside + memory["logits"] / 2
    assert saved_bytes(*checkpointed(config)) == pytest.approx(expected, rel=0.05)


# --- what follows ---------------------------------------------------------------------------------


def test_time_and_cost_follow():
    device = mt.planning.Hardware("mine", 100e12, 10e12, 16e9, 4.0)
    made = mt.plan(2_000_000_000, 5e9, 3, device, utilisation=0.25)
    assert made.flops == 6 * 2e9 * 5e9
    assert made.seconds == pytest.approx(6e19 / (3 * 25e12))
    assert made.days == pytest.approx(made.seconds / 86_400)
    assert made.gpu_hours == pytest.approx(3 * made.seconds / 3600)
    assert made.cost == pytest.approx(4 * made.gpu_hours)
    slow = mt.plan(2_000_000_000, 5e9, 3, device, utilisation=0.25, precision="float32")
    assert slow.seconds == pytest.approx(10 * made.seconds)


def test_a_number_has_no_activations():
    made = mt.plan(7_000_000_000, 1e12)
    assert list(made.memory) == ["parameters", "gradients", "optimiser", "total"]
    assert made.memory["total"] == 16 * 7e9
    assert not made.fits
    assert "does not fit" in str(made)
    assert mt.plan(7e9, 1e12, checkpointing=True).seconds == pytest.approx(made.seconds * 4 / 3)


def test_shards_are_shares_and_layers_are_gathered():
    config = LlamaConfig()
    whole = mt.plan(config, 1e12, 64).memory
    shared = mt.plan(config, 1e12, 64, sharding="fsdp").memory
    for kind in ("parameters", "gradients", "optimiser"):
        assert shared[kind] == whole[kind] / 64
    assert shared["activations"] == whole["activations"]
    layer = parts_of(config)[0][0].parameters
    table = 2 * 32_000 * 4096 + 4096
    assert shared["gathered"] == 2 * (2 * layer + table) + 2 * table
    assert "gathered" not in mt.plan(config, 1e12, 1, sharding="fsdp").memory


def test_dropout_keeps_a_byte_for_each_decision():
    plain, dropping = (mt.plan(decoder(dropout=p), 1e6, length=11).memory for p in (0.0, 0.1))
    decisions = 24 * (1 + 2 * 3)  # embedded tokens, and two sub-layers in each of three layers
    assert dropping["activations"] - plain["activations"] == 11 * decisions


def planned(config=CONFIGS["post-norm"], tokens=1e6, **options):
    return lambda: mt.plan(config, tokens, **options)


def hardware(**numbers):
    return lambda: replace(mt.HARDWARE["A100"], **numbers)


test_what_makes_no_plan_is_refused = refuses(
    ("got str", planned("large"), TypeError),
    ("got bool", planned(True), TypeError),
    ("got BERTConfig", planned(BERTConfig()), TypeError),
    ("config must be at least 1, got 0", planned(0)),
    ("tokens must be above 0, got 0", planned(tokens=0)),
    ("tokens must be above 0, got nan", planned(tokens=float("nan"))),
    ("gpus must be at least 1, got 0", planned(gpus=0)),
    ("gpus must be of type int, got float", planned(gpus=2.5), TypeError),
    ("hardware must be of type Hardware, got str", planned(hardware="A100"), TypeError),
    ("utilisation must be above 0 and at most 1, got 40", planned(utilisation=40)),
    ("batch_size must be at least 1, got -3", planned(batch_size=-3)),
    ("length must be at least 1, got 0", planned(length=0)),
    ("length must be at most max_len=1024, got 1025", planned(length=1025)),
    ("one of .'float32', 'mixed'., got 'float8'", planned(precision="float8")),
    ("sharding must be 'none' or 'fsdp', got 'ddp'", planned(sharding="ddp")),
    ("flops must be above 0, got -1.0", hardware(flops=-1.0)),
    ("flops_float32 must be above 0, got -1.0", hardware(flops_float32=-1.0)),
    ("memory must be above 0, got -1.0", hardware(memory=-1.0)),
    (r"price must be at least 0, got -2\.0", hardware(price=-2.0)),
    ("memory must be float, got None", hardware(memory=None), TypeError),
)


def test_alibi_has_no_longest_row():
    config = decoder(positional_encoding="alibi")
    assert mt.plan(config, 1e6, length=5000).length == 5000

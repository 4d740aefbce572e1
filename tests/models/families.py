"""Every published family: models as `transformers` makes and publishes them, and ours beside them.

Their configurations are random and small, all their parameters are shaken, so that no zero and no
one hides a mistake, and they are saved as they publish.
"""

import json
from functools import partial

import torch
from alike import ids_of, loaded, published, transformers, with_plain_experts
from helpers import randn
from torch import nn

from minitransformer import Transformer
from minitransformer import models as mm

V = 37
HIDDEN = {"vocab_size": V, "intermediate_size": 20}
LLAMA = HIDDEN | {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6}
LLAMA |= {"num_key_value_heads": 2, "max_position_embeddings": 40}
LLAMA |= {"bos_token_id": 1, "eos_token_id": 2}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 30, "rope_theta": 300.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 30}
YARN |= {"beta_fast": 8.0, "rope_theta": 300.0}
SLIDING = {"use_sliding_window": True, "sliding_window": 3}
MOE = {"moe_intermediate_size": 16, "num_experts": 6, "num_experts_per_tok": 3}
GPT = {"vocab_size": V, "n_embd": 12, "n_head": 3, "n_layer": 3, "n_positions": 20}
GPT |= {"bos_token_id": 1, "eos_token_id": 2}
WIDTHS = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2}
BERTS = HIDDEN | WIDTHS | {"max_position_embeddings": 16}
DISTILBERTS = {"vocab_size": V, "dim": 12, "n_heads": 3, "n_layers": 2, "hidden_dim": 20}
DISTILBERTS |= {"max_position_embeddings": 16}
OTHER = {"tie_word_embeddings": False, "pad_token_id": 4, "num_labels": 5}
OTHER_BERT = OTHER | {"hidden_act": "relu", "layer_norm_eps": 1e-3, "num_attention_heads": 2}
T5S = {"vocab_size": V, "d_model": 12, "d_kv": 5, "d_ff": 20, "num_heads": 3, "num_layers": 3}
T5S |= {"decoder_start_token_id": 0}
MARIANS = {
    "vocab_size": V,
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 18,
    "forced_eos_token_id": None,  # else their longest texts end in it, whatever was more probable
}
OPUS = {"pad_token_id": 36, "decoder_start_token_id": 36, "eos_token_id": 0}
VITS = WIDTHS | {"intermediate_size": 20, "num_labels": 5}
PICTURES = {
    "square": {"image_size": 8, "patch_size": 2, "num_channels": 1},
    "rectangular": {
        "image_size": (6, 8),
        "patch_size": (3, 2),
        "num_channels": 2,
        "qkv_bias": False,
        "layer_norm_eps": 1e-6,
        "hidden_act": "relu",
        "pooler_output_size": 7,
    },
    "long": {"image_size": [4, 14], "patch_size": 2, "hidden_act": "gelu_new"},
}
HEADS = {
    "Model": mm.BERT,
    "ForMaskedLM": mm.BERTForMaskedLM,
    "ForSequenceClassification": mm.BERTForSequenceClassification,
}


BERT_FAMILIES = {
    "Bert": (BERTS, OTHER_BERT | {"type_vocab_size": 3}),
    "Roberta": (BERTS, OTHER_BERT | {"type_vocab_size": 1, "hidden_act": "gelu_new"}),
    "DistilBert": (DISTILBERTS, OTHER | {"activation": "relu", "sinusoidal_pos_embds": True}),
}
KINDS = {
    "GPT2 LMHeadModel": (mm.GPT2, GPT),
    "Llama ForCausalLM": (mm.Llama, LLAMA),
    "Mistral ForCausalLM": (mm.Llama, LLAMA),
    "Qwen2 ForCausalLM": (mm.Llama, LLAMA),
    "Qwen3 ForCausalLM": (mm.Llama, LLAMA),
    "Mixtral ForCausalLM": (mm.Mixtral, LLAMA | {"num_local_experts": 5}),
    "Qwen3Moe ForCausalLM": (mm.Qwen3Moe, LLAMA | MOE),
    "T5 ForConditionalGeneration": (mm.T5, T5S),
    "Marian MTModel": (mm.Marian, MARIANS),
    "Bart ForConditionalGeneration": (mm.BART, MARIANS),
}
"""Our class, and the sizes of all its variants, by the names of their family and model."""
CHANGES = {
    "GPT2 LMHeadModel": {
        "as published": {},
        "other": {"n_inner": 50, "layer_norm_epsilon": 1e-3, "activation_function": "relu"},
        "untied": {"tie_word_embeddings": False, "activation_function": "gelu"},
    },
    "Llama ForCausalLM": {
        "as published": {},
        "all heads": {"num_key_value_heads": None, "rms_norm_eps": 1e-3},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "tied": {"tie_word_embeddings": True, "hidden_act": "gelu"},
        "wide heads": {"head_dim": 10, "rope_parameters": {"rope_theta": 77.0}},
        "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.5}},
        "llama3": {"head_dim": 16, "rope_parameters": LLAMA3},
        "yarn": {"head_dim": 16, "rope_parameters": YARN},
        "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0}},
    },
    "Mistral ForCausalLM": {
        "no window": {"sliding_window": None},
        "window": {"sliding_window": 3, "head_dim": 6},
        "window of two": {"sliding_window": 2, "tie_word_embeddings": True},
    },
    "Qwen2 ForCausalLM": {
        "as published": {},
        "tied": {"tie_word_embeddings": True, "num_key_value_heads": 3},
        "windows": {"max_window_layers": 1, **SLIDING},
    },
    "Qwen3 ForCausalLM": {
        "as published": {"head_dim": 8},
        "biases": {"head_dim": 6, "attention_bias": True},
        "windows": {
            "head_dim": 8,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
            **SLIDING,
        },
    },
    "Mixtral ForCausalLM": {
        "as published": {},
        "other": {
            "sliding_window": 3,
            "num_experts_per_tok": 3,
            "hidden_act": "gelu",
            "head_dim": 6,
            "tie_word_embeddings": True,
            "router_aux_loss_coef": 0.02,
        },
    },
    "Qwen3Moe ForCausalLM": {
        "as published": {"head_dim": 8, "norm_topk_prob": True},
        "other": {"attention_bias": True, **SLIDING},
    },
    "T5 ForConditionalGeneration": {
        "as published": {},
        "1.1": {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
        "other": {
            "num_decoder_layers": 2,
            "relative_attention_num_buckets": 9,
            "relative_attention_max_distance": 11,
            "layer_norm_epsilon": 1e-3,
            "feed_forward_proj": "gated-silu",
        },
        "untied": {"tie_word_embeddings": False, "feed_forward_proj": "gelu_new"},
    },
    "Marian MTModel": {
        "as OPUS-MT": OPUS | {"scale_embedding": True, "activation_function": "swish"},
        "odd width": OPUS
        | {"d_model": 9, "encoder_attention_heads": 1, "decoder_attention_heads": 3},
        "other ids": {
            "pad_token_id": 5,
            "decoder_start_token_id": 4,
            "activation_function": "relu",
        },
    },
    "Bart ForConditionalGeneration": {
        "as published": {},
        "scaled": {"scale_embedding": True, "activation_function": "gelu_new"},
        "other ids": {"pad_token_id": 7, "decoder_layers": 1, "encoder_layers": 3},
    },
}
"""What differs from those sizes, by a name."""
for family, (sizes, other) in BERT_FAMILIES.items():
    for head, ours in HEADS.items():
        KINDS[f"{family} {head}"] = (ours, sizes)
        CHANGES[f"{family} {head}"] = {"as published": {}, "other": other}
for head in ("ForImageClassification", "Model"):
    KINDS[f"ViT {head}"] = (mm.ViT, VITS)
    CHANGES[f"ViT {head}"] = PICTURES
CHANGES["ViT Model"] = PICTURES | {"no pooler": PICTURES["square"] | {"head": "none"}}
VARIANTS = {
    f"{name} {variant}": (ours, f"{name.split()[0]}Config", name.replace(" ", ""), sizes | change)
    for name, (ours, sizes) in KINDS.items()
    for variant, change in CHANGES[name].items()
}
"""Our class, the names of their configuration and model, and the settings of each variant."""


def theirs_of(name, seed=1, **changes):
    """A shaken model of `transformers`, in float64."""
    kind, config, model, settings = VARIANTS[name]
    settings = settings | changes
    options = {"add_pooling_layer": False} if settings.pop("head", None) else {}
    torch.manual_seed(seed)
    theirs = getattr(transformers, model)(getattr(transformers, config)(**settings), **options)
    if kind is mm.T5 and not settings.get("tie_word_embeddings", True):  # it is tied all the same
        theirs.lm_head.weight = nn.Parameter(torch.randn(V, 12))
    if not issubclass(kind, mm.Marian):
        return published(theirs, seed)
    theirs.final_logits_bias = nn.Parameter(theirs.final_logits_bias)  # it is a buffer there
    theirs = published(theirs, seed)
    with torch.no_grad():
        if kind is mm.Marian:  # its positions are no parameters here, and are not stored there
            for side in (theirs.model.encoder, theirs.model.decoder):
                side.embed_positions.weight.copy_(side.embed_positions.create_weight())
        src, tgt = ids_of(V, 8, 7, seed=4), ids_of(V, 8, 9, seed=5)
        # Every token scores 0 on average, so that texts are not all alike.
        scores = theirs(input_ids=src, decoder_input_ids=tgt).logits
        theirs.final_logits_bias -= scores.mean(dim=(0, 1))
    return theirs


def exact(theirs, ours):
    """Theirs with norms and routers in the dtype of their input, not float32, and our angles.

    What then is left has to be exact.
    """

    def norm(x, own):
        return own.weight * x / torch.sqrt(x.square().mean(-1, keepdim=True) + own.variance_epsilon)

    def routed(x, own):
        logits = x.flatten(0, -2) @ own.weight.T
        weights, chosen = logits.softmax(dim=-1).topk(own.top_k, dim=-1)
        if getattr(own, "norm_topk_prob", True):
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return logits, weights, chosen

    def angles(x, position_ids):
        table = ours.decoder.layers[0].self_attention.rotary.table.double()[position_ids]
        sine, cosine = table[..., 0::2], table[..., 1::2]
        return torch.cat([cosine, cosine], dim=-1), torch.cat([sine, sine], dim=-1)

    for module in with_plain_experts(theirs).modules():
        if type(module).__name__.endswith(("RMSNorm", "T5LayerNorm")):
            module.forward = partial(norm, own=module)
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = partial(routed, own=module)
    if isinstance(ours, mm.Llama):
        theirs.model.rotary_emb.forward = angles
    return theirs


class Pair:
    """A model of `transformers`, ours with its weights, and inputs with padding for both."""

    def __init__(self, theirs, ours):
        self.theirs, self.ours = theirs, ours
        self.pad_id = getattr(ours.config, "pad_id", -1)
        self.start_id = getattr(ours.config, "start_id", None)
        self.given = self.inputs()

    def inputs(self):
        """What is given to ours: ids, ids and segments, source and target, or pictures."""
        config = self.ours.config
        if isinstance(self.ours, mm.ViT):
            size = config.image_size
            size = (size, size) if isinstance(size, int) else size
            return (randn(4, config.num_channels, *size, dtype=torch.float64),)
        if isinstance(self.ours, Transformer):
            s, t = (40, 31) if isinstance(self.ours, mm.T5) else (7, 5)  # its distances count
            src, tgt = ids_of(31, 3, s, low=8), ids_of(31, 3, t, low=8)
            src[1, 4:] = self.pad_id
            tgt[:, 0] = self.start_id
            return src, tgt
        if not isinstance(self.ours, mm.BERT):
            return (ids_of(V, 2, 7),)
        ids = ids_of(V, 2, 7, low=5)
        ids[1, 4:] = self.pad_id
        segments = ids_of(min(2, config.num_segments), 2, 7) if config.num_segments else None
        return ids, segments

    def run(self, model, given=None):
        """Outputs of either, without those at padding."""
        given = self.given if given is None else given
        real = given[0] != self.pad_id
        dtype = next(model.parameters()).dtype
        if isinstance(self.ours, mm.ViT):
            given = (given[0].to(dtype),)
        if type(model) is type(self.ours):
            found = model(*given)
        elif isinstance(self.ours, Transformer):
            named = {"input_ids": given[0], "attention_mask": real.long()}
            found = model(**named, decoder_input_ids=given[1]).logits
        elif isinstance(self.ours, mm.BERT):
            named = {} if given[1] is None else {"token_type_ids": given[1]}
            found = model(given[0], attention_mask=real.long(), **named)[0]
        elif isinstance(self.ours, mm.ViT):
            found, head = model(*given), self.ours.config.head
            names = {"none": "last_hidden_state", "classifier": "logits", "pooler": "pooler_output"}
            found = getattr(found, names[head])
            found = found[:, 0] if head == "none" else found
        else:
            found = model(*given).logits
        per_token = isinstance(self.ours, mm.BERT) and found.dim() == 3
        return found[real] if per_token else found


def pair_of(name, folder):
    """The models of a variant; theirs is exact, and saved as "theirs" in that folder."""
    theirs = theirs_of(name)
    ours = loaded(VARIANTS[name][0], theirs, folder / "theirs")
    return Pair(exact(theirs, ours), ours)


def change_config(folder, *left_out, **changes):
    """Change or leave out entries of a folder's config.json."""
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if k not in left_out}))

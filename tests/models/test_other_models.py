"""What chapters 3, 6 and 7 say of the models in transformers, run with the library itself."""

import pytest
import torch
from alike import transformers

SMALL = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 31}
HEADS = {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8, "pad_token_id": 0}
GPT2 = {"n_embd": 24, "n_layer": 3, "n_head": 3, "vocab_size": 31, "n_positions": 16}


def decoder(family):
    """A small model of a family, with random weights."""
    config = getattr(transformers, f"{family}Config")(**SMALL, **HEADS)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


@pytest.mark.parametrize(
    ("family", "norms"),
    [
        ("Llama", {"input", "post_attention"}),
        ("Gemma2", {"input", "post_attention", "pre_feedforward", "post_feedforward"}),
        ("Olmo2", {"post_attention", "post_feedforward"}),
    ],
)
def test_names_of_norms(family, norms):
    names = [name for name, _ in decoder(family).model.layers[0].named_children()]
    assert {name.removesuffix("_layernorm") for name in names if "layernorm" in name} == norms


@pytest.mark.parametrize(("family", "width"), [("Qwen3", 8), ("Olmo2", 24)])
def test_norms_of_queries(family, width):
    assert decoder(family).model.layers[0].self_attn.q_norm.weight.shape == (width,)


def test_gemma_stores_the_distance_from_1():
    assert decoder("Gemma2").model.norm.weight.eq(0).all()


def test_last_hidden_state_is_normalised():
    model = transformers.GPT2Model(transformers.GPT2Config(**GPT2)).eval()
    torch.nn.init.normal_(model.ln_f.weight)
    with torch.no_grad():
        output = model(torch.tensor([[3, 1, 4, 1]]), output_hidden_states=True)
    states = output.hidden_states
    assert len(states) == GPT2["n_layer"] + 1
    assert torch.equal(states[-1], output.last_hidden_state)
    assert not torch.allclose(model.ln_f(states[-1]), states[-1], atol=0.01)

"""Published files as they are: each is read, or refused by the right word, and nothing between."""

import json
import re

import pytest
import torch
from alike import assert_close, ids_of, published, transformers
from families import Pair, V
from real_files import REAL_FILES, REFUSED, smaller
from safetensors.torch import load_file, save_file

from minitransformer.models import BERT, GPT2, Llama
from minitransformer.models.hub import OF_GENERATION, WITHOUT_EFFECT

FALSE_FRIENDS = {
    **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "logit_scale": 0.0625},
    **{"partial_rotary_factor": 0.5, "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    **{"is_decoder": True, "use_mrope": True, "pruned_heads": {"0": [1, 2]}, "alibi": True},
    **{"cross_attention_hidden_size": 768, "tie_encoder_decoder": True, "num_experts": 8},
    **{"auto_map": {"AutoModel": "modeling_mine.Mine"}, "output_multiplier": 2.0, "clever": "so"},
    **{"query_pre_attn_scalar": 256, "hidden_act_2": "relu", "use_parallel_residual": True},
}
FIRST_OF_FAMILIES = {}
for file_name, file in REAL_FILES.items():
    FIRST_OF_FAMILIES.setdefault(file.theirs, file_name)


def written(file, folder):
    """A model of `transformers` in float64, in a folder that says what the real file says."""
    torch.manual_seed(3)
    kind = getattr(transformers, file.theirs)
    config = kind.config_class.from_dict(smaller(file.content))
    config.return_dict = True
    theirs = kind(config)
    if file.content.get("tie_word_embeddings") is False and file.theirs.startswith("T5"):
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight))
    formulas = [module for module in theirs.modules() if hasattr(module, "create_weight")]
    theirs = published(theirs, scale=0.1)
    with torch.no_grad():
        for module in formulas:  # Marian's positions
            module.weight.copy_(module.create_weight())
    theirs.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(smaller(file.content)))
    return theirs


@pytest.mark.parametrize("name", REAL_FILES)
def test_outputs_are_theirs(name, tmp_path):
    file = REAL_FILES[name]
    theirs = written(file, tmp_path)
    ours = file.ours.from_pretrained(tmp_path)
    ours.save_pretrained(tmp_path / "again")
    again = file.ours.from_pretrained(tmp_path / "again")
    pair = Pair(theirs, ours)
    for model in (ours, again):
        assert_close(pair.run(model), pair.run(theirs), 1e-5)
    assert again.config.to_published() == ours.config.to_published()
    content = json.loads((tmp_path / "again" / "config.json").read_text())
    assert file.content.keys() - content.keys() == set()  # nothing that was said is lost
    eos = file.content.get("eos_token_id")
    if "eos_ids" in vars(ours.config):
        assert ours.config.eos_ids == (tuple(eos) if isinstance(eos, list) else (eos,))


NUM_PARAMETERS = {"gpt2": 124_439_808, "SmolLM2-135M-Instruct": 134_515_008}
NUM_PARAMETERS |= {"Mixtral-8x7B-v0.1": 46_702_792_704, "Qwen3-30B-A3B": 30_532_122_624}


@pytest.mark.parametrize("name", REAL_FILES)
def test_full_sizes_are_read(name):
    file = REAL_FILES[name]
    config = file.ours.config_class.from_published(file.content)
    if name in NUM_PARAMETERS:
        with torch.device("meta"):
            weights = file.ours(config).parameters()
        assert sum(weight.numel() for weight in weights) == NUM_PARAMETERS[name]
    read = file.ours.config_class.from_published(json.loads(json.dumps(config.to_published())))
    assert read.to_published() == config.to_published()


@pytest.mark.parametrize("name", FIRST_OF_FAMILIES.values())
def test_what_may_change_outputs_is_refused_by_name_and_value(name):
    file = REAL_FILES[name]
    read = file.ours.config_class.from_published
    known = read(file.content)
    for key, value in FALSE_FRIENDS.items():
        if key in known.keys:  # a friend
            continue
        with pytest.raises(ValueError, match=key) as caught:
            read(file.content | {key: value})
        assert repr(value) in str(caught.value)
        for nothing in (None, False):
            if key not in known.fixed:
                assert read(file.content | {key: nothing}) == known
    for key, values in known.fixed.items():
        if any(value not in values for value in (True, False)):
            with pytest.raises(ValueError, match=f"{key} is 'other', expected"):
                read(file.content | {key: "other"})


@pytest.mark.parametrize("name", FIRST_OF_FAMILIES.values())
def test_how_texts_are_generated_changes_no_model(name):
    """All that a `generation_config.json` may say, and older programs wrote into `config.json`."""
    file = REAL_FILES[name]
    read = file.ours.config_class.from_published
    said = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.05}
    said |= {"max_length": 512, "max_new_tokens": 9, "num_beams": 6, "repetition_penalty": 1.1}
    said |= {"unsloth_version": "2025.1", "_name_or_path": "x", "transformers_version": "4.0"}
    assert read(file.content | said) == read(file.content)
    assert read(file.content | {"n_of_it": 0, "b": [], "c": {}, "d": ""}) == read(file.content)


@pytest.mark.parametrize("name", FIRST_OF_FAMILIES.values())
def test_every_setting_of_their_class_is_honoured_refused_or_known_to_do_nothing(name):
    """A new setting of `transformers` does not slip through as something that does nothing."""
    file = REAL_FILES[name]
    kind = getattr(transformers, file.theirs).config_class
    ours = file.ours.config_class.family(file.content | {"model_type": kind.model_type})
    rotary = {"rope_parameters", "use_sliding_window", "layer_types"}  # read by their own code
    for key in kind().to_dict():
        if key in ours.keys or key in ours.fixed or key in rotary:
            continue
        if WITHOUT_EFFECT.fullmatch(key) or key in KNOWN_TO_DO_NOTHING:
            continue
        with pytest.raises(ValueError, match=key):
            ours.from_published(kind().to_dict() | {key: 3})


KNOWN_TO_DO_NOTHING = {"encoder_stride", "num_hidden_layers", "is_gated_act", "dense_act_fn"}
KNOWN_TO_DO_NOTHING |= {"output_router_logits", "router_jitter_noise", "intermediate_size"}


def test_generation_settings_are_those_of_transformers():
    pattern = re.compile(OF_GENERATION)
    rare = {"cache_config", "cache_implementation", "compile_config", "watermarking_config"}
    said = {key for key, value in transformers.GenerationConfig().to_dict().items() if value}
    unknown = {key for key in said if not pattern.fullmatch(key)}
    assert {key for key in unknown if not WITHOUT_EFFECT.fullmatch(key)} <= rare


@pytest.mark.parametrize("name", REFUSED)
def test_other_families_and_quantised_weights_are_refused_as_such(name, tmp_path):
    kind, content, message = REFUSED[name]
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):  # before a missing file of weights is missed
        kind.from_pretrained(tmp_path)
    if "model_type" in content and content["model_type"] == message:
        with pytest.raises(ValueError, match=f"model_type is '{message}', expected .* bert, dist"):
            kind.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("generation", "in_config", "expected"),
    [
        ({"eos_token_id": [3, 9, 11]}, 5, (3, 9, 11)),
        ({"eos_token_id": 7}, [5, 6], (7,)),
        ({"eos_token_id": None}, [5, 6], (5, 6)),
        ({"do_sample": True}, 5, (5,)),
        (None, [5, 99], (5,)),  # 99 is no token of a vocabulary of 37
        (None, None, ()),
    ],
)
@pytest.mark.parametrize("name", ["gpt2", "Qwen3-0.6B", "opus-mt-de-en", "t5-small"])
def test_what_ends_a_text_is_read_and_written(name, generation, in_config, expected, tmp_path):
    file = REAL_FILES[name]
    written(file, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": in_config}))
    if generation is not None:
        generation = {"temperature": 0.6, "decoder_start_token_id": 8} | generation
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    model = file.ours.from_pretrained(tmp_path)
    assert model.stop_ids == expected
    if "start_id" in vars(model.config) and generation is not None:
        assert model.config.start_id == 8
    again = tmp_path / "again"
    model.save_pretrained(again)
    assert file.ours.from_pretrained(again).stop_ids == expected
    assert (again / "generation_config.json").exists() == (generation is not None)
    if generation is not None:
        found = json.loads((again / "generation_config.json").read_text())
        assert found["temperature"] == 0.6
        if generation.get("eos_token_id") is not None:
            assert found["eos_token_id"] == generation["eos_token_id"]


def test_what_ends_a_text_by_default_is_a_token_or_nothing():
    assert GPT2.config_class().eos_ids == (50256,)
    small = GPT2(GPT2.config_class(vocab_size=30, d_model=12, num_heads=3, num_layers=1))
    assert small.stop_ids == ()
    assert Llama.config_class(eos_ids=[4, 5]).eos_ids == (4, 5)
    with pytest.raises(TypeError, match="eos_ids must be an id, or several, got 'x'"):
        Llama.config_class(eos_ids="x")


@pytest.fixture
def folder(tmp_path):
    written(REAL_FILES["Qwen3-0.6B"], tmp_path)
    return tmp_path


def changed_weights(folder, change):
    path = folder / "model.safetensors"
    save_file({name: change(name, w).contiguous() for name, w in load_file(path).items()}, path)


def test_mixed_dtypes_are_converted_or_refused_with_both(folder):
    """Norms in float32 beside matrices in bfloat16 would fail at the first product."""
    changed_weights(folder, lambda name, w: w.float() if "norm" in name else w.bfloat16())
    with pytest.raises(ValueError, match=r"several dtypes, torch\.\w+ \(\S+\), torch\.\w+ \(\S+\)"):
        Llama.from_pretrained(folder)
    for dtype in (torch.float32, torch.bfloat16):
        model = Llama.from_pretrained(folder, dtype=dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert model(ids_of(V, 2, 5)).dtype == dtype
    with pytest.raises(ValueError, match="dtype must be a floating-point one or None"):
        Llama.from_pretrained(folder, dtype=torch.int8)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_quantised_weights_are_refused_by_that_word(folder, dtype):
    changed_weights(folder, lambda name, w: w.to(dtype) if "q_proj" in name else w.bfloat16())
    for asked in (None, torch.float32):
        with pytest.raises(ValueError, match=rf"q_proj\.weight holds {dtype}: .* quantised"):
            Llama.from_pretrained(folder, dtype=asked)


def test_dtype_that_is_saved_is_the_dtype_that_is_said(folder):
    Llama.from_pretrained(folder, dtype=torch.float32).save_pretrained(folder / "again")
    content = json.loads((folder / "again" / "config.json").read_text())
    assert content["torch_dtype"] == "float32"


def test_a_file_is_not_its_folder(folder):
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(ValueError, match=f"must be a folder, .* got the file .*{name}"):
            Llama.from_pretrained(folder / name)


def test_old_family_is_that_of_the_architecture():
    """Files of 2019 name no family."""
    read = BERT.config_class.from_published
    assert read({"architectures": ["RobertaForMaskedLM"]}).model_type == "roberta"
    assert read({"architectures": ["DistilBertModel"]}).model_type == "distilbert"
    assert read({"architectures": ["BertForPreTraining"]}).model_type == "bert"
    assert read({}).model_type == "bert"
    with pytest.raises(ValueError, match="model_type is 'bertgenerationencoder', expected bert"):
        read({"architectures": ["BertGenerationEncoder"]})

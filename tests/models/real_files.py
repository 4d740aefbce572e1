"""The settings of published `config.json` files, old ones among them, as facts.

What today's `transformers` writes is not what is in a folder from 2019. `real_files.json` has the
keys and values of each file, without long texts; of label names it has the number only.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitransformer import models

Settings = dict[str, Any]


@dataclass(frozen=True)
class RealFile:
    """A published file: which class of ours and of `transformers` reads it, and what it says."""

    ours: Any
    theirs: str
    content: Settings


CONTENT = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
REAL_FILES: dict[str, RealFile] = {}
for name, file in CONTENT["read"].items():
    if isinstance(number := file["content"].get("id2label"), int):
        file["content"]["id2label"] = {str(index): f"label {index}" for index in range(number)}
    REAL_FILES[name] = RealFile(getattr(models, file["ours"]), file["theirs"], file["content"])
REFUSED: dict[str, tuple[Any, Settings, str]] = {
    name: (getattr(models, file["ours"]), file["content"], file["message"])
    for name, file in CONTENT["refused"].items()
}
SIZES: dict[str, int] = {
    **{"vocab_size": 37, "decoder_vocab_size": 37, "n_embd": 12, "n_head": 3, "n_layer": 2},
    **{"hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4},
    **{"num_hidden_layers": 2, "intermediate_size": 20, "dim": 12, "n_heads": 3, "n_layers": 2},
    **{"hidden_dim": 20, "d_model": 12, "d_kv": 5, "num_heads": 3, "d_ff": 20, "num_layers": 2},
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 3 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 20 for side in ("encoder", "decoder")},
    **{"num_decoder_layers": 2, "image_size": 8, "patch_size": 4, "max_window_layers": 2},
    **{"moe_intermediate_size": 16, "num_experts": 12},
}


def smaller(content: Settings) -> Settings:
    """The same file for a tiny model: sizes and last ids are smaller, all else is as it was."""
    small = content | {key: size for key, size in SIZES.items() if key in content}
    for key in ("pad_token_id", "decoder_start_token_id"):
        if (small.get(key) or 0) >= SIZES["vocab_size"]:
            small[key] = SIZES["vocab_size"] - 1
    for key in content.keys() & {"id2label"}:
        small[key] = dict(list(content[key].items())[:5])
    if content.get("num_key_value_heads") == content.get("num_attention_heads"):
        small |= {key: 6 for key in ("num_key_value_heads",) if key in content}
    return small

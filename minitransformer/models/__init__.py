"""Published models, put together from this book's layers.

Each module's first lines say, in a table, how its model differs from the paper's and why. What was
published loads with `from_pretrained`, and what is saved loads in `transformers`:

    model = minitransformer.models.GPT2.from_pretrained("openai-community/gpt2")
"""

from minitransformer.models.bert import (
    BERT,
    BERTConfig,
    BERTForMaskedLM,
    BERTForSequenceClassification,
    DistilBERTConfig,
    RoBERTaConfig,
    mask_tokens,
)
from minitransformer.models.gpt2 import GPT2, GPT2Config
from minitransformer.models.llama import (
    Llama,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from minitransformer.models.lora import LoRALinear, add_lora, merge_lora
from minitransformer.models.marian import BART, BARTConfig, Marian, MarianConfig
from minitransformer.models.mixtral import Mixtral, MixtralConfig, Qwen3Moe, Qwen3MoeConfig
from minitransformer.models.rotary_scaling import RotaryScaling
from minitransformer.models.t5 import T5, RelativePositionBias, T5Config, position_buckets
from minitransformer.models.vit import PatchEmbedding, Rectangle, ViT, ViTConfig
from minitransformer.tokenization.published import PublishedTokenizer

__all__ = [
    "BART",
    "BERT",
    "GPT2",
    "T5",
    "BARTConfig",
    "BERTConfig",
    "BERTForMaskedLM",
    "BERTForSequenceClassification",
    "DistilBERTConfig",
    "GPT2Config",
    "Llama",
    "LlamaConfig",
    "LoRALinear",
    "Marian",
    "MarianConfig",
    "MistralConfig",
    "Mixtral",
    "MixtralConfig",
    "PatchEmbedding",
    "PublishedTokenizer",
    "Qwen2Config",
    "Qwen3Config",
    "Qwen3Moe",
    "Qwen3MoeConfig",
    "Rectangle",
    "RelativePositionBias",
    "RoBERTaConfig",
    "RotaryScaling",
    "T5Config",
    "ViT",
    "ViTConfig",
    "add_lora",
    "mask_tokens",
    "merge_lora",
    "position_buckets",
]

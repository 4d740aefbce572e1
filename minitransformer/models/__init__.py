"""The relatives: models that others publish, put together from this book's layers.

Each module's first lines say, in a table, how its model differs from the paper's and why. What was
published loads with `from_pretrained`, and what is saved loads in `transformers`:

    model = minitransformer.models.GPT2.from_pretrained("openai-community/gpt2")

| module | chapter | what it holds |
| --- | --- | --- |
| `gpt2` | 12 | GPT-2 |
| `assembly` | 12 | what the relatives do to the kit's layers |
| `published` | 12 | published weights, in and out of a folder |
| `published_config` | 12 | published configurations |
"""

from minitransformer.models.gpt2 import GPT2, GPT2Config

__all__ = ["GPT2", "GPT2Config"]

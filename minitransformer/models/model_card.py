"""The card of a model: a README.md that says what it is and how to load it.

Built in chapter 9.
"""

from collections.abc import Sequence
from dataclasses import asdict

from minitransformer.models.config import TransformerConfig

__all__ = ["model_card"]


def model_card(
    name: str, kind: str, config: TransformerConfig, num_parameters: int, sides: Sequence[str]
) -> str:
    """Write the card of a model, by its folder's name, class, and the tokenizers' sides.

    Example:
        >>> config = TransformerConfig.decoder_only(30)
        >>> card = model_card("tales", "DecoderOnlyTransformer", config, 18_000_000, ["text"])
        >>> card.splitlines()[:5]
        ['---', 'library_name: minitransformer', '---', '', '# tales']
    """
    if config.num_encoder_layers:
        does = "An encoder-decoder Transformer, which reads a text and writes another one"
        loaded, use = "Translator", "translate"
    else:
        does = "A decoder-only Transformer, which reads the beginning of a text and continues it"
        loaded, use = "TextGenerator", "complete"
    if sides:
        example = f'model = mt.{loaded}.load("{name}")\nprint(model.{use}(["a text"]))'
    else:
        place = "" if "." in kind else "mt."
        example = f'model = {place}{kind}.from_pretrained("{name}")'
    settings = "\n".join(f"| `{key}` | {value} |" for key, value in asdict(config).items())
    return f"""\
---
library_name: minitransformer
---

# {name}

{does}. It has {num_parameters:,} parameters and was saved by the Python package `minitransformer`.

## How to load it

Replace "{name}" by the path of this folder, or by the name on the Hub, such as "owner/{name}".

```python
import minitransformer as mt

{example}
```

## Settings

| setting | value |
| --- | --- |
{settings}

## What is not written here

What the model was trained on, how good it is, and under which licence others may use it. Whoever
publishes it should say so, and name the licence in the first lines of this file, as `license:`.
"""

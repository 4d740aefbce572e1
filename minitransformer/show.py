"""The live page for any model of this package: its folder, and a server on this machine.

The page's program is in `_static/live` of the repository, and in `page` of an installed package.
"""

import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from html import escape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

from minitransformer.files import new_folder
from minitransformer.models.pretrained import CARD
from minitransformer.models.transformer import DecoderOnlyTransformer, Transformer
from minitransformer.tokenization.byte_pair_encoding import BPETokenizer
from minitransformer.tokenization.tokenizer import CharacterTokenizer
from minitransformer.tokenization.tokenizer_file import GPT2_PATTERN
from minitransformer.tokenization.wordpiece import WordPieceTokenizer
from minitransformer.tokenization.words import WordTokenizer
from minitransformer.training.translator import TextModel

MOST_PARAMETERS = 20_000_000
MODELS = (Transformer, DecoderOnlyTransformer)
TOKENIZERS = (CharacterTokenizer, WordTokenizer, WordPieceTokenizer, BPETokenizer)
INSTALLED = Path(__file__).parent / "page"
STATIC = INSTALLED if INSTALLED.exists() else Path(__file__).parents[1] / "_static"
FRAGMENT = (INSTALLED if INSTALLED.exists() else Path(__file__).parents[1] / "chapters") / "live.md"
FILES = (
    "live/*.mjs",
    "live/live.css",
    "explorables/elements.mjs",
    "explorables/beam_tree.mjs",
    "explorables/explorables.css",
)
"""What setup.py puts into the wheel, beside the fragment."""
HTML = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="explorables/explorables.css">
<link rel="stylesheet" href="live/live.css">
<style>
  :root {{
    color-scheme: light dark;
    --pst-color-text-base: light-dark(#14181e, #ced6dd);
    --pst-color-text-muted: light-dark(#48566b, #9ca4af);
    --pst-color-background: light-dark(#fff, #14181e);
    --pst-color-surface: light-dark(#f3f4f5, #29313d);
    --pst-color-border: light-dark(#d1d5da, #48566b);
    --pst-color-primary: light-dark(#176de8, #6aa3ff);
    --pst-color-danger: light-dark(#d72d47, #f5707f);
  }}
  body {{
    margin: 0.5rem 1rem;
    font-family: system-ui, sans-serif;
    color: var(--pst-color-text-base);
    background: var(--pst-color-background);
  }}
  .visually-hidden {{ position: absolute; width: 1px; height: 1px; overflow: hidden; }}
</style>
<script>
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
</script>
<body>
<main>
<h1 class="visually-hidden">{title}</h1>
{fragment}
<noscript><p>The model needs JavaScript.</p></noscript>
<p id="live-file" hidden>Opened as a file, this page cannot load its model. Serve its folder:
<code>python -m http.server --bind 127.0.0.1</code></p>
<script>document.getElementById("live-file").hidden = location.protocol !== "file:";</script>
</main>
<script type="module" src="live/live.mjs"></script>
"""


def page_files() -> Iterator[str]:
    """The files that a page takes, below `STATIC`."""
    for pattern in FILES:
        yield from sorted(path.relative_to(STATIC).as_posix() for path in STATIC.glob(pattern))


def check_shown(text_model: TextModel) -> None:
    """Raise a ValueError if the page cannot compute this model, or would be slow."""
    model = text_model.model
    if type(model) not in MODELS:
        names = " and ".join(kind.__name__ for kind in MODELS)
        raise ValueError(f"model is a {type(model).__name__}: the page knows {names}")
    if (number := sum(p.numel() for p in model.parameters())) > MOST_PARAMETERS:
        raise ValueError(
            f"the model has {number:,} parameters: the page takes at most {MOST_PARAMETERS:,}"
        )
    for side, tokenizer in text_model.tokenizers.items():
        if type(tokenizer) not in TOKENIZERS:
            names = ", ".join(kind.__name__ for kind in TOKENIZERS)
            kind = type(tokenizer).__name__
            raise ValueError(f"tokenizer {side} is a {kind}: the page knows {names}")
        if (pattern := getattr(tokenizer, "pattern", GPT2_PATTERN)) != GPT2_PATTERN:
            raise ValueError(
                f"tokenizer {side} has pattern={pattern!r}: the page knows {GPT2_PATTERN!r}"
            )


def write_page(
    text_model: TextModel, folder: str | os.PathLike[str], *, name: str = "model", text: str = ""
) -> None:
    """Write the live page for a model: a folder to be served, not to be opened as a file.

    Args:
        text_model: a `Translator` or `TextGenerator`; bfloat16 and float64 become float32.
        folder: a new one, or one that is empty.
        name: the page's title.
        text: what the model reads first.

    Raises:
        FileExistsError: if there is something in the folder.
        ValueError: if the page cannot compute the model: it has more than 20 million parameters, is
            of another class than `Transformer` and `DecoderOnlyTransformer`, has a part of another
            kind, or a tokenizer that is none of chapter 1's.
    """
    check_shown(text_model)
    markdown = FRAGMENT.read_text(encoding="utf-8")
    found = re.search(r"^```\{raw\} html\n(.*?)^<noscript>", markdown, re.DOTALL | re.MULTILINE)
    assert found, f"{FRAGMENT} has no fragment"
    does = "Translate" if text_model.model.config.num_encoder_layers else "Continue"
    data = {"model": "model", "does": does, "text": text}
    attributes = " ".join(f'data-{key}="{escape(value)}"' for key, value in data.items())
    fragment = found[1].replace('<div id="live-app"', f'<div id="live-app" {attributes}')
    with new_folder(Path(folder)) as unfinished:
        for file in page_files():
            (unfinished / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(STATIC / file, unfinished / file)
        if next(text_model.model.parameters()).dtype not in (torch.float16, torch.float32):
            text_model.model.float()
        text_model.save(unfinished / "live" / "model")
        (unfinished / "live" / "model" / CARD).unlink()
        html = HTML.format(title=escape(name), fragment=fragment)
        (unfinished / "index.html").write_text(html, encoding="utf-8")


class Handler(SimpleHTTPRequestHandler):
    """Serves files without a line on stderr for each."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript"}

    def log_message(self, format: str, *args: object) -> None:
        pass


def page_server(folder: str | os.PathLike[str], port: int = 0) -> ThreadingHTTPServer:
    """A server for a page, which other machines cannot reach; its address is `server_address`.

    Args:
        folder: what `write_page` wrote.
        port: where to listen on 127.0.0.1; 0 takes one that is free.

    Raises:
        OSError: if the port is taken.
    """
    return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=os.fspath(folder)))

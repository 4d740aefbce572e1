"""The page "Use it" runs as it stands: its commands and its programs."""

import re
import shlex
import sys
import threading
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import torch

import live_model
import minitransformer as mt
from benchmarks.experiments import exported as comparison
from minitransformer.__main__ import main, parser

pytestmark = [pytest.mark.slow, pytest.mark.everything]

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "chapters" / "reference" / "use_it.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
PROGRAMS = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [line for language, code in BLOCKS if language == "bash" for line in code.splitlines()]
EXPORT = "python -m minitransformer export "
COMPARE = "python -m benchmarks.experiments.exported "


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Where somebody has followed the page, with models that were trained before."""
    folder = tmp_path_factory.mktemp("use it")
    live_model.read_model(live_model.FOLDER / "number_words").save(folder / "number-words")
    words = mt.WordTokenizer.train(["the cat sees a dog"])
    sizes = {"d_model": 12, "num_heads": 3, "d_ff": 20, "num_layers": 2, "norm_first": True}
    config = mt.TransformerConfig.decoder_only(words.vocab_size, **sizes)
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
    mt.TextGenerator(model, words).save(folder / "writer")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in COMMANDS:
            if line.startswith(EXPORT):
                main(shlex.split(line.replace("number-words.safetensors", "number-words"))[3:])
        yield folder


def run(code, exported, monkeypatch, capsys):
    """Run a program of the page where its folders are; return its names and what it printed."""
    monkeypatch.chdir(exported)
    names = {}
    exec(compile(code, "use_it.md", "exec"), names)
    return names, capsys.readouterr().out


def program(name):
    """The program of the page that begins with this library."""
    wanted = re.compile(rf"(import numpy as np\n)?(import|from) {re.escape(name)}\b")
    (found,) = filter(wanted.match, PROGRAMS)
    return found


def test_readme_has_the_commands_of_the_page():
    assert not any("minitransformer" in code for code in PROGRAMS)  # they run without the package
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    exports = [line for line in readme if line.startswith(EXPORT)]
    (compare,) = (line for line in readme if line.startswith(COMPARE))
    assert set(exports) < set(COMMANDS)
    assert shlex.split(compare)[3:] == [exports[0].split()[4], *(e.split()[-1] for e in exports)]
    assert parser().parse_args(["translate", "one"]).checkpoint == Path(exports[0].split()[4])


def test_engines_answer_as_the_checkpoint(exported, monkeypatch, capsys):
    monkeypatch.chdir(exported)
    (line,) = (line for line in COMMANDS if line.startswith(COMPARE))
    words = line.replace("number-words.safetensors", "number-words").split()[2:]
    monkeypatch.setattr(sys, "argv", [*words, "--count", "30"])
    comparison.main()
    for row in capsys.readouterr().out.splitlines():
        same = int(re.search(r": (\d+) of 30 the same$", row)[1])
        assert same == 30 or (row.startswith("numbers-int8, ") and same >= 27)
    with pytest.raises(ValueError, match=r"writer has none of the files model\.bin, encoder\."):
        comparison.same_answers(Path("number-words"), [Path("writer")], 1)


@pytest.mark.parametrize("folder", ["numbers-ctranslate2", "numbers-int8"])
def test_ctranslate2_translates(folder, exported, monkeypatch, capsys):
    code = program("ctranslate2").replace("numbers-ctranslate2", folder)
    names, printed = run(code, exported, monkeypatch, capsys)
    assert printed == "['dreihundertzweiundvierzig', 'sieben']\n"
    assert f"It prints `{printed.strip()}`" in PAGE
    texts = ["nine hundred seventy-six thousand fifty-two", "one", "twelve thousand one"]
    translator = live_model.read_model(live_model.FOLDER / "number_words")
    assert names["translate"](texts, beam_size=1) == translator.translate(texts)


def test_server_answers(exported, monkeypatch, capsys):
    code = program("ctranslate2") + program("http.server").replace("8000", "0")
    names, _ = run(code, exported, monkeypatch, capsys)
    server = names["server"]
    monkeypatch.setattr(names["Handler"], "log_message", lambda *_: None)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://localhost:{server.server_address[1]}"
        with urlopen(Request(address, "fünf".encode())) as answer:
            assert answer.status == 200
        with urlopen(Request(address, b"seven hundred")) as answer:
            assert answer.read().decode() == "siebenhundert"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("library", ["onnxruntime", "torch"])
def test_graphs_translate(library, exported, monkeypatch, capsys):
    names, printed = run(program(library), exported, monkeypatch, capsys)
    assert printed == "dreihundertzweiundvierzig\n"
    assert {path.name for path in Path(names["folder"]).iterdir()} >= {"src_tokenizer.json"}


def test_transformers_writes_on(exported, monkeypatch, capsys):
    names, printed = run(program("transformers"), exported, monkeypatch, capsys)
    writer = mt.TextGenerator.load(exported / "writer")
    words = writer.tokenizers["text"]
    prompts = ["the cat", "a dog sees"]
    written = writer.complete(prompts, max_new_tokens=8)
    new = names["written"][:, 4:].tolist()
    said = [
        words.decode_after(words.encode(prompt), row)
        for prompt, row in zip(prompts, new, strict=True)
    ]
    assert said == written
    assert printed.count("the cat") == printed.count("a dog sees") == 1

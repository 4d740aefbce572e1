"""`python -m minitransformer show`: any model of the package in the live page, on this machine."""

import json
import re
import socket
import threading
from http.client import HTTPConnection

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from helpers import LAYER, assert_same, shaken
from playwright.sync_api import expect

import minitransformer as mt
from minitransformer import show
from minitransformer.__main__ import main
from minitransformer.models import GPT2, GPT2Config
from minitransformer.show import page_server, write_page

TEXTS = ["the boys read poems ##s", "a dog's 42 days,\n\n\tor so!", "forty-two; it's Ünsinn\x85 ☃"]
STRANGE = [*TEXTS, "", " ", "  two  spaces \n", "1st we've\ufeffx 东京 é e\u0301 y_z", "thedogs"]
ANSWER = {"timeout": 30_000}  # milliseconds until a model is there and has written
KINDS = {
    "words": mt.WordTokenizer.train,
    "characters": mt.CharacterTokenizer.train,
    "WordPiece": lambda texts: mt.WordPieceTokenizer.train(texts, 70),
    "BPE": lambda texts: mt.BPETokenizer.train(texts, 280),
}


def translator():
    """A random encoder-decoder model of words and bytes."""
    source, target = KINDS["words"](TEXTS), KINDS["BPE"](TEXTS)
    sizes = {"src_vocab_size": source.vocab_size, "tgt_vocab_size": target.vocab_size}
    config = mt.TransformerConfig(**sizes, **LAYER, num_encoder_layers=2, num_decoder_layers=3)
    return mt.Translator(shaken(mt.Transformer(config)), source, target)


def writer(**changes):
    """A random decoder-only model of bytes."""
    tokenizer = KINDS["BPE"](TEXTS)
    config = mt.TransformerConfig.decoder_only(
        tokenizer.vocab_size, num_layers=2, max_len=40, **LAYER, **changes
    )
    return mt.TextGenerator(shaken(mt.DecoderOnlyTransformer(config)), tokenizer)


@pytest.fixture
def serve(tmp_path):
    """A function that writes the page of a model and serves it; it returns the address."""
    servers = []

    def served(model, **options):
        write_page(model, tmp_path / "page", **options)
        server = page_server(tmp_path / "page")
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield served
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def window(browser):
    """A window, whose page asks for nothing beyond this machine and throws no error."""
    errors, requests = [], []
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(error))
        yield page
    assert errors == []
    assert [url for url in requests if not url.startswith(("http://127.0.0.1:", "data:"))] == []


def shown_weights(page):
    numbers = page.locator(".live-keys button").evaluate_all(
        "buttons => buttons.map((button) => +button.dataset.number)"
    )
    return torch.tensor(numbers)


def test_a_translator_of_one_s_own(serve, window):
    model = translator()
    text = "the dog's poems"
    window.goto(serve(model, name="mine <b>", text=text))
    expect(window.locator("#live-app")).to_have_attribute("data-state", "shown", **ANSWER)
    assert window.title() == "mine <b>"
    source = torch.tensor([model.tokenizers["src"].sequence_ids(text)])
    first = model.tokenizers["tgt"].first_id
    with torch.inference_mode(), mt.record_attention(model.model) as maps:
        model.model(source, torch.tensor([[first]]))
    window.locator("#live-result button").first.click()
    name = "decoder, layer 2, cross-attention, head 1"
    window.get_by_role("button", name=name, exact=True).click()
    window.locator("#live-input").hover()
    weights = maps["decoder.layers.2.cross_attention"][0, 1, 0]
    assert_same(shown_weights(window), weights, 1e-4)
    window.get_by_label("A text").fill("the girl")
    window.get_by_role("button", name="Translate").click()
    expect(window.locator("#live-status")).to_have_text("The model does not know “girl”.")


def test_a_decoder_only_model_continues_a_text(serve, window):
    model = writer(positional_encoding="rotary", norm_first=True)
    text = "the boys"
    window.emulate_media(reduced_motion="reduce")  # the text is there at once
    window.goto(serve(model))
    expect(window.locator("#live-status")).to_have_text("Type a text.")
    window.get_by_label("A text").fill(text)
    window.get_by_role("button", name="Continue").click()
    expect(window.locator("#live-app")).to_have_attribute("data-state", "shown", **ANSWER)
    ids = model.tokenizers["text"].begin(text)
    prompt = torch.tensor([ids])
    new = mt.generate(model.model, prompt, max_new_tokens=41 - len(ids), stop_ids=model.stop_ids)
    labels = window.locator("#live-decoder .live-tokens small").all_inner_texts()
    assert list(map(int, labels)) == [*ids, *new[0].tolist()][: len(labels)]
    assert len(labels) > len(ids)
    with torch.inference_mode(), mt.record_attention(model.model) as maps:
        scores = model.model(prompt)[0, -1]
    window.locator("#live-result button").nth(len(ids) - 1).click()
    name = "decoder, layer 1, masked self-attention, head 2"
    window.get_by_role("button", name=name, exact=True).click()
    window.locator("#live-input").hover()
    assert_same(shown_weights(window), maps["decoder.layers.1.self_attention"][0, 2, -1], 1e-4)
    bars = window.locator("ol.live-bars button").first
    found = float(bars.get_attribute("data-probability"))
    scores = scores.clone()
    scores[model.model.config.pad_id] = -torch.inf
    assert found == pytest.approx(scores.softmax(-1).max().item(), abs=1e-4)
    assert window.locator("#live-encoder").inner_text() == ""
    assert window.get_by_role("slider", name=re.compile("T|top|beams|α")).count() == 0  # greedy
    window.get_by_role("combobox", name="next token").select_option("beam")
    expect(window.locator("#live-tree svg.tree .winner").first).to_be_attached()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_nobody_is_shut_out_of_a_page_of_one_s_own(serve, window, width, scheme):
    window.set_viewport_size({"width": width, "height": 844})
    window.emulate_media(color_scheme=scheme)
    window.goto(serve(writer(), text="the boys read"))
    expect(window.locator("#live-app")).to_have_attribute("data-state", "shown", **ANSWER)
    found = Axe().run(window, options={"resultTypes": ["violations"]})
    serious = [rule for rule in found.response["violations"] if rule["impact"] != "minor"]
    assert [(rule["id"], [node["html"] for node in rule["nodes"][:3]]) for rule in serious] == []
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    decoder = window.locator("#live-decoder").bounding_box()
    assert decoder["width"] > width / 2


def test_another_token_replaces_one_of_the_prompt(serve, window):
    window.goto(serve(writer(), text="the boys"))
    expect(window.locator("#live-app")).to_have_attribute("data-state", "shown", **ANSWER)
    window.locator("#live-result button").nth(1).click()
    bar = window.locator("ol.live-bars button").first
    label = bar.locator(".live-bar-name").inner_text()
    bar.click()
    expect(window.locator("#live-result button").nth(1)).to_have_text(label)


ENCODE = """async ([file, texts]) => {
    const { tokenizerOf } = await import("./live/tokenizers.mjs");
    const tokenizer = tokenizerOf(file);
    return texts.map((text) => {
        const ids = tokenizer.encode(text);
        return [ids, tokenizer.read(ids), tokenizer.begin(text), tokenizer.sequence(text)];
    });
}"""


def test_every_tokenizer_finds_the_package_s_ids(serve, window):
    window.goto(serve(writer()))
    for train in KINDS.values():
        tokenizer = train(TEXTS)
        file = json.loads(json.dumps(tokenizer.to_dict()))
        for text, (ids, read, begin, sequence) in zip(
            STRANGE, window.evaluate(ENCODE, [file, STRANGE]), strict=True
        ):
            assert ids == tokenizer.encode(text)
            assert read == tokenizer.decode(ids)
            assert begin == tokenizer.begin(text)
            assert sequence == tokenizer.sequence_ids(text)


def test_page_knows_every_setting_of_the_package(serve, window):
    window.goto(serve(writer()))
    known = window.evaluate(
        "async () => Object.keys((await import('./live/model.mjs')).ACTIVATIONS)"
    )
    assert {*known} == {*mt.layers.feed_forward.ACTIVATIONS}


# --- the server, the command, and what is refused ----------------------------------------------


def test_page_is_served_on_this_machine_alone(serve, tmp_path):
    port = int(serve(writer()).rpartition(":")[2].strip("/"))
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/live/live.mjs")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/javascript")
    answer.read()
    with page_server(tmp_path / "page") as other:
        assert other.server_address[0] == "127.0.0.1"
    with socket.socket() as elsewhere:
        elsewhere.settimeout(2)
        assert elsewhere.connect_ex(("127.0.0.2", port)) != 0  # another address of this machine


def test_command_prints_the_address_and_opens_it(tmp_path, capsys, monkeypatch):
    writer().save(tmp_path / "writer")
    opened, read = [], []

    def serve_forever(server):
        threading.Thread(target=server.handle_request, daemon=True).start()
        connection = HTTPConnection(*server.server_address)
        connection.request("GET", "/live/model/config.json")
        read.append(json.loads(connection.getresponse().read()))
        raise KeyboardInterrupt  # the reader's

    monkeypatch.setattr(show.ThreadingHTTPServer, "serve_forever", serve_forever)
    monkeypatch.setattr("webbrowser.open", opened.append)
    main(["show", str(tmp_path / "writer")])
    address = capsys.readouterr().out.split()[0]
    assert opened == [address]
    assert address.startswith("http://127.0.0.1:")
    assert read[0]["num_encoder_layers"] == 0
    main(["show", str(tmp_path / "writer"), "--no-browser"])
    assert len(opened) == 1
    main(["show", str(tmp_path / "writer"), "--save", str(tmp_path / "saved")])
    assert "--bind 127.0.0.1" in capsys.readouterr().out
    assert (tmp_path / "saved" / "index.html").exists()


def gpt2():
    tokenizer = KINDS["BPE"](TEXTS)
    config = GPT2Config(vocab_size=tokenizer.vocab_size, d_model=12, num_heads=3, num_layers=1)
    return mt.TextGenerator(GPT2(config), tokenizer)


def with_pattern():
    model = writer()
    model.tokenizers["text"] = mt.BPETokenizer.train(TEXTS, 280, pattern=r"\S+")
    return model


def with_lora():
    model = writer()
    mt.models.add_lora(model.model, rank=2)
    return model


def large():
    tokenizer = KINDS["BPE"](TEXTS)
    config = mt.TransformerConfig.decoder_only(tokenizer.vocab_size, num_layers=7)
    with torch.device("meta"):
        return mt.TextGenerator(mt.DecoderOnlyTransformer(config), tokenizer)


def gelu_by_hand():
    model = writer()
    model.model.decoder.layers[1].feed_forward.activation = torch.nn.functional.elu
    return model


CASES = {
    "model is a GPT2: the page knows Transformer and DecoderOnlyTransformer": gpt2,
    "tokenizer text has pattern='.*': the page knows \"'s": with_pattern,
    "no place for what is around .*merge": with_lora,
    r"the model has 22,\d{3},\d{3} parameters: the page takes at most 20,000,000": large,
    "decoder.layers.1.feed_forward.activation is not what the configuration says": gelu_by_hand,
}


@pytest.mark.parametrize("message", CASES)
def test_what_the_page_cannot_compute_is_refused_and_leaves_no_folder(message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_page(CASES[message](), tmp_path / "page")
    assert [*tmp_path.iterdir()] == []

"""The live page: the browser writes what the package writes, and says what it cannot do."""

import random
import re
from functools import cache

import pytest
import torch
from playwright.sync_api import Page, expect

import minitransformer as mt
from live_model import EXAMPLES, FOLDER, NextToken, read_translator

LIVE = "chapters/live.html"
ANSWER = {"timeout": 30_000}  # milliseconds until a model is there and has translated
LABEL = "English, in the words that the model knows"
SPLITS = {"number_words": mt.number_words, "grammar": lambda: mt.grammar_sentences(num_train=200)}
EVERYTHING = pytest.mark.everything
each_model = pytest.mark.parametrize("name", EXAMPLES)
one_model = pytest.mark.parametrize(
    "name", ["grammar", pytest.param("number_words", marks=EVERYTHING)]
)

translator = cache(lambda name: read_translator(FOLDER / name))
"""The package's model with the weights of a graph of the page, and its tokenizers."""


@pytest.fixture
def requests():
    """Every address that the page has asked for."""
    return []


@pytest.fixture
def page(browser, site, requests):
    """The live page in a window of its own, on a machine with no network but our server."""
    with browser.new_context(reduced_motion="reduce") as context:
        context.route(lambda url: not url.startswith(site), lambda route: route.abort())
        window = context.new_page()
        errors = []
        window.on("request", lambda request: requests.append(request.url))
        window.on("pageerror", lambda error: errors.append(error))
        window.goto(f"{site}/{LIVE}")
        yield window
        assert errors == []
        assert [url for url in requests if not url.startswith((site, "data:", "blob:"))] == []


def choose(page: Page, name: str) -> None:
    """Take this translator."""
    page.get_by_label({"number_words": "numbers", "grammar": "sentences"}[name]).check()


def translate(page: Page, text: str) -> str:
    """Type a text, press the button, and wait for the end."""
    page.get_by_label(LABEL).fill(text)
    page.get_by_role("button", name="Translate").click()
    expect(page.get_by_role("status")).to_contain_text("Done", **ANSWER)
    return page.locator("#live-german").inner_text()


def large_map(page: Page) -> torch.Tensor:
    """The weights that the large map shows, (t, s)."""
    rows = page.locator("#live-map tbody tr")
    return torch.tensor(
        rows.evaluate_all(
            "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => +cell.title))"
        ),
        dtype=torch.float32,
    )


@one_model
def test_translations_are_those_of_the_package(page, name):
    generator = random.Random(6)
    texts = [p.src for pairs in SPLITS[name]().values() for p in generator.sample(pairs, 3)]
    assert len({len(text.split()) for text in texts}) > 4  # short and long
    choose(page, name)
    found = [translate(page, text) for text in texts]
    assert found == translator(name).translate(texts)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("number_words", "two million sixteen thousand three hundred"),
        pytest.param("number_words", EXAMPLES["number_words"], marks=EVERYTHING),
        ("grammar", "We sleep."),
        pytest.param("grammar", EXAMPLES["grammar"], marks=EVERYTHING),
    ],
)
def test_every_head_looks_where_the_package_says(page, name, text):
    model = translator(name).model
    src_tokenizer, tgt_tokenizer = translator(name).tokenizers.values()
    choose(page, name)
    translate(page, text)
    source = [*src_tokenizer.encode(text), src_tokenizer.eos_id]
    target = mt.generate(model, torch.tensor([source]), max_new_tokens=64)[0]
    with torch.inference_mode():
        beginning = torch.tensor([[tgt_tokenizer.bos_id, *target[:-1]]])
        _, expected = NextToken(model)(torch.tensor([source]), beginning)
    heads = page.locator("#live-heads").get_by_role("radio").all()
    assert len(heads) == expected.size(0) * expected.size(1)
    for head, weights in zip(heads, expected.flatten(0, 1), strict=True):
        head.check()
        torch.testing.assert_close(large_map(page), weights, atol=1e-3, rtol=0)
    labels = page.locator("#live-map tbody th").all_text_contents()
    assert labels == [label.replace(" ", "␣") for label in tgt_tokenizer.labels(target.tolist())]
    headings = page.locator("#live-map thead th").all_text_contents()
    assert headings == src_tokenizer.labels(source)


# --- the reader ------------------------------------------------------------------------------


def test_heads_are_described_in_words_and_fit_on_a_phone(page):
    page.set_viewport_size({"width": 390, "height": 844})
    translate(page, EXAMPLES["number_words"])
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("radio", name="layer 0, head 3").check()
    weights = large_map(page)
    percent, column = (100 * weights[0].max()).round().int(), weights[0].argmax()
    word = page.locator("#live-map thead th").all_text_contents()[column]
    words = page.locator("#live-links").inner_text()
    assert words.startswith("Layer 0, head 3 in words")
    assert f"“{word}” ({percent}\N{NO-BREAK SPACE}%)" in words


def test_keyboard_alone_is_enough(page):
    page.get_by_label(LABEL).focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("forty-two")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text(
        "Done, in 5 tokens with the end: zweiundvierzig", **ANSWER
    )
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "head":
            break
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="layer 1, head 3")).to_be_checked()
    expect(page.locator("#live-map caption")).to_contain_text("Layer 1, head 3")


def test_one_token_at_a_time(page):
    status, step = page.get_by_role("status"), page.get_by_role("button", name="One token")
    page.get_by_label(LABEL).fill("forty-two")
    step.click()
    expect(status).to_have_text("Token 1 is “zwei”. So far: zwei", **ANSWER)
    step.click()
    expect(status).to_have_text("Token 2 is “und”. So far: zweiund")
    page.get_by_role("button", name="Translate").click()  # goes on
    expect(status).to_have_text("Done, in 5 tokens with the end: zweiundvierzig")
    step.click()  # there is no more to write
    expect(status).to_have_text("Done, in 5 tokens with the end: zweiundvierzig")
    page.get_by_label(LABEL).fill("two")
    expect(status).to_have_text("")
    expect(page.locator("#live-result")).to_be_hidden()
    step.click()  # another text: begins anew
    expect(status).to_have_text("Token 1 is “zwei”. So far: zwei")


@one_model
def test_examples_are_translated(page, name):
    choose(page, name)
    buttons = page.locator(".live-examples button:visible").all()
    assert len(buttons) == 6
    for button in buttons:
        text = button.inner_text()
        button.click()
        german = translator(name).translate([text])[0]
        expect(page.get_by_role("status")).to_contain_text(
            re.compile(f"^Done, .*: {re.escape(german)}$"), **ANSWER
        )


@one_model
def test_choosing_a_translator_begins_with_its_example(page, name):
    other = next(key for key in EXAMPLES if key != name)
    choose(page, other)
    expect(page.locator(".live-example:visible img")).to_have_attribute("src", re.compile(other))
    translate(page, page.get_by_label(LABEL).input_value())
    expect(page.locator(".live-example")).to_have_count(0)  # it would seem to be the answer
    page.get_by_role("radio", name="layer 0, head 0").check()
    page.get_by_label(LABEL).fill(EXAMPLES[other] * 3)
    page.get_by_role("button", name="Translate").click()
    choose(page, name)  # stops the other one
    page.wait_for_timeout(1000)
    expect(page.get_by_role("status")).to_have_text("")
    expect(page.locator("#live-result")).to_be_hidden()
    expect(page.get_by_label(LABEL)).to_have_value(EXAMPLES[name])
    translate(page, EXAMPLES[name])
    heads = page.locator("#live-heads").get_by_role("radio").all()
    assert len(heads) == 8
    assert not heads[0].is_checked()


MESSAGES = {
    "number_words": {
        "": "Please write something to translate.",
        "forty-tow": "does not know “tow”.",
        "Forty 42 forty": "does not know “Forty”, “42”.",
        "constructor <eos>": "does not know “constructor”, “<”, “eos”, “>”.",
        "one " * 128: "reads 127 tokens at most, not 128",
    },
    "grammar": {
        "  \n ": "Please write something to translate.",
        "forty": "does not know “forty”.",
        "The dog sleeps. " * 32: "reads 127 tokens at most, not 128",
    },
}


@each_model
def test_what_cannot_be_translated_is_explained_and_the_longest_is(page, name):
    choose(page, name)
    for text, message in MESSAGES[name].items():
        page.get_by_label(LABEL).fill(text)
        page.get_by_role("button", name="Translate").click()
        expect(page.get_by_role("status")).to_contain_text(message, **ANSWER)
        assert page.locator("#live-result").is_hidden()
    longest = translator(name).model.config.max_len - 1  # and the end
    page.get_by_label(LABEL).fill({"number_words": "one ", "grammar": "dog "}[name] * longest)
    page.get_by_role("button", name="One token").click()
    expect(page.get_by_role("status")).to_contain_text("Token 1 is", **ANSWER)


@each_model
def test_every_word_that_the_model_knows_is_listed(page, name, requests):
    choose(page, name)
    page.locator("#live-words summary").click()
    listed = page.locator("#live-words p")
    expect(listed).not_to_be_empty()
    known = translator(name).tokenizers["src"].tokens[len(mt.Tokenizer.special_tokens) :]
    assert sorted(listed.inner_text().split()) == sorted(known)
    assert [url for url in requests if url.endswith((".onnx", ".wasm"))] == []


def test_nothing_big_is_loaded_before_it_is_needed(page, requests):
    page.wait_for_load_state("networkidle")
    heavy = (".onnx", ".wasm", "translator.mjs")
    assert [url for url in requests if url.endswith(heavy)] == []
    translate(page, "seven")
    assert all(any(url.endswith(end) for url in requests) for end in heavy)


@pytest.mark.parametrize("trouble", ["no WebAssembly", "could not be loaded", "no JavaScript"])
def test_a_browser_that_cannot_run_the_model_says_so(browser, site, trouble):
    with browser.new_context(java_script_enabled=trouble != "no JavaScript") as context:
        if trouble == "no WebAssembly":
            context.add_init_script("delete globalThis.WebAssembly")
        else:
            context.route("**/*.onnx", lambda route: route.abort())
        page = context.new_page()
        page.goto(f"{site}/{LIVE}")
        if trouble == "no JavaScript":
            assert page.locator("#live-form").is_hidden()
        else:
            page.get_by_role("button", name="Translate").click()
            expect(page.get_by_role("status")).to_contain_text(trouble, **ANSWER)
        assert page.locator(".live-example img").first.is_visible()

"""The live page: the browser writes what the package writes, and says what it cannot do."""

import random

import onnx
import pytest
import torch
from playwright.sync_api import Page, expect

import minitransformer as mt
from live_model import EXAMPLE, FOLDER, NextToken, load_weights
from minitransformer.__main__ import new_trainer

LIVE = "chapters/live.html"


@pytest.fixture(scope="module")
def translator():
    """The package's model with the weights of the page's graph, and its tokenizers."""
    trainer = new_trainer(mt.TrainingConfig())
    load_weights(trainer.model, onnx.load(FOLDER / "translator.onnx"))
    return trainer.model.eval(), *trainer.tokenizers.values()


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


def translate(page: Page, text: str) -> str:
    """Type a text, press the button, and wait for the end."""
    page.get_by_label("A number in English words").fill(text)
    page.get_by_role("button", name="Translate").click()
    expect(page.get_by_role("status")).to_contain_text("Done", timeout=30_000)
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


# --- the same as the package -----------------------------------------------------------------


def test_fifty_translations_are_those_of_the_package(page, translator):
    splits, generator = mt.number_words(), random.Random(6)
    texts = [
        pair.src
        for name, size in (("train", 20), ("held_out", 10), ("composition", 10), ("longer", 10))
        for pair in generator.sample(splits[name], size)
    ]
    assert len({len(text.split()) for text in texts}) > 5  # short and long
    found = [translate(page, text) for text in texts]
    assert found == mt.translate(translator[0], texts, *translator[1:])


@pytest.mark.parametrize("text", [EXAMPLE, "seven", "two million sixteen thousand three hundred"])
def test_every_head_looks_where_the_package_says(page, translator, text):
    model, src_tokenizer, tgt_tokenizer = translator
    translate(page, text)
    source = [*src_tokenizer.encode(text), src_tokenizer.eos_id]
    target = mt.generate(model, torch.tensor([source]), max_new_tokens=64)[0]
    with torch.inference_mode():
        beginning = torch.tensor([[tgt_tokenizer.bos_id, *target[:-1]]])
        _, expected = NextToken(model)(torch.tensor([source]), beginning)
    heads = page.get_by_role("radio").all()
    assert len(heads) == expected.size(0) * expected.size(1)
    for head, weights in zip(heads, expected.flatten(0, 1), strict=True):
        head.check()
        torch.testing.assert_close(large_map(page), weights, atol=1e-3, rtol=0)
    labels = page.locator("#live-map tbody th").all_text_contents()
    assert labels == [label.replace(" ", "␣") for label in tgt_tokenizer.labels(target.tolist())]
    headings = page.locator("#live-map thead th").all_text_contents()
    assert headings == src_tokenizer.labels(source)


# --- the reader ------------------------------------------------------------------------------


def test_heads_are_described_in_words(page):
    translate(page, "seven")
    page.get_by_role("radio", name="layer 0, head 3").check()
    weights = large_map(page)
    percent, column = (100 * weights[0].max()).round().int(), weights[0].argmax()
    word = page.locator("#live-map thead th").all_text_contents()[column]
    words = page.locator("#live-links").inner_text()
    assert words.startswith("Layer 0, head 3 in words")
    assert f"{word} ({percent}\N{NO-BREAK SPACE}%)" in words


def test_keyboard_alone_is_enough(page):
    page.get_by_label("A number in English words").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("forty-two")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Done: zweiundvierzig", timeout=30_000)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "radio":
            break
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="layer 1, head 3")).to_be_checked()
    expect(page.locator("#live-map caption")).to_contain_text("Layer 1, head 3")


def test_one_token_at_a_time(page):
    status, step = page.get_by_role("status"), page.get_by_role("button", name="One token")
    page.get_by_label("A number in English words").fill("forty-two")
    step.click()
    expect(status).to_have_text("Token 1 is “zwei”. So far: zwei", timeout=30_000)
    step.click()
    expect(status).to_have_text("Token 2 is “und”. So far: zweiund")
    page.get_by_role("button", name="Translate").click()  # goes on
    expect(status).to_have_text("Done: zweiundvierzig, written in 5 tokens, the end included.")
    page.get_by_label("A number in English words").fill("two")
    step.click()  # another text: begins anew
    expect(status).to_have_text("Token 1 is “zwei”. So far: zwei")


def test_examples_are_translated(page, translator):
    for button in page.locator("#live-examples button").all():
        text = button.inner_text()
        button.click()
        german = mt.translate(translator[0], [text], *translator[1:])[0]
        expect(page.get_by_role("status")).to_contain_text(f"Done: {german},", timeout=30_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Please write a number in English words"),
        ("  \n ", "Please write a number in English words"),
        ("forty-tow", "does not know “tow”. All it knows is:"),
        ("Forty 42 forty", "does not know “Forty”, “42”."),
        ("constructor <eos>", "does not know “constructor”, “<”, “eos”, “>”."),
        ("one " * 128, "reads 127 words and hyphens at most, not 128"),
    ],
)
def test_what_cannot_be_translated_is_explained(page, text, message):
    page.get_by_label("A number in English words").fill(text)
    page.get_by_role("button", name="Translate").click()
    expect(page.get_by_role("status")).to_contain_text(message, timeout=30_000)
    assert page.locator("#live-result").is_hidden()


def test_message_names_every_word_that_the_model_knows(page, translator):
    page.get_by_label("A number in English words").fill("zeroth")
    page.get_by_role("button", name="Translate").click()
    expect(page.get_by_role("status")).to_contain_text("knows", timeout=30_000)
    known = page.get_by_role("status").inner_text().partition("All it knows is: ")[2].split()
    assert known == list(translator[1].tokens[len(mt.Tokenizer.special_tokens) :])


def test_longest_text_is_that_of_the_model(page, translator):
    longest = translator[0].config.max_len - 1  # and the end
    assert translate(page, "one " * longest)


# --- the browser -----------------------------------------------------------------------------


def test_nothing_big_is_loaded_before_it_is_needed(page, requests):
    page.wait_for_load_state("networkidle")
    heavy = (".onnx", ".wasm", "translator.mjs")
    assert [url for url in requests if url.endswith(heavy)] == []
    translate(page, "seven")
    assert all(any(url.endswith(end) for url in requests) for end in heavy)


def test_without_webassembly_the_page_says_so(browser, site):
    with browser.new_context() as context:
        context.add_init_script("delete globalThis.WebAssembly")
        page = context.new_page()
        page.goto(f"{site}/{LIVE}")
        page.get_by_role("button", name="Translate").click()
        expect(page.get_by_role("status")).to_contain_text("no WebAssembly")
        assert page.locator("#live-example img").is_visible()


def test_without_javascript_there_is_a_picture(browser, site):
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{site}/{LIVE}")
        assert page.locator("#live-example img").is_visible()
        assert page.locator("#live-form").is_hidden()


def test_a_model_that_does_not_come_is_reported(browser, site):
    with browser.new_context() as context:
        context.route("**/*.onnx", lambda route: route.abort())
        page = context.new_page()
        page.goto(f"{site}/{LIVE}")
        page.get_by_role("button", name="Translate").click()
        status = page.get_by_role("status")
        expect(status).to_contain_text("could not be loaded", timeout=30_000)


def test_phone_page_does_not_scroll_sideways(browser, site):
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        page = context.new_page()
        page.goto(f"{site}/{LIVE}")
        translate(page, EXAMPLE)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

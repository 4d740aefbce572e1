"""The live page: what a reader sees and does; `test_live_maths.py` compares its numbers."""

import re
from functools import cache
from shutil import copyfile

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Page, expect

import minitransformer as mt
from live_model import FOLDER, read_model
from printed import write_card, write_film
from test_html import SITE

LIVE = "chapters/live.html"
ANSWER = {"timeout": 30_000}  # milliseconds until a model is there and has translated
VIEWS = {"desktop": (1400, 900, "light"), "phone": (390, 844, "dark")}
LONG = "He says that she has brought the child a cake."
each_view = pytest.mark.parametrize("view", VIEWS)

translator = cache(lambda name: read_model(FOLDER / name))
"""The package's model with the page's weights, and its tokenizers."""


@pytest.fixture
def requests():
    """Every address that the page has asked for."""
    return []


@pytest.fixture
def open_page(quick, site, requests):
    """Opens the live page in a view, on a machine with no network but our server."""
    errors = []

    def opened(view="desktop"):
        width, height, theme = VIEWS[view]
        size = {"width": width, "height": height}
        context = quick(viewport=size, color_scheme=theme, has_touch=view == "phone")
        context.route(lambda url: not url.startswith(site), lambda route: route.abort())
        window = context.new_page()
        window.on("request", lambda request: requests.append(request.url))
        window.on("pageerror", lambda error: errors.append(error))
        window.goto(f"{site}/{LIVE}")
        expect(window.locator("#live-app")).to_have_attribute("data-state", "shown", **ANSWER)
        return window

    yield opened
    assert errors == []
    assert [url for url in requests if not url.startswith((site, "data:", "blob:"))] == []


@pytest.fixture
def page(open_page):
    return open_page()


def translate(page: Page, text: str) -> None:
    """Type a text and press the button."""
    page.get_by_label("A number or a sentence in English").fill(text)
    page.get_by_role("button", name="Translate").click()


def reads(page: Page, text: str) -> None:
    """Wait until the model has read this text."""
    expect(page.locator("#live-reads")).to_have_text(f"{text} →", **ANSWER)


def status(page: Page):
    return page.locator("#live-status")


def part(page: Page, name: str):
    return page.locator("#live-picture").get_by_role("button", name=name, exact=True)


def to_end(page: Page) -> None:
    """Go to the last step, and let the pointer rest on no token."""
    page.locator("#live-result button").last.click()
    page.locator("#live-input").hover()


def step_of(page: Page, name: str):
    steps = page.get_by_role("group", name="Steps of the computation")
    return steps.get_by_role("button", name=name, exact=True)


# --- the first view --------------------------------------------------------------------------


@each_view
def test_first_view_has_input_result_and_picture(open_page, view):
    page = open_page(view)
    width, height, _ = VIEWS[view]
    expect(status(page)).to_have_text("dreihundertzweiundvierzig")
    for seen in ("#live-input", "#live-result", "#live-encoder canvas", "#live-decoder canvas"):
        box = page.locator(seen).first.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height
    shown = page.evaluate(
        """() => {
            const { top, bottom } = document.querySelector("#live-picture").getBoundingClientRect();
            return [top, bottom, document.documentElement.scrollWidth];
        }"""
    )
    assert shown[0] < height / 2  # at least the upper half of the picture
    assert view == "phone" or shown[1] <= height
    assert shown[2] <= width


def test_page_loads_one_model_and_no_engine(page, requests):
    page.wait_for_load_state("networkidle")
    assert [url.split("/")[-2] for url in requests if url.endswith(".safetensors")] == [
        "number_words"
    ]
    assert [url for url in requests if url.endswith((".wasm", ".onnx"))] == []


def test_without_javascript_the_page_says_what_it_needs(browser, site):
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{site}/{LIVE}")
        expect(page.locator("noscript p").last).to_be_visible()
        assert page.locator("#live-app").is_hidden()


def test_opened_as_a_file_the_page_says_what_it_needs(browser, site):
    with browser.new_context() as context:
        page = context.new_page()
        page.goto((SITE / LIVE).as_uri())
        expect(page.locator("#live-file")).to_be_visible()
        page.goto(f"{site}/{LIVE}")
        expect(page.locator("#live-file")).to_be_hidden()


def test_a_model_that_does_not_come_is_reported(browser, site):
    with browser.new_context() as context:
        context.route("**/*.safetensors", lambda route: route.abort())
        page = context.new_page()
        page.goto(f"{site}/{LIVE}")
        expect(status(page)).to_contain_text("could not be loaded", **ANSWER)


def shown_keys(page: Page) -> torch.Tensor:
    """The numbers of all keys in the panel."""
    numbers = page.locator(".live-keys button").evaluate_all(
        "buttons => buttons.map((button) => +button.dataset.number)"
    )
    return torch.tensor(numbers)


# --- translating -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "read"),
    [
        ("976,042", "number_words", "nine hundred seventy-six thousand forty-two"),
        ("Seven Hundred and one", "number_words", "seven hundred one"),
        ("the boy reads me a poem", "grammar", "The boy reads me a poem."),
        (LONG, "grammar", LONG),
    ],
)
def test_what_is_typed_is_translated_as_by_the_package(page, text, name, read):
    translate(page, text)
    reads(page, read)
    german = translator(name).translate([read])[0]
    expect(status(page)).to_have_text(german)
    shown = "".join(page.locator("#live-result button").all_inner_texts()[:-1])
    if name == "number_words":
        assert shown.replace("␣", " ") == german


def test_what_cannot_be_translated_is_said_in_one_line_with_examples(page):
    translate(page, "I love you")
    expect(status(page)).to_contain_text("does not know “you”")
    expect(page.get_by_label("A number or a sentence in English")).to_have_attribute(
        "aria-invalid", "true"
    )
    expect(page.locator(".live-old #live-reads")).to_have_text("three hundred forty-two →")
    before = page.locator("#live-reads").evaluate("p => getComputedStyle(p, '::before').content")
    assert before == '"Still showing: "'
    examples = page.locator("#live-examples [data-does=Translate]")
    assert examples.count() == 3
    for index in range(3):
        examples.nth(index).click()
        text = examples.nth(index).inner_text()
        reads(page, {0: "nine hundred seventy-six thousand forty-two"}.get(index, text))
    expect(page.locator("#live-input")).to_have_attribute("aria-invalid", "false")
    assert page.locator(".live-old").count() == 0


def test_numbers_unlike_those_of_training_come_with_a_warning(page):
    translate(page, "1,000,005")
    expect(status(page)).to_have_text(re.compile("^eine Milion fünf. Training had few"))


def test_words_that_the_models_know_are_listed(page):
    page.locator("#live-words summary").click()
    for name in ("number_words", "grammar"):
        listed = page.locator(f"#live-words [data-model={name}]")
        expect(listed).not_to_be_empty()
        known = translator(name).tokenizers["src"].tokens[len(mt.Tokenizer.special_tokens) :]
        assert sorted(listed.inner_text().split()) == sorted(known)


# --- the picture -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"), [("two thousand three hundred", "number_words"), ("We sleep.", "grammar")]
)
def test_every_head_shows_the_package_s_weights(page, text, name):
    model = translator(name).model
    src_tokenizer, tgt_tokenizer = translator(name).tokenizers.values()
    source = torch.tensor([src_tokenizer.sequence_ids(text)])
    target = torch.tensor([tgt_tokenizer.begin(translator(name).translate([text])[0])])
    with torch.inference_mode(), mt.record_attention(model) as maps:
        model(source, target)
    translate(page, text)
    reads(page, text)
    page.locator("#live-encoder .live-tokens button").last.click()
    to_end(page)
    for attention, weights in maps.items():
        side, _, layer, kind = attention.split(".")
        kind = kind.replace("_", "-")
        kind = f"masked {kind}" if (side, kind) == ("decoder", "self-attention") else kind
        for head in range(weights.size(1)):
            part(page, f"{side}, layer {layer}, {kind}, head {head}").press("Enter")
            torch.testing.assert_close(shown_keys(page), weights[0, head, -1], atol=1e-4, rtol=0)


def test_a_click_on_a_box_keeps_the_token(page):
    page.locator("#live-result button").nth(2).click()
    words = page.locator(".live-in-words")
    head = part(page, "decoder, layer 1, cross-attention, head 3")
    for share in (0.1, 0.5, 0.9):
        head.click(position={"x": 5, "y": share * head.bounding_box()["height"]})
        expect(words).to_have_text(re.compile("^After “hundert”, writing “zwei”"))
        expect(page.locator("#live-result [aria-pressed=true]")).to_have_text("zwei")


def test_there_is_one_position(page):
    """The written tokens, the picture, the bars, the details and the encoder agree."""
    part(page, "decoder, layer 1, cross-attention, head 2").press("Enter")
    to_end(page)
    for choose in ("#live-result button", "#live-decoder .live-tokens button"):
        for index in (4, 1):
            page.locator(choose).nth(index).click()
            page.locator("#live-input").hover()
            written = page.locator("#live-result button").nth(index)
            expect(written).to_have_attribute("aria-pressed", "true")
            expect(page.locator("#live-result [aria-pressed=true]")).to_have_count(1)
            name = written.inner_text()
            expect(page.locator(".live-in-words")).to_contain_text(f"writing “{name}”")
            expect(page.locator("ol.live-bars [aria-pressed=true]")).to_contain_text(name)
            expect(page.locator(".live-output .now")).to_have_text(name)
            key = page.locator(".live-keys [aria-pressed=true] .live-bar-name").inner_text()
            marked = page.locator("#live-encoder .live-tokens [aria-pressed=true]")
            expect(marked).to_contain_text(key)
        to_end(page)


def test_keys_of_the_memory_are_of_the_token_that_is_attended_to(page):
    part(page, "decoder, layer 1, cross-attention, head 2").press("Enter")
    page.locator("#live-input").hover()
    caption = page.locator("#live-detail .live-caption")
    for index in range(7):
        page.locator("#live-result button").nth(index).click()
        step_of(page, "weights").click()
        attended = shown_keys(page).argmax().item()
        name = page.locator(".live-keys .live-bar-name").nth(attended).inner_text()
        for step in ("keys", "values"):
            step_of(page, step).click()
            expect(caption).to_contain_text(f"“{name}”")
    hundred = page.locator("#live-encoder .live-tokens button").nth(1)
    for release in ("Escape", "click"):
        hundred.click()
        page.locator("#live-input").hover()
        expect(caption).to_contain_text("“hundred”")
        page.get_by_role("button", name="Back").click()  # it is kept, whatever the step
        page.locator("#live-input").hover()
        expect(caption).to_contain_text("“hundred”")
        page.keyboard.press("Escape") if release == "Escape" else hundred.click()
        page.locator("#live-input").hover()
        expect(caption).not_to_contain_text("“hundred”")


@each_view
def test_the_picture_stays_where_it_is(open_page, view):
    page = open_page(view)
    page.emulate_media(reduced_motion="reduce")

    def places():
        return page.locator("#live-picture .live-box:visible").evaluate_all(
            """boxes => boxes.map((box) => {
                const { top, height } = box.getBoundingClientRect();
                return [Math.round(top + scrollY), Math.round(height)];
            })"""
        )

    for text in ("342", LONG, "ROMEO:"):
        if text == "ROMEO:":
            continued(page, text)
        else:
            translate(page, text)
            expect(status(page)).not_to_contain_text("Loading", **ANSWER)
        page.wait_for_timeout(200)
        before = places()
        written = page.locator("#live-result button")
        for index in range(min(12, written.count())):
            written.nth(index).click()
            assert places() == before
        for token in page.locator("#live-decoder .live-tokens button:visible").all()[:8]:
            token.focus()
            assert places() == before
        for step in page.locator(".live-steps button").all()[:6]:
            step.click()
            assert places() == before


def test_a_token_under_the_pointer_is_said_in_words(page):
    to_end(page)
    part(page, "decoder, layer 1, cross-attention, head 2").press("Enter")
    page.locator("#live-decoder .live-tokens button").nth(2).hover()
    words = page.locator(".live-in-words")
    expect(words).to_have_text(
        re.compile(r"^After “hundert”, writing “zwei”, it attends to “two” >\s99\.9\s%\.")
    )
    page.locator("#live-input").hover()
    expect(words).to_have_text(re.compile(r"^After “zig”, writing “<eos>”, it attends to"))
    page.locator("#live-decoder .live-tokens button").nth(1).focus()
    expect(words).to_have_text(re.compile(r"^After “drei”, writing “hundert”, it attends to"))
    page.locator("#live-input").focus()
    page.locator("#live-result button").nth(2).hover()  # a written token's step is the same
    expect(words).to_have_text(re.compile(r"^After “hundert”, writing “zwei”"))
    expect(page.locator("#live-next .live-heading")).to_have_text("After “dreihundert”")
    part(page, "encoder, embedding").click()
    page.locator("#live-encoder .live-tokens button").last.hover()
    expect(words).to_have_text("The vector of “<eos>” has 128 numbers.")


def test_bars_of_signed_scores_start_at_zero(page):
    part(page, "decoder, layer 1, cross-attention, head 2").press("Enter")
    step_of(page, "scores").click()
    bars = page.locator(".live-keys button").evaluate_all(
        """buttons => buttons.map((button) => {
            const bar = button.querySelector(".live-bar");
            const style = getComputedStyle(bar, "::before");
            const zero = parseFloat(getComputedStyle(bar, "::after").left);
            const left = parseFloat(style.left);
            const sides = [left - zero, left + parseFloat(style.width) - zero];
            return [+button.dataset.number, ...sides, style.backgroundColor];
        })"""
    )
    numbers, lefts, rights, colours = zip(*bars, strict=True)
    assert min(numbers) < 0 < max(numbers)
    ends = [left + right for left, right in zip(lefts, rights, strict=True)]  # one side is at zero
    scale = ends[0] / numbers[0]
    assert ends == pytest.approx([scale * number for number in numbers], abs=1)
    assert scale > 0
    assert all(min(abs(left), abs(right)) < 1 for _, left, right, _ in bars)
    assert len({(number > 0, colour) for number, colour in zip(numbers, colours, strict=True)}) == 2


def test_sums_of_a_head_begin_with_its_components(page):
    part(page, "decoder, layer 1, cross-attention, head 2").click()
    step_of(page, "weighted sums").click()
    expect(page.locator(".live-equation").first).to_contain_text("weights of head 2")
    step_of(page, "heads mixed").click()
    expect(page.locator(".live-formula code").last).to_contain_text("self.w_o(joined")


def test_later_tokens_are_hidden_by_the_mask(page):
    to_end(page)
    part(page, "decoder, layer 0, masked self-attention, head 0").click()
    page.locator("#live-decoder .live-tokens button").nth(2).hover()
    assert page.locator(".live-keys button").count() == 3
    hidden = page.locator(".live-keys .live-rest")
    assert hidden.locator(".live-bar-name").all_inner_texts() == ["zwei", "und", "vier", "zig"]
    expect(hidden.first).to_contain_text(re.compile(r"hidden by the mask\s*0\s%"))


def test_every_part_has_a_formula_with_numbers_a_line_of_code_and_a_chapter(page, site):
    chapters = set()
    for name in page.locator("#live-picture .live-shows button[aria-label]").evaluate_all(
        "buttons => buttons.filter((b) => b.querySelector('canvas') || "
        "b.classList.contains('live-output')).map((b) => b.ariaLabel)"
    ):
        if re.search(r"head [1-3]", name):
            continue
        part(page, name).click()
        for step in (
            page.get_by_role("group", name="Steps of the computation").locator("button").all()
        ):
            step.click()
            equations = page.locator(".live-equation").all_inner_texts()
            value = float(page.locator("[data-value]").get_attribute("data-value"))
            assert float(equations[2].removeprefix("= ").replace("−", "-")) == pytest.approx(
                value, abs=6e-5
            )
            assert page.locator(".live-formula code").first.inner_text()
            assert len(page.locator("#live-detail .live-says").inner_text()) > 30
            chapters.add(page.locator(".live-formula a").get_attribute("href"))
            assert "∞" not in page.locator("#live-detail").inner_text()
    assert len(chapters) == 7
    for address in chapters:
        assert page.request.get(f"{site}/chapters/{address}").ok


def test_an_entry_of_a_vector_can_be_chosen(page):
    part(page, "decoder, layer 0, feed-forward").click()
    step_of(page, "norm").click()
    slider = page.get_by_role("slider", name="component")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".live-equation").first).to_have_text(re.compile("^y₁ = γ₁"))
    expect(slider).to_be_focused()
    page.locator(".live-tile").click(position={"x": 3, "y": 70})
    expect(page.locator(".live-equation").first).to_have_text(re.compile("^y₁₁₂ = "))


# --- stepping --------------------------------------------------------------------------------


def test_steps_go_back_and_on(page):
    tokens = page.locator("#live-result button")
    assert tokens.count() == 7
    expect(tokens.first).to_have_attribute("aria-pressed", "true")  # all is written already
    to_end(page)
    page.get_by_role("button", name="Back").click()
    expect(status(page)).to_have_text(
        re.compile(r"^Step 6 of 7: reads “vier”, writes “zig” \(\d\d\.\d\s%\)\.$")
    )
    assert page.locator("#live-decoder .live-tokens button:visible").count() == 6
    expect(page.locator("#live-decoder")).to_contain_text("5 in cache")
    tokens.nth(1).click()
    expect(tokens.nth(1)).to_be_focused()
    expect(status(page)).to_contain_text("Step 2 of 7: reads “drei”, writes “hundert”")
    page.get_by_role("button", name="Next").click()
    expect(status(page)).to_contain_text("Step 3 of 7")
    assert page.locator("#live-decoder .live-tokens button:visible").count() == 3


def test_play_goes_to_the_end_and_can_be_paused(page):
    page.get_by_role("button", name="Play").click()
    expect(status(page)).to_contain_text("Step 1 of 7")
    expect(status(page)).to_contain_text("Step 3 of 7", timeout=5000)
    page.get_by_role("button", name="Pause").click()
    page.wait_for_timeout(1500)
    expect(status(page)).to_contain_text("Step 3 of 7")
    page.get_by_role("button", name="Play").click()
    expect(status(page)).to_contain_text("Step 7 of 7", timeout=10_000)
    expect(page.get_by_role("button", name="Play")).to_be_visible(timeout=5000)


# --- continuing a text ------------------------------------------------------------------------

WRITTEN = re.compile(r"^(The model ended the text|Cut off) after (\d+) tokens\.$")


def continued(page: Page, text: str) -> None:
    """Type a text and have it continued; wait for the end."""
    page.get_by_label("A number or a sentence in English").fill(text)
    page.get_by_role("button", name="Continue").click()
    expect(status(page)).to_have_text(WRITTEN, **ANSWER)


def written(page: Page) -> str:
    return page.locator("#live-result").evaluate("node => node.textContent")


def greedy(text: str) -> list[int]:
    """What the package writes after a text, on the page's conditions."""
    writer = translator("shakespeare")
    ids = writer.tokenizers["text"].begin(text)
    options = {"max_new_tokens": 61 - len(ids), "stop_ids": writer.stop_ids}
    return [*ids, *mt.generate(writer.model, torch.tensor([ids]), **options)[0].tolist()]


@pytest.fixture
def still(open_page):
    """The page for readers who want no motion: a text is there at once."""
    page = open_page()
    page.emulate_media(reduced_motion="reduce")
    return page


def test_a_text_is_continued_token_by_token(page, requests):
    assert not any("shakespeare" in url for url in requests)  # it is loaded when it is asked for
    page.get_by_role("button", name="ROMEO:").click()
    shown = page.locator("#live-result button:not(.later)")
    expect(status(page)).to_contain_text(re.compile(r"^Step \d+ of \d+"), **ANSWER)
    first = shown.count()
    expect(status(page)).to_have_text(WRITTEN, timeout=60_000)
    assert shown.count() == page.locator("#live-result button").count() > first
    assert written(page).startswith("ROMEO:")
    expect(page.locator("#live-result .given")).to_have_text(["ROMEO", ":"])
    expect(page.locator("#live-result")).to_have_attribute("lang", "en")
    assert any("shakespeare/model.safetensors" in url for url in requests)


def test_most_probable_tokens_are_the_package_s(still):
    page = still
    for text in ("ROMEO:", "LUCIO:", "To be, or not to be"):
        continued(page, text)
        expect(page.get_by_role("combobox", name="next token")).to_have_value("sample")
        page.get_by_role("combobox", name="next token").select_option("greedy")
        expected = greedy(text)
        assert len(expected) <= 61
        if expected[-1] not in translator("shakespeare").stop_ids:
            expect(status(page)).to_have_text("Cut off after 60 tokens.")
        labels = page.locator("#live-decoder .live-tokens small").all_inner_texts()
        assert list(map(int, labels)) == expected[:-1]
        page.get_by_role("combobox", name="next token").select_option("sample")


def test_texts_are_drawn_again_and_translations_are_not(still):
    page = still
    continued(page, "My lord,")
    texts = set()
    for _ in range(5):
        page.get_by_role("button", name="Draw again").click()
        assert re.match(WRITTEN, status(page).inner_text())
        assert written(page).startswith("My lord,")
        texts.add(written(page))
        assert page.locator("#live-result button").count() <= 60
    assert len(texts) > 3
    page.get_by_label("A number or a sentence in English").fill("Good night,")
    page.keyboard.press("Enter")  # continues again
    expect(status(page)).to_have_text(WRITTEN, **ANSWER)
    assert written(page).startswith("Good night,")
    translate(page, "342")
    expect(status(page)).to_have_text("dreihundertzweiundvierzig", **ANSWER)
    expect(page.get_by_role("combobox", name="next token")).to_have_value("greedy")
    expect(page.locator("#live-encoder canvas").first).to_be_visible()
    translate(page, "Good night,")
    expect(status(page)).to_contain_text("or Continue.")


def test_heads_of_the_writer_show_the_package_s_weights(still):
    page = still
    continued(page, "ROMEO:")
    page.get_by_role("combobox", name="next token").select_option("greedy")
    ids = torch.tensor([greedy("ROMEO:")[:-1]])
    with torch.inference_mode(), mt.record_attention(translator("shakespeare").model) as maps:
        translator("shakespeare").model(ids)
    for attention, weights in maps.items():
        layer = attention.split(".")[2]
        for head in range(5):
            part(page, f"decoder, layer {layer}, masked self-attention, head {head}").press("Enter")
            page.locator("#live-input").hover()
            torch.testing.assert_close(shown_keys(page), weights[0, head, -1], atol=1e-4, rtol=0)


def test_the_panel_shows_all_that_it_has(still):
    continued(still, "My lord, I would")
    part(still, "decoder, layer 2, masked self-attention, head 1").click()
    for step in still.locator(".live-steps button").all():
        step.click()
        whole, seen = still.locator("#live-detail").evaluate(
            "d => [d.scrollHeight, d.clientHeight]"
        )
        assert whole <= seen + 1
    step_of(still, "values").click()
    expect(still.locator(".live-tile")).to_be_in_viewport(ratio=1)
    step_of(still, "weights").click()
    expect(still.locator(".live-keys [aria-pressed=true]")).to_be_in_viewport(ratio=1)


def test_a_long_text_has_one_label_and_a_list_that_shows_it_goes_on(still):
    continued(still, "LUCIO:")
    still.get_by_role("combobox", name="next token").select_option("greedy")
    assert still.locator("#live-result button").count() == 60
    for place in (".live-output span", ".live-tokens button"):
        sizes = still.locator(f"#live-decoder {place}").evaluate_all(
            "nodes => nodes.map((node) => parseFloat(getComputedStyle(node).fontSize))"
        )
        assert [size > 0 for size in sizes] == [False] * 59 + [True]
    shown, row = still.locator(".live-keys").evaluate(
        "list => [list.clientHeight, list.firstChild.offsetHeight]"
    )
    assert 0.3 < shown / row % 1 < 0.7  # cut in the middle of a row


def test_panels_keep_their_places_and_heads_when_the_model_changes(still):
    page = still
    panels = ("#live-controls", "#live-next", "#live-detail")

    def seen():
        lefts = [page.locator(panel).bounding_box()["x"] for panel in panels]
        return [*lefts, page.locator("#live-controls").bounding_box()["y"]]

    part(page, "decoder, layer 0, cross-attention, head 1").click()
    before = seen()
    continued(page, "ROMEO:")
    assert seen() == before
    translate(page, "the boy reads me a poem")
    expect(page.locator("#live-detail-title")).to_have_text(
        "Decoder layer 0: cross-attention, head 1", **ANSWER
    )
    assert seen() == before


def test_beam_search_says_why_it_ends_a_text_at_once(still):
    continued(still, "ROMEO:")
    still.get_by_role("combobox", name="next token").select_option("beam")
    expect(status(still)).to_have_text(
        "Beam search ended the text after 1 token of its own. "
        "Each further token lowers log p, so the shortest text often wins."
    )
    expect(still.locator("#live-tree")).to_contain_text("at 1 token,")


def test_long_beginnings_are_refused(page):
    page.get_by_label("A number or a sentence in English").fill("night " * 60)
    page.get_by_role("button", name="Continue").click()
    expect(status(page)).to_contain_text("shows 59 tokens of a text at most", **ANSWER)


@each_view
def test_first_view_of_a_continued_text(open_page, view):
    page = open_page(view)
    page.emulate_media(reduced_motion="reduce")
    width, height, _ = VIEWS[view]
    continued(page, "ROMEO:")
    for seen in ("#live-input", "#live-result", "#live-decoder .live-output"):
        box = page.locator(seen).first.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page, context="#live-app", options={"resultTypes": ["violations"]})
    serious = [rule for rule in found.response["violations"] if rule["impact"] != "minor"]
    assert [(rule["id"], [node["html"] for node in rule["nodes"][:3]]) for rule in serious] == []


# --- the next token --------------------------------------------------------------------------


def probabilities(page: Page) -> list[float]:
    return page.locator("ol.live-bars button").evaluate_all(
        "buttons => buttons.map((button) => +button.dataset.probability)"
    )


def test_settings_change_the_bars_at_once(page):
    page.locator("#live-result button").nth(2).click()
    before = probabilities(page)
    method = page.get_by_role("combobox", name="next token")
    method.select_option("sample")
    temperature = page.get_by_role("slider", name="temperature")
    temperature.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(temperature).to_have_value("1.5")
    expect(temperature).to_be_focused()
    page.locator("#live-result button").nth(2).click()
    assert probabilities(page)[0] < before[0]
    others = page.locator("ol.live-bars .live-rest .live-bar-share").inner_text()
    rest = float(others.removesuffix("%"))
    assert rest == pytest.approx(100 * (1 - sum(probabilities(page))), abs=0.06)
    page.get_by_role("slider", name="top-k").focus()
    page.keyboard.press("Home")  # a single token is left
    assert max(probabilities(page)) == 1
    expect(page.get_by_role("button", name="Draw again")).to_be_visible()
    method.select_option("greedy")  # takes the most probable token, whatever the sliders say
    expect(temperature).to_be_hidden()
    page.locator("#live-result button").nth(2).click()
    assert probabilities(page) == pytest.approx(before)


def test_another_token_can_be_written(page):
    page.locator("#live-result button").nth(2).click()
    bar = page.locator("ol.live-bars button").nth(1)
    label = bar.locator(".live-bar-name").inner_text()
    bar.click()
    expect(page.locator("#live-result button").nth(2)).to_have_text(label)
    expect(page.locator("#live-result button").nth(1)).to_have_text("hundert")
    expect(page.get_by_role("button", name=f"token 3: {label}, written by you")).to_be_visible()
    expect(page.locator("#live-next .live-says")).to_contain_text("You wrote this token")
    page.get_by_role("button", name="Undo").click()
    expect(status(page)).to_have_text("dreihundertzweiundvierzig")
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()
    assert page.locator("#live-result .forced").count() == 0


def test_bars_are_under_the_controls_of_a_phone(open_page):
    page = open_page("phone")
    names = ("controls", "status", "result")
    boxes = [page.locator(f"#live-{name}").bounding_box() for name in names]
    first = page.locator("ol.live-bars").bounding_box()
    assert first["y"] - max(box["y"] + box["height"] for box in boxes) < 40


def test_a_text_drawn_at_random_has_a_limit(page):
    page.get_by_role("combobox", name="next token").select_option("sample")
    page.get_by_role("slider", name="temperature").fill("2")
    again = page.get_by_role("button", name="Draw again")
    for _ in range(20):
        again.click()
        count = page.locator("#live-result button").count()
        assert count <= 24
        if "Cut off" in status(page).inner_text():
            assert count == 24
            break
    else:
        pytest.fail("twenty texts at temperature 2, and all of them ended")


def test_tokens_that_are_no_characters_have_names(page):
    translate(page, "five")
    expect(status(page)).to_have_text("fünf")
    page.get_by_role("combobox", name="next token").select_option("sample")
    page.get_by_role("slider", name="temperature").fill("2")
    again = page.get_by_role("button", name="Draw again")
    for _ in range(10):
        again.click()
        names = page.locator(".live-bar-name, #live-result button").all_inner_texts()
        assert all(name.isprintable() and "\N{REPLACEMENT CHARACTER}" not in name for name in names)
        if any(re.search("⟨[0-9a-f]{2}⟩", name) for name in names):
            break
    else:
        pytest.fail("ten texts at temperature 2 without a byte that is no character")


def test_beam_search_shows_its_tree(page):
    method = page.get_by_role("combobox", name="next token")
    before = method.bounding_box()
    method.select_option("beam")
    assert method.bounding_box() == before
    tree = page.locator("#live-tree")
    expect(tree.locator("svg.tree .winner").first).to_be_attached()
    assert "drei" in tree.locator("svg.tree").text_content()
    expect(tree.locator(".live-says")).to_contain_text(re.compile(r"here −\d\.\d\d at 7 tokens"))
    tree.locator("summary").click()
    expect(tree.locator("li").first).to_contain_text("kept: drei")
    expect(status(page)).to_have_text("dreihundertzweiundvierzig")
    page.get_by_role("combobox", name="next token").select_option("greedy")
    expect(tree).to_be_hidden()


@pytest.mark.everything
def test_film_and_card_are_taken_of_the_page(browser, tmp_path):
    write_film(browser, tmp_path / "live.gif")
    kept = SITE / "_static"
    with Image.open(tmp_path / "live.gif") as taken, Image.open(kept / "live.gif") as film:
        assert (taken.n_frames, taken.size[0]) == (film.n_frames, film.size[0])
    copyfile(kept / "social_card.svg", tmp_path / "social_card.svg")
    write_card(browser, tmp_path / "social_card.png")
    with Image.open(tmp_path / "social_card.png") as card:
        beside = card.convert("RGB").crop((700, 100, 1140, 560))  # the title
        assert len(beside.getcolors(2**18)) > 20


# --- everyone --------------------------------------------------------------------------------


def test_keyboard_alone_is_enough(page):
    page.get_by_label("A number or a sentence in English").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("forty-two")
    page.keyboard.press("Enter")
    expect(status(page)).to_have_text("zweiundvierzig")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.live-side') !== null"):
            break
    expect(part(page, "decoder, layer 1, cross-attention, head 2")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(part(page, "decoder, layer 1, cross-attention, head 3")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(part(page, "decoder, layer 1, feed-forward")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#live-detail-title")).to_have_text("Decoder layer 1: feed-forward")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.closest('#live-encoder') !== null")


def test_few_stops_of_the_tab_key_and_none_loses_the_focus(still):
    page = still
    continued(page, "My lord, I would")
    part(page, "decoder, layer 2, masked self-attention, head 1").click()
    focused = "document.activeElement.closest('#live-app [id]:not(#live-app)')?.id"
    page.get_by_label("A number or a sentence in English").focus()
    visited = []
    while page.evaluate(focused) not in (None, "live-words"):
        visited.append(page.evaluate(focused))
        page.keyboard.press("Tab")
    assert len(visited) < 30
    assert {"live-result", "live-next", "live-decoder", "live-detail"} < {*visited}
    token = page.locator("#live-decoder .live-tokens button:visible")
    token.nth(2).focus()
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "live-detail"
    for place in (".live-keys", "#live-result", "#live-decoder .live-tokens"):
        buttons = page.locator(place).locator("button:visible")
        buttons.nth(1).focus()
        page.keyboard.press("End")
        expect(buttons.last).to_be_focused()
        page.keyboard.press("Home")
        expect(buttons.first).to_be_focused()
    buttons.first.press("Enter")
    expect(buttons.first).to_be_focused()
    expect(status(page)).to_contain_text("Step 1 of")


def test_refusals_lead_on(page):
    translate(page, "I love you")
    status(page).get_by_role("link").click()
    expect(page.locator("#live-words [data-model=grammar]")).to_contain_text("poem")
    translate(page, "ROMEO:")
    expect(status(page)).to_have_text("This begins a speech. Press Continue to have it written on.")


def test_what_is_touched_is_said_beside_the_picture(open_page):
    page = open_page("phone")
    part(page, "decoder, layer 0, cross-attention, head 1").tap()
    expect(page.locator("#live-detail-title")).to_have_text(
        "Decoder layer 0: cross-attention, head 1"
    )
    expect(page.locator(".live-in-words")).to_be_in_viewport()
    expect(page.locator(".live-in-words")).to_contain_text("attends to")
    expect(part(page, "decoder, layer 0, cross-attention, head 1")).to_be_in_viewport()
    page.mouse.wheel(0, 1000)
    page.mouse.wheel(0, -200)
    page.wait_for_timeout(500)
    expect(page.locator("#pst-back-to-top")).to_be_hidden()


def test_a_step_can_be_read_in_words(page):
    page.locator("#live-transcript summary").click()
    items = page.locator("#live-transcript li")
    expect(items).to_have_count(4 * 6 + 10)  # heads of six attentions, and the other boxes
    expect(items.filter(has_text="Encoder layer 0: self-attention, head 3")).to_contain_text(
        re.compile(r"“three” attends to “")
    )


@each_view
def test_nobody_is_shut_out_of_what_opens(open_page, view):
    page = open_page(view)
    translate(page, LONG)
    reads(page, LONG)
    page.locator("#live-result button").nth(5).click()
    page.get_by_role("combobox", name="next token").select_option("beam")
    page.locator("#live-transcript summary").click()
    found = Axe().run(page, context="#live-app", options={"resultTypes": ["violations"]})
    serious = [rule for rule in found.response["violations"] if rule["impact"] != "minor"]
    assert [(rule["id"], [node["html"] for node in rule["nodes"][:3]]) for rule in serious] == []
    small = page.locator("#live-app :is(button, summary, input, select):visible").evaluate_all(
        """nodes => nodes.map((node) => [node.getBoundingClientRect(), node.outerHTML])
            .filter(([box]) => Math.min(box.width, box.height) < 24 && box.width * box.height < 576)
            .map(([, html]) => html.slice(0, 120))"""
    )
    assert view == "desktop" or [html for html in small if "token" not in html] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= VIEWS[view][0]

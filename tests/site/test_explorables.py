"""The explorables in a browser: they appear, work by keyboard, and equal the package."""

import itertools
import json
import math
import re
from contextlib import ExitStack

import pytest
import torch
from playwright.sync_api import Page
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

import export_explorables
import live_model
import minitransformer as mt
from benchmarks.experiments.vit import SHAPE
from benchmarks.runs import half_width
from minitransformer.efficient_attention import (
    BlockMask,
    any_of,
    causal_rule,
    flash_attention,
    global_rule,
    linear_attention,
    strided_rule,
    window_rule,
)
from minitransformer.efficient_attention.caches import (
    LatentAttention,
    LatentCache,
    QuantisedCache,
    RollingCache,
)
from minitransformer.efficient_attention.linear import linear_attention_step
from minitransformer.inference.beam_search import beam_search
from minitransformer.inspection import ablate
from minitransformer.models.rotary_scaling import RotaryScaling
from minitransformer.tokenization.byte_pair_encoding import merge_pairs
from minitransformer.training.schedules import cosine_schedule
from repository import ROOT

FOLDER = ROOT / "_static" / "explorables"
CHAPTERS = {
    "bpe_stepper": "01_tokenization",
    "position_viewer": "03_positional_encoding",
    "attention_by_hand": "04_attention",
    "softmax_scale": "04_attention",
    "mask_builder": "04_attention",
    "split_heads": "05_multi_head_attention",
    "hinges": "06_feed_forward",
    "norm_depth": "07_layer_norm",
    "attention_masks": "08_encoder_decoder",
    "attention_cost": "15_efficient_attention",
    "planner": "18_larger",
    "warm_up": "09_training",
    "next_token": "10_inference",
    "beam_tree": "10_inference",
    "masked_words": "11_bert",
    "rotary_scaling": "12_llama",
    "patch_attention": "14_vit",
    "ablate_heads": "19_looking_inside",
    "cache_growth": "15_efficient_attention",
}
each_explorable = pytest.mark.parametrize("name", CHAPTERS)

PHONE = {"width": 390, "height": 844}


def data(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture
def page(quick):
    """A page that notes what goes wrong on it, in `page.complaints`."""
    page = quick(viewport=PHONE).new_page()
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("console", lambda said: said.type == "warning" and page.complaints.append(said.text))
    return page


def explorable(page: Page, site: str, name: str):
    """The explorable on its chapter's page, once it is there."""
    page.goto(f"{site}/chapters/{CHAPTERS[name]}.html")
    place = page.locator(f"[data-explorable={name}]")
    place.scroll_into_view_if_needed()  # what is large is fetched near
    place.get_by_role("status").wait_for()
    return place


def computed(page: Page, site: str, name: str, expression: str, *arguments):
    """What the expression gives; in it, the module's functions and `inputs` are known."""
    page.goto(f"{site}/_static/explorables/explorables.css")  # a small page of the same site
    module = f"{site}/_static/explorables/{name}.mjs"
    function = f"async ([path, inputs]) => {{ const m = await import(path); return {expression}; }}"
    return page.evaluate(function, [module, arguments])


# --- on the page -----------------------------------------------------------------------------


def test_every_explorable_has_its_place():
    for name, chapter in CHAPTERS.items():
        notebook = (ROOT / "chapters" / f"{chapter}.ipynb").read_text(encoding="utf-8")
        assert notebook.count(rf"data-explorable=\"{name}\"") == 1
    shared = {"elements"}
    assert {path.stem for path in FOLDER.glob("*.mjs")} == CHAPTERS.keys() | shared


def test_every_rule_of_the_styles_ends():
    styles = (FOLDER / "explorables.css").read_text(encoding="utf-8")
    for part in styles.split("\n/* --- "):  # a rule left open would swallow the next part
        assert part.count("{") == part.count("}"), part[:40]


@each_explorable
def test_without_scripts_its_text_stays(browser, site, name):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/chapters/{CHAPTERS[name]}.html")
    text = page.locator(f"[data-explorable={name}]").inner_text().replace("’", "'")
    assert text.startswith("On the book's website")
    context.close()


def test_a_page_without_explorables_fetches_none(page, site):
    fetched = []
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(f"{site}/index.html", wait_until="load")
    assert any(url.split("?")[0].endswith("/explorables.js") for url in fetched)
    assert [url for url in fetched if url.endswith((".mjs", "bpe_stepper.json"))] == []


@each_explorable
def test_it_fits_on_a_phone_and_every_control_works_by_keyboard_alone(page, site, name):
    place = explorable(page, site, name)
    assert place.locator(".view").inner_text().strip()
    assert "On the book's website" not in place.inner_text()
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(width) == 0
    controls = place.locator(".controls :is(input, select, button)")
    controls.first.focus()
    for index in range(controls.count()):
        control = controls.nth(index)
        if index:
            page.keyboard.press("Tab")
        assert control.evaluate("control => control === document.activeElement")
        assert control.evaluate("control => (control.labels[0] ?? control).innerText").strip()
        if control.get_attribute("aria-disabled") == "true":
            continue
        seen = {place.inner_html()}
        for key in keys_for(control):
            page.keyboard.press(key)
            seen.add(place.inner_html())
        assert len(seen) > 1
        assert control.evaluate("control => control === document.activeElement")
    assert page.complaints == []


def keys_for(control) -> list[str]:
    """What to press to change a control; a slider may be at one of its ends."""
    kind = control.evaluate("control => control.type")
    keys = {
        "range": ["ArrowLeft", "ArrowRight"],
        "checkbox": ["Space"],
        "select-one": ["ArrowDown"],
        "text": ["End", "x"],
        "number": ["ArrowUp", "ArrowDown"],
    }
    return keys.get(kind, ["Enter"])


# --- byte-pair encoding ----------------------------------------------------------------------


def test_bpe_cuts_words_as_the_package_does(page, site):
    for text in data("bpe_stepper"):
        merges = [state["pairs"][0][:2] for state in text["states"] if state["pairs"]]
        words = [*text["words"], "dreizig", "igigig", "zzwzw", "z", "", "straße", "☃ 😀"]
        for count in (0, 1, 3, len(merges)):
            learned = merges[:count]
            expression = "inputs[0].map(w => m.cut(w, inputs[1]))"
            cuts = computed(page, site, "bpe_stepper", expression, words, learned)
            assert cuts == [cut_by_package(word, text["letters"], learned) for word in words]


def cut_by_package(word, letters, merges):
    """The word's tokens by `merge_pairs`, letters without an id among them."""
    tokens = list(dict.fromkeys([*letters, *word, *(left + right for left, right in merges)]))
    ids = {token: index for index, token in enumerate(tokens)}
    rules = {(ids[a], ids[b]): (rank, ids[a + b]) for rank, (a, b) in enumerate(merges)}
    return [tokens[index] for index in merge_pairs([ids[letter] for letter in word], rules)]


def test_bpe_steps_forward_and_back(page, site):
    text = data("bpe_stepper")[0]
    place = explorable(page, site, "bpe_stepper")
    status = place.get_by_role("status")
    said = []
    for count, state in enumerate(text["states"]):
        said.append(status.inner_text())
        assert f"{state['tokens']} tokens" in said[-1]
        assert f"vocabulary {len(text['letters']) + count}." in said[-1]
        place.get_by_role("button", name="Merge the next pair").press("Enter")
    assert status.inner_text() == said[-1]  # the last merge is the last
    for earlier in reversed(said[:-1]):
        place.get_by_role("button", name="Undo a merge").press("Enter")
        assert status.inner_text() == earlier


@pytest.mark.parametrize("stretch", [0.0, 1.0, 1e4], ids=["zero", "normal", "huge"])
def test_softmax_is_that_of_the_package(page, site, stretch):
    width = 7
    generator = torch.Generator().manual_seed(width)
    query = stretch * torch.randn(1, width, generator=generator, dtype=torch.float64)
    keys = torch.randn(5, width, generator=generator, dtype=torch.float64)
    root = math.sqrt(width)
    expression = (
        "inputs[2].map(by => [m.attentionWeights(inputs[0], inputs[1], by),"
        " m.gradientSize(inputs[0], inputs[1], by)])"
    )
    divisors = [root, 1.0]
    inputs = query[0].tolist(), keys.tolist(), divisors
    found = computed(page, site, "softmax_scale", expression, *inputs)
    for divisor, (weights, gradient) in zip(divisors, found, strict=True):
        # Without the scale: the package divides by the root, so that the query brings it along.
        def from_package(q, factor=root / divisor):
            return mt.attention_weights(q * factor, keys)

        assert weights == pytest.approx(from_package(query)[0].tolist(), abs=1e-9)
        jacobian = torch.autograd.functional.jacobian(from_package, query)
        assert gradient == pytest.approx(jacobian.norm().item(), abs=1e-9)


# --- attention by hand -----------------------------------------------------------------------

ON_PAPER = {
    "query": torch.ones(1, 4),
    "key": torch.tensor([[1.0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]),
    "value": torch.tensor([[1.0, 0], [0, 0], [0, 1]]),
}


@pytest.mark.parametrize("width", [1, 4, 7])
def test_attention_by_hand_is_that_of_the_package(page, site, width):
    generator = torch.Generator().manual_seed(width)
    query, keys, values = (
        torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        for rows, columns in ((1, width), (5, width), (5, 3))
    )
    inputs = query[0].tolist(), keys.tolist(), values.tolist()
    found = computed(page, site, "attention_by_hand", "m.attention(...inputs)", *inputs)
    weights = mt.attention_weights(query, keys)
    assert found["weights"] == pytest.approx(weights[0].tolist())
    assert found["output"] == pytest.approx((weights @ values)[0].tolist())
    exponentials = torch.tensor(found["exponentials"], dtype=torch.float64)
    assert (exponentials / exponentials.sum()).tolist() == pytest.approx(found["weights"])


def output_of(numbers):
    """How the page writes the output of the package's attention."""
    output = mt.attention_weights(numbers["query"], numbers["key"]) @ numbers["value"]
    return f"The output is ({', '.join(f'{number:.2f}' for number in output[0].tolist())})."


def test_numbers_by_hand_can_be_dragged_and_typed(page, site):
    place = explorable(page, site, "attention_by_hand")
    status = place.get_by_role("status")
    assert output_of(ON_PAPER) in status.inner_text()

    field = place.get_by_label("key of two, component 3")
    field.scroll_into_view_if_needed()
    box = field.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 24, y)
    page.mouse.up()
    page.mouse.move(x + 90, y)  # let go: it stays
    dragged = {name: numbers.clone() for name, numbers in ON_PAPER.items()}
    dragged["key"][2, 3] = 2
    assert field.input_value() == "2"
    assert output_of(dragged) in status.inner_text()

    place.get_by_label("value of forty, component 1").fill("99")  # the most is 3
    dragged["value"][0, 1] = 3
    assert output_of(dragged) in status.inner_text()
    place.get_by_label("case").select_option("zwei")
    assert output_of(ON_PAPER) in status.inner_text()


# --- hinges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [True, False])
@pytest.mark.parametrize("f", [1, 4, 7])
def test_hinges_are_the_feed_forward_network_of_the_package(page, site, f, activation):
    generator = torch.Generator().manual_seed(f)
    weight, bias, answer = torch.randn(3, f, generator=generator, dtype=torch.float64)
    ffn = mt.FeedForward(1, f).double()
    ffn.load_state_dict(
        {
            "w_1.weight": weight[:, None],
            "w_1.bias": bias,
            "w_2.weight": answer[None],
            "w_2.bias": torch.tensor([0.3]),
        }
    )
    numbers = zip(weight.tolist(), bias.tolist(), answer.tolist(), strict=True)
    units = [dict(zip(("weight", "bias", "answer"), unit, strict=True)) for unit in numbers]
    xs = torch.linspace(-2, 2, 33, dtype=torch.float64)
    wanted = xs.cos()
    expression = (
        "[inputs[0].map(x => m.network(x, inputs[2], 0.3, inputs[3])),"
        " m.leastSquares(...inputs), m.bends(...inputs.slice(2))]"
    )
    inputs = xs.tolist(), wanted.tolist(), units, activation
    found, best, bends = computed(page, site, "hinges", expression, *inputs)
    hidden = ffn.w_1(xs[:, None])
    if activation:
        assert found == pytest.approx(ffn(xs[:, None])[:, 0].tolist())
        hidden = hidden.relu()
    features = torch.cat([hidden, torch.ones(33, 1)], dim=1)
    nearest = features @ torch.linalg.lstsq(features, wanted, driver="gelsd").solution
    assert torch.allclose(features @ torch.tensor(best, dtype=torch.float64), nearest, atol=1e-3)
    places = sorted(x for x in (-bias / weight).tolist() if abs(x) < 2)
    assert bends == (pytest.approx(places, abs=1e-6) if activation else [])


def test_two_hinges_make_a_corner_and_none_bends_without_activation(page, site):
    place = explorable(page, site, "hinges")
    status = place.get_by_role("status")
    place.get_by_label("target").select_option("a corner")
    place.get_by_label("units f").fill("2")
    assert "2 straight pieces: the line misses the target by 0.00" in status.inner_text()
    place.get_by_label("activation").uncheck()
    place.get_by_role("button").press("Enter")
    assert "one straight line, which misses the target by 0.5" in status.inner_text()


def test_a_hinge_can_be_dragged(page, site):
    place = explorable(page, site, "hinges")
    handle = place.locator("[data-handle=bend]").first  # unit 1, at the left edge
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    picture = place.locator("svg.hinges").bounding_box()
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + picture["width"] * 100 / 420, y)  # 1 to the right
    page.mouse.up()
    page.mouse.move(x, y)  # let go: it stays
    assert "Unit 1 bends it at x = −1.00" in place.get_by_role("status").inner_text()
    assert float(place.get_by_label("bias").input_value()) == pytest.approx(1, abs=0.05)


# --- norms -----------------------------------------------------------------------------------


def test_orders_of_the_norm_say_what_chapter_7_says(page, site):
    place = explorable(page, site, "norm_depth")
    status = place.get_by_role("status")
    place.get_by_label("layers").fill("5")
    assert "64 layers, post-norm: the rows stay at the size 1.00." in status.inner_text()
    assert "gradient is 0.17 times the last one’s" in status.inner_text()
    place.get_by_label("norm").select_option("pre-norm")
    assert "the rows grow from 1.26 to 8.32" in status.inner_text()
    assert place.locator(".chosen").count() == 2


# --- masks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "lengths", "side", "empty_rows"),
    [
        (1, 1, [0, 1], "right", 1),
        (3, 5, [2, 5], "right", 0),
        (3, 5, [2, 5], "left", 1),
        (5, 5, [1, 3], "left", 6),
    ],
)
def test_masks_are_those_of_the_package(
    page, site, num_queries, num_keys, lengths, side, empty_rows
):
    expression = (
        "m.paddingMask(inputs[2], inputs[1], inputs[3]).map(real =>"
        " m.causalMask(inputs[0], inputs[1]).map(row =>"
        " m.evenWeights(row.map((may, key) => may && real[key]))))"
    )
    found = computed(page, site, "mask_builder", expression, num_queries, num_keys, lengths, side)

    rows = [[7] * length + [0] * (num_keys - length) for length in lengths]
    ids = torch.tensor(rows if side == "right" else [row[::-1] for row in rows])
    mask = mt.padding_mask(ids) & mt.causal_mask(num_queries, num_keys)
    query, key = torch.zeros(2, 3, num_queries, 4), torch.zeros(2, 3, num_keys, 4)
    expected = mt.attention_weights(query, key, mask)[:, 1]
    assert torch.tensor(found, dtype=torch.float32).allclose(expected)
    assert (expected.sum(dim=-1) == 0).sum() == empty_rows


def test_mask_of_more_queries_than_keys_is_refused_in_the_same_words(page, site):
    with pytest.raises(ValueError, match="num_queries") as error:
        mt.causal_mask(5, 3)
    place = explorable(page, site, "mask_builder")
    place.get_by_label("queries q").fill("5")
    place.get_by_label("keys k").fill("3")
    assert f"ValueError: {error.value}." in place.get_by_role("status").inner_text()
    place.get_by_label("causal mask").uncheck()
    assert place.locator("table.mask").count() == 2  # as in cross-attention


GIVEN = [
    dict(zip(("encoder", "causal", "cross"), case, strict=True))
    for case in itertools.product([False, True], repeat=3)
]


@pytest.mark.parametrize("layers", [1, 2])
def test_what_a_position_sees_is_what_the_layers_of_the_package_depend_on(page, site, layers):
    real, t, s = 3, 4, 5
    expression = (
        "inputs[0].map(given => m.seen(m.masks(inputs[2], inputs[1], inputs[3], given), inputs[4]))"
    )
    found = computed(page, site, "attention_masks", expression, GIVEN, real, s, t, layers)
    torch.manual_seed(0)
    sizes = {"d_model": 6, "num_heads": 2, "d_ff": 7, "dropout": 0.0}
    encoder = mt.Encoder(mt.EncoderLayer(**sizes) for _ in range(layers))
    decoder = mt.Decoder(mt.DecoderLayer(**sizes) for _ in range(layers))
    padding = mt.padding_mask(torch.tensor([[7] * real + [0] * (s - real)]))
    inputs = torch.randn(1, s, 6), torch.randn(1, t, 6)
    for given, sees in zip(GIVEN, found, strict=True):

        def output(source, target, given=given):
            memory = encoder(source, padding if given["encoder"] else None)
            causal = mt.causal_mask(t, t) if given["causal"] else None
            return decoder(target, memory, causal, padding if given["cross"] else None)[0]

        for side, jacobian in zip(
            ("source", "target"), torch.autograd.functional.jacobian(output, inputs), strict=True
        ):
            depends = jacobian[:, :, 0].abs().amax(dim=(1, 3)) > 0  # (t, s) or (t, t)
            assert depends.tolist() == sees[side], (given, side)


def test_without_its_mask_a_position_sees_the_answer_or_the_padding(page, site):
    place = explorable(page, site, "attention_masks")
    status = place.get_by_role("status")
    assert "It sees no later token, and no padding." in status.inner_text()
    place.get_by_label("causal mask").uncheck()
    assert "predict “hat”. It sees “hat”" in status.inner_text()
    place.get_by_label("causal mask").check()
    place.get_by_label("in the encoder").uncheck()
    assert "padding through the encoder" in status.inner_text()
    place.get_by_label("in cross-attention").uncheck()
    assert "padding by cross-attention" in status.inner_text()


def test_positions_are_those_of_the_package(page, site):
    positions, shifts = [0, 1, 5, 43, 63, 1000], [0, 1, 3, 20]
    expression = (
        "inputs[0].map(p => [m.positionCode(p, inputs[2]), inputs[1].map(k =>"
        " [m.turned(m.positionCode(p, inputs[2]), k), m.dotProduct(p, p + k, inputs[2])])])"
    )
    for width in (1, 8, 15):
        table = mt.sinusoidal_positions(1100, width).double()
        found = computed(page, site, "position_viewer", expression, positions, shifts, width)
        for p, (code, shifted) in zip(positions, found, strict=True):
            assert_close(code, table[p])
            for k, (turned, product) in zip(shifts, shifted, strict=True):
                assert_close(turned, table[p + k, : width // 2 * 2])
                assert product == pytest.approx(float(table[p] @ table[p + k]), abs=1e-5)


def assert_close(found, expected):
    """Numbers of the browser are those of a tensor."""
    assert found == pytest.approx(expected.tolist(), abs=1e-6)


def test_dot_product_stays_where_the_width_is_even(page, site):
    place = explorable(page, site, "position_viewer")

    def product(p):
        place.get_by_label("position p").fill(str(p))
        return place.get_by_role("status").inner_text().partition("The dot product ")[2]

    assert len({product(p) for p in (0, 20, 43)}) == 1
    place.get_by_label("width d").fill("3")
    assert len({product(p) for p in (0, 20, 43)}) == 3
    assert "changes a little with p" in product(0)


@pytest.mark.parametrize("rule", ["default", "linear", "llama3", "yarn"])
def test_rotary_pairs_turn_and_score_as_those_of_the_package(page, site, rule):
    bases, distances = [100, 1_000, 10_000, 500_000], [0, 1, 63, 150, 189]
    expression = (
        "inputs[1].map(base => { const speeds = m.frequencies(inputs[0], base);"
        " return [speeds, inputs[2].map(distance => m.score(distance, speeds))]; })"
    )
    found = computed(page, site, "rotary_scaling", expression, rule, bases, distances)
    alike = torch.tensor([[1.0, 0.0] * 8])
    for base, (speeds, scores) in zip(bases, found, strict=True):
        scaling = RotaryScaling(rule, float(base), factor=3.0, beta_fast=4.0)
        frequencies = scaling.frequencies(16, 64)
        assert_close(speeds, frequencies)
        rotary = mt.RotaryPositionalEncoding(16, 256, frequencies=frequencies)
        key, *queries = (rotary(alike, start=7 + far)[0] for far in [0, *distances])
        assert scores == pytest.approx([float(q @ key) / 8 for q in queries], abs=1e-5)


@pytest.mark.parametrize("rule", ["linear", "llama3", "yarn"])
def test_a_longer_text_has_new_angles_until_a_rule_slows_its_pairs(page, site, rule):
    place = explorable(page, site, "rotary_scaling")
    said = place.get_by_role("status")
    place.get_by_label("distance").fill("63")  # the farthest of training
    assert "every pair is at an angle that training showed" in said.inner_text()
    place.get_by_label("distance").fill("64")
    assert "5 of 8 pairs are at an angle that training never showed" in said.inner_text()
    assert place.locator(".dials strong").count() == 5
    before = said.inner_text(), place.locator(".dials").inner_html()
    place.get_by_label("key at position").press("ArrowRight")
    assert said.inner_text() == before[0]
    assert place.locator(".dials").inner_html() != before[1]
    place.get_by_label("rule").select_option(rule)
    assert "every pair is at an angle that training showed" in said.inner_text()
    near, plain = [
        float(text.strip(" .")) for text in re.findall(r" [01]\.\d\d", said.inner_text())
    ][1:]
    assert near > plain if rule == "linear" else near == plain


# --- heads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "h", "e"), [(3, 4, 2), (2, 3, 5), (5, 1, 2)])
def test_heads_are_split_and_joined_as_by_the_methods_of_tensors(page, site, n, h, e):
    whole = torch.arange(n * h * e).view(n, h * e)
    expression = (
        "[true, false].map(there => { const heads = m.split(...inputs, there);"
        " return [heads, m.join(heads, true), m.join(heads, false)]; })"
    )
    right, wrong = computed(page, site, "split_heads", expression, n, h, e)
    for found, heads in (
        (right, whole.view(n, h, e).transpose(0, 1)),
        (wrong, whole.view(h, n, e)),
    ):
        joined = heads.transpose(0, 1).reshape(n, h * e), heads.reshape(n, h * e)
        assert found == [heads.tolist(), *(rows.tolist() for rows in joined)]


def test_two_mistakes_with_heads_hide_each_other(page, site):
    place = explorable(page, site, "split_heads")
    status = place.get_by_role("status")
    assert "own columns of every token" in status.inner_text()
    place.get_by_label("transpose after the split").uncheck()
    assert "numbers are out of place" in status.inner_text()
    place.get_by_label("transpose before joining").uncheck()
    assert "the round trip hides the mistake" in status.inner_text()


# --- the next token --------------------------------------------------------------------------


def test_next_token_is_drawn_from_the_distribution_of_the_package(page, site):
    names = ["temperature", "top_k", "top_p", "min_p"]
    choices = [0.1, 0.7, 1.0, 2.0], [None, 1, 7, 2000], [None, 0.05, 0.9], [None, 0.02, 0.5]
    cases = [dict(zip(names, case, strict=True)) for case in itertools.product(*choices)]
    given = {"temperature": "temperature", "top_k": "topK", "top_p": "topP", "min_p": "minP"}
    settings = [{given[n]: v for n, v in case.items() if v is not None} for case in cases]
    assert all(text["log_probs"][0] == max(text["log_probs"]) for text in data("next_token"))
    for text in data("next_token"):
        logits = torch.tensor(text["log_probs"], dtype=torch.float64)
        expression = "inputs[1].map(settings => m.nextToken(inputs[0], settings))"
        found = computed(page, site, "next_token", expression, logits.tolist(), settings)
        for case, result in zip(cases, found, strict=True):
            probs = mt.inference.next_token_probs(logits, **case)
            assert result["probs"] == pytest.approx(probs.tolist(), abs=1e-9)
            assert [cut == "" for cut in result["cutBy"]] == (probs > 0).tolist()


def test_top_p_keeps_few_tokens_where_the_model_is_sure(page, site):
    place = explorable(page, site, "next_token")
    kept = []
    for text in ("0", "1", "2"):
        place.get_by_label("text").select_option(text)
        first, _, rest = place.get_by_role("status").inner_text().partition(" of ")
        assert rest.startswith("1,261 tokens can be drawn")
        kept.append(int(first))
    assert kept == sorted(kept)
    assert 2 * kept[0] < kept[1]


# --- beam search -----------------------------------------------------------------------------


class TableStep:
    """A model whose probabilities are those of beam_tree.json; token 0 stands for all others."""

    def __init__(self, following, end):
        self.following = following
        names = {token for row in following.values() for token, _ in row} - {end}
        self.tokens = ["", end, *sorted(names)]
        self.texts = [[]]
        self.history = []
        self.prompts = torch.empty(1, 0, dtype=torch.int64)

    def __call__(self, ids):
        if ids.size(1):
            pairs = zip(self.texts, ids[:, 0].tolist(), strict=True)
            self.texts = [[*text, self.tokens[token]] for text, token in pairs]
            self.history.append(self.texts)
        return torch.stack([self.scores(text) for text in self.texts])

    def scores(self, text):
        scores = torch.full((len(self.tokens),), -math.inf, dtype=torch.float64)
        for token, log_prob in self.following[" ".join(text)]:
            scores[self.tokens.index(token)] = log_prob
        scores[0] = (1 - scores.exp().sum()).clamp(min=1e-12).log()
        return scores

    def select(self, rows, sources=None):
        self.texts = [self.texts[row] for row in rows.tolist()]


def searched(tree, width, alpha):
    """What the package's search asked of the tree, and what it wrote."""
    step = TableStep(tree["next"], tree["end"])
    (best,) = beam_search(
        step,
        num_beams=width,
        length_penalty=alpha,
        max_new_tokens=tree["longest"],
        is_stop=torch.tensor([token == tree["end"] for token in step.tokens]),
        restrict=lambda _, logits: logits.index_fill(-1, torch.tensor([0]), -math.inf),
    )
    return step, [step.tokens[index] for index in best]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_beam_search_is_that_of_the_package(page, site, width):
    tree = data("beam_tree")
    alphas = [tenth / 10 for tenth in range(21)]
    expression = (
        "inputs[2].map(alpha => m.beamSearch(tokens => inputs[0].next[tokens.join(' ')],"
        " { ...inputs[0], width: inputs[1], alpha })).map(({ steps, ended }) => [ended[0].tokens,"
        " steps.map(all => all.filter(c => c.fate === 'kept').map(c => c.tokens))])"
    )
    found = computed(page, site, "beam_tree", expression, tree, width, alphas)
    for alpha, (best, kept) in zip(alphas, found, strict=True):
        step, expected = searched(tree, width, alpha)
        assert best == expected
        assert kept[:-1] == step.history  # what the last step keeps is given up


def test_tree_holds_what_beams_look_at_and_no_more():
    tree, looked_at = data("beam_tree"), {""}
    for width, tenth in itertools.product(range(1, 6), range(21)):
        step, _ = searched(tree, width, tenth / 10)
        looked_at |= {" ".join(text) for texts in step.history for text in texts}
    assert looked_at == tree["next"].keys()


def test_length_penalty_is_that_of_the_package(page, site):
    cases = [(length, alpha) for length in (1, 2, 16, 300) for alpha in (0, 0.6, 1, 2)]
    found = computed(page, site, "beam_tree", "inputs[0].map(c => m.lengthPenalty(...c))", cases)
    assert found == pytest.approx([mt.length_normalisation(*case) for case in cases])


# --- caches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 9, 11, 40])
def test_caches_have_as_many_bytes_as_those_of_the_package(page, site, n):
    kinds = ["full", "grouped", "quantised", "latent", "rolling", "linear", "nothing"]
    expression = "inputs[0].map(kind => m.bytesOf(kind, inputs[1]))"
    found = dict(
        zip(kinds, computed(page, site, "cache_growth", expression, kinds, n), strict=True)
    )
    x = torch.zeros(1, n, 96)
    for kind, groups, cache in [
        ("full", 6, mt.KVCache()),
        ("grouped", 2, mt.KVCache()),
        ("quantised", 6, QuantisedCache()),
        ("rolling", 6, RollingCache(8, 2)),
    ]:
        mt.MultiHeadAttention(96, 6, num_kv_heads=groups)(x, x, x, "causal", cache)
        numbers = cache.keys.nbytes + cache.values.nbytes
        assert found[kind] == (cache.num_bytes if kind == "quantised" else numbers)
    latent = LatentCache()
    LatentAttention(96, 6, 24)(x, None, latent)
    assert found["latent"] == latent.latent.nbytes
    state = linear_attention_step(*torch.zeros(3, 6, 16))[1]
    assert found["linear"] == sum(part.nbytes for part in state)
    assert found["nothing"] == 0


def test_a_rolling_cache_forgets_and_without_a_cache_all_is_computed_again(page, site):
    place = explorable(page, site, "cache_growth")
    said = place.get_by_role("status")
    assert "One position is computed, 11 others read from the cache." in said.inner_text()
    place.get_by_label("kept").select_option("rolling")
    assert "9 others read from the cache, 2 forgotten." in said.inner_text()
    assert place.locator("svg.cache .forgotten").count() == 2 * 6
    place.get_by_label("kept").select_option("nothing")
    assert "values of 12 positions are computed, all but one of them again" in said.inner_text()
    assert place.locator("svg.cache .computed").count() == 12 * 6


# --- hidden words ----------------------------------------------------------------------------

GUESS = """await m.load().then(({ model, tokenizer }) => inputs[0].map(([text, place]) => {
    const ids = [tokenizer.bos, ...tokenizer.encode(text), tokenizer.eos];
    const mask = tokenizer.special.get("<mask>");
    return [[true, true], [true, false], [false, true]].map(([left, right]) => {
        const seen = m.seen(ids, place, mask, { left, right });
        return [seen, Array.from(model.guess(seen, place))];
    });
}))"""


def test_bert_of_the_browser_is_that_of_the_package(page, site):
    content, tensors = data("masked_words"), load_file(FOLDER / "masked_words.safetensors")
    tokenizer = mt.WordPieceTokenizer.from_dict(content["tokenizer"])
    sizes = {"num_heads": 2, "num_layers": 2, "d_ff": 256, "max_len": 32}
    model = mt.models.BERTForMaskedLM(
        mt.models.BERTConfig(vocab_size=tokenizer.vocab_size, d_model=64, dropout=0.0, **sizes)
    )
    tensors["output_projection.weight"] = tensors["embedding.weight"]
    model.load_state_dict(tensors)
    cases = [["return true if the object is callable.", 3], ["unknowable ☃ zzz", 1], ["a", 1]]
    for (text, place), found in zip(
        cases, computed(page, site, "masked_words", GUESS, cases), strict=True
    ):
        ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        mask, n = tokenizer.mask_id, len(ids) - 2
        both = [*ids[:place], mask, *ids[place + 1 :]]
        left = [*ids[: place + 1], *[mask] * (n - place), ids[-1]]
        left[place] = mask
        right = [ids[0], *[mask] * place, *ids[place + 1 :]]
        for (seen, probs), expected in zip(found, (both, left, right), strict=True):
            assert seen == expected
            with torch.no_grad():
                scores = model.eval()(torch.tensor([seen]))[0, place]
            assert torch.tensor(probs).allclose(scores.softmax(dim=-1), atol=1e-5)


def test_a_hidden_word_is_guessed_worse_from_one_side(page, site):
    place = explorable(page, site, "masked_words")
    said = place.get_by_role("status")
    assert "Hidden: “is”. From both sides the model guesses it" in said.inner_text()
    place.get_by_label("right side").uncheck()
    assert "Hidden: “is”. From the left the model guesses “.”" in said.inner_text()
    assert set(place.locator(".tokens button").all_inner_texts()[2:]) == {"<mask>"}
    place.get_by_label("right side").check()
    button = place.locator(".tokens button").nth(4)
    button.press("Enter")
    assert "Hidden: “when”." in said.inner_text()
    assert button.evaluate("button => button === document.activeElement")
    assert place.locator(".tokens [aria-pressed=true]").count() == 1


# --- a ViT -----------------------------------------------------------------------------------

READ = """await m.load().then(({ model, mean, pictures }) => pictures.map(({ pixels, label }) => {
    const { logProbs, weights } = model.read(pixels);
    return [logProbs, weights, m.rollout(weights), model.blanked(pixels, mean, label)];
}))"""


def test_vit_of_the_browser_is_that_of_the_package(page, site):
    digits, tensors = data("patch_attention"), load_file(FOLDER / "patch_attention.safetensors")
    model = mt.models.ViT(
        mt.models.ViTConfig(image_size=8, patch_size=2, num_channels=1, num_classes=10, **SHAPE)
    )
    model.load_state_dict({n: tensors[n].view_as(t) for n, t in model.state_dict().items()})
    mean = torch.tensor(digits["mean"]).view(8, 8)
    found = computed(page, site, "patch_attention", READ)
    for (log_probs, weights, through, blanked), picture in zip(
        found, digits["pictures"], strict=True
    ):
        pixels = torch.tensor(picture["pixels"]).view(8, 8) / 16
        without = pixels.expand(16, 8, 8).clone()
        for patch, copy in enumerate(without):
            place = (
                slice(patch // 4 * 2, patch // 4 * 2 + 2),
                slice(patch % 4 * 2, patch % 4 * 2 + 2),
            )
            copy[place] = mean[place]
        with torch.no_grad(), mt.record_attention(model) as maps:
            scores = model(torch.cat([pixels[None], without])[:, None]).log_softmax(dim=-1)
        layers = torch.stack([each[0] for each in maps.values()])  # (layers, h, q, k)
        expected = torch.eye(17)
        for layer in layers.mean(dim=1):
            expected = (layer + torch.eye(17)) / 2 @ expected
        assert torch.tensor(log_probs).allclose(scores[0], atol=1e-4)
        assert torch.tensor(weights).transpose(1, 2).allclose(layers, atol=1e-5)
        assert torch.tensor(through).allclose(expected, atol=1e-5)
        assert torch.tensor(blanked).allclose(scores[1:, picture["label"]], atol=1e-4)


def test_what_a_vit_looks_at_is_not_always_what_matters(page, site):
    place = explorable(page, site, "patch_attention")
    said = place.get_by_role("status")
    assert "6 at 100 %, is right. Here the class token takes most" in said.inner_text()
    takes, matters = re.search(
        r"from patch (\d+)\. Blanking patch (\d+)", said.inner_text()
    ).groups()
    assert takes != matters
    place.locator("svg.patches .frame").nth(7).click()  # the class token's comes first
    assert place.get_by_label("query").input_value() == "7"
    assert "Here patch 6 takes most" in said.inner_text()
    assert f"Blanking patch {matters} changes most" in said.inner_text()
    place.get_by_label("digit").select_option("9")
    assert "is wrong" in said.inner_text()


# --- silenced heads --------------------------------------------------------------------------

SILENCED = [
    [],
    ["decoder.layers.0.cross_attention.heads.1"],
    ["encoder.layers.1.self_attention.heads.0", "decoder.layers.1.self_attention.heads.3"],
    [f"decoder.layers.{layer}.cross_attention.heads.{head}" for layer in (0, 1) for head in (0, 2)],
    [f"decoder.layers.0.self_attention.heads.{head}" for head in range(4)],
]


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_silenced_heads_change_what_ablate_changes(page, site, kind):
    means = data("head_means")
    translator = live_model.read_model(live_model.FOLDER / "number_words")
    model, (english, german) = translator.model, translator.tokenizers.values()
    never = torch.tensor([german.pad_id])

    def probabilities(source, target):
        logits = model(source, target)[0].index_fill(-1, never, -math.inf)
        return logits.softmax(-1)  # (q, v)

    wrong = 0
    for number, heads in itertools.product((7, 342, 58_216), SILENCED):
        text = mt.number_in_words(number, "en")
        found = computed(page, site, "ablate_heads", "m.without(...inputs)", text, heads, kind)
        assert found["before"] == mt.number_in_words(number, "de")
        source = torch.tensor([english.sequence_ids(text)])
        ids = german.sequence_ids(found["before"])
        target = torch.tensor([[german.bos_id, *ids[:-1]]])
        with torch.inference_mode(), ExitStack() as ablations:
            before = probabilities(source, target)
            for name in heads:
                where, _, head = name.rpartition(".")
                mean = torch.tensor(means[name]).expand(1, 4, 1, -1)  # (b, h, q, e)
                change = ablate(model, where, kind, reference=mean, heads=[int(head)])
                ablations.enter_context(change)
            after = probabilities(source, target)
            assert found["after"] == translator.translate([text], max_new_tokens=40)[0]
        rows = torch.arange(len(ids))
        for name, probs in (("before", before), ("after", after)):
            expected = probs[rows, ids].tolist()
            assert [token[name] for token in found["tokens"]] == pytest.approx(expected, abs=1e-4)
        likeliest = german.labels(after.argmax(-1).tolist())
        assert [token["first"] for token in found["tokens"]] == likeliest
        wrong += found["after"] != found["before"]
    assert wrong > 1


def test_heads_are_silenced_and_restored_on_the_page(page, site):
    place = explorable(page, site, "ablate_heads")
    status = place.get_by_role("status")
    assert status.inner_text() == "With all 24 heads, 342 is “dreihundertzweiundvierzig”."
    place.get_by_role("button", name="all heads of decoder 1, self").click()
    place.get_by_role("button", name="all heads of decoder 2, cross").click()
    assert status.inner_text().startswith("Without 8 of 24 heads, 342 becomes")
    place.get_by_role("button", name="head 3 of decoder 2, cross").click()
    assert status.inner_text().startswith("Without 7 of 24 heads")
    place.get_by_label("number").fill("1e9")
    assert "Type a whole number up to 999,999." in status.inner_text()
    place.get_by_role("button", name="restore all heads").press("Enter")
    place.get_by_label("number").fill("58216")
    expected = f"With all 24 heads, 58,216 is “{mt.number_in_words(58_216, 'de')}”."
    assert status.inner_text() == expected
    assert place.locator("[aria-pressed=true]").count() == 0


# --- what attention costs --------------------------------------------------------------------

COSTS = {"block": 8, "window": 5, "globals": 3, "stride": 7}
RULES = {
    "full": lambda query, key: query == query,
    "causal": causal_rule,
    "window": window_rule(5),
    "window and global": any_of(window_rule(5), global_rule(3)),
    "strided": strided_rule(7),
}


@pytest.mark.parametrize("n", [2, 8, 37, 64])
def test_attention_costs_what_the_package_computes(page, site, n):
    expression = (
        "inputs[0].map(name => [name === 'linear' ? null : m.pairs(name, inputs[1], inputs[2]),"
        " m.operations(name, inputs[1], 6, inputs[2])])"
    )
    names = [*RULES, "linear"]
    found = computed(page, site, "attention_cost", expression, names, n, COSTS)
    x = torch.randn(3, n, 6)
    for name, (pairs, operations) in zip(names, found, strict=True):
        with FlopCounterMode(display=False) as counter:
            if name == "linear":
                linear_attention(*x)
            else:
                mask = BlockMask(RULES[name], n, block_size=8)
                flash_attention(*x, mask)
                assert pairs["seen"] == mask.dense().sum()
                assert pairs["computed"] == pytest.approx(n * n * mask.share_computed)
        assert operations == counter.get_total_flops()


def test_twice_the_length_costs_four_times_as_much_or_twice(page, site):
    place = explorable(page, site, "attention_cost")
    status = place.get_by_role("status")
    place.get_by_label("length n").fill("8")
    assert "65,536² pairs 100 % are seen" in status.inner_text()
    assert "takes 4.0 times as many" in status.inner_text()
    assert "take 17 GB in float32" in place.locator(".view").inner_text()
    for name in ("window", "linear"):
        place.get_by_label("pattern").select_option(name)
        assert "takes 2.0 times as many" in status.inner_text()


# --- the planner -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", export_explorables.MODELS)
def test_plans_are_those_of_the_package(page, site, name):
    stored = data("planner")
    devices = itertools.cycle(mt.HARDWARE)
    cases = [
        (gpus, next(devices), rows, precision, fsdp, checkpointing)
        for gpus, rows in ((1, 1), (8, 3), (4096, 128))
        for precision in ("mixed", "float32")
        for fsdp in (False, True)
        for checkpointing in (False, True)
    ]
    keys = ("gpus", "device", "rows", "precision", "fsdp", "checkpointing")
    options = [{"tokens": 2e11, **dict(zip(keys, case, strict=True))} for case in cases]
    expression = "inputs[1].map(o => m.plan(inputs[2], inputs[0][o.device], o))"
    inputs = stored["hardware"], options, stored["models"][name]
    found = computed(page, site, "planner", expression, *inputs)
    for (gpus, device, rows, precision, fsdp, checkpointing), planned in zip(
        cases, found, strict=True
    ):
        expected = mt.plan(
            export_explorables.MODELS[name],
            2e11,
            gpus,
            mt.HARDWARE[device],
            batch_size=rows,
            precision=precision,
            sharding="fsdp" if fsdp else "none",
            checkpointing=checkpointing,
        )
        assert planned["parameters"] == expected.parameters
        assert planned["seconds"] == pytest.approx(expected.seconds)
        assert planned["memory"] == pytest.approx(expected.memory)


def test_seven_billion_parameters_fit_if_they_are_shared(page, site):
    place = explorable(page, site, "planner")
    status = place.get_by_role("status")
    assert "LLaMA 7B does not fit" in status.inner_text()
    place.get_by_label("activation checkpointing").check()
    assert "LLaMA 7B does not fit" in status.inner_text()
    place.get_by_label("share parameters").check()
    assert "LLaMA 7B fits" in status.inner_text()


# --- rate and warm-up ------------------------------------------------------------------------


@pytest.mark.parametrize("warm_up", [1, 7, 30])
def test_rates_and_intervals_are_those_of_the_package(page, site, warm_up):
    steps, runs = range(1, 41), torch.rand(5, 9, dtype=torch.float64).tolist()
    expression = "[inputs[0].map(s => m.rate(s, 0.3, inputs[1], 40)), m.result(inputs[2])]"
    rates, found = computed(page, site, "warm_up", expression, [*steps], warm_up, runs)
    settings = {"peak": 0.3, "warmup_steps": warm_up, "total_steps": 40}
    assert rates == pytest.approx([cosine_schedule(step, **settings) for step in steps])
    ends = [sum(run[-3:]) / 3 for run in runs]
    assert found["mean"] == pytest.approx(sum(ends) / 5)
    assert found["half"] == pytest.approx(half_width(ends), rel=1e-3)


def test_the_highest_rate_is_stuck_without_a_warm_up(page, site):
    place = explorable(page, site, "warm_up")
    status = place.get_by_role("status")
    assert "Peak rate 0.01, no warm-up" in status.inner_text()
    assert "The runs are stuck" in status.inner_text()
    place.get_by_label("warm-up").fill("2")
    assert "The runs are stuck" not in status.inner_text()
    place.get_by_label("peak rate").fill("1")
    assert "That is the lowest of all settings." in status.inner_text()

// Chapter 11: a small BERT guesses the word that you hide, from both sides or from one.
//
// masked_words.safetensors has the weights, masked_words.json the configuration and the tokenizer,
// as `tools/export_explorables.py` wrote them. The model computes here, in the browser.

import { ACTIVATIONS, Model, readTensors, softmax } from "../live/model.mjs";
import { tokenizerOf } from "../live/tokenizers.mjs";
import { checkbox, data, decimals, element, fill, near, select } from "./elements.mjs";

const SHOWN = 8; // guesses
const TEXTS = [
  ["the file is closed when the program is finished.", 2],
  ["this is a subclass of the class that is used for errors.", 1],
  ["if the argument is not given, the default is used.", 3],
  ["create a new instance of the class.", 1],
  ["raise an error if the value is not a string.", 8],
];

export class BERT extends Model {
  constructor(config, tensors) {
    super(config, tensors);
    tensors["output_projection.weight"] = tensors["embedding.weight"]; // tied
  }

  /** Vectors of tokens, places and segment 0, added; and a norm. */
  embed(side, trace, ids) {
    const d = this.config.d_model;
    const row = (name, index) =>
      this.tensors[`${name}.weight`].data.subarray(index * d, (index + 1) * d);
    const sums = ids.map((id, place) => {
      const parts = [row("embedding", id), row("positions", place), row("segments", 0)];
      return parts[0].map((number, j) => number + parts[1][j] + parts[2][j]);
    });
    return this.normalise("norm", trace, sums);
  }

  /** The probabilities of all tokens at one place. */
  guess(ids, place) {
    const trace = {};
    const hidden = this.stack("encoder", trace, ids).slice(place, place + 1);
    const inner = this.linear("dense", trace, hidden).map((row) => row.map(ACTIVATIONS.gelu));
    const rows = this.normalise("dense_norm", trace, inner);
    return softmax(this.linear("output_projection", trace, rows)[0]);
  }
}

/** What the model sees: one place masked, and the sides that are to be hidden. */
export function seen(ids, place, mask, { left, right }) {
  const last = ids.length - 1; // both ends are special tokens, and stay
  const isHidden = (at) => at === place || (at < place ? !left && at > 0 : !right && at < last);
  return ids.map((id, at) => (isHidden(at) ? mask : id));
}

/** The model and its tokenizer. */
export async function load() {
  const file = new URL("masked_words.safetensors", import.meta.url);
  const [{ config, tokenizer }, tensors] = await Promise.all([
    data("masked_words.json"),
    fetch(file).then((response) => response.arrayBuffer()),
  ]);
  return { model: new BERT(config, readTensors(tensors)), tokenizer: tokenizerOf(tokenizer) };
}

const percent = (share) => (share < 0.01 ? "< 1 %" : `${decimals(100 * share, 0)} %`);

export async function mount(place) {
  await near(place); // the model has 0.5 MB
  const { model, tokenizer } = await load();
  const mask = tokenizer.special.get("<mask>");
  let [ids, hidden] = [[], 0];
  const names = Object.fromEntries(TEXTS.map(([text], index) => [index, text]));
  const example = select("example", names, () => {
    own.value = "";
    read(...TEXTS[example.input.value]);
  });
  const own = element("input", { type: "text", maxlength: 200, autocapitalize: "none" });
  own.addEventListener("input", () => read(own.value || TEXTS[example.input.value][0]));
  const label = element("label", { class: "choice" }, "or your own", own);
  const left = checkbox("left side", true, draw);
  const right = checkbox("right side", true, draw);
  const sides = element("fieldset", {}, element("legend", {}, "seen"), left.node, right.node);
  const controls = [example.node, label, sides];
  const { sentence, view } = fill(place, "A hidden word, guessed from both sides", controls);
  const words = element("ul", { class: "tokens" });
  const bars = element("table", { class: "bars" });
  view.append(element("p", {}, "Press the word to hide:"), words, bars);

  function read(text, word) {
    const most = model.config.max_len - 2;
    const tokens = tokenizer.encode(text.toLowerCase()).slice(0, most);
    ids = [tokenizer.bos, ...(tokens.length ? tokens : [tokenizer.unk]), tokenizer.eos];
    hidden = 1 + (word ?? Math.floor(tokens.length / 2));
    const buttons = ids.slice(1, -1).map((id, at) => token(id, at + 1));
    words.replaceChildren(...buttons.map((node) => element("li", {}, node)));
    draw();
  }

  function token(id, at) {
    const node = element("button", { type: "button" }, tokenizer.label(id));
    node.addEventListener("click", () => {
      hidden = at;
      draw();
    });
    return node;
  }

  function draw() {
    const given = { left: left.input.checked, right: right.input.checked };
    const shown = seen(ids, hidden, mask, given);
    [...words.children].forEach(({ firstChild: node }, at) => {
      node.setAttribute("aria-pressed", at + 1 === hidden);
      node.textContent = tokenizer.label(shown[at + 1]); // as the model sees it
    });
    const probs = model.guess(shown, hidden);
    const order = [...probs.keys()].sort((a, b) => probs[b] - probs[a]);
    const name = (id) => `“${tokenizer.label(id)}”`;
    const answer = ids[hidden];
    const rank = order.indexOf(answer);
    const from = given.left
      ? given.right ? "From both sides" : "From the left"
      : given.right ? "From the right" : "From neither side";
    sentence.textContent =
      `Hidden: ${name(answer)}. ${from} the model guesses ` +
      (rank
        ? `${name(order[0])}, ${percent(probs[order[0]])}; ${name(answer)} has ` +
          `${percent(probs[answer])}, place ${rank + 1} of ${probs.length.toLocaleString("en")}.`
        : `it, ${percent(probs[answer])}.`);
    const lines = order.slice(0, SHOWN).map((id) => {
      const bar = element("div", { style: `width: ${100 * probs[id]}%` });
      const cells = [element("th", { scope: "row" }, tokenizer.label(id))];
      cells.push(element("td", {}, percent(probs[id])), element("td", { class: "bar" }, bar));
      return element("tr", id === answer ? { class: "next" } : {}, ...cells);
    });
    bars.replaceChildren(element("tbody", {}, ...lines));
  }

  read(...TEXTS[0]);
}

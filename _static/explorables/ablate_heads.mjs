// Chapter 19: silence heads of a trained translator, and see which tokens it gets wrong.
//
// The model is the live page's, computed here. head_means.json holds, as
// `tools/export_explorables.py` recorded it, what each head gives on average.

import { softmax } from "../live/model.mjs";
import { greedy } from "../live/sampling.mjs";
import { Translator } from "../live/translator.mjs";
import { inWords } from "../live/understand.mjs";
import { button, data, decimals, element, fill, near, select } from "./elements.mjs";

const MOST = 999_999; // as in training
const STACKS = { encoder: ["self"], decoder: ["self", "cross"] };

let loaded;
/** The model of the live page, and the means; fetched once. */
const load = () =>
  (loaded ??= Promise.all([Translator.load("number_words"), data("head_means.json")]));

/** The attentions of a model in the order in which they compute: [site, name]. */
function attentions(config) {
  return Object.entries(STACKS).flatMap(([side, kinds]) =>
    Array.from({ length: config[`num_${side}_layers`] }, (_, layer) =>
      kinds.map((kind) => [
        `${side}.layers.${layer}.${kind}_attention.heads`,
        `${side} ${layer + 1}, ${kind}`,
      ]),
    ).flat(),
  );
}

/**
 * What the model writes for a text with and without some heads, such as
 * "decoder.layers.0.cross_attention.heads.2": both translations, and for each token of the first
 * its probability before and after, and the token that is likeliest after. `kind` is what silenced
 * heads give, zero or mean.
 */
export async function without(text, heads, kind) {
  const [translator, means] = await load();
  return compared(translator, means, text, heads, kind);
}

function compared(translator, means, text, heads, kind) {
  const { model } = translator;
  const write = (choose) => {
    const translation = translator.begin(text);
    while (!translation.ended) translation.step((scores) => choose(scores, translation));
    return translation;
  };
  const before = write(greedy);
  for (const head of heads) {
    model.replaced[head] = kind === "mean" ? means[head] : new Float32Array(model.d_k);
  }
  try {
    const after = heads.length ? write(greedy) : before;
    const same = heads.length ? write((_, { ids }) => before.ids[ids.length]) : before;
    const tokens = before.ids.map((id, i) => {
      const [was, is] = [before, same].map(({ scores }) => softmax(scores[i]));
      const token = before.label(id);
      return { token, before: was[id], after: is[id], first: before.label(greedy(is)) };
    });
    return { before: before.text(), after: after.text(), tokens };
  } finally {
    model.replaced = {};
  }
}

const percent = (share) => (share < 0.005 ? "< 1 %" : `${decimals(100 * share, 0)} %`);

export async function mount(place) {
  await near(place);
  const [translator, means] = await load();
  const { config } = translator.model;
  const input = element("input", { type: "text", inputmode: "numeric", size: 7, value: "342" });
  input.addEventListener("input", draw);
  const kinds = { zero: "zeros", mean: "their mean" };
  const kind = select("silenced heads give", kinds, draw);
  const restore = button("restore all heads", () => press([], false));
  const number = element("label", { class: "choice" }, "number", input);
  const heads = new Map(); // each head's button
  const grid = element("table", { class: "heads" });
  for (const [site, name] of attentions(config)) {
    const own = Array.from({ length: config.num_heads }, (_, head) => {
      const node = button(`${head + 1}`, () => press([node], !pressed(node)));
      node.setAttribute("aria-label", `silence head ${head + 1} of ${name}`);
      heads.set(`${site}.${head}`, node);
      return node;
    });
    const all = button(name, () => press(own, !own.every(pressed)));
    all.setAttribute("aria-label", `silence all heads of ${name}`);
    const cells = [all, ...own].map((node) => element("td", {}, node));
    grid.append(element("tr", {}, ...cells));
  }
  const controls = [number, kind.node, restore, grid];
  const { sentence, view } = fill(place, "A translator without some of its heads", controls);
  let shown = 342;
  press([], false);

  function pressed(node) {
    return node.getAttribute("aria-pressed") === "true";
  }

  /** Silence these heads or let them speak; with none named, let all speak. */
  function press(nodes, silent) {
    for (const node of nodes.length ? nodes : heads.values()) {
      node.setAttribute("aria-pressed", silent);
    }
    draw();
  }

  function draw() {
    const typed = input.value.trim().replaceAll(/[\s,]/g, "");
    const valid = /^\d+$/.test(typed) && Number(typed) <= MOST;
    if (valid) shown = Number(typed);
    const silent = [...heads.keys()].filter((head) => pressed(heads.get(head)));
    restore.setAttribute("aria-disabled", !silent.length);
    const found = compared(translator, means, inWords(shown), silent, kind.input.value);
    const changed = found.after !== found.before;
    sentence.textContent =
      (valid ? "" : `Type a whole number up to ${MOST.toLocaleString("en")}. `) +
      (silent.length
        ? `Without ${silent.length} of ${heads.size} heads, ${shown.toLocaleString("en")} ` +
          (changed ? `becomes “${found.after}”.` : `is still “${found.after}”.`)
        : `With all ${heads.size} heads, ${shown.toLocaleString("en")} is “${found.before}”.`);
    view.replaceChildren(table(found.tokens), element("p", {}, note(kind.input.value)));
  }
}

const note = (kind) =>
  `Frame: with all heads. Filled: without the silenced ones, which give ` +
  (kind === "mean" ? "their mean over 300 numbers." : "zeros.") +
  ` Each token is asked for after the tokens above it.`;

/** A line for each token of the model's own translation. */
function table(tokens) {
  const bar = (share, kind) => element("div", { class: kind, style: `width: ${100 * share}%` });
  const rows = tokens.map(({ token, before, after, first }) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, token),
      element("td", {}, percent(before)),
      element("td", {}, percent(after)),
      element("td", { class: "likelier" }, first === token ? "" : first),
      element("td", { class: "bar" }, bar(before, "before"), bar(after, "")),
    ),
  );
  const names = ["token", "before", "after", "likelier", ""];
  const head = names.map((name) => element(name ? "th" : "td", name ? { scope: "col" } : {}, name));
  return element(
    "table",
    { class: "bars" },
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...rows),
  );
}

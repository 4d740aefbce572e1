// Chapter 8: which mask hides what in an encoder and a decoder, and what happens without it.

import { checkbox, element, fill, slider } from "./elements.mjs";
import { causalMask, paddingMask } from "./mask_builder.mjs";

const SOURCE = ["the", "dog", "slept", "<eos>", "<pad>"];
const TARGET = ["<bos>", "der", "Hund", "hat", "geschlafen", "."];
const PREDICTED = [...TARGET.slice(1), "<eos>"];
const NUM_REAL = 4;
const LAYERS = 2;

const everything = (rows, columns) => Array.from({ length: rows }, () => Array(columns).fill(true));

/** The masks of the three attentions, (s, s), (t, t) and (t, s), each given or left out. */
export function masks(s, numReal, t, { encoder, causal, cross }) {
  const [real] = paddingMask([numReal], s);
  const padded = (rows, given) => (given ? Array(rows).fill(real) : everything(rows, s));
  return {
    encoder: padded(s, encoder),
    decoder: causal ? causalMask(t, t) : everything(t, t),
    cross: padded(t, cross),
  };
}

/** Each row of `reach`, with the rows of `from` that the mask lets it read. */
function read(reach, from, mask) {
  return reach.map((row, i) =>
    row.map((already, k) => already || from.some((other, j) => mask[i][j] && other[k])),
  );
}

/** What the output at each target position depends on: sources, (t, s), and targets, (t, t). */
export function seen({ encoder, decoder, cross }, layers = LAYERS) {
  const [t, s] = [decoder.length, encoder.length];
  const itself = (size) => everything(size, size).map((row, i) => row.map((_, j) => i === j));
  let memory = itself(s);
  for (let layer = 0; layer < layers; layer++) memory = read(memory, memory, encoder);
  let target = itself(t);
  let source = everything(t, s).map((row) => row.map(() => false));
  for (let layer = 0; layer < layers; layer++) {
    source = read(source, source, decoder);
    target = read(target, target, decoder);
    source = read(source, memory, cross);
  }
  return { source, target };
}

const quoted = (tokens) => tokens.map((token) => `“${token}”`).join(", ");

export function mount(place) {
  const position = slider("target position", { min: 0, max: TARGET.length - 1, value: 2 }, draw);
  const causal = checkbox("causal mask in the decoder", true, draw);
  const encoder = checkbox("padding mask in the encoder", true, draw);
  const cross = checkbox("padding mask in cross-attention", true, draw);
  const controls = [position, causal, encoder, cross].map((control) => control.node);
  const { sentence, view } = fill(place, "The masks of encoder and decoder", controls);

  function draw() {
    const at = position.value;
    const given = {
      encoder: encoder.input.checked,
      causal: causal.input.checked,
      cross: cross.input.checked,
    };
    const all = masks(SOURCE.length, NUM_REAL, TARGET.length, given);
    const { source, target } = seen(all);
    const later = TARGET.filter((_, j) => j > at && target[at][j]);
    const padding = source[at][NUM_REAL];
    const says = [`Position ${at} must predict “${PREDICTED[at]}”.`];
    if (later.length) {
      says.push(`It sees ${quoted(later)}: it can copy the answer, and learns nothing else.`);
    }
    if (padding) {
      const way = given.cross ? "through the encoder's vectors" : "by cross-attention";
      says.push(`It sees the padding ${way}: its result depends on the batch.`);
    }
    if (!later.length && !padding) says.push("It sees no later token, and no padding.");
    sentence.textContent = says.join(" ");

    view.replaceChildren(
      tokenRow("source", SOURCE, source[at]),
      tokenRow("target", TARGET, target[at]),
      element(
        "div",
        { class: "beside" },
        grid("encoder self-attention, (s, s)", SOURCE, all.encoder, null),
        grid("decoder self-attention, (t, t)", TARGET, all.decoder, at),
        grid("cross-attention, (t, s)", TARGET, all.cross, at),
      ),
      element("p", {}, "Rows are queries, columns keys; ✓ means: may attend."),
    );
  }

  draw();
}

/** The tokens of a side; those that the chosen position does not see are dashed and in brackets. */
function tokenRow(side, tokens, isSeen) {
  const items = tokens.map((token, j) =>
    isSeen[j]
      ? element("li", {}, token)
      : element("li", { class: "unknown" }, `(${token})`),
  );
  const name = `What it sees of the ${side}; the rest is in brackets:`;
  return element("div", {}, name, element("ul", { class: "tokens" }, ...items));
}

/** A mask as a table; the row of the chosen position is bold. */
function grid(caption, queries, mask, chosen) {
  const keys = mask[0].map((_, key) => element("th", { scope: "col" }, `${key}`));
  const rows = mask.map((allowed, query) => {
    const name = element("small", {}, queries[query]);
    const heading = element("th", { scope: "row" }, `${query}`, name);
    const cells = allowed.map((may) =>
      element("td", { class: may ? "allowed" : "hidden" }, may ? "✓" : ""),
    );
    return element("tr", query === chosen ? { class: "next" } : {}, heading, ...cells);
  });
  return element(
    "table",
    { class: "mask" },
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, element("td"), ...keys)),
    element("tbody", {}, ...rows),
  );
}

// Chapter 4: padding and causal masks, put together and looked at. True means "may be attended".

import { checkbox, decimals, element, fill, select, slider } from "./elements.mjs";

const HEADS = 3;
const LONGEST = 6;

/** Which keys are real tokens, for each sentence: (b, k). `side` says where the padding stands. */
export function paddingMask(lengths, numKeys, side = "right") {
  return lengths.map((length) =>
    Array.from({ length: numKeys }, (_, key) =>
      side === "right" ? key < length : key >= numKeys - length,
    ),
  );
}

/** (q, k): the queries are the last positions, and each sees the keys up to itself. */
export function causalMask(numQueries, numKeys) {
  if (numQueries > numKeys) {
    const got = `got ${numQueries} queries, ${numKeys} keys`;
    throw new RangeError(`num_queries must not exceed num_keys, ${got}`);
  }
  return Array.from({ length: numQueries }, (_, query) =>
    Array.from({ length: numKeys }, (_, key) => key <= query + numKeys - numQueries),
  );
}

/** A query's weights when all its scores are equal; zeros if it may attend to nothing. */
export function evenWeights(allowed) {
  const count = allowed.filter(Boolean).length;
  return allowed.map((may) => (may ? 1 / count : 0));
}

export function mount(place) {
  const queries = slider("queries q", { min: 1, max: LONGEST, value: 6 }, draw);
  const keys = slider("keys k", { min: 1, max: LONGEST, value: 6 }, draw);
  const lengths = [4, 6].map((value, index) =>
    slider(`length of sentence ${index}`, { min: 0, max: LONGEST, value }, draw),
  );
  const side = select("padding stands on the", { right: "right", left: "left" }, draw);
  const causal = checkbox("causal mask", true, draw);
  const controls = [queries, keys, ...lengths, side, causal].map((control) => control.node);
  const { sentence, view } = fill(place, "Mask builder", controls);

  function draw() {
    const [q, k] = [queries.value, keys.value];
    const isCausal = causal.input.checked;
    for (const length of lengths) {
      length.input.max = k; // a longer sentence is cut
      length.write();
    }

    let rows = Array.from({ length: q }, () => Array(k).fill(true));
    if (isCausal) {
      try {
        rows = causalMask(q, k);
      } catch (error) {
        sentence.textContent =
          `ValueError: ${error.message}. The queries of a causal mask are the last of the keys' ` +
          "positions; the first ones would stand before the text.";
        view.replaceChildren();
        return;
      }
    }
    const real = paddingMask(lengths.map((length) => length.value), k, side.input.value);
    const masks = real.map((isToken) => rows.map((row) => row.map((may, j) => may && isToken[j])));

    const empty = masks.flatMap((mask, b) =>
      mask.flatMap((row, i) => (row.includes(true) ? [] : [`query ${i} of sentence ${b}`])),
    );
    const aligned = `The last query meets the last key, so query 0 stands at position ${k - q}. `;
    sentence.textContent =
      (isCausal && q < k ? aligned : "") +
      (empty.length
        ? `Nothing to see for ${empty.join(", ")}: the weights are zeros, and never NaN.`
        : "Each query sees at least one key, and its weights add up to 1.");

    const shapes = [
      ["scores", "(b, h, q, k)", [2, HEADS, q, k]],
      ["padding mask", "(b, 1, 1, k)", [2, 1, 1, k]],
    ];
    if (isCausal) {
      shapes.push(["causal mask", "(q, k)", [q, k]]);
      shapes.push(["both, joined by &", "(b, 1, q, k)", [2, 1, q, k]]);
    }
    const shapeRows = shapes.map(([name, axes, sizes]) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, name),
        element("td", {}, axes),
        element("td", {}, `(${sizes.join(", ")})`),
      ),
    );
    const grids = masks.map((mask, b) => grid(b, mask, real[b], isCausal ? k - q : null));
    view.replaceChildren(
      element("table", { class: "shapes" }, element("tbody", {}, ...shapeRows)),
      element("div", { class: "beside" }, ...grids),
      element("p", {}, "In each cell stands the key's weight if all scores were equal."),
    );
  }

  draw();
}

/** A table of one sentence's mask. Each cell holds the key's weight when all scores are equal. */
function grid(sentence, mask, isToken, firstPosition) {
  const columns = isToken.map((real, key) =>
    element("th", { scope: "col" }, `${key}`, real ? "" : element("small", {}, "pad")),
  );
  const rows = mask.map((allowed, query) => {
    const place = firstPosition === null ? "" : element("small", {}, `at ${query + firstPosition}`);
    const cells = evenWeights(allowed).map((weight, key) =>
      allowed[key]
        ? element("td", { class: "allowed" }, decimals(weight, 2))
        : element("td", { class: "hidden" }, "0"),
    );
    return element("tr", {}, element("th", { scope: "row" }, `${query}`, place), ...cells);
  });
  const corner = ["key →", "query ↓"].map((text) => element("small", {}, text));
  const head = element("tr", {}, element("td", {}, ...corner), ...columns);
  return element(
    "table",
    { class: "mask" },
    element("caption", {}, `sentence ${sentence}, every head`),
    element("thead", {}, head),
    element("tbody", {}, ...rows),
  );
}

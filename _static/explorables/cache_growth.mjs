// Chapter 15: what a cache holds after so many tokens; in the picture, area is bytes.

import { element, fill, select, slider, svg } from "./elements.mjs";

const [HEADS, WIDTH, GROUPS, LATENT, WINDOW, SINKS] = [6, 16, 2, 24, 8, 2]; // as in the chapter
const LONGEST = 40;

/** Rows of numbers that one position has in the cache, and the bytes of such a row. */
const KINDS = {
  full: { name: "each head", rows: HEADS, bytes: 2 * WIDTH * 4 },
  grouped: { name: `${GROUPS} groups`, rows: GROUPS, bytes: 2 * WIDTH * 4 },
  quantised: { name: "8 bits", rows: HEADS, bytes: 2 * (WIDTH + 4) },
  latent: { name: "latent vector", rows: 1, bytes: 4 * LATENT },
  rolling: { name: `last ${WINDOW}, first ${SINKS}`, rows: HEADS, bytes: 2 * WIDTH * 4 },
  linear: { name: "linear attention", rows: HEADS, bytes: 4 * (WIDTH + 1) * WIDTH },
  nothing: { name: "no cache", rows: HEADS, bytes: 2 * WIDTH * 4 },
};

/** Whether a cache still holds a position, both counted from 0, after so many tokens. */
const isKept = (kind, position, tokens) =>
  kind === "rolling"
    ? position < SINKS || position >= tokens - WINDOW
    : position < tokens && kind !== "nothing";

/** The positions whose numbers are in the cache; the sums of linear attention count as one. */
export function kept(kind, tokens) {
  const all = Array.from({ length: kind === "linear" ? 1 : tokens }, (_, position) => position);
  return all.filter((position) => isKept(kind, position, tokens));
}

export function bytesOf(kind, tokens) {
  return kept(kind, tokens).length * KINDS[kind].rows * KINDS[kind].bytes;
}

const count = (number, name) => `${number.toLocaleString("en")} ${name}${number === 1 ? "" : "s"}`;

/** What the newest token's step does. */
function step(kind, tokens) {
  const old = kept(kind, tokens).length - 1;
  if (kind === "nothing") {
    const again = tokens > 1 ? ", all but one of them again." : ".";
    return `Keys and values of ${count(tokens, "position")} are computed${again}`;
  }
  if (kind === "linear") {
    return "One position is computed, and added to sums whose size stays the same.";
  }
  const rest = `One position is computed, ${count(old, "other")} read from the cache`;
  return tokens - 1 > old ? `${rest}, ${tokens - 1 - old} forgotten.` : `${rest}.`;
}

export function mount(place) {
  const names = Object.entries(KINDS).map(([kind, { name }]) => [kind, name]);
  const kind = select("kept", Object.fromEntries(names), draw);
  const tokens = slider("tokens n", { min: 1, max: LONGEST, value: 12 }, draw);
  const controls = [kind.node, tokens.node];
  const { sentence, view } = fill(place, "A cache as it grows", controls);

  function draw() {
    const [chosen, n] = [kind.input.value, tokens.value];
    const bytes = bytesOf(chosen, n);
    sentence.textContent = 
      `After ${count(n, "token")}, the cache of a layer has ${count(bytes, "byte")}. ` +
      step(chosen, n);
    const most = bytesOf("full", LONGEST);
    const lines = names.map(([each, name]) => {
      const size = bytesOf(each, n);
      const bar = element("div", { style: `width: ${(100 * size) / most}%` });
      return element(
        "tr",
        each === chosen ? { class: "next" } : {},
        element("th", { scope: "row" }, name),
        element("td", {}, size.toLocaleString("en")),
        element("td", { class: "bar" }, bar),
      );
    });
    const heads = ["kept", "bytes"].map((name) => element("th", { scope: "col" }, name));
    view.replaceChildren(
      picture(chosen, n),
      element(
        "table",
        { class: "bars" },
        element("thead", {}, element("tr", {}, ...heads, element("td"))),
        element("tbody", {}, ...lines),
      ),
    );
  }

  draw();
}

/** The positions from left to right; a row is a head, a group, or what all heads share. */
function picture(kind, tokens) {
  const [across, full] = [10, 120]; // of a position; all heads' keys and values in float32
  const { rows, bytes } = KINDS[kind];
  const high = full / HEADS / KINDS.full.bytes; // of a byte, as wide as a position
  const isSum = kind === "linear";
  const wide = isSum ? (bytes * high * across) / (full / HEADS) : across;
  const tall = isSum ? full / HEADS : bytes * high;
  const cells = [];
  for (let position = 0; position < (isSum ? 1 : tokens); position++) {
    const isNew = position === tokens - 1 || kind === "nothing" || isSum;
    const state = isNew ? "computed" : isKept(kind, position, tokens) ? "kept" : "forgotten";
    for (let row = 0; row < rows; row++) {
      const corner = { x: position * across, y: row * tall };
      cells.push(svg("rect", { ...corner, width: wide, height: tall, class: state }));
    }
  }
  return element(
    "figure",
    {},
    element(
      "figcaption",
      {},
      "Area is bytes. Columns: positions. Filled: computed in this step. Light: read from the " +
        "cache. Dashed: forgotten.",
    ),
    svg(
      "svg",
      { class: "cache", viewBox: `-2 -2 ${LONGEST * across + 4} ${full + 4}`, "aria-hidden": true },
      ...cells,
    ),
  );
}

// Chapter 10: beam search over a real model's probabilities.
//
// beam_tree.json holds, as `tools/export_explorables.py` recorded them, a sentence, and for each
// beginning of a translation the most probable next tokens with their log-probabilities: all that
// beams up to the widest look at.

import { data, decimals, element, fill, slider, svg } from "./elements.mjs";

/** What a text's log-probability is divided by. */
export function lengthPenalty(length, alpha) {
  return ((5 + length) / 6) ** alpha;
}

/**
 * Beam search. `next(tokens)` lists [token, log-probability] for what may follow these tokens.
 *
 * Returns the steps, each with the candidates in order (the best first) and what becomes of them,
 * "kept", "ended" or "dropped"; and all ended texts, the best score first.
 */
export function beamSearch(next, { width, alpha, longest, end }) {
  let kept = [{ tokens: [], logProb: 0, parent: null }];
  const steps = [];
  const ended = [];
  const score = (text) => text.logProb / lengthPenalty(text.tokens.length, alpha);
  for (let length = 1; length <= longest; length++) {
    const candidates = kept
      .flatMap((parent) =>
        next(parent.tokens).map(([token, logProb]) => ({
          tokens: [...parent.tokens, token],
          logProb: parent.logProb + logProb,
          parent,
          fate: "dropped",
        })),
      )
      .sort((a, b) => b.logProb - a.logProb);
    for (const candidate of candidates.slice(0, width)) {
      if (candidate.tokens.at(-1) === end || length === longest) {
        candidate.fate = "ended";
        ended.push({ ...candidate, score: score(candidate) });
      }
    }
    kept = length === longest ? [] : candidates.filter((c) => c.tokens.at(-1) !== end);
    kept = kept.slice(0, width);
    for (const candidate of kept) candidate.fate = "kept";
    steps.push(candidates);

    // A log-probability only falls, and is forgiven most at the greatest length.
    ended.sort((a, b) => b.score - a.score);
    const best = ended[0]?.score ?? -Infinity;
    if (!kept.length || best >= kept[0].logProb / lengthPenalty(longest, alpha)) break;
  }
  return { steps, ended };
}

const COLUMN = 96;
const ROW = 40;
const BOX = { x: -40, y: -16, width: 80, height: 32, rx: 5 };
const SHOWN_DROPPED = 2; // the best of those that are not kept

export async function mount(place) {
  const { source, reference, longest, end, next } = await data("beam_tree.json");
  const following = (tokens) => next[tokens.join(" ")];

  const width = slider("beam width", { min: 1, max: 5, value: 2 }, draw);
  const alpha = slider(
    "length penalty α",
    { min: 0, max: 2, step: 0.1, value: 0.6, write: (value) => decimals(value, 1) },
    draw,
  );
  const controls = [width.node, alpha.node];
  const { sentence, view } = fill(place, "Beam search as a tree", controls);
  let words;
  const name = (token) => (token === end ? "end" : token);
  const written = (text) => text.tokens.filter((token) => token !== end).join("");

  function draw() {
    const settings = { width: width.value, alpha: alpha.value, longest, end };
    const { steps, ended } = beamSearch(following, settings);
    const winner = ended[0];
    const beam = `A beam of ${width.value} with α = ${decimals(alpha.value, 1)}`;
    sentence.textContent =
      `The source is “${source}”. ${beam} writes ${written(winner)}` +
      (written(winner) === reference ? ", which is right" : `; right would be ${reference}`) +
      `. Its score is ${decimals(winner.score, 2)}. The search stops after ${steps.length} steps` +
      (steps.length < longest ? ": no beginning can still beat it." : ", the limit.");
    const scroll = { class: "scroll", tabindex: 0, role: "group", "aria-label": "the tree" };
    const picture = element("div", scroll, tree(steps, winner, name));
    words = inWords(steps, name, words?.open);
    view.replaceChildren(picture, legend(), words, endedTexts(ended, winner, written));
  }

  draw();
}

/** What the borders mean. */
function legend() {
  return element(
    "ul",
    { class: "key" },
    element("li", { class: "kept" }, "kept"),
    element("li", { class: "ended" }, "ended, set aside"),
    element("li", { class: "dropped" }, "dropped"),
    element("li", { class: "winner" }, "the way to the winner"),
  );
}

/**
 * One column for each step, the best candidate on top; a line leads to what each continues.
 * `name` turns a token into text.
 */
export function tree(steps, winner, name) {
  const path = new Set();
  for (let length = 1; length <= winner.tokens.length; length++) {
    path.add(winner.tokens.slice(0, length).join(" "));
  }
  const places = new Map([[null, [0, 0]]]);
  const lines = [];
  const nodes = [];
  let rows = 1;
  steps.forEach((candidates, step) => {
    let dropped = 0;
    const shown = candidates.filter((c) => c.fate !== "dropped" || ++dropped <= SHOWN_DROPPED);
    rows = Math.max(rows, shown.length);
    shown.forEach((candidate, row) => {
      const [x, y] = [(step + 1) * COLUMN, row * ROW];
      const [x0, y0] = places.get(candidate.parent) ?? [0, 0];
      places.set(candidate, [x, y]);
      const way = path.has(candidate.tokens.join(" ")) ? "winner" : "";
      const middle = (x0 + x) / 2;
      const d = `M ${x0 - BOX.x} ${y0} C ${middle} ${y0}, ${middle} ${y}, ${x + BOX.x} ${y}`;
      lines.push(svg("path", { d, class: `${candidate.fate} ${way}` }));
      const token = candidate.tokens.at(-1);
      nodes.push(
        svg(
          "g",
          { class: `${candidate.fate} ${way}`, transform: `translate(${x}, ${y})` },
          svg("rect", BOX),
          svg("text", { y: -3 }, name(token)),
          svg("text", { y: 11, class: "number" }, decimals(candidate.logProb, 2)),
        ),
      );
    });
  });
  const begin = svg("g", { class: "kept" }, svg("rect", BOX), svg("text", { y: 4 }, "begin"));
  const [width, height] = [(steps.length + 1) * COLUMN, rows * ROW];
  const viewBox = `${BOX.x - 4} ${BOX.y - 4} ${width} ${height}`;
  const shape = { class: "tree", viewBox, width, height, "aria-hidden": true };
  return svg("svg", shape, ...lines, begin, ...nodes);
}

/** The tree as a list that can be read aloud. */
export function inWords(steps, name, isOpen) {
  const text = (candidate) => candidate.tokens.map(name).join(" ");
  const items = steps.map((candidates) => {
    const of = (fate) => candidates.filter((c) => c.fate === fate).map(text);
    const kept = `kept: ${of("kept").join("; ") || "nothing"}`;
    const ended = of("ended").length ? `. Ended: ${of("ended").join("; ")}` : "";
    return element("li", {}, kept + ended);
  });
  const summary = element("summary", {}, "The steps in words");
  return element("details", isOpen ? { open: "" } : {}, summary, element("ol", {}, ...items));
}

/** All texts that were set aside, the best score first. */
function endedTexts(ended, winner, written) {
  const names = ["text that ended", "tokens", "log p", "score"];
  const heads = names.map((name) => element("th", { scope: "col" }, name));
  const rows = ended.map((text) => {
    const wins = text === winner;
    const numbers = [`${text.tokens.length}`, decimals(text.logProb, 2), decimals(text.score, 2)];
    return element(
      "tr",
      wins ? { class: "next" } : {},
      element("th", { scope: "row" }, written(text), wins ? " (wins)" : ""),
      ...numbers.map((number) => element("td", {}, number)),
    );
  });
  const head = element("thead", {}, element("tr", {}, ...heads));
  return element("table", { class: "texts" }, head, element("tbody", {}, ...rows));
}

// Chapter 1: byte-pair encoding, one merge after another.
//
// bpe_stepper.json says for each text what `tools/export_explorables.py` learned from it: its
// letters, a few of its words, and a list of states. State n is what holds after n merges: how many
// tokens the text has, and the most frequent pairs with their counts. The first of them is next.

import { button, data, element, fill, select, slider } from "./elements.mjs";

/** Join each occurrence of the pair in a list of tokens, from the left. */
function mergeIn(tokens, [left, right]) {
  const merged = [];
  for (const token of tokens) {
    if (token === right && merged.at(-1) === left) merged.push(merged.pop() + token);
    else merged.push(token);
  }
  return merged;
}

/** Cut a word by applying each merge everywhere, in the order of learning. */
export function cut(word, merges) {
  return merges.reduce(mergeIn, [...word]);
}

export async function mount(place) {
  const texts = await data("bpe_stepper.json");
  const names = Object.fromEntries(texts.map((text, index) => [index, text.name]));

  const chosen = select("learned from", names, () => {
    merges.input.max = text().states.length - 1;
    merges.value = 0;
    draw();
  });
  const merges = slider(
    "merges so far",
    { min: 0, max: texts[0].states.length - 1, value: 0 },
    draw,
  );
  const step = (by) => () => {
    merges.value += by;
    draw();
  };
  const back = button("Undo a merge", step(-1));
  const forward = button("Merge the next pair", step(1));
  const word = element("input", { type: "text", value: "dreizig", spellcheck: "false" });
  word.addEventListener("input", draw);
  const { sentence, view } = fill(place, "Byte-pair encoding, step by step", [
    chosen.node,
    merges.node,
    back,
    forward,
    element("label", { class: "choice" }, "your own word", word),
  ]);
  const text = () => texts[chosen.input.value];

  function draw() {
    const { letters, words, states } = text();
    const done = merges.value;
    const learned = states.slice(0, done).map((state) => state.pairs[0].slice(0, 2));
    const { tokens, pairs } = states[done];
    // A button that is switched off loses the focus, so these two only say that they are.
    back.setAttribute("aria-disabled", done === 0);
    forward.setAttribute("aria-disabled", done === states.length - 1);

    const last = learned.at(-1);
    sentence.textContent =
      (last ? `Merge ${done}: ${last[0]} + ${last[1]} became ${last.join("")}. ` : "") +
      `The text has ${tokens.toLocaleString("en")} tokens, the vocabulary ` +
      `${letters.length + done}. ` +
      (pairs.length
        ? `Next: ${pairs[0][0]} + ${pairs[0][1]}, found ${pairs[0][2].toLocaleString("en")} times.`
        : "No pair is left: every word is one token.");

    const newest = last?.join("");
    const own = cut(word.value, learned);
    const unknown = new Set([...word.value].filter((letter) => !letters.includes(letter)));
    const lines = words.map((each) => boxes(each, cut(each, learned), newest, letters));
    view.replaceChildren(
      leaders(pairs),
      element("div", { class: "words" }, ...lines),
      element(
        "div",
        { class: "words own" },
        element("strong", {}, "Your word: "),
        boxes(word.value, own, newest, letters),
        unknown.size ? element("p", {}, `without an id: ${[...unknown].join(" ")}`) : "",
      ),
    );
  }

  draw();
}

/** The most frequent pairs, the one that is merged next first. */
function leaders(pairs) {
  const most = pairs[0]?.[2];
  const rows = pairs.map(([left, right, count], index) =>
    element(
      "tr",
      index === 0 ? { class: "next" } : {},
      element("th", { scope: "row" }, `${left} + ${right}`),
      element("td", {}, count.toLocaleString("en")),
      element("td", { class: "bar" }, element("div", { style: `width: ${(100 * count) / most}%` })),
      element("td", {}, index === 0 ? "next" : ""),
    ),
  );
  return element(
    "table",
    { class: "bars" },
    element("caption", {}, "the most frequent pairs"),
    element("tbody", {}, ...rows),
  );
}

/** A word as boxes, one for each token: the newest with a thick border, unknown ones dashed. */
function boxes(word, tokens, newest, letters) {
  const parts = tokens.map((token) => {
    const isUnknown = [...token].length === 1 && !letters.includes(token);
    const known = token === newest ? "newest" : "known";
    return element("li", { class: isUnknown ? "unknown" : known }, token);
  });
  const count = `${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}`;
  return element("ul", { class: "tokens", "aria-label": `${word}: ${count}` }, ...parts);
}

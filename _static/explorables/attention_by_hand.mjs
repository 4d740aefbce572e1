// Chapter 4: the three tokens that are worked out by hand, with numbers that one can change.

import { decimals, element, fill, select } from "./elements.mjs";
import { softmax } from "./softmax_scale.mjs";

const WORDS = ["forty", "-", "two"];
const KEYS = [
  [1, 0, 1, 0],
  [0, 0, 0, 0],
  [1, 1, 1, 1],
];
const VALUES = [
  [1, 0],
  [0, 0],
  [0, 1],
];
const CASES = {
  zwei: { name: "query for zwei, as on paper", query: [1, 1, 1, 1] },
  vier: { name: "query for vier", query: [1, -1, 1, -1] },
  long: { name: "key of two, twice as long", query: [1, 1, 1, 1], two: [2, 2, 2, 2] },
  zero: { name: "a query of zeros", query: [0, 0, 0, 0] },
};
const MOST = 3;
const STEP = 0.5;
const DRAG = 12; // pixels to the side that change a number by one step

/** The four steps for one query (e), keys (k, e) and values (k, any width). */
export function attention(query, keys, values) {
  const scores = keys.map((key) => key.reduce((sum, part, c) => sum + part * query[c], 0)); // (k)
  const scaled = scores.map((score) => score / Math.sqrt(query.length));
  const weights = softmax(scaled);
  const output = values[0].map((_, c) => values.reduce((sum, v, j) => sum + weights[j] * v[c], 0));
  return { scores, scaled, exponentials: scaled.map(Math.exp), weights, output };
}

/** A field for a number that is typed, dragged to the side, or changed with the arrow keys. */
function numberField(name, whenChanged) {
  const input = element("input", { type: "number", min: -MOST, max: MOST, step: STEP });
  const node = element("label", {}, element("span", { class: "unseen" }, name), input);
  const limited = (number) => Math.min(Math.max(number, -MOST), MOST);
  const field = {
    node,
    get value() {
      return limited(input.valueAsNumber || 0); // an empty field counts as 0
    },
    set value(number) {
      input.value = limited(number);
    },
  };
  let start = null;
  input.addEventListener("pointerdown", ({ clientX, pointerId }) => {
    start = { x: clientX, value: field.value };
    input.setPointerCapture(pointerId);
  });
  input.addEventListener("pointermove", ({ clientX }) => {
    if (!start) return;
    const value = limited(start.value + STEP * Math.round((clientX - start.x) / DRAG));
    if (value === field.value) return;
    field.value = value;
    whenChanged();
  });
  for (const end of ["pointerup", "pointercancel"]) {
    input.addEventListener(end, () => (start = null));
  }
  input.addEventListener("input", whenChanged);
  input.addEventListener("change", () => (field.value = field.value));
  return field;
}

const plain = (number) => String(number).replace("-", "−");
const vector = (numbers, write = plain) => `(${numbers.map(write).join(", ")})`;
const large = (number) => decimals(number, number < 1000 ? 2 : 0);

export function mount(place) {
  const names = Object.entries(CASES).map(([value, { name }]) => [value, name]);
  const options = { ...Object.fromEntries(names), own: "your own numbers" };
  const chosen = select("case", options, start);
  const changed = () => {
    chosen.input.value = "own";
    draw();
  };
  const fields = (name, count) =>
    Array.from({ length: count }, (_, c) => numberField(`${name}, component ${c}`, changed));
  const query = fields("query", 4);
  const keys = WORDS.map((word) => fields(`key of ${word}`, 4));
  const values = WORDS.map((word) => fields(`value of ${word}`, 2));
  const controls = [chosen.node, numberTable(query, keys, values)];
  const { sentence, view } = fill(place, "Attention by hand", controls);

  function start() {
    const { query: q, two } = CASES[chosen.input.value] ?? {};
    if (!q) return; // your own numbers stay
    const set = (row, numbers) => row.forEach((field, c) => (field.value = numbers[c]));
    set(query, q);
    keys.forEach((row, j) => set(row, (j === 2 && two) || KEYS[j]));
    values.forEach((row, j) => set(row, VALUES[j]));
    draw();
  }

  function draw() {
    const read = (row) => row.map((field) => field.value);
    const [q, k, v] = [read(query), keys.map(read), values.map(read)];
    const { scores, scaled, exponentials, weights, output } = attention(q, k, v);
    const largest = Math.max(...weights);
    const best = WORDS.filter((_, j) => largest - weights[j] < 1e-9);
    const two = (number) => decimals(number, 2);
    sentence.textContent =
      (best.length === 1
        ? `The query fits “${best[0]}” best, which gets the weight ${two(largest)}. `
        : `The query fits ${best.map((word) => `“${word}”`).join(" and ")} equally well; each ` +
          `gets the weight ${two(largest)}. `) +
      `The output is ${vector(output, two)}.`;

    const rows = WORDS.map((word, j) => {
      const numbers = [scores[j], scaled[j]].map(two).concat(large(exponentials[j]));
      const cells = [...numbers, two(weights[j])].map((text) => element("td", {}, text));
      const bar = element("div", { style: `width: ${100 * weights[j]}%` });
      const heading = element("th", { scope: "row" }, word);
      return element("tr", {}, heading, ...cells, element("td", { class: "bar" }, bar));
    });
    const heads = ["score", "÷ 2", "exp", "weight"];
    const cells = heads.map((name) => element("th", { scope: "col" }, name));
    const head = element("tr", {}, element("td"), ...cells, element("td"));
    const winner = weights.indexOf(largest);
    const product = (part, c) => `${plain(part)}\u00a0·\u00a0${plain(k[winner][c])}`;
    const products = q.map(product).join(" + ");
    const parts = weights.map((weight, j) => `${two(weight)} · ${vector(v[j])}`).join(" + ");
    view.replaceChildren(
      element(
        "table",
        { class: "bars" },
        element("thead", {}, head),
        element("tbody", {}, ...rows),
      ),
      element("p", {}, `Score of “${WORDS[winner]}”: ${products} = ${plain(scores[winner])}`),
      element("p", {}, `Output: ${parts} = ${vector(output, two)}`),
    );
  }

  start();
}

/** The fields in rows: the query, then each token's key and value. */
function numberTable(query, keys, values) {
  const cells = (row) => row.map(({ node }) => element("td", {}, node));
  const line = (name, row) =>
    element("tr", {}, element("th", { scope: "row" }, name), ...cells(row));
  const groups = { "": 1, key: 4, value: 2 };
  const heads = Object.entries(groups).map(([name, colspan]) =>
    element(name ? "th" : "td", name ? { colspan, scope: "colgroup" } : {}, name),
  );
  const tokens = WORDS.map((word, j) => line(word, [...keys[j], ...values[j]]));
  const head = element("tr", {}, ...heads);
  return element("table", { class: "numbers" }, line("query", query), head, ...tokens);
}

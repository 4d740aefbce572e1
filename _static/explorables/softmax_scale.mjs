// Chapter 4: what dividing the scores by √d_k does to the weights, and to the gradient.

import { button, decimals, element, fill, scientific, slider } from "./elements.mjs";

const WIDEST = 1024;
const KEYS = 8;

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const dot = (a, b) => sum(a.map((number, index) => number * b[index]));

/** Shares of 1: e to each score, over the sum of them all. */
export function softmax(scores) {
  const largest = Math.max(...scores); // taken off, so that no exponential overflows
  const powers = scores.map((score) => Math.exp(score - largest));
  const total = sum(powers);
  return powers.map((power) => power / total);
}

/** The weights of one query, whose scores are divided by `divisor`. */
export function attentionWeights(query, keys, divisor) {
  return softmax(keys.map((key) => dot(query, key) / divisor));
}

/**
 * The size of ∂w/∂q: how much a small step of the query moves the weights.
 *
 * By the derivative of the softmax, weight i has the slope w_i (k_i − mean) / divisor, where the
 * mean of the keys is taken with the weights.
 */
export function gradientSize(query, keys, divisor) {
  const weights = attentionWeights(query, keys, divisor);
  const mean = query.map((_, c) => sum(keys.map((key, j) => weights[j] * key[c])));
  const squares = keys.map((key, i) => sum(key.map((k, c) => (weights[i] * (k - mean[c])) ** 2)));
  return Math.sqrt(sum(squares)) / divisor;
}

/** So many independent numbers of mean 0 and variance 1, the same ones for the same seed. */
function normalNumbers(count, seed) {
  let state = 7_919 * seed;
  const uniform = () => (state = (state * 48_271) % 2_147_483_647) / 2_147_483_647;
  for (let skipped = 0; skipped < 10; skipped++) uniform(); // seeds side by side start alike
  const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  return Array.from({ length: count }, normal);
}

/** A random query and keys; the first so many components of each are vectors of that width. */
function randomVectors(seed) {
  const [query, ...keys] = Array.from({ length: KEYS + 1 }, (_, index) =>
    normalNumbers(WIDEST, 100 * seed + index),
  );
  return { query, keys };
}

export function mount(place) {
  let seed = 1;
  let vectors = randomVectors(seed);
  const divisor = (exponent) => (2 ** width.value) ** exponent;

  const width = slider(
    "width d_k",
    { min: 0, max: Math.log2(WIDEST), value: 6, write: (exponent) => String(2 ** exponent) },
    () => {
      scale.write();
      draw();
    },
  );
  const scale = slider(
    "scores divided by",
    { min: 0, max: 1, step: 0.1, value: 0.5, write: describeScale },
    draw,
  );
  const again = button("Other random vectors", () => {
    seed += 1;
    vectors = randomVectors(seed);
    draw();
  });
  const controls = [width.node, scale.node, again];
  const { sentence, view } = fill(place, "Softmax with and without its scale", controls);

  function describeScale(exponent) {
    if (exponent === 0) return "1: raw scores";
    const power = { 0.5: "√d_k", 1: "d_k" }[exponent] ?? `d_k^${exponent}`;
    return `${power} = ${decimals(divisor(exponent), 1)}`;
  }

  function draw() {
    const cut = (vector) => vector.slice(0, 2 ** width.value);
    const [query, keys] = [cut(vectors.query), vectors.keys.map(cut)];
    const by = divisor(scale.value);
    const weights = attentionWeights(query, keys, by);
    const largest = Math.max(...weights);
    const gradient = gradientSize(query, keys, by);

    let verdict = "The best key leads, and the others still count.";
    if (largest > 0.95) verdict = "One key takes nearly everything.";
    if (largest < 0.2) verdict = "All keys count nearly the same.";
    sentence.textContent =
      `Width ${2 ** width.value}, scores divided by ${decimals(by, 1)}: the largest of ${KEYS} ` +
      `weights is ${decimals(largest, 3)}, and the gradient at the query has the size ` +
      `${scientific(gradient)}. ${verdict}`;

    const line = (name, score, number, share) => {
      const bar = element("div", { style: `width: ${Math.min(100 * share, 100)}%` });
      const cells = [score, number].map((text) => element("td", {}, text));
      const heading = element("th", { scope: "row" }, name);
      return element("tr", {}, heading, ...cells, element("td", { class: "bar" }, bar));
    };
    const rows = weights.map((weight, index) => {
      const score = decimals(dot(query, keys[index]) / by, 1);
      return line(`key ${index}`, score, decimals(weight, 3), weight);
    });
    const foot = element("tfoot", {}, line("gradient", "", scientific(gradient), gradient));
    const names = ["score", "weight"].map((name) => element("th", { scope: "col" }, name));
    const head = element("thead", {}, element("tr", {}, element("td"), ...names, element("td")));
    const body = element("tbody", {}, ...rows);
    view.replaceChildren(element("table", { class: "bars" }, head, body, foot));
  }

  draw();
}

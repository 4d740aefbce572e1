// Chapter 12: a text three times as long as those of training, and rules that slow rotary pairs.

import { decimals, element, fill, select, slider, svg } from "./elements.mjs";

const WIDTH = 16; // of a head: 8 pairs
const TRAINED = 64; // positions in a text of training
const FACTOR = 3; // how many times longer the text is
const FARTHEST = FACTOR * (TRAINED - 1);
const [SLOW, FAST] = [1, 4]; // turns within a text of training; YaRN's own are 1 and 32
const BASES = [100, 1_000, 10_000, 100_000, 500_000];
const RULES = { default: "none", linear: "linear", llama3: "Llama 3", yarn: "YaRN" };
const CIRCLE = 2 * Math.PI;

/** The angle of each pair from one position to the next: the package's `RotaryScaling`. */
export function frequencies(rule, base) {
  const pairThatTurns = (times) =>
    (WIDTH * Math.log(TRAINED / (CIRCLE * times))) / (2 * Math.log(base));
  const first = Math.max(Math.floor(pairThatTurns(FAST)), 0);
  const last = Math.min(Math.ceil(pairThatTurns(SLOW)), WIDTH - 1);
  const kept = {
    default: () => 1,
    linear: () => 0,
    llama3: (pair, turns) => (turns - SLOW) / (FAST - SLOW),
    yarn: (pair) => (last - pair) / Math.max(last - first, 0.001),
  }[rule];
  return Array.from({ length: WIDTH / 2 }, (_, pair) => {
    const plain = base ** ((-2 * pair) / WIDTH);
    const share = Math.min(Math.max(kept(pair, (TRAINED * plain) / CIRCLE), 0), 1);
    return plain * (share + (1 - share) / FACTOR);
  });
}

/** Rotated, q · k of a query and a key that are (1, 0) in each pair, over the number of pairs. */
export function score(distance, speeds) {
  return speeds.reduce((sum, speed) => sum + Math.cos(distance * speed), 0) / speeds.length;
}

/** Which pairs are at an angle that no distance of training reached, with the base's own speeds. */
export function newPairs(distance, speeds, base) {
  const trained = frequencies("default", base).map((speed) => speed * (TRAINED - 1) + 1e-9);
  return trained.flatMap((most, pair) => ((distance * speeds[pair]) % CIRCLE > most ? [pair] : []));
}

export function mount(place) {
  const distance = slider("distance", { min: 0, max: FARTHEST, value: 150 }, draw);
  const start = slider("key at position", { min: 0, max: FARTHEST, value: 20 }, draw);
  const rule = select("rule", RULES, draw);
  const base = slider(
    "base θ",
    {
      min: 0,
      max: BASES.length - 1,
      value: BASES.indexOf(10_000),
      write: (index) => BASES[index].toLocaleString("en"),
    },
    draw,
  );
  const controls = [distance, start, rule, base].map((control) => control.node);
  const { sentence, view } = fill(place, "Rotary positions in a longer text", controls);

  function draw() {
    const far = distance.value;
    start.input.max = FARTHEST - far; // the query is still in the text
    start.write();
    const theta = BASES[base.value];
    const plain = frequencies("default", theta);
    const speeds = frequencies(rule.input.value, theta);
    const found = newPairs(far, speeds, theta);
    const number = (value) => decimals(value, 2);
    const isScaled = rule.input.value !== "default";

    sentence.textContent =
      (found.length
        ? `At distance ${far}, ${found.length} of ${plain.length} pairs are at an angle that ` +
          `training never showed. `
        : `At distance ${far}, every pair is at an angle that training showed. `) +
      `The score is ${number(score(far, speeds))}, wherever the two are. Neighbours score ` +
      number(score(1, speeds)) +
      (isScaled ? `; without the rule, ${number(score(1, plain))}.` : ".");

    const dials = speeds.map((speed, pair) =>
      dial(pair, start.value * speed, far * speed, (TRAINED - 1) * plain[pair], {
        isNew: found.includes(pair),
        share: number(speed / plain[pair]),
      }),
    );
    view.replaceChildren(
      element(
        "p",
        {},
        `Trained on texts of ${TRAINED} positions. Square: key. Dot: query. Shaded: the angles ` +
          "between them that training showed.",
      ),
      element("div", { class: "dials" }, ...dials),
      curves(speeds, plain, far, isScaled),
    );
  }

  draw();
}

/** Key and query of one pair on a circle, in radians; from the key on, what training showed. */
function dial(pair, key, between, trained, { isNew, share }) {
  const at = (angle) => [50 * Math.cos(angle), -50 * Math.sin(angle)];
  const [[x1, y1], [x2, y2], [x3, y3]] = [key, key + between, key + trained].map(at);
  const known =
    trained >= CIRCLE
      ? svg("circle", { r: 50, class: "known" })
      : svg("path", {
          d: `M 0 0 L ${x1} ${y1} A 50 50 0 ${Number(trained > Math.PI)} 0 ${x3} ${y3} Z`,
          class: "known",
        });
  return element(
    "figure",
    {},
    svg(
      "svg",
      { viewBox: "-60 -60 120 120", "aria-hidden": true },
      svg("circle", { r: 50, class: "axis" }),
      known,
      svg("line", { x2: x1, y2: y1, class: "after" }),
      svg("rect", { x: x1 - 5, y: y1 - 5, width: 10, height: 10, class: "after" }),
      svg("line", { x2, y2, class: "before" }),
      svg("circle", { cx: x2, cy: y2, r: 6, class: "before" }),
    ),
    element("figcaption", {}, `pair ${pair}`, element("small", {}, `speed × ${share}`)),
    isNew ? element("strong", {}, "new angle") : "seen",
  );
}

/** The score by distance, with the rule and without. */
function curves(speeds, plain, far, isScaled) {
  const [width, height] = [400, 60];
  const across = (distance) => (distance / FARTHEST) * width;
  const points = (of) =>
    Array.from({ length: FARTHEST + 1 }, (_, k) => `${across(k)},${-height * score(k, of)}`);
  const [x, y] = [across(far), -height * score(far, speeds)];
  const label = (text, at) => svg("text", { x: across(at), y: 34 }, text);
  return element(
    "figure",
    {},
    element(
      "figcaption",
      {},
      "Score by distance, of a query and a key that are alike." +
        (isScaled ? " Line: with the rule. Dashed: without." : "") +
        " Shaded: distances in training.",
    ),
    svg(
      "svg",
      { class: "likeness plot", viewBox: "-8 -68 424 108", "aria-hidden": true },
      svg("rect", { y: -64, width: across(TRAINED - 1), height: 84, class: "known" }),
      svg("line", { x2: width, class: "axis" }),
      isScaled ? svg("polyline", { points: points(plain).join(" "), class: "cosine" }) : "",
      svg("polyline", { points: points(speeds).join(" "), class: "sine" }),
      svg("rect", { x: x - 5, y: y - 5, width: 10, height: 10, class: "after" }),
      label("0", 0),
      label(TRAINED - 1, TRAINED - 1),
      label(FARTHEST, FARTHEST),
    ),
  );
}

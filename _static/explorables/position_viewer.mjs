// Chapter 3: the waves of the sinusoidal encoding, and a shift of position as a rotation.

import { checkbox, decimals, element, fill, slider, svg } from "./elements.mjs";

const POSITIONS = 64;
const FARTHEST = 20;

/** The angle by which hand i turns from one position to the next. */
export function frequency(i, width) {
  return 10_000 ** ((-2 * i) / width);
}

/** The code of a position: a sine and a cosine for each hand; an odd width ends on a sine. */
export function positionCode(position, width) {
  return Array.from({ length: width }, (_, component) => {
    const angle = position * frequency(Math.floor(component / 2), width);
    return component % 2 === 0 ? Math.sin(angle) : Math.cos(angle);
  });
}

/** The code with each pair turned as a shift by k turns it; a sine without cosine is left out. */
export function turned(code, k) {
  const width = code.length;
  return Array.from({ length: Math.floor(width / 2) }, (_, i) => {
    const angle = k * frequency(i, width);
    const [sine, cosine] = code.slice(2 * i, 2 * i + 2);
    return [
      Math.cos(angle) * sine + Math.sin(angle) * cosine,
      -Math.sin(angle) * sine + Math.cos(angle) * cosine,
    ];
  }).flat();
}

/** How alike the codes of two positions are. */
export function dotProduct(a, b, width) {
  const [first, second] = [positionCode(a, width), positionCode(b, width)];
  return first.reduce((total, number, component) => total + number * second[component], 0);
}

export function mount(place) {
  const width = slider("width d", { min: 2, max: 16, value: 8 }, () => {
    offerPairs();
    draw();
  });
  const position = slider("position p", { min: 0, max: POSITIONS - FARTHEST - 1, value: 5 }, draw);
  const shift = slider("shift k", { min: 0, max: FARTHEST, value: 3 }, draw);
  const pairs = element("fieldset", {}, element("legend", {}, "pairs shown"));
  let boxes = [];
  const controls = [width.node, position.node, shift.node, pairs];
  const { sentence, view } = fill(place, "Positions as turning hands", controls);

  function offerPairs() {
    const chosen = boxes.length ? boxes.map((box) => box.input.checked) : [true, true, true];
    boxes = Array.from({ length: Math.ceil(width.value / 2) }, (_, i) =>
      checkbox(`${i}`, chosen[i] ?? false, draw),
    );
    pairs.replaceChildren(pairs.firstChild, ...boxes.map((box) => box.node));
  }

  function draw() {
    const [d, p, k] = [width.value, position.value, shift.value];
    const product = dotProduct(p, p + k, d);
    const odd = d % 2 === 1;
    sentence.textContent =
      `From position ${p} to ${p + k}, each hand turns by k times its ω. ` +
      `The dot product of the two codes is ${decimals(product, 3)}` +
      (odd
        ? ". The width is odd, and the last sine has no cosine: it cannot be turned, and the dot " +
          "product changes a little with p."
        : `, and stays that whatever p is: only the distance ${k} counts.`);

    const shown = boxes.flatMap((box, i) => (box.input.checked ? [i] : []));
    const key = "Line: sine. Dashed: cosine. Dot: position p. Square: position p + k.";
    const hands = shown.map((i) => pair(i, d, p, k));
    view.replaceChildren(element("p", {}, key), ...hands, likeness(d, p, k));
  }

  offerPairs();
  draw();
}

/** One pair of components: its hand on a circle, its waves along the positions. */
function pair(i, width, p, k) {
  const omega = frequency(i, width);
  const lonely = 2 * i + 1 === width;
  const wavelength = (2 * Math.PI) / omega;
  const wholeName = lonely ? `component ${2 * i}` : `components ${2 * i} and ${2 * i + 1}`;
  const degrees = (omega * k * 180) / Math.PI;
  const text =
    `Pair ${i}: ${wholeName}, ω = ${Number(omega.toPrecision(3))}, ` +
    `wavelength ${decimals(wavelength, 1)}. ` +
    (lonely
      ? "A sine alone is no hand."
      : `Turns by ${decimals(omega * k, 2)} radians, ${decimals(degrees, 0)}°.`);
  return element(
    "figure",
    {},
    element("figcaption", {}, text),
    element(
      "div",
      { class: "hand-and-wave" },
      lonely ? "" : circle(omega, p, k),
      waves(i, width, p, k),
    ),
  );
}

/** The hand before (line, dot) and after (dashed, square); sine to the right, cosine upwards. */
function circle(omega, p, k) {
  const end = (position) => [50 * Math.sin(omega * position), -50 * Math.cos(omega * position)];
  const [[x1, y1], [x2, y2]] = [end(p), end(p + k)];
  return svg(
    "svg",
    { class: "circle", viewBox: "-62 -62 124 124", "aria-hidden": true },
    svg("circle", { r: 50, class: "axis" }),
    svg("line", { x2, y2, class: "after" }),
    svg("rect", { x: x2 - 5, y: y2 - 5, width: 10, height: 10, class: "after" }),
    svg("line", { x2: x1, y2: y1, class: "before" }),
    svg("circle", { cx: x1, cy: y1, r: 4.5, class: "before" }),
  );
}

/** Sine (line) and cosine (dashed) of a pair along the positions, with both positions marked. */
function waves(i, width, p, k) {
  const across = (position) => (position / (POSITIONS - 1)) * 400;
  const line = (wave, name) => {
    const points = Array.from({ length: 401 }, (_, x) => {
      const angle = ((x / 400) * (POSITIONS - 1)) * frequency(i, width);
      return `${x},${(-40 * wave(angle)).toFixed(1)}`;
    });
    return svg("polyline", { points: points.join(" "), class: name });
  };
  const marks = [];
  for (const component of [2 * i, 2 * i + 1].filter((component) => component < width)) {
    const height = (position) => -40 * positionCode(position, width)[component];
    const [x, y] = [across(p + k), height(p + k)];
    marks.push(svg("rect", { x: x - 5, y: y - 5, width: 10, height: 10, class: "after" }));
    marks.push(svg("circle", { cx: across(p), cy: height(p), r: 4.5, class: "before" }));
  }
  return svg(
    "svg",
    { class: "waves", viewBox: "-8 -48 416 96", "aria-hidden": true },
    svg("line", { x2: 400, class: "axis" }),
    line(Math.sin, "sine"),
    2 * i + 1 < width ? line(Math.cos, "cosine") : "",
    ...marks,
  );
}

/** The dot product of position p's code with those around it, against the distance. */
function likeness(width, p, k) {
  const farthest = 30;
  const at = (distance) => {
    const product = dotProduct(p, p + distance, width);
    return [(distance / farthest) * 200, -45 * (product / (width / 2))];
  };
  const points = Array.from({ length: 401 }, (_, n) => at((n / 200 - 1) * farthest));
  const [x, y] = at(k);
  return element(
    "figure",
    {},
    element(
      "figcaption",
      {},
      `Dot product of the codes of p and p + k, for k from −${farthest} to ${farthest}. ` +
        "The square is your k.",
    ),
    svg(
      "svg",
      { class: "likeness", viewBox: "-208 -54 416 108", "aria-hidden": true },
      svg("line", { x1: -200, x2: 200, class: "axis" }),
      svg("line", { y1: -50, y2: 50, class: "axis" }),
      svg("polyline", { points: points.map((point) => point.join()).join(" "), class: "sine" }),
      svg("rect", { x: x - 5, y: y - 5, width: 10, height: 10, class: "after" }),
    ),
  );
}

// Chapter 6: with one number in and one out, a network is a line that each unit bends once.

import {
  button,
  checkbox,
  decimals,
  element,
  figure,
  fill,
  select,
  slider,
  svg,
} from "./elements.mjs";

const EDGE = 2; // x runs from −2 to 2
const MOST = { weight: 3, bias: 6, answer: 6 };
const XS = Array.from({ length: 401 }, (_, index) => -EDGE + index / 100);
const TARGETS = {
  "a wave": (x) => 1.2 * Math.sin(2 * x),
  "a corner": (x) => Math.abs(x) - 1,
  "a bump": (x) => 2 * Math.exp(-3 * x * x) - 0.5,
  "a step": (x) => Math.max(-1, Math.min(1, 8 * x)),
};

/** How strongly a unit fires at x; without the activation, what it asks. */
export function fires(x, { weight, bias }, activation) {
  const asked = weight * x + bias;
  return activation ? Math.max(0, asked) : asked;
}

/** FFN(x), for one number x. */
export function network(x, units, lastBias, activation) {
  return units.reduce((y, unit) => y + unit.answer * fires(x, unit, activation), lastBias);
}

/** The places between the edges where the network bends, from left to right. */
export function bends(units, activation) {
  const changes = new Map(); // of the slope, at each place
  for (const unit of activation ? units : []) {
    const place = Number(bendOf(unit).toFixed(6));
    const change = unit.answer * Math.abs(unit.weight);
    if (Math.abs(place) < EDGE) changes.set(place, (changes.get(place) ?? 0) + change);
  }
  const places = [...changes].filter(([, change]) => Math.abs(change) > 1e-3);
  return places.map(([place]) => place).sort((a, b) => a - b);
}

const within = (number, most) => Math.max(-most, Math.min(most, number));
const bendOf = (unit) => -unit.bias / unit.weight; // infinite or NaN without a weight

/** How far the network is from what is wanted at XS: the root mean square. */
function miss(wanted, units, lastBias, activation) {
  const squares = XS.map((x, row) => (network(x, units, lastBias, activation) - wanted[row]) ** 2);
  return Math.sqrt(squares.reduce((total, square) => total + square, 0) / XS.length);
}

/** Of units that ask what these ask, the best answers and, after them, the best last bias. */
export function leastSquares(xs, wanted, units, activation) {
  const rows = xs.map((x) => [...units.map((unit) => fires(x, unit, activation)), 1]);
  const sum = (term) => rows.reduce((total, row, index) => total + term(row, index), 0);
  // A little on the diagonal decides where units are silent, or two of them ask the same.
  const equations = rows[0].map((_, i) => [
    ...rows[0].map((_, j) => sum((row) => row[i] * row[j]) + (i === j ? 1e-6 : 0)),
    sum((row, index) => row[i] * wanted[index]),
  ]);
  for (const [i, pivot] of equations.entries()) {
    for (const [j, row] of equations.entries()) {
      const factor = row[i] / pivot[i];
      if (j !== i) pivot.forEach((number, column) => (row[column] -= factor * number));
    }
  }
  return equations.map((row, i) => row.at(-1) / row[i]);
}

export function mount(place) {
  let units = [];
  let lastBias = 0;
  const unit = () => units[which.value - 1];
  const wanted = () => XS.map(TARGETS[target.input.value]);

  const names = Object.keys(TARGETS).map((name) => [name, name]);
  const target = select("target", Object.fromEntries(names), spread);
  const width = slider("units f", { min: 1, max: 8, value: 3 }, spread);
  const activation = checkbox("activation", true, draw);
  const best = button("Best answers", solve);
  const which = slider("Change unit", { min: 1, max: width.value, value: 2 }, draw);
  const parts = Object.entries(MOST).map(([name, most]) => {
    const write = () => decimals(unit()?.[name] ?? 0, 2); // a slider knows its steps alone
    const options = { min: -most, max: most, step: 0.05, value: 0, write };
    const part = slider(name, options, () => change({ [name]: part.value }));
    return { name, part };
  });
  const ofUnit = element("fieldset", {}, which.node, ...parts.map(({ part }) => part.node));
  const controls = [target.node, width.node, activation.node, best, ofUnit];
  const { sentence, view } = fill(place, "A line that each unit bends once", controls);

  function change(numbers) {
    Object.assign(unit(), numbers);
    draw();
  }

  /** Give the units the best answers for what they ask. */
  function solve() {
    const answers = leastSquares(XS, wanted(), units, activation.input.checked);
    lastBias = answers.pop();
    answers.forEach((answer, index) => (units[index].answer = answer));
    draw();
  }

  /** Let the units bend at even distances, the first one at the left edge. */
  function spread() {
    const f = width.value;
    const biases = Array.from({ length: f }, (_, index) => EDGE - (2 * EDGE * index) / f);
    units = biases.map((bias) => ({ weight: 1, bias, answer: 0 }));
    which.input.max = f;
    solve();
  }

  function draw() {
    const active = activation.input.checked;
    for (const { name, part } of parts) part.value = unit()[name];
    which.write();
    const error = decimals(miss(wanted(), units, lastBias, active), 2);
    const pieces = bends(units, active).length + 1;
    const count = `${units.length} ${units.length === 1 ? "unit" : "units"}`;
    const misses = `misses the target by ${error} (root mean square)`;
    sentence.textContent = active
      ? `${count}, ${pieces} straight ${pieces === 1 ? "piece" : "pieces"}: the line ${misses}. ` +
        `Unit ${which.value} ${does(unit())}.`
      : `${count} without the activation make one straight line, which ${misses}.`;
    const shown = which.value - 1;
    const pictures = [line(wanted(), units, lastBias, active), hinges(units, shown, active)];
    const written = formula(units, lastBias, shown, active);
    view.replaceChildren(element("div", { class: "beside" }, ...pictures), written);
  }

  // A drag is the view's, since every picture lasts for one step of it. A finger that starts on a
  // handle does not scroll: the picture has to be there until the touch has begun.
  let dragged = null;
  view.addEventListener("pointerdown", ({ target, pointerId }) => {
    if (!target.dataset.handle) return;
    dragged = target.dataset.handle;
    which.value = Number(target.dataset.number) + 1;
    view.setPointerCapture(pointerId);
  });
  const keepStill = (event) => event.target.dataset.handle && event.preventDefault();
  view.addEventListener("touchstart", keepStill, { passive: false });
  view.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const [x, y] = pointed(event, view.querySelector("svg.hinges"));
    const { weight } = unit();
    const asked = Math.max(fires(x, unit(), true), 0.2 * Math.abs(weight));
    if (dragged === "bend") change({ bias: -weight * within(x, EDGE) });
    else change({ answer: within(y / asked, MOST.answer) });
  });
  for (const name of ["pointerup", "pointercancel"]) {
    view.addEventListener(name, () => {
      if (dragged) draw();
      dragged = null;
    });
  }

  spread();
}

/** What a unit does between the edges, in words. */
function does(unit) {
  const at = bendOf(unit);
  if (Math.abs(unit.answer) < 0.005) return "has the answer 0, and adds nothing";
  const [left, right] = [-EDGE, EDGE].map((x) => fires(x, unit, true) > 0);
  if (!left && !right) return "is silent everywhere here: it adds nothing, and learns nothing";
  if (left && right) return "fires everywhere here, so that it bends nothing";
  const side = right ? "right" : "left";
  return `bends it at x = ${decimals(at, 2)}, and adds to what is ${side} of there`;
}

// --- drawings: 100 steps for 1 of x, 40 for 1 of y ---

/** Where a handle shows how steep a unit's answer is: no farther from its bend than it is seen. */
function steepAt(unit) {
  const slope = Math.abs(unit.weight * unit.answer);
  const at = bendOf(unit) + Math.sign(unit.weight) * Math.min(1, 1.7 / slope);
  return within(at, EDGE);
}

const across = (x) => 100 * x;
const up = (y) => -40 * y;

/** Where the pointer is, in the x and y of a drawing. */
function pointed({ clientX, clientY }, picture) {
  const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(picture.getScreenCTM().inverse());
  return [x / across(1), y / up(1)];
}

function drawing(caption, name, ...children) {
  const axis = svg("line", { x1: across(-EDGE), x2: across(EDGE), class: "axis" });
  const ticks = [-2, -1, 0, 1, 2].map((x) => svg("text", { x: across(x), y: 96 }, decimals(x, 0)));
  const shape = { class: `plot ${name}`, viewBox: "-210 -82 420 184", "aria-hidden": true };
  const picture = svg("svg", shape, axis, ...ticks, ...children);
  return figure(caption, picture);
}

const curve = (ys, options) => {
  const points = ys.map((y, index) => `${across(XS[index])},${up(y).toFixed(1)}`);
  return svg("polyline", { points: points.join(" "), ...options });
};

function line(wanted, units, lastBias, activation) {
  const height = (x) => network(x, units, lastBias, activation);
  const dots = bends(units, activation).map((x) =>
    svg("circle", { cx: across(x), cy: up(height(x)), r: 4.5, class: "before" }),
  );
  const curves = [curve(wanted, { class: "cosine" }), curve(XS.map(height), { class: "sine" })];
  const caption = "Dashed: the target. Line: the network, with a dot where it bends.";
  return drawing(caption, "sum", ...curves, ...dots);
}

function hinges(units, shown, activation) {
  const curves = units.map((unit, number) => {
    const ys = XS.map((x) => unit.answer * fires(x, unit, activation));
    return curve(ys, number === shown ? { class: "sine" } : {});
  });
  const handles = units.flatMap((unit, number) => {
    const at = bendOf(unit);
    if (!activation || !(Math.abs(at) <= EDGE)) return [];
    const bend = { cx: across(at), cy: 0, r: 7, "data-handle": "bend", "data-number": number };
    if (number !== shown) return [svg("circle", bend)];
    const [x, y] = [across(steepAt(unit)), up(unit.answer * fires(steepAt(unit), unit, true))];
    const steep = { x: x - 7, y: y - 7, width: 14, height: 14, "data-handle": "steep" };
    const square = svg("rect", { ...steep, class: "after", "data-number": number });
    return [square, svg("circle", { ...bend, class: "before" })];
  });
  const caption = "What each unit adds. Drag a dot (a bend), or the square (an answer).";
  return drawing(caption, "hinges", ...curves, ...handles);
}

/** The network as it is computed, the chosen unit in bold. */
function formula(units, lastBias, shown, activation) {
  const terms = units.map(({ weight, bias, answer }, number) => {
    const asked = `${decimals(weight, 2)}x ${signed(bias)}`;
    const term = `${signed(answer)} · ${activation ? `max(0, ${asked})` : `(${asked})`}`;
    return element(number === shown ? "b" : "span", { class: "term" }, term);
  });
  const start = element("span", { class: "term" }, `FFN(x) = ${decimals(lastBias, 2)}`);
  return element("p", {}, ...[start, ...terms].flatMap((term) => [term, " "]));
}

/** A number to be added: + 1.00 or − 1.00. */
function signed(number) {
  const text = decimals(number, 2);
  return text.startsWith("−") ? text.replace("−", "− ") : `+ ${text}`;
}

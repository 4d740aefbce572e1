// Chapter 9: what the peak rate and the warm-up make of one training.
//
// warm_up.json holds the losses of real runs, means of ten steps each, as
// `benchmarks/experiments/warm_up.py` found them: for each setting a list for every seed.

import { data, decimals, element, figure, fill, level, slider, svg } from "./elements.mjs";

const [LEFT, RIGHT, TOP, BOTTOM] = [56, 400, 8, 200];
const MOST = 6; // the loss at the top of the picture
const LAST = 3; // losses that a result is the mean of
const QUANTILE = 2.776; // Student's, for the 95 % interval of a mean of five

/** Linear to the peak, then half a cosine to 0 one step after the last. */
export function rate(step, peak, warmUp, steps) {
  if (step < warmUp) return (peak * step) / warmUp;
  return (peak * (1 + Math.cos((Math.PI * (step - warmUp)) / (steps + 1 - warmUp)))) / 2;
}

const mean = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;

/** Where the runs of a setting end: the mean over its seeds, and half of its interval. */
export function result(losses) {
  const ends = losses.map((run) => mean(run.slice(-LAST)));
  const squares = ends.map((end) => (end - mean(ends)) ** 2);
  return { mean: mean(ends), half: QUANTILE * Math.sqrt(mean(squares) / (ends.length - 1)) };
}

export async function mount(place) {
  const { steps, unigram, runs } = await data("warm_up.json");
  const of = (key) => [...new Set(runs.map((run) => run[key]))];
  const [peaks, warmUps] = [of("rate"), of("warm_up")];
  const lasting = (index) => (warmUps[index] === 1 ? "none" : `${warmUps[index]} steps`);
  const each = (list, value) => ({ min: 0, max: list.length - 1, value });
  const peak = slider("peak rate", { ...each(peaks, 2), write: (index) => peaks[index] }, draw);
  const warmUp = slider("warm-up", { ...each(warmUps, 0), write: lasting }, draw);
  const controls = [peak.node, warmUp.node];
  const { sentence, view } = fill(place, "A training by its learning rate", controls);
  const at = (row, column) => runs[row * warmUps.length + column];
  const said = ({ losses }) => {
    const found = result(losses);
    return `${decimals(found.mean, 2)} ± ${decimals(found.half, 2)}`;
  };

  const best = (chosen) => {
    const lowest = Math.min(...runs.map(({ losses }) => result(losses).mean));
    return result(chosen.losses).mean === lowest
      ? "That is the lowest of all settings."
      : `The lowest of all settings is ${decimals(lowest, 2)}.`;
  };

  function draw() {
    const chosen = at(peak.value, warmUp.value);
    const stuck = result(chosen.losses).mean > 0.9 * unigram;
    const warm = chosen.warm_up === 1 ? "no warm-up" : `a warm-up of ${chosen.warm_up} steps`;
    sentence.textContent =
      `Peak rate ${chosen.rate}, ${warm}: after ${steps} steps the loss is ${said(chosen)}. ` +
      (stuck
        ? `The runs are stuck: knowing only how frequent tokens are gives ${decimals(unigram, 2)}.`
        : best(chosen));
    const pictures = [ratesOf(chosen, Math.max(...peaks), steps), lossesOf(chosen, unigram, steps)];
    view.replaceChildren(element("div", { class: "beside" }, ...pictures), table());
  }

  function table() {
    const heads = warmUps.map((_, column) => element("th", { scope: "col" }, lasting(column)));
    const rows = peaks.map((number, row) => {
      const cells = warmUps.map((_, column) => {
        const isChosen = row === peak.value && column === warmUp.value;
        return element("td", isChosen ? { class: "setting" } : {}, said(at(row, column)));
      });
      return element("tr", {}, element("th", { scope: "row" }, `${number}`), ...cells);
    });
    const corner = element("th", { scope: "col" }, "rate");
    const head = element("thead", {}, element("tr", {}, corner, ...heads));
    const caption = element("caption", {}, "Loss at the end, by rate and warm-up (95 % intervals)");
    return element("table", {}, caption, head, element("tbody", {}, ...rows));
  }

  draw();
}

// --- drawings, from step 0 on the left to the last on the right ---

function drawing(caption, steps, ...children) {
  const ends = [0, steps].map((step) => {
    const text = step ? `${step}` : "step 0";
    return svg("text", { x: across(step, steps), y: BOTTOM + 20 }, text);
  });
  const shape = { class: "plot", viewBox: `0 0 420 ${BOTTOM + 28}`, "aria-hidden": true };
  const picture = svg("svg", shape, ...ends, ...children);
  return figure(caption, picture);
}

const across = (step, steps) => LEFT + ((RIGHT - LEFT) * step) / steps;
const up = (share) => BOTTOM - (BOTTOM - TOP) * Math.min(1, share);

const at = (share, number) => level(LEFT, RIGHT, up(share), `${number}`);

function curve(points, look) {
  const written = points.map((point) => point.map((number) => number.toFixed(1)).join());
  return svg("polyline", { points: written.join(" "), class: look });
}

function ratesOf({ rate: peak, warm_up: warmUp }, highest, steps) {
  const points = Array.from({ length: steps }, (_, index) => {
    const height = rate(index + 1, peak, warmUp, steps) / highest;
    return [across(index + 1, steps), up(height)];
  });
  const levels = [0, 0.005, 0.01].flatMap((each) => at(each / highest, each));
  return drawing("Learning rate", steps, ...levels, curve(points, "chosen"));
}

function lossesOf({ losses }, unigram, steps) {
  const curves = losses.map((run) => {
    const middle = (index) => ((index + 0.5) * steps) / run.length;
    const points = run.map((loss, index) => [across(middle(index), steps), up(loss / MOST)]);
    return curve(points, "seed");
  });
  const levels = [0, 2, 4, 6].flatMap((loss) => at(loss / MOST, loss));
  const known = { x1: LEFT, x2: RIGHT, y1: up(unigram / MOST), y2: up(unigram / MOST) };
  const caption = "Loss of five seeds. Dashed: frequencies alone";
  return drawing(caption, steps, ...levels, svg("line", { ...known, class: "cosine" }), ...curves);
}

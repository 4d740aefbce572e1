// Chapter 7: where the norm is decides how rows and gradients change from layer to layer.
//
// norm_depth.json holds, as `tools/export_explorables.py` measured them in the package's fresh
// stacks, the size of each layer's rows and the length of its feed-forward matrix's gradient, by
// kind of stack and number of layers.

import { data, decimals, element, figure, fill, level, select, slider, svg } from "./elements.mjs";

const UPDATES = {
  "post-norm": "x ← LN(x + f(x))",
  "pre-norm": "x ← x + f(LN(x)), and one norm after the last layer",
  "pre-norm, no final norm": "x ← x + f(LN(x))",
};
const DASHES = ["6 4", "none", "1.5 3"]; // by kind
const [LEFT, RIGHT, HEIGHT] = [48, 400, 190];
const DECADES = [-2, -1, 0, 1]; // powers of ten on the vertical axis

/** What the numbers of a stack say. */
export function said(kind, { size, gradient }) {
  const layers = size.length;
  const [first, last] = [size[0], size.at(-1)].map((number) => decimals(number, 2));
  const ratio = Number((gradient[0] / gradient.at(-1)).toPrecision(2));
  const rows = first === last ? `stay at the size ${first}` : `grow from ${first} to ${last}`;
  const compared = `The first layer’s gradient is ${ratio} times the last one’s`;
  return `${layers} layers, ${kind}: the rows ${rows}. ${compared}.`;
}

export async function mount(place) {
  const stacks = await data("norm_depth.json");
  const kinds = Object.keys(stacks);
  const depths = Object.keys(stacks[kinds[0]]);
  const kind = select("norm", Object.fromEntries(kinds.map((name) => [name, name])), draw);
  const write = (index) => depths[index];
  const depth = slider("layers", { min: 0, max: depths.length - 1, value: 3, write }, draw);
  const controls = [kind.node, depth.node];
  const { sentence, view } = fill(place, "Rows and gradients of a deep stack", controls);

  function draw() {
    const chosen = kind.input.value;
    const layers = depths[depth.value];
    sentence.textContent = said(chosen, stacks[chosen][layers]);
    const captions = { size: "Size of the rows", gradient: "Gradient of the feed-forward matrix" };
    const pictures = Object.entries(captions).map(([quantity, caption]) => {
      const lines = kinds.map((name, index) => ({
        numbers: stacks[name][layers][quantity],
        dash: DASHES[index],
        chosen: name === chosen,
      }));
      return plot(caption, lines);
    });
    const text =
      `Each sub-layer: ${UPDATES[chosen]}. In the pictures post-norm is dashed, pre-norm a line, ` +
      "dotted without its final norm; the chosen one is thick.";
    const beside = element("div", { class: "beside" }, ...pictures);
    view.replaceChildren(element("p", {}, text), beside);
  }

  draw();
}

/** Numbers by layer, on an axis of powers of ten. */
function plot(caption, lines) {
  const up = (log) => HEIGHT * (1 - (log - DECADES[0]) / (DECADES.at(-1) - DECADES[0]));
  const count = lines[0].numbers.length;
  const across = (index) => LEFT + ((RIGHT - LEFT) * index) / (count - 1);
  const grid = DECADES.flatMap((power) => level(LEFT, RIGHT, up(power), `${10 ** power}`));
  const curves = lines.map(({ numbers, dash, chosen }) => {
    const points = numbers.map((number, i) => `${across(i)},${up(Math.log10(number)).toFixed(1)}`);
    const look = { class: chosen ? "chosen" : "other", "stroke-dasharray": dash };
    return svg("polyline", { points: points.join(" "), ...look });
  });
  const ends = [0, count - 1].map((index) =>
    svg("text", { x: across(index), y: HEIGHT + 22 }, `${index ? "" : "layer "}${index + 1}`),
  );
  const shape = { class: "plot", viewBox: `0 -12 420 ${HEIGHT + 40}`, "aria-hidden": true };
  const picture = svg("svg", shape, ...grid, ...ends, ...curves);
  return figure(caption, picture);
}

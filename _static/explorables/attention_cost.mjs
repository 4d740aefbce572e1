// Chapter 15: what each pattern of attention computes, and how that grows with the length.

import {
  decimals,
  element,
  figure,
  fill,
  level,
  near,
  raised,
  select,
  slider,
  svg,
} from "./elements.mjs";

const WIDTH = 64; // of the head
const SIZES = { block: 128, window: 256, globals: 64 }; // of the operations; strides are √n
const SMALL = { block: 4, window: 6, globals: 4, stride: 8 }; // of the picture, n = 64
const SHORTEST = 8; // n = 2⁸
const LONGEST = 16;

const inWindow = ({ start, end }, keys, { window }) =>
  Math.max(keys.start - end, start - keys.end) < window;
const reach = (q, n, { window }, first) =>
  Math.max(0, Math.min(n, q + window) - Math.max(first, q - window + 1));

/**
 * For each pattern: how many of n keys query q sees, and whether anything is seen between a block
 * of queries and a block of keys, each from its `start` to its `end`, the last position.
 */
const PATTERNS = {
  full: { count: (q, n) => n, sees: () => true },
  causal: { count: (q) => q + 1, sees: (queries, keys) => keys.start <= queries.end },
  window: { count: (q, n, sizes) => reach(q, n, sizes, 0), sees: inWindow },
  "window and global": {
    count: (q, n, sizes) =>
      q < sizes.globals ? n : Math.min(n, sizes.globals) + reach(q, n, sizes, sizes.globals),
    sees: (queries, keys, sizes) =>
      Math.min(queries.start, keys.start) < sizes.globals || inWindow(queries, keys, sizes),
  },
  strided: {
    count: (q, n, { stride }) => {
      const row = Math.floor(q / stride);
      const lasts = Math.floor(n / stride); // the last positions of whole rows
      return Math.min(n, (row + 1) * stride) - row * stride + lasts - (row < lasts ? 1 : 0);
    },
    sees: (queries, keys, { stride }) => {
      const row = (position) => Math.floor(position / stride);
      const same = row(queries.start) <= row(keys.end) && row(keys.start) <= row(queries.end);
      return same || row(keys.end + 1) > row(keys.start);
    },
  },
};

/** The blocks that n positions are cut into. */
function blocks(n, size) {
  const count = Math.ceil(n / size);
  return Array.from({ length: count }, (_, index) => {
    const start = index * size;
    return { start, end: Math.min(start + size, n) - 1, size: Math.min(size, n - start) };
  });
}

/** How many pairs a pattern sees, and how many are computed: all of a block with a seen pair. */
export function pairs(pattern, n, sizes) {
  const { count, sees } = PATTERNS[pattern];
  let [seen, computed] = [0, 0];
  for (let q = 0; q < n; q++) seen += count(q, n, sizes);
  const cut = blocks(n, sizes.block);
  for (const queries of cut) {
    for (const keys of cut) if (sees(queries, keys, sizes)) computed += queries.size * keys.size;
  }
  return { seen, computed };
}

/** Operations of one head: two products with each computed pair, or linear attention's sums. */
export function operations(pattern, n, width, sizes) {
  if (pattern === "linear") return 4 * n * width ** 2 + 2 * n * width;
  return 4 * width * pairs(pattern, n, sizes).computed;
}

const names = [...Object.keys(PATTERNS), "linear"];
const sizesOf = (n) => ({ ...SIZES, stride: Math.round(Math.sqrt(n)) });

export async function mount(place) {
  await near(place); // counting takes a moment
  const lengths = Array.from({ length: LONGEST - SHORTEST + 1 }, (_, i) => 2 ** (SHORTEST + i));
  const costs = Object.fromEntries(
    names.map((name) => [name, lengths.map((n) => operations(name, n, WIDTH, sizesOf(n)))]),
  );
  const options = Object.fromEntries(names.map((name) => [name, name]));
  options.linear = "linear attention";
  const pattern = select("pattern", options, draw);
  const write = (index) => thousands(lengths[index]);
  const length = slider("length n", { min: 0, max: lengths.length - 1, value: 5, write }, draw);
  const controls = [pattern.node, length.node];
  const { sentence, view } = fill(place, "The cost of attention", controls);

  function draw() {
    const [name, at] = [pattern.input.value, length.value];
    const n = lengths[at];
    const cost = costs[name];
    const share = percent(cost[at] / costs.full[at]);
    const twice = operations(name, 2 * n, WIDTH, sizesOf(2 * n)) / cost[at];
    let seen = "Sums of keys and values in place of pairs";
    if (name !== "linear") {
      const found = pairs(name, n, sizesOf(n));
      seen =
        `Of ${thousands(n)}² pairs ${percent(found.seen / n ** 2)} are seen, and ` +
        `${percent(found.computed / n ** 2)} computed`;
    }
    sentence.textContent =
      `${seen}: ${rounded(cost[at])} operations, ${share} of full attention’s. ` +
      `Twice the length takes ${decimals(twice, 1)} times as many.`;
    const text =
      `One head of width ${WIDTH}; blocks of ${SIZES.block}, windows of ${SIZES.window}, ` +
      `${SIZES.globals} global positions, a stride of √n. Written out, its weights would take ` +
      `${bytes(4 * n * n)} in float32; a block of them takes ${bytes(4 * SIZES.block ** 2)}.`;
    const pictures = [picture(name), growthOf(costs, lengths, name, at)];
    view.replaceChildren(element("div", { class: "beside" }, ...pictures), element("p", {}, text));
  }

  draw();
}

const thousands = (number) => number.toLocaleString("en-US");
const percent = (share) =>
  share < 0.1 ? `${Number((100 * share).toPrecision(2))} %` : `${decimals(100 * share, 0)} %`;

/** A large number, such as 1.7 · 10¹⁰. */
function rounded(number) {
  const [digits, exponent] = number.toExponential(1).split("e+");
  return `${digits} · 10${raised(exponent)}`;
}

function bytes(number) {
  const power = Math.min(3, Math.floor(Math.log10(number) / 3));
  return `${Number((number / 1000 ** power).toPrecision(2))} ${["B", "kB", "MB", "GB"][power]}`;
}

/** The pattern for 64 positions: what is seen, on top of what is computed. */
function picture(name) {
  const n = 64;
  const cut = (size, kind) => {
    const cells = [];
    for (const queries of blocks(n, size)) {
      for (const keys of blocks(n, size)) {
        if (!PATTERNS[name].sees(queries, keys, SMALL)) continue;
        const corner = { x: 4 * keys.start, y: 4 * queries.start };
        cells.push(svg("rect", { ...corner, width: 4 * size, height: 4 * size, class: kind }));
      }
    }
    return cells;
  };
  const cells = name === "linear" ? [] : [...cut(SMALL.block, "computed"), ...cut(1, "seen")];
  const frame = svg("rect", { width: 4 * n, height: 4 * n, class: "frame" });
  const shape = { class: "plot pattern", viewBox: "-2 -2 260 260", "aria-hidden": true };
  const caption =
    name === "linear"
      ? "No pairs: keys and values are added up first."
      : "Rows: queries. Columns: keys. Blue: seen. Grey: computed, then hidden.";
  const drawing = svg("svg", shape, ...cells, frame);
  return figure(caption, drawing);
}

/** Operations by length, on logarithmic axes, with a dot at the chosen length. */
function growthOf(costs, lengths, chosen, at) {
  const across = (index) => 56 + (340 * index) / (lengths.length - 1);
  const up = (number) => 256 - (240 * (Math.log10(number) - 6)) / 7;
  const grid = [6, 8, 10, 12].flatMap((power) =>
    level(56, 396, up(10 ** power), `10${raised(power)}`),
  );
  const ticks = [0, 4, 8].map((index) =>
    svg("text", { x: across(index), y: 276 }, thousands(lengths[index])),
  );
  const lines = names.map((name) => {
    const points = costs[name].map((cost, index) => `${across(index)},${up(cost).toFixed(1)}`);
    const look = { class: name === chosen ? "chosen" : "other" };
    return svg("polyline", { points: points.join(" "), ...look });
  });
  const dot = svg("circle", { cx: across(at), cy: up(costs[chosen][at]), r: 6, class: "before" });
  const shape = { class: "plot", viewBox: "0 0 420 284", "aria-hidden": true };
  const drawing = svg("svg", shape, ...grid, ...ticks, ...lines, dot);
  const caption = "Operations by length: thick is the chosen pattern, thin are the others.";
  return figure(caption, drawing);
}

// Chapter 14: where a trained ViT takes its values from, and which patches matter for its answer.
//
// patch_attention.safetensors has the weights and patch_attention.json the digits, as
// `tools/export_explorables.py` wrote them. The model computes here, in the browser.

import { Model, readTensors, softmax } from "../live/model.mjs";
import { data, decimals, element, fill, select, svg } from "./elements.mjs";

const ROWS = 4; // of patches, as many as columns
const SIDE = 2; // of a patch, in pixels
const WIDTH = ROWS * SIDE;
const PATCHES = Array.from({ length: ROWS * ROWS }, (_, patch) => patch);

/** The pixels of a patch, as places in the list of all pixels. */
function pixelsOf(patch) {
  const [top, left] = [SIDE * Math.floor(patch / ROWS), SIDE * (patch % ROWS)];
  return [0, 1, WIDTH, WIDTH + 1].map((step) => top * WIDTH + left + step);
}

export class ViT extends Model {
  /** Patches times a matrix, the class token first, and a learned position for each. */
  embed(side, trace, pixels) {
    const patches = PATCHES.map((patch) => pixelsOf(patch).map((place) => pixels[place]));
    const classToken = this.tensors["embedding.class_token"].data;
    const rows = [classToken, ...this.linear("embedding.projection", trace, patches)];
    const { data: positions } = this.tensors["embedding.positions"];
    return rows.map((row, i) => row.map((number, j) => number + positions[i * row.length + j]));
  }

  /** Read a picture: the classes' log-probabilities, and each layer's weights, [query][head]. */
  read(pixels) {
    const trace = {};
    const rows = this.stack("encoder", trace, pixels);
    const [scores] = this.linear("head", trace, rows.slice(0, 1));
    const weights = Array.from({ length: this.config.num_encoder_layers }, (_, layer) =>
      trace[`encoder.layers.${layer}.self_attention.weights`].map((heads) =>
        heads.map((row) => [...row]),
      ),
    );
    return { logProbs: Array.from(softmax(scores), Math.log), weights };
  }

  /** A class's log-probability with each patch replaced by that of the mean picture. */
  blanked(pixels, mean, label) {
    return PATCHES.map((patch) => {
      const copy = [...pixels];
      for (const place of pixelsOf(patch)) copy[place] = mean[place];
      return this.read(copy).logProbs[label];
    });
  }
}

const meanOf = (heads) =>
  heads[0].map((_, key) => heads.reduce((sum, head) => sum + head[key], 0) / heads.length);

/** Each query's shares of all tokens by rollout: per layer half the mean weights, half itself. */
export function rollout(weights) {
  const size = weights[0].length;
  let through = Array.from({ length: size }, (_, i) =>
    Array.from({ length: size }, (_, j) => Number(i === j)),
  );
  for (const layer of weights) {
    through = layer.map((heads, query) => {
      const shares = meanOf(heads);
      return shares.map(
        (_, from) =>
          (through[query][from] + shares.reduce((sum, w, k) => sum + w * through[k][from], 0)) / 2,
      );
    });
  }
  return through;
}

/** The weights that a map shows of a query: "layer head", "layer mean" or "rollout". */
export function shown(weights, map, query) {
  if (map === "rollout") return rollout(weights)[query];
  const [layer, head] = map.split(" ");
  return head === "mean" ? meanOf(weights[layer][query]) : weights[layer][query][head];
}

const MAPS = { "1 mean": "last layer, mean of heads", rollout: "rollout over both layers" };
for (const [layer, name] of ["first", "last"].entries()) {
  for (const head of [0, 1, 2, 3]) MAPS[`${layer} ${head}`] = `${name} layer, head ${head}`;
}

const highest = (numbers) => numbers.indexOf(Math.max(...numbers));
const percent = (share) => `${decimals(100 * share, 0)} %`;
const nameOf = (token) => (token ? `patch ${token - 1}` : "the class token");

/** The model, the mean picture of training, and the digits to read, all grey from 0 to 1. */
export async function load() {
  const file = new URL("patch_attention.safetensors", import.meta.url);
  const [{ config, mean, pictures }, tensors] = await Promise.all([
    data("patch_attention.json"),
    fetch(file).then((response) => response.arrayBuffer()),
  ]);
  for (const picture of pictures) picture.pixels = picture.pixels.map((grey) => grey / 16);
  return { model: new ViT(config, readTensors(tensors)), mean, pictures };
}

export async function mount(place) {
  const { model, mean, pictures } = await load();
  const names = pictures.map(({ label }, i) => [i, `number ${i}, class ${label}`]);
  const picture = select("digit", Object.fromEntries(names), draw);
  picture.input.value = 8;
  const map = select("weights of", MAPS, draw);
  const tokens = ["class token", ...PATCHES.map((patch) => `patch ${patch}`)];
  const query = select("query", Object.fromEntries(tokens.entries()), draw);
  const controls = [picture, map, query].map((control) => control.node);
  const { sentence, view } = fill(place, "What a ViT looks at, and what matters", controls);

  const found = pictures.map(() => null); // what a picture gives is computed once
  function results(index) {
    const { pixels, label } = pictures[index];
    found[index] ??= { ...model.read(pixels), without: model.blanked(pixels, mean, label) };
    return found[index];
  }

  function choose(token) {
    query.input.value = token;
    draw();
  }

  function draw() {
    const { pixels, label } = pictures[picture.input.value];
    const { logProbs, weights, without } = results(picture.input.value);
    const asking = Number(query.input.value);
    const row = shown(weights, map.input.value, asking);
    const changes = without.map((logProb) => Math.abs(logProb - logProbs[label]));
    const [most, matters, answer] = [row, changes, logProbs].map(highest);
    const probability = (logProb) => percent(Math.exp(logProb));
    const where = most === asking ? "itself" : nameOf(most);
    sentence.textContent =
      `The model's answer, ${answer} at ${probability(logProbs[answer])}, is ` +
      `${answer === label ? "right" : "wrong"}. Here ${nameOf(asking)} takes most, ` +
      `${percent(row[most])}, from ${where}. Blanking patch ${matters} changes most: the ` +
      `probability of ${label} goes from ${probability(logProbs[label])} to ` +
      `${probability(without[matters])}.`;
    view.replaceChildren(
      element(
        "div",
        { class: "panels" },
        panel(`Taken by ${nameOf(asking)}`, pixels, row, asking, choose),
        panel("Changed by blanking", pixels, [0, ...changes], null, choose),
      ),
      element(
        "p",
        {},
        "The larger the square, the more: on the left the weight, on the right the change of the " +
          `log-probability of ${label}. Tap a patch to make it the query.`,
      ),
    );
  }

  draw();
}

/** A faint picture, cut in patches; on each, and on the class token, a square as large as told. */
function panel(title, pixels, amounts, asking, choose) {
  const size = 40;
  const corner = (token) =>
    token ? [size * ((token - 1) % ROWS), size * Math.floor((token - 1) / ROWS)] : [0, -size - 8];
  const ink = pixels.map((grey, place) => {
    const pixel = size / SIDE;
    const [x, y] = [place % WIDTH, Math.floor(place / WIDTH)].map((at) => at * pixel);
    return svg("rect", { x, y, width: pixel, height: pixel, class: "ink", opacity: 0.4 * grey });
  });
  const isMap = asking !== null;
  const greatest = Math.max(...amounts);
  const cells = amounts.map((amount, token) => {
    if (!isMap && !token) return "";
    const [x, y] = corner(token);
    const side = (size - 6) * Math.sqrt(amount / greatest);
    const middle = (start) => start + (size - side) / 2;
    const cell = svg(
      "g",
      {},
      svg("rect", { x: middle(x), y: middle(y), width: side, height: side, class: "amount" }),
      svg("rect", { x, y, width: size, height: size, class: "frame" }),
      svg("text", { x: x + 3, y: y + 12 }, token ? token - 1 : ""),
    );
    cell.addEventListener("click", () => choose(token));
    return cell;
  });
  if (isMap) {
    const [x, y] = corner(asking);
    cells.push(svg("text", { x: size + 6, y: -24 }, "class token"));
    cells.push(svg("rect", { x, y, width: size, height: size, class: "asking" }));
  }
  return element(
    "figure",
    {},
    element("figcaption", {}, title),
    svg(
      "svg",
      { class: "patches", viewBox: "-2 -50 164 212", "aria-hidden": true },
      ...ink,
      ...cells,
    ),
  );
}

// The figure of the paper with this text's numbers in it: a column for each token, a box for each
// part. Signed numbers are orange above zero and blue below, attention weights are green; the
// stronger the colour, the larger the number. Colours are transparent, so both themes show them.

import { decimals, element, svg } from "../explorables/elements.mjs";
import { norm } from "./model.mjs";
import { WORDS, boxes, outputBox } from "./parts.mjs";

export const ABOVE = [217, 105, 0];
export const BELOW = [30, 100, 235];
const WEIGHT = [0, 140, 120];
const NARROW = 36; // columns: with more, no label fits into its own
const MASKED = [[128, 128, 128], 0.25];

/** Draw an image of so many pixels; `colour(x, y)` is [colour, strength from 0 to 1] or nothing. */
function paint(canvas, width, height, colour) {
  [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(width, height);
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++, at += 4) {
      const [rgb, strength] = colour(x, y) || [ABOVE, 0];
      image.data.set([...rgb, Math.round(255 * Math.min(1, strength))], at);
    }
  }
  pen.putImageData(image, 0, 0);
}

/** The numbers of a vector as a tile, 8 or 16 in a row; `gap` pixels and the next vector follow. */
export function paintVectors(canvas, rows, total, wide = rows[0].length > 200 ? 16 : 8) {
  const high = Math.ceil(rows[0].length / wide);
  const most = Math.max(...rows.map((row) => row.reduce((a, b) => Math.max(a, Math.abs(b)), 0)));
  paint(canvas, total * (wide + 1) - 1, high, (x, y) => {
    const [column, inTile] = [Math.floor(x / (wide + 1)), x % (wide + 1)];
    const number = inTile < wide && rows[column]?.[y * wide + inTile];
    return number && [number > 0 ? ABOVE : BELOW, Math.abs(number) / most];
  });
}

/** Attention weights of one head: a row for each query, a column for each key; grey is masked. */
function paintWeights(canvas, rows, width, height) {
  paint(
    canvas,
    width,
    height,
    (x, y) => rows[y] && (x < rows[y].length ? [WEIGHT, rows[y][x]] : MASKED),
  );
}

export class Picture {
  /**
   * Build the figure of a model into `places`, an element for each side. `choose` is called with
   * the box or head that is clicked, `tokenButton` makes the button of a token.
   */
  constructor(places, config, { choose, tokenButton }) {
    this.config = config;
    this.sides = Object.keys(places);
    this.choose = choose;
    this.tokenButton = tokenButton;
    this.boxes = []; // { side, box, node, stream, canvases }
    this.tokens = {};
    for (const side of this.sides) {
      const nodes = boxes(config, side).map((box) => this.addBox(side, box));
      const tokens = this.addTokens(side);
      const frames = [];
      for (const node of nodes) {
        // the boxes of a layer have one frame
        const { layer } = node.dataset;
        if (layer === undefined) frames.push(node);
        else if (frames.at(-1)?.dataset.of === layer) frames.at(-1).prepend(node);
        else {
          const frame = element("div", { class: "live-layer", "data-of": layer }, node);
          frame.append(
            element(
              "span",
              { class: "live-layer-name", "aria-hidden": true, title: WORDS.layer },
              `layer ${layer}`,
            ),
          );
          frames.push(frame);
        }
      }
      const all = [tokens, ...frames];
      if (side === "decoder") all.push(this.addBox(side, outputBox()));
      places[side].replaceChildren(
        element(
          "p",
          { class: "live-heading", title: WORDS[side] },
          side[0].toUpperCase() + side.slice(1),
        ),
        ...all.reverse(),
      );
    }
  }

  addBox(side, box) {
    const shows = element("div", { class: "live-shows" });
    const canvases = [];
    const heads = box.kind === "attention" ? this.config.num_heads : 1;
    const place = [side, box.layer === undefined ? "" : `layer ${box.layer}`, box.label]
      .filter(Boolean)
      .join(", ");
    for (let head = 0; head < heads; head++) {
      const name = box.kind === "attention" ? `${place}, head ${head}` : place;
      const canvas = element("canvas", { "aria-hidden": true });
      const mark = element("i", { "aria-hidden": true });
      const button = element(
        "button",
        { type: "button", "aria-label": name, "aria-pressed": false, class: `live-${box.kind}` },
        ...(box.kind === "output" ? [] : [canvas, mark]),
      );
      button.addEventListener("click", () => this.choose({ side, box, head }));
      canvases.push({ button, canvas, mark });
      shows.append(button);
    }
    const about = { attention: WORDS.head, inner: WORDS["feed-forward"] }[box.kind];
    const title = box.label.includes("memory") ? WORDS.memory : about;
    const node = element("div", title ? { class: "live-box", title } : { class: "live-box" });
    if (box.layer !== undefined) node.dataset.layer = box.layer;
    const stream = element("span", { class: "live-stream" });
    node.append(element("span", { class: "live-name" }, box.label), stream, shows);
    this.boxes.push({ side, box, node, stream, canvases });
    return node;
  }

  /** What a side reads: a button for each token, and how many of them are in the cache. */
  addTokens(side) {
    const shows = element("div", { class: "live-shows live-tokens" });
    const name = element("span", { class: "live-name", title: WORDS["<bos>"] }, "tokens, ids");
    const cache = element("span", { class: "live-stream", title: WORDS.cache });
    this.tokens[side] = shows;
    if (side === "decoder") this.cache = cache;
    return element("div", { class: "live-box" }, name, cache, shows);
  }

  /** Show all numbers up to the step `cursor` of a translation. */
  show(translation, cursor) {
    const { sourceLabels, sourceIds, readIds } = translation;
    const labels = { encoder: sourceLabels, decoder: readIds.map((id) => translation.label(id)) };
    const ids = { encoder: sourceIds, decoder: readIds };
    this.totals = { encoder: sourceIds.length, decoder: readIds.length };
    this.known = { encoder: sourceIds.length, decoder: cursor + 1 };
    for (const side of this.sides) {
      const place = this.tokens[side];
      if (place.dataset.ids !== `${ids[side]}`) {
        place.dataset.ids = ids[side];
        place.replaceChildren(
          ...labels[side].map((label, index) =>
            this.tokenButton(
              side,
              index,
              `${side} token ${index}: ${label}, id ${ids[side][index]}`,
              label,
              element("small", {}, ` ${ids[side][index]}`),
            ),
          ),
        );
      }
      [...place.children].forEach((button, index) =>
        button.classList.toggle("later", index >= this.known[side]),
      );
      this.tokens[side].style.setProperty("--columns", this.totals[side]);
      this.tokens[side].classList.toggle("live-narrow", this.totals[side] > NARROW);
    }
    this.cache.textContent = `${cursor} in cache`;
    for (const { side, box, stream, canvases } of this.boxes) {
      const known = (name) => translation.rows(name).slice(0, this.known[side]);
      if (box.kind === "output") {
        const written = translation.ids.map((id, index) =>
          element("span", { class: index <= cursor ? "" : "later" }, translation.label(id)),
        );
        canvases[0].button.replaceChildren(...written);
        canvases[0].button.style.setProperty("--columns", this.totals[side]);
        canvases[0].button.classList.toggle("live-narrow", this.totals[side] > NARROW);
        continue;
      }
      const rows = known(box.shows);
      if (box.kind === "attention") {
        const keys = box.key.endsWith("cross_attention") ? this.totals.encoder : this.totals[side];
        canvases.forEach(({ canvas }, head) =>
          paintWeights(
            canvas,
            rows.map((heads) => heads[head]),
            keys,
            this.totals[side],
          ),
        );
      } else {
        paintVectors(canvases[0].canvas, rows, this.totals[side]);
      }
      stream.lengths = box.stream && known(box.stream).map(norm);
    }
    this.nodes = [
      ...this.boxes.flatMap(({ canvases }) => canvases.map(({ button }) => button)),
      ...this.sides.flatMap((side) => [...this.tokens[side].children]),
    ];
  }

  /** Mark the tokens that are looked at, and what is chosen. */
  mark(at, chosen) {
    for (const { side, box, stream, canvases } of this.boxes) {
      const share = 100 / this.totals[side];
      canvases.forEach(({ button, mark }, head) => {
        const isChosen =
          chosen.box.key === box.key && (box.kind !== "attention" || chosen.head === head);
        button.setAttribute("aria-pressed", isChosen);
        const [start, size] = box.kind === "attention" ? ["top", "height"] : ["left", "width"];
        mark.style = `${start}: ${share * at[side]}%; ${size}: ${share}%`;
      });
      if (box.kind === "output")
        [...canvases[0].button.children].forEach((span, index) =>
          span.classList.toggle("now", index === at[side]),
        );
      if (stream.lengths) {
        const length = stream.lengths[at[side]];
        stream.textContent = decimals(length, 1);
        stream.title = WORDS["residual stream"];
        stream.style.setProperty("--share", `${Math.min(100, length / 2)}%`);
      }
    }
    for (const side of this.sides) {
      [...this.tokens[side].children].forEach((button, index) => {
        button.setAttribute("aria-pressed", index === at[side]);
        button.classList.toggle("pinned", side === "encoder" && index === at.pinned);
      });
    }
    const current = this.boxes.find(({ box }) => box.key === chosen.box.key)?.canvases[
      chosen.box.kind === "attention" ? chosen.head : 0
    ].button;
    const focused = this.nodes.includes(document.activeElement) ? document.activeElement : current;
    for (const node of this.nodes) node.tabIndex = node === focused ? 0 : -1;
  }

  /** Move from a part to the nearest one in the direction of an arrow key, or to a row's ends. */
  move(key) {
    const { parentElement } = document.activeElement;
    const row = this.nodes.filter(
      (node) => node.parentElement === parentElement && !node.matches(".later"),
    );
    const end = { Home: row[0], End: row.at(-1) }[key];
    if (end) return this.focus(end);
    const from = document.activeElement.getBoundingClientRect();
    const middle = (box) => [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    const [x0, y0] = middle(from);
    let best;
    for (const node of this.nodes) {
      if (node === document.activeElement || node.matches(".later")) continue;
      const box = node.getBoundingClientRect();
      const [x, y] = middle(box);
      const along = {
        ArrowUp: from.top - box.bottom,
        ArrowDown: box.top - from.bottom,
        ArrowLeft: from.left - box.right,
        ArrowRight: box.left - from.right,
      }[key];
      if (along < -2) continue;
      const aside = key === "ArrowUp" || key === "ArrowDown" ? Math.abs(x - x0) : Math.abs(y - y0);
      const cost = along + 3 * aside;
      if (!best || cost < best.cost) best = { node, cost };
    }
    if (best) this.focus(best.node);
  }

  focus(node) {
    for (const other of this.nodes) other.tabIndex = other === node ? 0 : -1;
    node.focus();
  }

  /** Draw the ways between the boxes: up each stream, and from the encoder into cross-attention. */
  drawFlow(drawing) {
    const base = drawing.parentElement.getBoundingClientRect();
    const memory = this.boxes.filter(({ side }) => side === "encoder").at(-1);
    const crossings = this.boxes.filter(({ box }) => box.key?.endsWith("cross_attention"));
    drawing.setAttribute("viewBox", `0 0 ${base.width} ${base.height}`);
    if (!memory || !crossings.length) return drawing.replaceChildren();
    const from = memory.node.getBoundingClientRect();
    const [x0, y0] = [from.right - base.left, from.top - base.top + from.height / 2];
    drawing.replaceChildren(
      ...crossings.map(({ node }) => {
        const to = node.getBoundingClientRect();
        const [x, y] = [to.left - base.left, to.top - base.top + to.height / 2];
        const middle = (x0 + x) / 2;
        return svg("path", { d: `M ${x0} ${y0} H ${middle} V ${y} H ${x}` });
      }),
    );
  }
}

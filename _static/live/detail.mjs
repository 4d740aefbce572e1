// What is chosen in the picture, in words and in numbers: the steps of its computation, one entry
// of the chosen step with its formula, the package's line of code, and the chapter that builds it.

import { decimals, element, slider } from "../explorables/elements.mjs";
import { percent } from "./bars.mjs";
import { explain } from "./formulas.mjs";
import { norm } from "./model.mjs";
import { WORDS } from "./parts.mjs";
import { ABOVE, BELOW, paintVectors } from "./picture.mjs";
import { refill, rove } from "./roving.mjs";

export class Detail {
  constructor(place, choose) {
    this.choose = choose; // called with the step, head, key or component that is picked
    this.title = element("p", { id: "live-detail-title", class: "live-heading" });
    this.words = element("p", { class: "live-in-words", role: "status" });
    this.steps = element("div", {
      class: "live-steps",
      role: "group",
      "aria-label": "Steps of the computation",
    });
    this.keys = element("ol", { class: "live-keys", start: 0 });
    for (const list of [this.steps, this.keys]) rove(list);
    this.says = element("p", { class: "live-says" });
    this.numbers = element("div", { class: "live-numbers" });
    this.formula = element("div", { class: "live-formula" });
    this.entry = slider("component", { min: 0, max: 127, value: 0 }, () =>
      choose({ entry: this.entry.value }),
    );
    this.entry.node.title = WORDS.component;
    place.setAttribute("aria-labelledby", "live-detail-title");
    const said = element("div", { class: "live-said" }, this.title, this.words);
    place.replaceChildren(said, this.steps, this.says, this.numbers, this.formula);
  }

  /**
   * `at` are the tokens looked at on each side; `chosen` has a side, a box, a step, and maybe a
   * head, a key of self-attention and an entry of a vector.
   */
  show(translation, at, chosen) {
    const { side, box, head } = chosen;
    const step = box.steps[Math.min(chosen.step, box.steps.length - 1)];
    const where = step.of ?? side; // keys and values of cross-attention come from the encoder
    const rows = (name) => translation.rows(name);
    const i = at[where];
    this.title.textContent = titleOf(chosen);
    this.words.textContent = inWords(translation, at, chosen);
    this.showSteps(box, step);
    this.says.textContent = step.says;
    const row = rows(step.name)[i];
    const keys = step.byKey && row[head];
    const written = step.byToken ? translation.ids[i] : 0;
    const start = step.ofHead ? startOf(translation.model, row, head) : written;
    const entry = keys ? 0 : Math.min(chosen.entry ?? start, row.length - 1);
    const picked = isCross(box) ? at.encoder : (chosen.key ?? largest(keys || [0]));
    const key = keys && Math.min(picked, keys.length - 1);
    if (keys) this.showKeys(translation, step, keys, key, box, at.newest);
    else this.showVector(translation, step, where, i, row, entry);
    const ids = where === "encoder" ? translation.sourceIds : translation.readIds;
    const { formula, numbers, value } = explain(step, translation.model, rows, {
      i,
      j: entry,
      head,
      key,
      id: ids[i],
    });
    const [chapter, number] = step.chapter;
    this.formula.replaceChildren(
      element("p", { class: "live-equation" }, formula),
      element("p", { class: "live-equation" }, `= ${numbers}`),
      element(
        "p",
        { class: "live-equation", "data-value": value },
        element("strong", {}, `= ${decimals(value, 4)}`),
      ),
      ...step.code.map((line) => element("p", {}, element("code", {}, line))),
      element("p", {}, this.link(`${chapter}.html`, `Chapter ${number} builds this`)),
    );
  }

  /** A link to a chapter; the name alone where the book is not beside this page. */
  link(href, name) {
    return document.getElementById("live-app").dataset.model
      ? `${name}.`
      : element("a", { href }, name);
  }

  showSteps(box, current) {
    refill(
      this.steps,
      ...box.steps.map((step, index) => {
        const button = element(
          "button",
          { type: "button", "aria-pressed": step === current },
          step.label,
        );
        button.addEventListener("click", () => this.choose({ step: index }));
        return button;
      }),
    );
  }

  /** The scores or weights of one query, a bar for each key; signed bars start at a zero line. */
  showKeys(translation, step, numbers, chosen, box, newest) {
    const source = isCross(box) || box.key.startsWith("encoder") ? "encoder" : "decoder";
    const labels = labelsOf(translation, source);
    const isWeight = step.formula === "weight";
    const [least, most] = isWeight ? [0, 1] : [Math.min(0, ...numbers), Math.max(0, ...numbers)];
    const share = (number) => (100 * number) / (most - least || 1);
    const bar = (number) =>
      element("span", {
        class: isWeight ? "live-bar" : "live-bar live-signed",
        style:
          `--own: 0%; --drawn: ${share(Math.abs(number))}%; --zero: ${share(-least)}%; ` +
          `--from: ${share(Math.min(number, 0) - least)}%; ` +
          `--sign: rgb(${number < 0 ? BELOW : ABOVE})`,
      });
    const hidden = labels.slice(numbers.length, source === "decoder" ? newest + 1 : 0);
    if (!this.keys.isConnected) this.numbers.replaceChildren(this.keys);
    refill(
      this.keys,
      ...Array.from(numbers, (number, key) => {
        const text = isWeight ? percent(number) : decimals(number, 2);
        const button = element(
          "button",
          {
            type: "button",
            "aria-pressed": key === chosen,
            "aria-label": `${labels[key]}: ${text}`,
            "data-number": number,
          },
          element("span", { class: "live-bar-name" }, labels[key]),
          bar(number),
          element("span", { class: "live-bar-share" }, text),
        );
        button.addEventListener("click", () => this.choose({ key }));
        return element("li", {}, button);
      }),
      ...hidden.map((label) =>
        element(
          "li",
          { class: "live-rest", title: WORDS.mask },
          element("span", { class: "live-bar-name" }, label),
          element("span", {}, "hidden by the mask"),
          element("span", { class: "live-bar-share" }, "0\u00a0%"),
        ),
      ),
    );
    const { offsetTop: top, offsetHeight: height } = this.keys.children[chosen];
    const { scrollTop, clientHeight } = this.keys;
    if (top < scrollTop || top + height > scrollTop + clientHeight)
      this.keys.scrollTop = top - (clientHeight - height) / 2; // the chosen key is seen
  }

  /** A vector as a tile, with one entry that can be chosen. */
  showVector(translation, step, where, i, row, entry) {
    const wide = row.length > 200 ? 32 : 16;
    const canvas = element("canvas", { "aria-hidden": true });
    paintVectors(canvas, [row], 1, wide);
    const high = Math.ceil(row.length / wide);
    const mark = element("i", { "aria-hidden": true });
    const place = {
      left: (entry % wide) / wide,
      top: Math.floor(entry / wide) / high,
      width: 1 / wide,
      height: 1 / high,
    };
    for (const [name, share] of Object.entries(place)) mark.style[name] = `${100 * share}%`;
    const tile = element("div", { class: "live-tile" }, canvas, mark);
    tile.addEventListener("click", ({ clientX, clientY }) => {
      const box = canvas.getBoundingClientRect();
      const pixel = (share, size) => Math.min(size - 1, Math.max(0, Math.floor(share * size)));
      const picked =
        pixel((clientY - box.top) / box.height, high) * wide +
        pixel((clientX - box.left) / box.width, wide);
      this.choose({ entry: Math.min(picked, row.length - 1) });
    });
    this.entry.input.max = row.length - 1;
    this.entry.value = entry;
    const label = labelsOf(translation, where)[i];
    const at = step.byToken
      ? `Framed: “${translation.label(entry)}” after “${label}”`
      : `“${label}”`;
    const [least, most] = [Math.min(...row), Math.max(...row)].map((number) => decimals(number, 2));
    const length = decimals(norm(row), 1);
    const caption = `${at}: ${row.length} numbers, from ${least} to ${most}; length ${length}`;
    const focused = document.activeElement === this.entry.input;
    this.numbers.replaceChildren(
      tile,
      element("p", { class: "live-caption" }, caption),
      this.entry.node,
    );
    if (focused) this.entry.input.focus();
  }
}

/** The first component that belongs to a head; several heads may share keys and values. */
function startOf({ config, d_k: width }, row, head) {
  return Math.floor((head * (row.length / width)) / config.num_heads) * width;
}

export const isCross = ({ key }) => key.endsWith("cross_attention");
export const largest = (numbers) => numbers.indexOf(Math.max(...numbers));

/** What each token is called on a side: the words of the source, what the decoder reads. */
function labelsOf(translation, side) {
  return side === "encoder"
    ? translation.sourceLabels
    : translation.readIds.map((id) => translation.label(id));
}

export function titleOf({ side, box, head }) {
  const layer = box.layer === undefined ? "" : ` layer ${box.layer}`;
  const name = box.kind === "attention" ? `${box.label}, head ${head}` : box.label;
  return `${side[0].toUpperCase()}${side.slice(1)}${layer}: ${name}`;
}

/** A sentence about the token that is looked at, in the chosen box. */
export function inWords(translation, at, { side, box, head }) {
  const label = labelsOf(translation, side)[at[side]];
  const row = (name) => translation.rows(name)[at[side]];
  const grows = box.stream
    ? ` After it, the residual stream has length ${decimals(norm(row(box.stream)), 1)}.`
    : "";
  if (box.kind === "attention") {
    const source = side === "encoder" || isCross(box) ? "encoder" : "decoder";
    const labels = labelsOf(translation, source);
    const weights = Array.from(row(box.shows)[head], (weight, key) => ({ weight, key }));
    const most = weights
      .sort((a, b) => b.weight - a.weight)
      .slice(0, 3)
      .filter(({ weight }) => weight > 0.02);
    const listed = most.map(({ weight, key }) => `“${labels[key]}” ${percent(weight)}`).join(", ");
    if (side === "encoder") return `“${label}” attends to ${listed}.${grows}`;
    const written = translation.label(translation.ids[at[side]]);
    return `After “${label}”, writing “${written}”, it attends to ${listed}.${grows}`;
  }
  if (box.kind === "inner") {
    const inner = row(box.shows);
    const active = inner.filter((unit) => unit > 0).length;
    return `At “${label}”, ${active} of ${inner.length} inner units are above zero.${grows}`;
  }
  if (box.kind === "output") {
    const id = translation.ids[at[side]];
    const size = row("output_projection").length;
    return `After “${label}” it writes “${translation.label(id)}”, one of ${size} tokens.`;
  }
  return `The vector of “${label}” has ${row(box.shows).length} numbers.${grows}`;
}

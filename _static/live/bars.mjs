// The most probable next tokens as bars, and the settings that change them.

import { decimals, element, select, slider } from "../explorables/elements.mjs";
import { softmax } from "./model.mjs";
import { refill, rove } from "./roving.mjs";
import { nextTokenProbs } from "./sampling.mjs";

const SHOWN = 5;
const ALL = 20; // the slider's end: no token is cut off

/** How each method takes the next token. */
const SAYS = {
  greedy: "The token with the longest bar is written.",
  sample:
    "Drawn from softmax(scores / T): a T below 1 favours probable tokens, above 1 it levels them. " +
    "Top-k keeps the k most probable, top-p the fewest that reach p; what they cut off has 0 %. " +
    "Outlined: at T = 1.",
  beam:
    "The best few beginnings are kept, and each is extended by every token. A larger α favours " +
    "longer texts. The bars are the model’s own probabilities. The tree is below the picture.",
};
const FORCED = "You wrote this token; the model went on from it. Undo takes it back.";

/** A probability in percent, never rounded to 100 or to 0. */
export function percent(share) {
  if (share === 0 || share === 1) return `${100 * share}\u00a0%`;
  if (share > 0.999) return ">\u00a099.9\u00a0%";
  return share < 0.001 ? "<\u00a00.1\u00a0%" : `${decimals(100 * share, 1)}\u00a0%`;
}

export class Bars {
  /**
   * `changed` is called with "method" or "setting" when the reader changes one, `take` with the
   * token whose bar is pressed.
   */
  constructor(place, { changed, take }) {
    this.take = take;
    const methods = { greedy: "most probable", sample: "at random", beam: "beam search" };
    this.method = select("next token", methods, () => changed("method"));
    const moved = () => changed("setting");
    this.temperature = slider(
      "temperature T",
      { min: 0.1, max: 2, step: 0.1, value: 1, write: (v) => decimals(v, 1) },
      moved,
    );
    this.topK = slider(
      "top-k",
      { min: 1, max: ALL, value: ALL, write: (v) => (v === ALL ? "all" : `${v}`) },
      moved,
    );
    this.topP = slider(
      "top-p",
      { min: 0.05, max: 1, step: 0.05, value: 1, write: (v) => decimals(v, 2) },
      moved,
    );
    this.width = slider("beams", { min: 2, max: 5, value: 3 }, moved);
    this.alpha = slider(
      "length penalty α",
      { min: 0, max: 2, step: 0.1, value: 0.6, write: (v) => decimals(v, 1) },
      moved,
    );
    this.again = element("button", { type: "button" }, "Draw again");
    this.again.addEventListener("click", () => changed("again"));
    this.of = {
      greedy: [],
      sample: [{ node: this.again }, this.temperature, this.topK, this.topP],
      beam: [this.width, this.alpha],
    };
    const settings = Object.values(this.of).flatMap((controls) => controls.map((c) => c.node));
    this.settings = element("div", { class: "live-settings" }, this.method.node, ...settings);
    this.says = element("p", { class: "live-says" });
    this.heading = element("p", { class: "live-heading" });
    this.list = element("ol", { class: "live-bars" });
    rove(this.list);
    place.replaceChildren(this.heading, this.list, this.settings, this.says);
    this.arrange();
  }

  /** Set what is given, the rest as at first. */
  preset({ method = "greedy", temperature = 1, topP = 1 }) {
    this.method.input.value = method;
    [this.temperature.value, this.topK.value, this.topP.value] = [temperature, ALL, topP];
    this.arrange();
  }

  /** The settings of the chosen method alone. They stay where they are: one may be held. */
  arrange() {
    for (const [method, controls] of Object.entries(this.of))
      for (const { node } of controls) node.hidden = method !== this.method.input.value;
    this.says.textContent = SAYS[this.method.input.value];
  }

  /** The distribution that a token is drawn from; the model's own where none is drawn. */
  probs(scores) {
    if (this.method.input.value !== "sample") return softmax(scores);
    const topK = this.topK.value === ALL ? Infinity : this.topK.value;
    const settings = { temperature: this.temperature.value, topK, topP: this.topP.value };
    return nextTokenProbs(scores, settings);
  }

  /**
   * Show the most probable tokens of a step, as the model has them and as they are drawn;
   * `isForced` if the reader wrote the token of this step.
   */
  show(translation, cursor, isForced) {
    const scores = translation.scores[cursor];
    const [own, drawn] = [softmax(scores), this.probs(scores)];
    const order = Array.from(own.keys())
      .sort((a, b) => own[b] - own[a])
      .slice(0, SHOWN);
    if (!order.includes(translation.ids[cursor])) order[SHOWN - 1] = translation.ids[cursor];
    const before = translation.text(cursor);
    const end = before.length > 21 ? `… ${before.slice(-19).trim()}` : before;
    this.heading.textContent = before ? `After “${end}”` : "At the beginning";
    this.arrange();
    if (isForced) this.says.textContent = FORCED;
    const others = 1 - order.reduce((sum, id) => sum + drawn[id], 0);
    refill(
      this.list,
      ...order.map((id) => {
        const label = translation.label(id);
        const isTaken = id === translation.ids[cursor];
        const button = element(
          "button",
          {
            type: "button",
            "aria-pressed": isTaken,
            "aria-label": `${label}: ${percent(drawn[id])}; write it here`,
            "data-probability": drawn[id],
          },
          element("span", { class: "live-bar-name" }, label),
          element("span", {
            class: "live-bar",
            style: `--own: ${100 * own[id]}%; --drawn: ${100 * drawn[id]}%`,
          }),
          element("span", { class: "live-bar-share" }, percent(drawn[id])),
        );
        button.addEventListener("click", () => this.take(id));
        return element("li", {}, button);
      }),
      element(
        "li",
        { class: "live-rest" },
        element("span", { class: "live-bar-name" }, "all others"),
        element("span", {
          class: "live-bar",
          style: `--own: 0%; --drawn: ${100 * Math.max(0, others)}%`,
        }),
        element("span", { class: "live-bar-share" }, percent(others > 1e-9 ? others : 0)),
      ),
    );
  }
}

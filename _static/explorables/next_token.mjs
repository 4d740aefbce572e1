// Chapter 10: what temperature, top-k, top-p and min-p make of a real model's next token.
//
// next_token.json holds, as `tools/export_explorables.py` recorded them, some texts, and for each
// the log-probabilities of all tokens that may follow, the highest first, with the first tokens.

import { data, decimals, element, fill, select, slider } from "./elements.mjs";

const TOP_K = [1, 2, 3, 5, 10, 20, 50, 100, 200, 500, Infinity];
const OFF = { topK: Infinity, topP: 1, minP: 0 };

/** Probabilities of the tokens that no cut has taken; of the others 0. */
function softmax(logits, cutBy) {
  const powers = logits.map((logit, i) => (cutBy[i] ? 0 : Math.exp(logit))); // the highest is 0
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

/**
 * The distribution to draw from, as the package's `next_token_probs` makes it, of log-probabilities
 * that fall; and for each token the name of what cuts it off, or "".
 */
export function nextToken(logProbs, { temperature = 1, topK = Infinity, topP = 1, minP = 0 }) {
  const logits = logProbs.map((logProb) => (logProb - logProbs[0]) / temperature);
  const cutBy = logits.map(() => "");
  const cut = (name, drops) => {
    logits.forEach((logit, i) => {
      if (!cutBy[i] && drops(logit, i)) cutBy[i] = name;
    });
  };
  const edge = logits[Math.min(topK, logits.length) - 1];
  cut("top-k", (logit) => logit < edge);
  const probs = softmax(logits, cutBy);
  let reached = 0; // the sum before a token decides, so the token that passes p is kept
  cut("top-p", (_, i) => {
    const drops = topP < 1 && reached >= topP;
    reached += probs[i];
    return drops;
  });
  cut("min-p", (logit) => logit < Math.log(minP));
  return { probs: softmax(logits, cutBy), cutBy };
}

const percent = (share) =>
  share > 0 && share < 0.001 ? "< 0.1 %" : `${decimals(100 * share, 1)} %`;

/** A token in quotes, with its spaces and line breaks to be seen. */
const name = (token) => `“${token.replaceAll("\n", "↵").replaceAll(" ", "␣")}”`;

export async function mount(place) {
  const texts = await data("next_token.json");
  const options = Object.fromEntries(texts.map(({ prompt }, index) => [index, `${prompt} …`]));
  const text = select("text", options, draw);
  const share = (value) => decimals(value, 2);
  const temperature = slider(
    "temperature",
    { min: 0.1, max: 2, step: 0.1, value: 1, write: (value) => decimals(value, 1) },
    draw,
  );
  const last = TOP_K.length - 1;
  const topK = slider(
    "top-k",
    { min: 0, max: last, value: last, write: (at) => (at === last ? "off" : `${TOP_K[at]}`) },
    draw,
  );
  const topP = slider(
    "top-p",
    { min: 0.05, max: 1, step: 0.05, value: 0.9, write: (p) => (p === 1 ? "off" : share(p)) },
    draw,
  );
  const minP = slider(
    "min-p",
    { min: 0, max: 0.5, step: 0.02, value: 0, write: (m) => (m === 0 ? "off" : share(m)) },
    draw,
  );
  const controls = [text, temperature, topK, topP, minP].map((control) => control.node);
  const { sentence, view } = fill(place, "The next token, reshaped and cut", controls);

  function draw() {
    const { tokens, log_probs: logProbs } = texts[text.input.value];
    const settings = {
      temperature: temperature.value,
      topK: TOP_K[topK.value],
      topP: topP.value,
      minP: minP.value,
    };
    const before = nextToken(logProbs, OFF).probs;
    const { probs: after, cutBy } = nextToken(logProbs, settings);
    const kept = cutBy.filter((cut) => !cut).length;
    const cuts = ["top-k", "top-p", "min-p"].flatMap((cut) => {
      const count = cutBy.filter((by) => by === cut).length;
      return count ? [`${cut} cuts ${count.toLocaleString("en")}`] : [];
    });
    const size = logProbs.length.toLocaleString("en");
    sentence.textContent =
      (kept === 1
        ? `1 of ${size} tokens is left: the draw always gives ${name(tokens[0])}.`
        : `${kept.toLocaleString("en")} of ${size} tokens can be drawn. The first, ` +
          `${name(tokens[0])}, has ${percent(after[0])} instead of ${percent(before[0])}.`) +
      (cuts.length ? ` Of the others, ${cuts.join(", ")}.` : " Nothing is cut off.");

    const longest = Math.max(before[0], after[0]);
    const bar = (share, kind) =>
      element("div", { class: kind, style: `width: ${(100 * share) / longest}%` });
    const line = (heading, was, is, cut, bars = [bar(was, "before"), cut ? "" : bar(is, "")]) => {
      return element(
        "tr",
        cut ? { class: "cut" } : {},
        element("th", { scope: "row" }, heading),
        element("td", {}, percent(was)),
        element("td", {}, cut || percent(is)),
        element("td", { class: "bar" }, ...bars),
      );
    };
    const rows = tokens.map((token, i) => line(name(token), before[i], after[i], cutBy[i]));
    const rest = (probs) => probs.slice(tokens.length).reduce((sum, prob) => sum + prob, 0);
    const count = (logProbs.length - tokens.length).toLocaleString("en");
    const foot = element("tfoot", {}, line(`${count} others`, rest(before), rest(after), "", []));
    const names = ["before", "after"].map((each) => element("th", { scope: "col" }, each));
    const head = element("tr", {}, element("td"), ...names, element("td"));
    view.replaceChildren(
      element(
        "table",
        { class: "bars" },
        element("thead", {}, head),
        element("tbody", {}, ...rows),
        foot,
      ),
      element("p", {}, "Frame: what the model says. Filled: what is drawn from."),
    );
  }

  draw();
}

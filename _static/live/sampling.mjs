// From scores to the next token, as in chapter 10: temperature, then top-k, then top-p.

import { softmax } from "./model.mjs";

/** The distribution to draw from: softmax(scores / temperature), cut off. */
export function nextTokenProbs(scores, { temperature = 1, topK = Infinity, topP = 1 }) {
  const highest = Math.max(...scores);
  let logits = Float64Array.from(scores, (score) => (score - highest) / temperature);
  if (topK < logits.length) {
    const edge = Float64Array.from(logits).sort()[logits.length - topK];
    logits = logits.map((logit) => (logit < edge ? -Infinity : logit));
  }
  if (topP < 1) {
    const probs = softmax(logits);
    let before = 0; // the sum before a token decides, so the token that passes p is kept
    const order = Array.from(probs.keys()).sort((a, b) => probs[b] - probs[a] || a - b);
    for (const id of order) {
      if (before >= topP) logits[id] = -Infinity;
      before += probs[id];
    }
  }
  return softmax(logits);
}

/** The token with the highest score. */
export const greedy = (scores) => scores.indexOf(Math.max(...scores));

/** Draw a token: `random` gives numbers from 0 to 1. */
export function draw(probs, random) {
  let left = random();
  for (let id = 0; id < probs.length; id++) {
    left -= probs[id];
    if (left < 0) return id;
  }
  return greedy(probs);
}

/** Numbers from 0 to 1 that a seed decides (mulberry32). */
export function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

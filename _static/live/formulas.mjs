// One entry of one step with its numbers put in: the formula, the numbers, and the result.

import { decimals } from "../explorables/elements.mjs";
import { ACTIVATIONS, dot, moments, slopes } from "./model.mjs";

const SHOWN = 3; // products of a long sum that are written out

const n = (number) => decimals(number, Math.abs(number) < 0.095 && number !== 0 ? 3 : 2);
const signed = (number) => (number < 0 ? `(${n(number)})` : n(number));
const times = (a, b) => `${signed(a)} · ${signed(b)}`;

/** The first products of x · y, and how many follow. */
function products(x, y) {
  const shown = Array.from(x.slice(0, SHOWN), (number, i) => times(number, y[i])).join(" + ");
  return x.length > SHOWN ? `${shown} + … (${x.length} products)` : shown;
}

/**
 * The formula of a step for the position i, the component j and, in attention, a head and a key.
 *
 * `rows(name)` are the trace's rows. Returned are `formula` and `numbers` as text, and `value`,
 * computed here from what goes in: it is the number that the trace has.
 */
export function explain(step, model, rows, { i, j, head, key, id }) {
  const { config, tensors, d_k } = model;
  const x = step.from && rows(step.from)[i];
  const bias = step.weights && tensors[`${step.weights}.bias`]?.data[j];
  const linear = (name) => {
    const row = tensors[`${name}.weight`].data.subarray(j * x.length, (j + 1) * x.length);
    const added = tensors[`${name}.bias`]?.data[j];
    return {
      formula: `y${sub(j)} = x · W${sub(j)}${added === undefined ? "" : ` + b${sub(j)}`}`,
      numbers: products(x, row) + (added === undefined ? "" : ` + ${signed(added)}`),
      value: dot(x, row) + (added ?? 0),
    };
  };
  const attended = (head) => {
    const group = config.num_heads / (config.num_kv_heads ?? config.num_heads);
    const part = (row, at) => row.subarray(at * d_k, (at + 1) * d_k);
    return {
      query: part(rows(`${step.owner}.queries`)[i], head),
      keys: rows(`${step.owner}.keys`).map((row) => part(row, Math.floor(head / group))),
      values: rows(`${step.owner}.values`).map((row) => part(row, Math.floor(head / group))),
      scores: rows(`${step.owner}.scores`)[i][head],
      weights: rows(`${step.owner}.weights`)[i][head],
    };
  };
  switch (step.formula) {
    case "embedding": {
      const entry = tensors[`${step.name}.weight`].data[id * config.d_model + j];
      const scale = config.embedding_scale ?? Math.sqrt(config.d_model);
      return {
        formula: `x${sub(j)} = √d · E[id ${id}]${sub(j)}`,
        numbers: `${n(scale)} · ${signed(entry)}`,
        value: scale * entry,
      };
    }
    case "sinusoidal": {
      const rate = 10_000 ** ((j - (j % 2)) / config.d_model);
      const wave = j % 2 ? "cos" : "sin";
      return {
        formula: `p${sub(j)} = ${wave}(position / 10000^(${j - (j % 2)}/d))`,
        numbers: `${wave}(${i} / ${n(rate)})`,
        value: Math[wave](i / rate),
      };
    }
    case "learned":
      return {
        formula: `p${sub(j)} = P[position ${i}]${sub(j)}`,
        numbers: "one of the weights",
        value: tensors["positions.weight"].data[i * config.d_model + j],
      };
    case "sum": {
      const added = rows(step.adds)[i];
      return {
        formula: `y${sub(j)} = x${sub(j)} + f(x)${sub(j)}`,
        numbers: `${n(x[j])} + ${signed(added[j])}`,
        value: x[j] + added[j],
      };
    }
    case "norm": {
      const { mean, variance } = moments(x);
      const shift = signed(bias);
      const gain = tensors[`${step.weights}.weight`].data[j];
      return {
        formula: `y${sub(j)} = γ${sub(j)} (x${sub(j)} − μ) / √(σ² + ε) + β${sub(j)}`,
        numbers: `${n(gain)} · (${n(x[j])} − ${signed(mean)}) / √(${n(variance)} + ε) + ${shift}`,
        value: (gain * (x[j] - mean)) / Math.sqrt(variance + config.eps) + bias,
      };
    }
    case "rmsNorm": {
      const square = dot(x, x) / x.length;
      const gain = tensors[`${step.weights}.weight`].data[j];
      return {
        formula: `y${sub(j)} = γ${sub(j)} x${sub(j)} / √(mean of x² + ε)`,
        numbers: `${n(gain)} · ${signed(x[j])} / √(${n(square)} + ε)`,
        value: (gain * x[j]) / Math.sqrt(square + config.eps),
      };
    }
    case "rotary": {
      const [inHead, start] = [j % d_k, j - (j % d_k)];
      const interleaved = config.rotary_layout === "interleaved";
      const pair = interleaved ? Math.floor(inHead / 2) : inHead % (d_k / 2);
      const first = start + (interleaved ? 2 * pair : pair);
      const second = interleaved ? first + 1 : first + d_k / 2;
      const angle = i * config.rotary_base ** ((-2 * pair) / d_k);
      const [a, b] = [x[first], x[second]];
      const isFirst = j === first;
      const turned = isFirst
        ? `y${sub(j)} = x${sub(first)} cos α − x${sub(second)} sin α`
        : `y${sub(j)} = x${sub(first)} sin α + x${sub(second)} cos α`;
      return {
        formula: `${turned}, α = ${i} · ${config.rotary_base}^(−${2 * pair}/${d_k})`,
        numbers: isFirst
          ? `${signed(a)} cos ${n(angle)} − ${signed(b)} sin ${n(angle)}`
          : `${signed(a)} sin ${n(angle)} + ${signed(b)} cos ${n(angle)}`,
        value: isFirst
          ? a * Math.cos(angle) - b * Math.sin(angle)
          : a * Math.sin(angle) + b * Math.cos(angle),
      };
    }
    case "score": {
      const { query, keys } = attended(head);
      const biased =
        config.positional_encoding === "alibi" && step.owner.endsWith("self_attention");
      const slope = biased ? slopes(config.num_heads)[head] : 0;
      return {
        formula: `score = q · k / √(width of a head)${biased ? " − slope · distance" : ""}`,
        numbers: `(${products(query, keys[key])}) / √${d_k}`,
        value: dot(query, keys[key]) / Math.sqrt(d_k) - slope * Math.abs(i - key),
      };
    }
    case "weight": {
      const { scores } = attended(head);
      const powers = Array.from(scores, Math.exp);
      const power = (score) => `exp(${n(score)})`;
      const shown = Array.from(scores.slice(0, SHOWN), power);
      const more = scores.length > SHOWN ? " + …" : "";
      return {
        formula: "weight = exp(score) / sum of exp(score) over all keys",
        numbers: `${power(scores[key])} / (${shown.join(" + ")}${more})`,
        value: powers[key] / powers.reduce((a, b) => a + b),
      };
    }
    case "probability": {
      const highest = Math.max(...x);
      const powers = Array.from(x, (score) => Math.exp(score - highest));
      return {
        formula: "p = exp(score) / sum of exp(score) over all tokens",
        numbers: `exp(${n(x[j])}) / (exp(${n(highest)}) + … (${x.length} tokens))`,
        value: powers[j] / powers.reduce((a, b) => a + b),
      };
    }
    case "weighted": {
      const own = Math.floor(j / d_k);
      const { values, weights } = attended(own);
      const column = Array.from(weights, (_, k) => values[k][j % d_k]);
      return {
        formula: `y${sub(j)} = weights of head ${own} · values${sub(j % d_k)}`,
        numbers: products(weights, column),
        value: dot(weights, column),
      };
    }
    case "inner": {
      const { value: before } = linear(step.weights);
      const gate = step.gate ? linear(step.gate).value : 1;
      const kind = config.activation;
      const active = kind === "relu" ? `max(0, ${n(before)})` : `${kind}(${n(before)})`;
      return {
        formula: `h${sub(j)} = ${kind}(x · W${sub(j)} + b)${step.gate ? " · gate" : ""}`,
        numbers: step.gate ? `${active} · ${signed(gate)}` : active,
        value: ACTIVATIONS[kind](before) * gate,
      };
    }
    default:
      return linear(step.weights);
  }
}

/** A small index, as in x₁₂. */
const sub = (number) => [...String(number)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]).join("");

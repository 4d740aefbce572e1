// A Transformer in plain JavaScript: what the package computes, with every number kept.
//
// A matrix is an array of rows, one Float32Array for each position. All that is computed goes into
// a trace, under the name of the module that makes it in the package, such as
// "decoder.layers.1.cross_attention.w_q". The keys and values in a decoder's trace are its cache:
// another token adds one row to each.

/** The tensors of a safetensors file: an 8-byte length, a JSON header, and the numbers. */
export function readTensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  delete header.__metadata__;
  const tensors = {};
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [start, end],
    },
  ] of Object.entries(header)) {
    if (!(dtype in NUMBERS)) throw new Error(`${name} has dtype ${dtype}, expected F32 or F16`);
    tensors[name] = {
      shape,
      data: NUMBERS[dtype](buffer.slice(8 + length + start, 8 + length + end)),
    };
  }
  return tensors;
}

const NUMBERS = {
  F32: (bytes) => new Float32Array(bytes),
  F16: (bytes) => {
    const halves = new Uint16Array(bytes);
    const numbers = new Float32Array(halves.length);
    for (let i = 0; i < halves.length; i++) numbers[i] = HALF[halves[i]];
    return numbers;
  },
};

/** The number that 16 bits stand for: a sign, 5 bits of exponent, 10 bits of fraction. */
function float16(bits) {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

const HALF = Float32Array.from({ length: 2 ** 16 }, (_, bits) => float16(bits));

// --- the mathematics ---------------------------------------------------------------------------

export function dot(x, y) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] * y[i];
  return sum;
}

export const norm = (x) => Math.sqrt(dot(x, x));

const add = (x, y) => x.map((number, i) => number + y[i]);

/** exp(z) over the sum of all; the greatest is subtracted first, so that nothing overflows. */
export function softmax(scores) {
  const highest = Math.max(...scores);
  const powers = Float64Array.from(scores, (score) => Math.exp(score - highest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

/** Mean and variance of a vector. */
export function moments(x) {
  const mean = x.reduce((a, b) => a + b, 0) / x.length;
  return { mean, variance: x.reduce((sum, number) => sum + (number - mean) ** 2, 0) / x.length };
}

/** Φ(x), the share of the normal distribution below x (Abramowitz & Stegun, 7.1.26). */
function normalShare(x) {
  const z = Math.abs(x) / Math.SQRT2;
  const t = 1 / (1 + 0.3275911 * z);
  const factors = [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592];
  const tail = (factors.reduce((sum, factor) => (sum + factor) * t, 0) * Math.exp(-z * z)) / 2;
  return x > 0 ? 1 - tail : tail;
}

const silu = (x) => x / (1 + Math.exp(-x));
const gelu = (x) => x * normalShare(x);
const geluTanh = (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const relu = (x) => Math.max(0, x);
export const ACTIVATIONS = {
  relu,
  gelu,
  gelu_tanh: geluTanh,
  silu,
  reglu: relu,
  geglu: gelu,
  geglu_tanh: geluTanh,
  swiglu: silu,
};

/** Sines and cosines of a position: PE(pos, 2i) = sin(pos / 10000^(2i/d)), 2i + 1 the cosine. */
function sinusoidal(position, d) {
  return Float32Array.from({ length: d }, (_, i) => {
    const angle = position / 10_000 ** ((i - (i % 2)) / d);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

/** Rotate each head's pairs of components by the position's angles. */
function rotate(x, position, { d_k, base, interleaved }) {
  const rotated = Float32Array.from(x);
  for (let start = 0; start < x.length; start += d_k) {
    for (let pair = 0; pair < d_k / 2; pair++) {
      const a = start + (interleaved ? 2 * pair : pair);
      const b = interleaved ? a + 1 : a + d_k / 2;
      const angle = position * base ** ((-2 * pair) / d_k);
      const [sin, cos] = [Math.sin(angle), Math.cos(angle)];
      rotated[a] = x[a] * cos - x[b] * sin;
      rotated[b] = x[a] * sin + x[b] * cos;
    }
  }
  return rotated;
}

/** The slope of each head's bias in ALiBi, for a number of heads that may be no power of two. */
export function slopes(heads) {
  const power = 2 ** Math.floor(Math.log2(heads));
  return Array.from({ length: heads }, (_, i) =>
    i < power ? 2 ** ((-8 / power) * (i + 1)) : 2 ** ((-4 / power) * (2 * (i - power) + 1)),
  );
}

// --- the model ---------------------------------------------------------------------------------

export class Model {
  /** `config` is what lies in config.json, `tensors` come from `readTensors`. */
  constructor(config, tensors) {
    this.config = config;
    this.tensors = tensors;
    this.hasEncoder = config.num_encoder_layers > 0;
    this.d_k = config.d_model / config.num_heads;
    this.kvHeads = config.num_kv_heads ?? config.num_heads;
    const embedding = this.hasEncoder ? "tgt_embedding" : "embedding";
    this.embeddings = { encoder: "src_embedding", decoder: embedding };
    tensors[`${embedding}.weight`] ??= tensors["src_embedding.weight"]; // shared
    tensors["output_projection.weight"] ??= tensors[`${embedding}.weight`]; // tied
    this.replaced = {}; // outputs of heads by site and head: { "….self_attention.heads.2": vector }
  }

  /** Read the whole source at once; the trace of the encoder comes back. */
  encode(ids) {
    const trace = {};
    this.stack("encoder", trace, ids, null);
    return trace;
  }

  /**
   * Read more tokens: their rows are added to a trace, {} at first. `memory` is the encoder's
   * trace. The scores of the token that comes next are returned.
   */
  decode(trace, ids, memory) {
    const rows = this.stack("decoder", trace, ids, memory?.encoder);
    const scores = this.linear("output_projection", trace, rows);
    record(trace, "probabilities", scores.map(softmax));
    return scores.at(-1);
  }

  /** Embed tokens, and let all layers of the encoder or the decoder transform them. */
  stack(side, trace, ids, memory) {
    const { config } = this;
    const start = trace[`${side}.input`]?.length ?? 0;
    let rows = this.embed(side, trace, ids, start);
    for (let layer = 0; layer < config[`num_${side}_layers`]; layer++) {
      const name = `${side}.layers.${layer}`;
      let part = 0;
      const residual = (sublayer) => {
        rows = this.residual(`${name}.residual_${(part += 1)}`, trace, rows, sublayer);
      };
      residual((x) => this.attention(`${name}.self_attention`, trace, x, x, start));
      if (memory)
        residual((x) => this.attention(`${name}.cross_attention`, trace, x, memory, start));
      residual((x) => this.feedForward(`${name}.feed_forward`, trace, x));
    }
    if (config.norm_first) rows = this.normalise(`${side}.norm`, trace, rows);
    return record(trace, side, rows);
  }

  /** The vectors of tokens times √d, and their positions if those are added. */
  embed(side, trace, ids, start) {
    const { d_model: d, embedding_scale, positional_encoding: kind } = this.config;
    const name = this.embeddings[side];
    const { data } = this.tensors[`${name}.weight`];
    const scale = embedding_scale ?? Math.sqrt(d);
    const tokens = ids.map((id) =>
      data.slice(id * d, (id + 1) * d).map((number) => number * scale),
    );
    let rows = record(trace, name, tokens);
    if (kind === "sinusoidal" || kind === "learned") {
      const table = this.tensors["positions.weight"]?.data;
      const positions = rows.map((_, i) =>
        kind === "learned"
          ? table.slice((start + i) * d, (start + i + 1) * d)
          : sinusoidal(start + i, d),
      );
      record(trace, `${side}.positions`, positions);
      rows = rows.map((row, i) => add(row, positions[i]));
    }
    return record(trace, `${side}.input`, rows);
  }

  /** Carry x past a sub-layer: pre-norm x + f(Norm(x)), or post-norm Norm(x + f(x)). */
  residual(name, trace, rows, sublayer) {
    if (this.config.norm_first) {
      const changes = sublayer(this.normalise(`${name}.norm`, trace, rows));
      return record(
        trace,
        name,
        rows.map((row, i) => add(row, changes[i])),
      );
    }
    const changes = sublayer(rows);
    const sums = record(
      trace,
      `${name}.sum`,
      rows.map((row, i) => add(row, changes[i])),
    );
    return record(trace, name, this.normalise(`${name}.norm`, trace, sums));
  }

  /** γ (x − μ) / √(σ² + ε) + β, or γ x / √(mean of x² + ε). */
  normalise(name, trace, rows) {
    const weight = this.tensors[`${name}.weight`].data;
    const bias = this.tensors[`${name}.bias`]?.data;
    return record(
      trace,
      name,
      rows.map((x) => {
        const { mean, variance } = bias ? moments(x) : { mean: 0, variance: dot(x, x) / x.length };
        const deviation = Math.sqrt(variance + this.config.eps);
        return x.map((number, i) => (weight[i] * (number - mean)) / deviation + (bias?.[i] ?? 0));
      }),
    );
  }

  /** x Wᵀ + b. */
  linear(name, trace, rows) {
    const {
      data,
      shape: [outputs, inputs],
    } = this.tensors[`${name}.weight`];
    const bias = this.tensors[`${name}.bias`]?.data;
    return record(
      trace,
      name,
      rows.map((x) => {
        const y = new Float32Array(outputs);
        for (let o = 0; o < outputs; o++) {
          let sum = bias ? bias[o] : 0;
          for (let i = 0, at = o * inputs; i < inputs; i++, at++) sum += data[at] * x[i];
          y[o] = sum;
        }
        return y;
      }),
    );
  }

  /** For every head softmax(q·k / √e) over the keys that may be seen, and the sum of values. */
  attention(name, trace, x, source, start) {
    const {
      config: { num_heads, positional_encoding: kind, rotary_base, rotary_layout },
      d_k,
    } = this;
    const cross = name.endsWith("cross_attention");
    const causal = name.startsWith("decoder") && !cross;
    const turn = (rows, first) =>
      cross || kind !== "rotary"
        ? rows
        : rows.map((row, i) =>
            rotate(row, first + i, {
              d_k,
              base: rotary_base,
              interleaved: rotary_layout === "interleaved",
            }),
          );
    const steep = kind === "alibi" && !cross ? slopes(num_heads) : new Array(num_heads).fill(0);

    const queries = record(
      trace,
      `${name}.queries`,
      turn(this.linear(`${name}.w_q`, trace, x), start),
    );
    if (!cross || !trace[`${name}.keys`]) {
      // the memory's are computed once
      record(trace, `${name}.keys`, turn(this.linear(`${name}.w_k`, trace, source), start));
      record(trace, `${name}.values`, this.linear(`${name}.w_v`, trace, source));
    }
    const [keys, values] = [trace[`${name}.keys`], trace[`${name}.values`]];
    const group = num_heads / this.kvHeads; // heads of queries that share keys and values
    const [allScores, allWeights, outputs] = [[], [], []];
    queries.forEach((query, i) => {
      const visible = causal ? start + i + 1 : keys.length;
      const output = new Float32Array(num_heads * d_k);
      const [scores, weights] = [[], []];
      for (let head = 0; head < num_heads; head++) {
        const own = head * d_k;
        const shared = Math.floor(head / group) * d_k;
        const q = query.subarray(own, own + d_k);
        scores.push(
          Float32Array.from(
            { length: visible },
            (_, k) =>
              dot(q, keys[k].subarray(shared, shared + d_k)) / Math.sqrt(d_k) -
              steep[head] * Math.abs(start + i - k),
          ),
        );
        weights.push(Float32Array.from(softmax(scores[head])));
        for (let k = 0; k < visible; k++) {
          for (let j = 0; j < d_k; j++) output[own + j] += weights[head][k] * values[k][shared + j];
        }
        output.set(this.replaced[`${name}.heads.${head}`] ?? [], own);
      }
      allScores.push(scores);
      allWeights.push(weights);
      outputs.push(output);
    });
    record(trace, `${name}.scores`, allScores); // for each position, a row for each head
    record(trace, `${name}.weights`, allWeights);
    return this.linear(`${name}.w_o`, trace, record(trace, `${name}.heads`, outputs));
  }

  /** activation(x W₁ + b₁) W₂ + b₂; gated networks multiply the activation by x W₃. */
  feedForward(name, trace, rows) {
    const activation = ACTIVATIONS[this.config.activation];
    let inner = this.linear(`${name}.w_1`, trace, rows).map((row) => row.map(activation));
    if (this.tensors[`${name}.w_3.weight`]) {
      const gates = this.linear(`${name}.w_3`, trace, rows);
      inner = inner.map((row, i) => row.map((number, j) => number * gates[i][j]));
    }
    return this.linear(`${name}.w_2`, trace, record(trace, `${name}.inner`, inner));
  }
}

/** Add rows to what the trace has under this name. */
function record(trace, name, rows) {
  (trace[name] ??= []).push(...rows);
  return rows;
}

/** A copy of a trace, or of its first rows, that can be added to while this one stays as it is. */
export function copied(trace, rows = Infinity) {
  const isMemory = (name) => /cross_attention\.(w_k|w_v|keys|values)$/.test(name);
  return Object.fromEntries(
    Object.entries(trace).map(([name, all]) => [name, isMemory(name) ? all : all.slice(0, rows)]),
  );
}

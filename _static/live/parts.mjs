// What a model is made of, as the page shows it: boxes from the bottom up, and in each box the
// steps of its computation. Each step names the rows of the trace that it makes, the formula that makes
// them, and the rows and weights that go in.

const CHAPTERS = {
  embedding: ["02_embeddings", 2],
  position: ["03_positional_encoding", 3],
  attention: ["04_attention", 4],
  heads: ["05_multi_head_attention", 5],
  feedForward: ["06_feed_forward", 6],
  norm: ["07_layer_norm", 7],
  output: ["02_embeddings", 2],
  sampling: ["10_inference", 10],
};

/** The line of the package for each formula; a test looks for them there. */
export const CODE = {
  embedding: "return F.embedding(ids, self.weight) * self.scale  # (b, q, d)",
  sinusoidal: "angle = position * torch.exp(-math.log(10_000.0) * even / d_model)",
  learned: "return x + table_rows(self.weight, x, start).to(x.dtype)  # (b, q, d)",
  input: "x = self.positions(x, start)",
  norm: "return (weight * (numbers - mean) / torch.sqrt(variance + eps) + bias).to(x.dtype)",
  rmsNorm: "return (weight * numbers / torch.sqrt(mean_square + eps)).to(x.dtype)",
  queries: "queries = self.w_q(query)",
  keys: "keys, values = self.w_k(key), self.w_v(value)",
  values: "keys, values = self.w_k(key), self.w_v(value)",
  rotary:
    "rotated = torch.view_as_real(torch.view_as_complex(pairs) * rotation)  # (..., n, e/2, 2)",
  score: "scores = query @ key.to(wide).transpose(-2, -1)  # (..., q, k)",
  weight: "return scores.softmax(dim=-1).to(dtype)",
  weighted: "return weights @ value  # (..., q, e')",
  joined: "joined = heads.transpose(-3, -2).flatten(-2)  # (b, q, h·e)",
  mixed: "return self.w_o(joined if packed is None else packed.queries.pack(joined))",
  sum: "return x + self.dropout(sublayer(self.norm(x)))",
  sumPostNorm: "return self.norm(x + self.dropout(sublayer(x)))",
  inner: "inner = self.activation(self.w_1(x))  # (..., f)",
  outer: "return self.w_2(self.dropout(inner))  # (..., d)",
  logits: "return F.linear(x, self.weight, self.bias)  # (..., v)",
  probability: "return logits.softmax(dim=-1)",
};

/** What each step is for, in a sentence. */
const SAYS = {
  "token’s vector": "Each token of the vocabulary has a row of learned numbers, times √d.",
  "position’s vector":
    "Attention alone does not know the order, so each position has numbers, too.",
  norm: "Each vector is shifted and scaled to mean 0 and variance 1, then by learned γ and β.",
  queries: "A query is what a token looks for, computed from its vector.",
  keys: "A key says what a token has to offer. Each query is compared with all keys.",
  values: "A value is what a token contributes where it is attended to.",
  "queries, rotated":
    "Pairs of numbers are rotated by the position, so that scores depend on distance.",
  "keys, rotated":
    "Pairs of numbers are rotated by the position, so that scores depend on distance.",
  "keys of the memory":
    "A key says what a source token has to offer to the decoder’s queries; it comes from the " +
    "memory, the encoder’s last vectors.",
  "values of the memory":
    "What a source token contributes; values come from the memory, the encoder’s last vectors.",
  weights: "The scores become shares that add up to 100 %.",
  "weighted sums": "The values of all tokens, each times its weight, are added up, head by head.",
  "heads mixed": "What the heads found, side by side in one vector, is mixed by one matrix.",
  "inner units": "Each token by itself: a wide layer in which most units stay at zero.",
  output: "A second matrix goes back to the width of the model.",
  sum: "The result is added to the vector: the residual stream carries all from layer to layer.",
  probabilities:
    "The scores become probabilities of the next token; temperature divides the scores first.",
};
const SCORES = {
  encoder: "A score says how well a query fits a key; every token sees all tokens.",
  decoder:
    "A score says how well a query fits a key. The mask hides later tokens: in training the " +
    "model would copy the next token from them, and in use they are not written yet.",
  cross:
    "Cross-attention: the query is the decoder’s, keys and values are the encoder’s. " +
    "A score says how well they fit.",
  output:
    "Each token of the vocabulary gets a score: the last vector times the token’s own vector.",
};

/** The words of the picture, each in a sentence. */
export const WORDS = {
  token:
    "A token is a piece of text: a word, a part of a word or a sign. Its id is its number in the " +
    "vocabulary, the list of all tokens.",
  vector: "A vector is a list of numbers. Each box has one for each token.",
  embedding: "The embedding is a table with a learned vector for each token of the vocabulary.",
  encoder: "The encoder reads the whole source at once and makes a vector for each of its tokens.",
  decoder: "The decoder writes one token at a time; it reads what is written so far.",
  layer:
    "A layer is one round of attention and feed-forward with its own matrices. Layers and heads " +
    "are counted from 0, as in the code.",
  head:
    "A head is one of several attentions side by side; each has its own queries, keys and values.",
  query:
    "A query is a vector that says what a token looks for, a key says what a token has to offer, " +
    "and a value is what a token passes on.",
  score:
    "A score says how well a query fits a key, or, in the top box, how well a token of the " +
    "vocabulary fits as the next one.",
  softmax:
    "Softmax turns scores into shares that add up to 100 %: attention weights between tokens, " +
    "probabilities at the top.",
  "feed-forward": "The feed-forward network changes each token’s vector by itself.",
  "residual stream":
    "The residual stream is a token’s vector on its way up: each part adds to it. The number " +
    "beside a part is the vector’s length after it, the root of the sum of the squares.",
  norm: "A norm scales each vector, so that the next part gets numbers of the usual size.",
  memory:
    "The memory is what leaves the encoder: cross-attention takes its keys and values from " +
    "it.",
  mask:
    "The mask hides later tokens from earlier ones; their weight is 0, and the map is grey. " +
    "Without it, training would only teach the model to copy the next token.",
  "<bos>":
    "<bos> begins every text that the decoder reads, <eos> ends what either side reads or " +
    "writes.",
  cache:
    "In the cache are the keys and values of earlier tokens, so that only the newest is " +
    "computed.",
  temperature:
    "The temperature divides the scores before softmax. Top-k keeps the k most probable tokens, " +
    "top-p the fewest whose probabilities add up to p.",
  component: "A component is one of the numbers of a vector, counted from 0.",
  "⟨c3⟩": "A token in angle brackets, such as ⟨c3⟩, is a byte that alone is no character.",
};

const step = (label, formula, chapter, name, given = {}) => ({
  label,
  formula,
  chapter: CHAPTERS[chapter],
  name,
  says: SAYS[label],
  ...given,
  code: [given.code ?? formula].flat().map((line) => CODE[line]),
});

/** The boxes of one side, "encoder" or "decoder", in the order in which they compute. */
export function boxes(config, side) {
  const hasEncoder = config.num_encoder_layers > 0;
  const embedding =
    side === "encoder" ? "src_embedding" : hasEncoder ? "tgt_embedding" : "embedding";
  const made = [
    {
      key: embedding,
      label: "embedding",
      kind: "vectors",
      shows: embedding,
      steps: [step("token’s vector", "embedding", "embedding", embedding)],
    },
  ];
  const kind = config.positional_encoding;
  if (kind === "sinusoidal" || kind === "learned") {
    made.push({
      key: `${side}.positions`,
      label: "+ position",
      kind: "vectors",
      shows: `${side}.input`,
      stream: `${side}.input`,
      steps: [
        step("position’s vector", kind, "position", `${side}.positions`),
        step("sum", "sum", "position", `${side}.input`, {
          from: embedding,
          adds: `${side}.positions`,
          code: "input",
        }),
      ],
    });
  }
  let stream = `${side}.input`;
  for (let layer = 0; layer < config[`num_${side}_layers`]; layer++) {
    const cross = side === "decoder" && hasEncoder;
    const sublayers = ["self_attention", ...(cross ? ["cross_attention"] : []), "feed_forward"];
    sublayers.forEach((sublayer, part) => {
      const residual = `${side}.layers.${layer}.residual_${part + 1}`;
      made.push(
        sublayerBox(config, `${side}.layers.${layer}.${sublayer}`, residual, stream, layer),
      );
      stream = residual;
    });
  }
  if (config.norm_first) {
    made.push({
      key: `${side}.norm`,
      label: side === "encoder" ? "norm (memory)" : "norm",
      kind: "vectors",
      shows: `${side}.norm`,
      steps: [normStep(config, `${side}.norm`, stream)],
    });
  }
  return made;
}

const normStep = (config, name, from) =>
  step("norm", config.norm === "rms_norm" ? "rmsNorm" : "norm", "norm", name, {
    from,
    weights: name,
  });

/** The box of an attention or a feed-forward network, with norm and residual connection. */
function sublayerBox(config, name, residual, before, layer) {
  const kind = name.split(".").at(-1);
  const normed = config.norm_first ? `${residual}.norm` : before;
  const inside =
    kind === "feed_forward"
      ? networkSteps(config, name, normed)
      : attentionSteps(config, name, normed);
  const out = inside.at(-1).name;
  const norm = `${residual}.norm`;
  const steps = config.norm_first
    ? [
        normStep(config, norm, before),
        ...inside,
        step("sum", "sum", "norm", residual, { from: before, adds: out }),
      ]
    : [
        ...inside,
        step("sum", "sum", "norm", `${residual}.sum`, {
          from: before,
          adds: out,
          code: "sumPostNorm",
        }),
        { ...normStep(config, norm, `${residual}.sum`), name: residual },
      ];
  const label =
    kind === "self_attention" && name.startsWith("decoder")
      ? "masked self-attention"
      : kind.replace("_", "-");
  return {
    key: name,
    label,
    layer,
    kind: kind === "feed_forward" ? "inner" : "attention",
    shows: kind === "feed_forward" ? `${name}.inner` : `${name}.weights`,
    stream: residual,
    steps,
  };
}

function attentionSteps(config, name, normed) {
  const cross = name.endsWith("cross_attention");
  const source = cross ? { from: "encoder", of: "encoder" } : { from: normed };
  const project = (label, letter, from) =>
    step(label, "linear", "attention", `${name}.w_${letter}`, {
      ...from,
      weights: `${name}.w_${letter}`,
      code: label,
      ofHead: true,
      says: cross && label !== "queries" ? SAYS[`${label} of the memory`] : SAYS[label],
    });
  const turned = (label, letter, from) =>
    config.positional_encoding === "rotary" && !cross
      ? [
          step(`${label}, rotated`, "rotary", "position", `${name}.${label}`, {
            ...from,
            from: `${name}.w_${letter}`,
            ofHead: true,
          }),
        ]
      : [];
  return [
    project("queries", "q", { from: normed }),
    ...turned("queries", "q", {}),
    project("keys", "k", source),
    ...turned("keys", "k", {}),
    project("values", "v", source),
    step("scores", "score", "attention", `${name}.scores`, {
      owner: name,
      byKey: true,
      says: SCORES[cross ? "cross" : name.split(".")[0]],
    }),
    step("weights", "weight", "attention", `${name}.weights`, { owner: name, byKey: true }),
    step("weighted sums", "weighted", "attention", `${name}.heads`, { owner: name, ofHead: true }),
    step("heads mixed", "linear", "heads", `${name}.w_o`, {
      from: `${name}.heads`,
      weights: `${name}.w_o`,
      code: ["joined", "mixed"],
    }),
  ];
}

function networkSteps(config, name, normed) {
  const gated = ["reglu", "geglu", "geglu_tanh", "swiglu"].includes(config.activation);
  return [
    step("inner units", "inner", "feedForward", `${name}.inner`, {
      from: normed,
      weights: `${name}.w_1`,
      gate: gated && `${name}.w_3`,
    }),
    step("output", "linear", "feedForward", `${name}.w_2`, {
      from: `${name}.inner`,
      weights: `${name}.w_2`,
      code: "outer",
    }),
  ];
}

/** The last box, on top of the decoder: a score for each token of the vocabulary. */
export const outputBox = () => ({
  key: "output_projection",
  label: "scores",
  kind: "output",
  shows: "output_projection",
  steps: [
    step("scores", "logits", "output", "output_projection", {
      from: "decoder",
      weights: "output_projection",
      byToken: true,
      says: SCORES.output,
    }),
    step("probabilities", "probability", "sampling", "probabilities", {
      from: "output_projection",
      byToken: true,
    }),
  ],
});

// A translator in the browser: the tokenizers of chapter 1 and the cached loop of chapter 10,
// around a trained model. Nothing here knows about the page: text, ids and numbers only.

import { beamSearch } from "../explorables/beam_tree.mjs";
import { Model, copied, readTensors } from "./model.mjs";
import { tokenizerOf } from "./tokenizers.mjs";

// Tokens: what does not end would fill the picture. No target of the training texts is so long.
const LONGEST_TARGET = 40;
const LONGEST_TEXT = 60; // of a decoder-only model, the prompt included

async function fetched(model, name) {
  const response = await fetch(new URL(`${model}/${name}`, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response;
}
const json = async (model, name) => (await fetched(model, name)).json();

const tokenizer = async (model, name) => tokenizerOf(await json(model, name));

/** What cuts the texts that a translator reads; nothing else of it is fetched. */
export const sourceTokenizer = (model) => tokenizer(model, "src_tokenizer.json");

/** A model with its tokenizers; a decoder-only model has one, for all that it reads and writes. */
export class Translator {
  /** Fetch everything that lies in a model's folder, and make it ready to run. */
  static async load(name) {
    const about = json(name, "config.json");
    const files = about.then(({ num_encoder_layers: layers }) =>
      Promise.all(
        (layers ? ["src_tokenizer.json", "tgt_tokenizer.json"] : ["tokenizer.json"]).map((file) =>
          tokenizer(name, file),
        ),
      ),
    );
    const [config, tokenizers, weights] = await Promise.all([
      about,
      files,
      fetched(name, "model.safetensors").then((response) => response.arrayBuffer()),
    ]);
    const translator = new Translator();
    [translator.source, translator.target] = [tokenizers[0], tokenizers.at(-1)];
    translator.model = new Model(config, readTensors(weights));
    translator.longest = Math.min(
      translator.model.hasEncoder ? LONGEST_TARGET : LONGEST_TEXT,
      config.max_len,
    );
    return translator;
  }

  /** A translation of which nothing is written yet. */
  begin(text) {
    return new Translation(this, text);
  }
}

/** One text while it is being translated: what is written, and all that was computed for it. */
class Translation {
  constructor({ source, target, model, longest }, text) {
    Object.assign(this, { model, target, longest, pad: model.config.pad_id, eos: target.last });
    if (model.hasEncoder) {
      [this.first, this.prompt] = [target.first, []];
      this.sourceIds = source.sequence(text);
      this.memory = model.encode(this.sourceIds);
    } else {
      [this.first, ...this.prompt] = source.begin(text); // the prompt is written as it is given
      [this.sourceIds, this.memory] = [[], {}];
    }
    this.sourceLabels = this.sourceIds.map((id) => source.label(id));
    this.rewind(0);
  }

  /** Keep the first tokens that are written, and what was computed for them. */
  rewind(count) {
    this.ids = (this.ids ?? []).slice(0, count); // what is written
    this.scores = (this.scores ?? []).slice(0, count); // of all tokens, before each was chosen
    this.trace = copied(this.trace ?? {}, count);
  }

  get ended() {
    const count = this.ids.length;
    return count >= this.longest || (count > this.prompt.length && this.ids.at(-1) === this.eos);
  }

  /** Write one more token: the prompt's, or what `choose` takes by the scores. */
  step(choose) {
    const scores = this.model
      .decode(this.trace, [this.ids.at(-1) ?? this.first], this.memory)
      .slice();
    if (this.pad >= 0) scores[this.pad] = -Infinity; // as in `minitransformer.generate`
    this.scores.push(scores);
    this.ids.push(this.prompt[this.ids.length] ?? choose(scores));
  }

  /** Write this token after the first `count`, be it in the middle of the prompt. */
  replace(count, id) {
    this.rewind(count);
    this.prompt = this.prompt.slice(0, count);
    this.step(() => id);
  }

  /** The first tokens as text; <pad>, <bos> and <eos> leave no trace. */
  text(count = this.ids.length) {
    const silent = [this.pad, this.target.bos, this.eos];
    const ids = [this.first, ...this.ids.slice(0, count)];
    return this.target.read(ids.slice(this.model.hasEncoder ? 1 : 0).filter((id) => !silent.includes(id)));
  }

  label(id) {
    return this.target.label(id);
  }

  /** What the decoder reads: "begin", then what is written but for the last. */
  get readIds() {
    return [this.first, ...this.ids.slice(0, -1)];
  }

  /** The rows of the trace of either side. */
  rows(name) {
    return this.trace[name] ?? this.memory[name];
  }

  /** Beam search after the prompt: its steps, and the texts that ended, the best one first. */
  beam({ width, alpha }) {
    const states = new Map([["", { trace: {} }]]);
    const next = (tokens) => {
      const { trace: before } = states.get(tokens.slice(0, -1).join(" "));
      const trace = tokens.length ? copied(before) : before;
      const read = tokens.length ? [tokens.at(-1)] : [this.first, ...this.prompt];
      const scores = this.model.decode(trace, read, this.memory);
      states.set(tokens.join(" "), { trace });
      const total = logSum(scores);
      const order = Array.from(scores.keys()).filter((id) => id !== this.pad);
      order.sort((a, b) => scores[b] - scores[a]);
      return order.slice(0, 2 * width).map((id) => [id, scores[id] - total]);
    };
    const longest = this.longest - this.prompt.length;
    return beamSearch(next, { width, alpha, longest, end: this.eos });
  }
}

/** log Σ exp(score). */
function logSum(scores) {
  const highest = Math.max(...scores);
  return highest + Math.log(scores.reduce((sum, score) => sum + Math.exp(score - highest), 0));
}

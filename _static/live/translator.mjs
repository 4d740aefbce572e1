// A translator in the browser: the tokenizers of chapter 1 and the cached loop of chapter 10,
// around a trained model. Nothing here knows about the page: text, ids and numbers only.

import { beamSearch } from "../explorables/beam_tree.mjs";
import { Model, copied, readTensors } from "./model.mjs";

const LONGEST_TARGET = 64; // as in minitransformer.translate

/** Words to ids and back: the WordTokenizer of chapter 1, from its file. */
class WordTokenizer {
  constructor(file) {
    const joined = file.decoder.decoders.find(({ type }) => type === "Replace");
    this.pattern = new RegExp(file.pre_tokenizer.pattern.Regex, "gu");
    this.needlessSpace = new RegExp(joined.pattern.Regex, "gu");
    this.ids = new Map(Object.entries(file.model.vocab));
    this.tokens = inOrder(this.ids);
  }

  split(text) {
    return text.match(this.pattern) ?? [];
  }

  /** The words it knows, without its special tokens. */
  get words() {
    return this.tokens.filter((token) => !token.startsWith("<"));
  }

  /** These tokens as text. */
  read(ids) {
    return ids
      .map((id) => this.tokens[id])
      .join(" ")
      .replace(this.needlessSpace, "");
  }
}

/** Ids to text: half of the BPETokenizer of chapter 1, from its file. */
class BPEDecoder {
  constructor(file) {
    this.ids = new Map(Object.entries(file.model.vocab));
    this.tokens = inOrder(this.ids);
    // The file spells each byte as a character: the printable ones of Latin-1 as themselves, the
    // others as the characters from 256 on.
    this.byteOf = new Map();
    let next = 256;
    for (let byte = 0; byte < 256; byte++) {
      const printable = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
      this.byteOf.set(String.fromCharCode(printable ? byte : next++), byte);
    }
  }

  bytes(ids) {
    const spelled = ids.map((id) => this.tokens[id]).join("");
    return Array.from(spelled, (character) => this.byteOf.get(character));
  }

  /** The bytes of all these tokens as text; what is no character yet shows as "\ufffd". */
  read(ids) {
    return new TextDecoder().decode(Uint8Array.from(this.bytes(ids)));
  }
}

function inOrder(ids) {
  const tokens = [];
  for (const [token, id] of ids) tokens[id] = token;
  return tokens;
}

async function fetched(model, name) {
  const response = await fetch(new URL(`${model}/${name}`, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response;
}
const json = async (model, name) => (await fetched(model, name)).json();

/** What cuts the texts that a model reads; nothing else of it is fetched. */
export async function sourceTokenizer(model) {
  return new WordTokenizer(await json(model, "src_tokenizer.json"));
}

/** A model with its tokenizers. */
export class Translator {
  /** Fetch everything that lies in a model's folder, and make it ready to run. */
  static async load(name) {
    const [config, source, target, weights] = await Promise.all([
      json(name, "config.json"),
      sourceTokenizer(name),
      json(name, "tgt_tokenizer.json"),
      fetched(name, "model.safetensors").then((response) => response.arrayBuffer()),
    ]);
    const translator = new Translator();
    translator.source = source;
    translator.target = new (target.model.type === "BPE" ? BPEDecoder : WordTokenizer)(target);
    translator.model = new Model(config, readTensors(weights));
    return translator;
  }

  /** A translation of which nothing is written yet. */
  begin(text) {
    return new Translation(this, text);
  }
}

/** One text while it is being translated: what is written, and all that was computed for it. */
class Translation {
  constructor({ source, target, model }, text) {
    this.model = model;
    this.target = target;
    [this.pad, this.bos, this.eos] = ["<pad>", "<bos>", "<eos>"].map((t) => target.ids.get(t));
    this.sourceLabels = [...source.split(text), "<eos>"];
    this.sourceIds = this.sourceLabels.map((word) => source.ids.get(word));
    this.memory = model.encode(this.sourceIds);
    this.rewind(0);
  }

  /** Keep the first tokens that are written, and what was computed for them. */
  rewind(count) {
    this.ids = (this.ids ?? []).slice(0, count); // what is written
    this.scores = (this.scores ?? []).slice(0, count); // of all tokens, before each was chosen
    this.trace = copied(this.trace ?? {}, count);
  }

  get ended() {
    return this.ids.at(-1) === this.eos || this.ids.length === LONGEST_TARGET;
  }

  /** Write one more token: read the newest one, and let `choose` take one by the scores. */
  step(choose) {
    const scores = this.model
      .decode(this.trace, [this.ids.at(-1) ?? this.bos], this.memory)
      .slice();
    scores[this.pad] = -Infinity; // as in `minitransformer.generate`
    this.scores.push(scores);
    this.ids.push(choose(scores));
  }

  /** The first tokens as text; <pad>, <bos> and <eos> leave no trace. */
  text(count = this.ids.length) {
    const silent = [this.pad, this.bos, this.eos];
    return this.target.read(this.ids.slice(0, count).filter((id) => !silent.includes(id)));
  }

  /** A token alone: a space as a sign that can be seen, bytes that are no characters in hex. */
  label(id) {
    const text = this.target.read([id]);
    if (!/[\p{C}\ufffd]/u.test(text)) return text.replaceAll(" ", "␣");
    return this.target
      .bytes([id])
      .map((byte) => `⟨${byte.toString(16).padStart(2, "0")}⟩`)
      .join("");
  }

  /** What the decoder reads: "begin", then what is written but for the last. */
  get readIds() {
    return [this.bos, ...this.ids.slice(0, -1)];
  }

  /** The rows of the trace of either side. */
  rows(name) {
    return this.trace[name] ?? this.memory[name];
  }

  /** Beam search: its steps, and the texts that ended, the best one first. */
  beam({ width, alpha }) {
    const states = new Map([["", { trace: {} }]]);
    const next = (tokens) => {
      const { trace: before } = states.get(tokens.slice(0, -1).join(" "));
      const trace = tokens.length ? copied(before) : before;
      const scores = this.model.decode(trace, [tokens.at(-1) ?? this.bos], this.memory);
      states.set(tokens.join(" "), { trace });
      const total = logSum(scores);
      const order = Array.from(scores.keys()).filter((id) => id !== this.pad);
      order.sort((a, b) => scores[b] - scores[a]);
      return order.slice(0, 2 * width).map((id) => [id, scores[id] - total]);
    };
    return beamSearch(next, { width, alpha, longest: LONGEST_TARGET, end: this.eos });
  }
}

/** log Σ exp(score). */
function logSum(scores) {
  const highest = Math.max(...scores);
  return highest + Math.log(scores.reduce((sum, score) => sum + Math.exp(score - highest), 0));
}

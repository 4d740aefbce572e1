// A translator in the browser: the tokenizers of chapter 1 and the plain loop of chapter 10,
// around a trained model. Nothing here knows about the page: text, ids and numbers only.

import * as ort from "./onnxruntime/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more would need headers that a plain web server does not send

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
    return ids.map((id) => this.tokens[id]).join(" ").replace(this.needlessSpace, "");
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

  /** The bytes of all these tokens as text; what is no character yet shows as "\ufffd". */
  read(ids) {
    const spelled = ids.map((id) => this.tokens[id]).join("");
    const bytes = Array.from(spelled, (character) => this.byteOf.get(character));
    return new TextDecoder().decode(Uint8Array.from(bytes));
  }
}

function inOrder(ids) {
  const tokens = [];
  for (const [token, id] of ids) tokens[id] = token;
  return tokens;
}

const file = (model, name) => new URL(`${model}/${name}`, import.meta.url).href;
const json = async (model, name) => (await fetch(file(model, name))).json();

/** What cuts the texts that a model reads. */
async function sourceTokenizer(model) {
  return new WordTokenizer(await json(model, "src_tokenizer.json"));
}

/** The words that a model knows; nothing else of it is fetched. */
export async function vocabulary(model) {
  return (await sourceTokenizer(model)).words;
}

/** A model with its tokenizers. */
export class Translator {
  /** Fetch everything that lies in a model's folder and make it ready to run. */
  static async load(model) {
    const translator = new Translator();
    const [config, source, target, session] = await Promise.all([
      json(model, "config.json"),
      sourceTokenizer(model),
      json(model, "tgt_tokenizer.json"),
      ort.InferenceSession.create(file(model, "translator.onnx")),
    ]);
    translator.longestSource = config.max_len;
    translator.source = source;
    translator.target = new (target.model.type === "BPE" ? BPEDecoder : WordTokenizer)(target);
    translator.session = session;
    return translator;
  }

  /** Why a text cannot be translated, in words for its writer; nothing if it can. */
  complaint(text) {
    const words = this.source.split(text);
    const unknown = [...new Set(words.filter((word) => !this.source.ids.has(word)))];
    const quoted = unknown.map((word) => `“${word}”`).join(", ");
    const most = this.longestSource - 1; // and the end
    if (!words.length) return "Please write something to translate.";
    if (unknown.length) return `The model does not know ${quoted}. Its words are listed below.`;
    if (words.length > most) return `The model reads ${most} tokens at most, not ${words.length}.`;
    return "";
  }

  /** A translation of which nothing is written yet. */
  begin(text) {
    return new Translation(this, text);
  }
}

/** One text while it is being translated. */
class Translation {
  constructor(translator, text) {
    const { source, target, session } = translator;
    this.session = session;
    this.target = target;
    [this.pad, this.bos, this.eos] = ["<pad>", "<bos>", "<eos>"].map((t) => target.ids.get(t));
    this.sourceLabels = [...source.split(text), "<eos>"];
    this.sourceIds = this.sourceLabels.map((word) => source.ids.get(word));
    this.ids = []; // what is written
  }

  get ended() {
    return this.ids.at(-1) === this.eos || this.ids.length === LONGEST_TARGET;
  }

  /** What is written as text; <pad>, <bos> and <eos> leave no trace. */
  get text() {
    const silent = [this.pad, this.bos, this.eos];
    return this.target.read(this.ids.filter((id) => !silent.includes(id)));
  }

  get labels() {
    return this.ids.map((id) => this.target.read([id]));
  }

  /** Write one more token: read everything again, take the token with the highest score. */
  async step() {
    const row = (ids) => new ort.Tensor("int32", Int32Array.from(ids), [1, ids.length]);
    const { scores, attention } = await this.session.run({
      source: row(this.sourceIds),
      target: row([this.bos, ...this.ids]),
    });
    const allowed = scores.data.map((score, id) => (id === this.pad ? -Infinity : score));
    this.ids.push(allowed.indexOf(Math.max(...allowed)));
    this.attention = attention; // (layers, heads, written, source)
  }

  /** How much head `head` of layer `layer` took from each source token, for each one written. */
  weights(layer, head) {
    const [, heads, rows, columns] = this.attention.dims;
    const start = (layer * heads + head) * rows * columns;
    const row = (i) => this.attention.data.slice(start + i * columns, start + (i + 1) * columns);
    return Array.from({ length: rows }, (_, i) => row(i));
  }
}

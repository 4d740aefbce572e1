// The translator in the browser: the tokenizers of chapter 1 and the plain loop of chapter 10,
// around the model of chapter 9. Nothing here knows about the page: text, ids and numbers only.

import * as ort from "./onnxruntime/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more would need headers that a plain web server does not send

const LONGEST_SOURCE = 128; // positions that the model has an encoding for
const LONGEST_TARGET = 64; // as in minitransformer.translate

/** Words to ids: the WordTokenizer of chapter 1, from its file. */
class WordTokenizer {
  constructor(file) {
    this.pattern = new RegExp(file.pre_tokenizer.pattern.Regex, "gu");
    this.ids = new Map(Object.entries(file.model.vocab));
  }

  split(text) {
    return text.match(this.pattern) ?? [];
  }

  /** The words it knows, without its special tokens. */
  get words() {
    return [...this.ids.keys()].filter((token) => !token.startsWith("<"));
  }
}

/** Ids to text: half of the BPETokenizer of chapter 1, from its file. */
class BPEDecoder {
  constructor(file) {
    this.ids = new Map(Object.entries(file.model.vocab));
    this.tokens = [];
    for (const [token, id] of this.ids) this.tokens[id] = token;
    // The file spells each byte as a character: the printable ones of Latin-1 as themselves, the
    // others as the characters from 256 on.
    this.byteOf = new Map();
    let next = 256;
    for (let byte = 0; byte < 256; byte++) {
      const printable = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
      this.byteOf.set(String.fromCharCode(printable ? byte : next++), byte);
    }
  }

  /** Tokens joined to text; <pad>, <bos> and <eos> leave no trace. */
  decode(ids) {
    const silent = ["<pad>", "<bos>", "<eos>"].map((token) => this.ids.get(token));
    return this.read(ids.filter((id) => !silent.includes(id)));
  }

  /** The bytes of all these tokens as text; what is no character yet shows as "\ufffd". */
  read(ids) {
    const spelled = ids.map((id) => this.tokens[id]).join("");
    const bytes = Array.from(spelled, (character) => this.byteOf.get(character));
    return new TextDecoder().decode(Uint8Array.from(bytes));
  }
}

/** The model with its tokenizers. */
export class Translator {
  /** Fetch everything and make the model ready to run. */
  static async load() {
    const file = (name) => new URL(name, import.meta.url).href;
    const json = async (name) => (await fetch(file(name))).json();
    const translator = new Translator();
    [translator.source, translator.target, translator.session] = await Promise.all([
      json("source_tokenizer.json").then((content) => new WordTokenizer(content)),
      json("target_tokenizer.json").then((content) => new BPEDecoder(content)),
      ort.InferenceSession.create(file("translator.onnx")),
    ]);
    return translator;
  }

  /** Why a text cannot be translated, in words for its writer; nothing if it can. */
  complaint(text) {
    const { ids, words: known } = this.source;
    const words = this.source.split(text);
    const unknown = [...new Set(words.filter((word) => !ids.has(word)))];
    const quoted = unknown.map((word) => `“${word}”`).join(", ");
    if (!words.length) return "Please write a number in English words, such as “forty-two”.";
    if (unknown.length) {
      return `The model does not know ${quoted}. All it knows is: ${known.join(" ")}`;
    }
    if (words.length >= LONGEST_SOURCE) {
      return `The model reads ${LONGEST_SOURCE - 1} words and hyphens at most, not ${words.length}.`;
    }
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

  get text() {
    return this.target.decode(this.ids);
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

// The tokenizers of chapter 1, from their files: text to ids, and back.

/** The usual names of special tokens, as in minitransformer/tokenization/tokenizer.py. */
const ROLES = {
  pad: ["<pad>", "[PAD]"],
  bos: ["<bos>", "<s>", "<|begin_of_text|>", "<|endoftext|>"],
  eos: ["<eos>", "</s>", "<|end_of_text|>", "<|endoftext|>"],
  unk: ["<unk>", "[UNK]"],
  cls: ["[CLS]"],
  sep: ["[SEP]"],
};
const GPT2 =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/.source;

/** A pattern whose \s is Unicode's white space: JavaScript's own lacks \x85 and has \ufeff. */
const unicode = (source) =>
  new RegExp(source.replaceAll("\\s", "\\p{White_Space}").replaceAll("\\S", "\\P{White_Space}"), "gu");

class Tokenizer {
  constructor(file) {
    const added = file.added_tokens.map(({ content, id }) => [content, id]);
    this.ids = new Map([...added, ...Object.entries(file.model.vocab)]);
    this.special = new Map(added);
    this.tokens = [];
    for (const [token, id] of this.ids) this.tokens[id] = token;
    for (const [role, names] of Object.entries(ROLES))
      this[role] = this.special.get(names.find((name) => this.special.has(name)));
    this.pattern = unicode(file.pre_tokenizer.pattern?.Regex ?? GPT2);
  }

  /** The pieces of a text, which no token crosses. */
  split(text) {
    return text.match(this.pattern) ?? [];
  }

  /** The ids of a text; <unk> for what is no token. */
  encode(text) {
    return this.split(text).flatMap((piece) => this.piece(piece));
  }

  piece(piece) {
    return [this.ids.get(piece) ?? this.unk];
  }

  /** What a model continues. */
  begin(text) {
    const first = this.bos === undefined || this.bos === this.eos ? [] : [this.bos];
    const ids = [...first, ...this.encode(text)];
    return ids.length ? ids : [this.first];
  }

  /** What an encoder reads. */
  sequence(text) {
    return [...this.encode(text), this.last];
  }

  get first() {
    return this.bos ?? this.cls ?? this.eos;
  }

  get last() {
    return this.eos ?? this.sep;
  }

  /** The tokens without the special ones. */
  get words() {
    return this.tokens.filter((token) => !this.special.has(token));
  }

  /** These tokens as text. */
  read(ids) {
    return ids.map((id) => this.tokens[id] ?? "").join("");
  }

  bytes(ids) {
    return Array.from(new TextEncoder().encode(this.read(ids)));
  }

  /** A token alone: a space or the end of a line as a sign, bytes that are no characters in hex. */
  label(id) {
    const text = this.read([id]).replaceAll("\n", "↵");
    if (!/[\p{C}\ufffd]/u.test(text)) return text.replaceAll(" ", "␣");
    return this.bytes([id])
      .map((byte) => `⟨${byte.toString(16).padStart(2, "0")}⟩`)
      .join("");
  }
}

class WordTokenizer extends Tokenizer {
  constructor(file) {
    super(file);
    const joined = file.decoder.decoders.find(({ type }) => type === "Replace");
    this.needlessSpace = new RegExp(` ##|${joined.pattern.Regex}`, "gu");
  }

  read(ids) {
    return ids
      .map((id) => this.tokens[id] ?? "")
      .join(" ")
      .replace(this.needlessSpace, "");
  }
}

class WordPieceTokenizer extends WordTokenizer {
  /** Cut a word from the left, each time at the longest token that fits. */
  piece(word) {
    const letters = Array.from(word);
    if (letters.length > 100) return [this.unk];
    const ids = [];
    for (let start = 0; start < letters.length; ) {
      let end = letters.length;
      const token = () => (start ? "##" : "") + letters.slice(start, end).join("");
      while (end > start && !this.ids.has(token())) end--;
      if (end === start) return [this.unk];
      ids.push(this.ids.get(token()));
      start = end;
    }
    return ids;
  }
}

class BPETokenizer extends Tokenizer {
  constructor(file) {
    super(file);
    this.ranks = new Map(file.model.merges.map((pair, rank) => [pair.join(" "), rank]));
    // The file spells each byte as a character: the printable ones of Latin-1 as themselves, the
    // others as the characters from 256 on.
    this.spelled = [];
    let next = 256;
    for (let byte = 0; byte < 256; byte++) {
      const printable = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
      this.spelled.push(String.fromCharCode(printable ? byte : next++));
    }
    this.byteOf = new Map(this.spelled.map((character, byte) => [character, byte]));
  }

  /** Merge a piece's bytes, always the pair whose merge was learned first. */
  piece(piece) {
    let parts = Array.from(new TextEncoder().encode(piece), (byte) => this.spelled[byte]);
    for (;;) {
      const best = Math.min(...parts.map((_, i) => this.rank(parts, i)));
      if (best === Infinity) return parts.map((part) => this.ids.get(part));
      const merged = [];
      for (let i = 0; i < parts.length; i++)
        merged.push(this.rank(parts, i) === best ? parts[i] + parts[++i] : parts[i]);
      parts = merged;
    }
  }

  rank(parts, i) {
    return this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
  }

  bytes(ids) {
    return ids.flatMap((id) => {
      const token = this.tokens[id] ?? "";
      if (this.special.has(token)) return Array.from(new TextEncoder().encode(token));
      return Array.from(token, (character) => this.byteOf.get(character));
    });
  }

  /** The bytes of all these tokens as text; what is no character yet shows as "\ufffd". */
  read(ids) {
    return new TextDecoder().decode(Uint8Array.from(this.bytes(ids)));
  }
}

/** The tokenizer of a file's content. */
export function tokenizerOf(file) {
  const { type } = file.model;
  if (type === "BPE") return new BPETokenizer(file);
  if (type === "WordPiece") return new WordPieceTokenizer(file);
  return new (file.decoder.type === "Fuse" ? Tokenizer : WordTokenizer)(file);
}

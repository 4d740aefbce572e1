// From what one types to what a model reads: digits become words, capitals and hyphens are put
// right. What neither model can translate is refused in one line that says why.

const UNITS = `zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
  fifteen sixteen seventeen eighteen nineteen`.split(/\s+/);
const TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split(" ");
const SCALES = { thousand: 1000, million: 1_000_000 };
const OPENERS = /^(that|whom?|although|because|when|while)$/i; // of a clause
const LONGEST_SOURCE = 127; // tokens, and the end

/** A number below a billion in English words, as the training texts have it. */
export function inWords(number) {
  if (number < 20) return UNITS[number];
  if (number < 100) {
    const [tens, unit] = [TENS[Math.floor(number / 10) - 2], number % 10];
    return unit ? `${tens}-${UNITS[unit]}` : tens;
  }
  const [size, name] = Object.entries({ hundred: 100, ...SCALES })
    .findLast(([, s]) => number >= s)
    .reverse();
  const rest = number % size;
  return `${inWords(Math.floor(number / size))} ${name}${rest ? ` ${inWords(rest)}` : ""}`;
}

/** The number that English words stand for; null if they are none. */
export function valueOf(words) {
  let [total, group, lastScale] = [0, 0, Infinity];
  for (const word of words) {
    const [unit, ten] = [UNITS.indexOf(word), TENS.indexOf(word)];
    if (unit >= 0) {
      const afterTens = group % 100 >= 20 && group % 10 === 0 && unit > 0 && unit < 10;
      if ((group % 100 && !afterTens) || (unit === 0 && words.length > 1)) return null;
      group += unit;
    } else if (ten >= 0) {
      if (group % 100) return null;
      group += 10 * (ten + 2);
    } else if (word === "hundred") {
      if (!group || group > 99) return null;
      group *= 100;
    } else {
      const scale = SCALES[word];
      if (!scale || !group || group > 999 || scale >= lastScale) return null;
      [total, group, lastScale] = [total + group * scale, 0, scale];
    }
  }
  return words.length ? total + group : null;
}

/** What is typed as a number, in digits or in words: its words without "and", or null. */
function numberWords(text) {
  const words = text
    .toLowerCase()
    .replace(/[-,.!?]/g, " ")
    .trim()
    .split(/\s+/)
    .filter((word) => word !== "and");
  return words.map((word, i) =>
    /^an?$/.test(word) && /^(hundred|thousand|million)$/.test(words[i + 1]) ? "one" : word,
  );
}

const SHORT = { "won’t": "will not", "can’t": "can not", "i’m": "I am" };

/** A sentence as the grammar has it: a capital at the beginning, a full stop at the end. */
function sentence(text, { ids }) {
  const spelled = text
    .replace(/['’]/g, "’")
    .replace(
      /\S+’\S+/g,
      (word) =>
        SHORT[word.toLowerCase()] ??
        word.replace(/n’t$/, " not").replace(/’ve$/, " have").replace(/’re$/, " are"),
    )
    .replace(/[!.\s]*$/, "");
  let first = true;
  const words = spelled.replace(/[\p{L}\p{N}_]+/gu, (word) => {
    const lower = word.toLowerCase();
    const capital = lower[0].toUpperCase() + lower.slice(1);
    const forms = first ? [capital, word, lower] : [word, lower, capital];
    first = false;
    return forms.find((form) => ids.has(form)) ?? word;
  });
  return words && `${words}.`;
}

const quoted = (words) => {
  const shown = [...new Set(words)]
    .slice(0, 3)
    .map((word) => `“${word}”`)
    .join(", ");
  return new Set(words).size > 3 ? `${shown} and others` : shown;
};

/**
 * What to do with a text: { model, reads, note } or { refusal, hint, isListed }. The tokenizers
 * are those of the two models' sources.
 */
export function understand(text, { number_words: numbers, grammar }) {
  if (!text.trim()) return { refusal: "Type a number, or a sentence in English." };
  const typed = text.trim().replace(/[‐‑‒–—−]/g, "-");
  if (/^[-+]?[\d.,\s_'’]*\d[\d.,\s_'’]*$/.test(typed)) {
    const digits = typed.replace(/[,\s_'’+]/g, "");
    if (!/^\d+$/.test(digits))
      return { refusal: "The model reads whole numbers from zero on, and no others." };
    if (digits.replace(/^0+/, "").length > 9)
      return { refusal: "The model has no word for a billion or more." };
    return asNumber(Number(digits));
  }
  if (/^\p{Lu}[\p{Lu} .’']+:/u.test(typed))
    return { refusal: "This begins a speech.", hint: "Press Continue to have it written on." };
  const words = numberWords(typed);
  const unknown = words.filter((word) => !numbers.ids.has(word));
  if (words.length && !unknown.length) {
    const value = valueOf(words);
    if (value !== null) return asNumber(value);
    const reads = words.join(" ");
    return fits(
      "number_words",
      reads,
      numbers,
      "This is no number in words, so what comes out means nothing.",
    );
  }
  const reads = sentence(typed, grammar);
  const strange = grammar.split(reads).filter((word) => !grammar.ids.has(word));
  if (
    unknown.length < words.length &&
    unknown.length / words.length < strange.length / grammar.split(reads).length
  ) {
    return { refusal: `The model of numbers does not know ${quoted(unknown)}.`, isListed: true };
  }
  if (strange.length)
    return {
      refusal: `The model of sentences does not know ${quoted(strange)}.`,
      isListed: true,
    };
  const clauses = grammar.split(reads).filter((word) => OPENERS.test(word));
  const note =
    clauses.length > 1
      ? "Training had no clause within a subordinate one: if this has, expect mistakes."
      : undefined;
  return fits("grammar", reads, grammar, note);

  function asNumber(value) {
    // Training had two to nine millions, and less than a thousand after them.
    const rest = value % 1_000_000;
    const seen =
      value < 1_000_000 || (value >= 2_000_000 && value < 10_000_000 && rest > 0 && rest < 1000);
    const note = seen
      ? undefined
      : "Training had few numbers like this one, or none: expect mistakes.";
    return fits("number_words", inWords(value), numbers, note);
  }
}

function fits(model, reads, tokenizer, note) {
  const length = tokenizer.split(reads).length;
  if (length <= LONGEST_SOURCE) return { model, reads, note };
  return { refusal: `The model reads ${LONGEST_SOURCE} tokens at most, not ${length}.` };
}

/** The same for another model: it reads what is typed, if it has a token for everything. */
export function plain(text, { source, model, longest }) {
  const ids = model.hasEncoder ? source.sequence(text) : source.begin(text);
  const most = model.hasEncoder ? model.config.max_len : longest - 1;
  if (!text.trim()) return { refusal: "Type a text." };
  const unknown = source.split(text).filter((piece) => source.encode(piece).includes(source.unk));
  if (unknown.length) return { refusal: `The model does not know ${quoted(unknown)}.` };
  if (ids.length > most)
    return { refusal: `The page shows ${most} tokens of a text at most, not ${ids.length}.` };
  return { reads: text };
}

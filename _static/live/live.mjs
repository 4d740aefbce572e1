// The page "The model, live": what one types is translated or continued, and shown in the picture.

import { inWords as treeInWords, tree as drawTree } from "../explorables/beam_tree.mjs";
import { decimals, element, svg } from "../explorables/elements.mjs";
import { Bars, percent } from "./bars.mjs";
import { Detail, inWords, isCross, largest, titleOf } from "./detail.mjs";
import { WORDS, boxes } from "./parts.mjs";
import { Picture } from "./picture.mjs";
import { oneStop, rove } from "./roving.mjs";
import { draw, greedy, seeded } from "./sampling.mjs";
import { Translator, sourceTokenizer } from "./translator.mjs";
import { plain, understand } from "./understand.mjs";

const app = document.getElementById("live-app");
const own = app.dataset.model; // the one model of a page that `minitransformer show` writes
const MODELS = ["number_words", "grammar"];
const WRITER = "shakespeare"; // what continues a text
const PACE = 900; // ms between two tokens of a translation
const QUICK_PACE = 250; // of a longer text
const isStill = matchMedia("(prefers-reduced-motion: reduce)");
const LONGEST_DRAWN = 24; // tokens of a translation: what is drawn may have no end
const DRAWN = { method: "sample", temperature: 0.8, topP: 0.95 }; // where greedy decoding repeats

const [form, input, status, examples, result, controls, picture, tree, transcript, words] = [
  "form",
  "input",
  "status",
  "examples",
  "result",
  "controls",
  "picture",
  "tree",
  "transcript",
  "words",
].map((name) => document.getElementById(`live-${name}`));

const translators = {}; // the promise of each model that was asked for
const tokenizers = {};
let does = app.dataset.does ?? "Translate"; // or "Continue": what was asked for last
let translation; // the text that is shown
let name; // of its model
let view; // the picture of that model
let cursor = 0; // the step that is shown: the decoder has read so many tokens, after "begin"
let pinned; // the source token that the reader keeps in view
let pointed; // the token that the pointer is over: its side and index
let chosen; // the box in the detail, its step, head, key and entry
let crossed; // the last chosen head of cross-attention, its box and head
const before = {}; // what was chosen when the other kind of model was shown
let playing;
let seed = 1;
let forced = new Set(); // the steps whose tokens the reader wrote
let undone = []; // what was written before each of them, and the forced steps then

const detail = new Detail(document.getElementById("live-detail"), ({ key, ...picked }) => {
  Object.assign(chosen, picked);
  if (key !== undefined && isCross(chosen.box)) return pin(key);
  if (key !== undefined) chosen.key = chosen.key === key ? undefined : key;
  return look();
});
const bars = new Bars(document.getElementById("live-next"), { changed, take });

// --- translating, continuing -------------------------------------------------------------------

/** Understand what is typed, load its model if need be, and write to the end. */
async function run() {
  pause();
  const [asked, how] = [input.value, does];
  const only = own ?? (how === "Continue" ? WRITER : undefined);
  for (const button of form.querySelectorAll("[type=submit]"))
    button.classList.toggle("live-wanted", button.dataset.does === does);
  say("Loading the model …");
  try {
    const understood = only ? plain(asked, await loaded(only)) : await asTranslated(asked);
    input.setAttribute("aria-invalid", Boolean(understood.refusal));
    result.parentElement.classList.toggle("live-old", Boolean(understood.refusal));
    const old = understood.refusal && translation ? "Still showing: " : "";
    document.getElementById("live-reads").dataset.before = old;
    if (understood.refusal)
      return refuse(understood, only ? "" : "Try one of the examples, or Continue.");
    const { model = only, reads, note } = understood;
    const translator = await loaded(model);
    if (input.value !== asked || does !== how) return undefined; // something else was asked meanwhile
    if (name !== model) build(model, translator);
    translation = translator.begin(reads);
    pinned = undefined;
    document.getElementById("live-reads").textContent = hasSource() ? `${reads} →` : "";
    write(0);
    app.dataset.state = "shown";
    return reveal(note);
  } catch (error) {
    return say(`The model could not be loaded: ${error.message}. Try again.`, true);
  }
}

/** A model, fetched when it is first asked for. */
function loaded(model) {
  translators[model] ??= Translator.load(model).catch((error) => {
    delete translators[model]; // so that it can be tried again
    throw error;
  });
  return translators[model];
}

/** What the site's translators make of a text. */
async function asTranslated(text) {
  await Promise.all(
    MODELS.map(async (model) => {
      tokenizers[model] ??= await sourceTokenizer(model);
    }),
  );
  return understand(text, tokenizers);
}

const hasSource = () => translation.model.hasEncoder;

/** Show what is written: a translation from its first token on, a text token by token. */
function reveal(note) {
  const isPlayed = !hasSource() && !isStill.matches && bars.method.input.value !== "beam";
  cursor = isPlayed ? translation.prompt.length : hasSource() ? 0 : translation.ids.length - 1;
  show();
  if (isPlayed) play(() => say(outcome()));
  else say(note ? `${outcome().replace(/\.?$/, ".")} ${note}` : outcome());
}

/** The picture of another model. */
function build(model, translator) {
  name = model;
  const { config, hasEncoder } = translator.model;
  const last = app.dataset.does;
  if (chosen) before[last] = chosen;
  app.dataset.does = hasEncoder ? "Translate" : "Continue";
  result.lang = own ? "" : hasEncoder ? "de" : "en";
  if (!own && app.dataset.does !== last) bars.preset(hasEncoder ? {} : DRAWN);
  const sides = hasEncoder ? ["encoder", "decoder"] : ["decoder"];
  const places = Object.fromEntries(
    sides.map((side) => [side, document.getElementById(`live-${side}`)]),
  );
  const choosePart = (part) => {
    choose(part);
    look();
  };
  view = new Picture(places, config, { choose: choosePart, tokenButton });
  const top = boxes(config, "decoder").findLast(({ kind }) => kind === "attention");
  choose({ side: "decoder", box: top, head: model === "number_words" ? 2 : 0 });
  crossed = chosen;
  const kept = before[app.dataset.does];
  const same = kept && view.boxes.find(({ box }) => box.key === kept.box.key);
  if (same?.canvases[kept.head]) choose({ ...kept, box: same.box });
}

/** Write from a step on, as the settings say. */
function write(from) {
  const method = bars.method.input.value;
  tree.hidden = method !== "beam";
  [forced, undone] = [new Set([...forced].filter((step) => step < from)), []];
  if (method === "beam") {
    showBeam();
    return;
  }
  translation.rewind(from);
  goOn();
}

/** Write to the end; a text that is drawn at random has a limit. */
function goOn() {
  const random = seeded(seed);
  const isDrawn = bars.method.input.value === "sample";
  const longest = isDrawn && !own && hasSource() ? LONGEST_DRAWN : Infinity;
  while (!translation.ended && translation.ids.length < longest)
    translation.step(isDrawn ? (scores) => draw(bars.probs(scores), random) : greedy);
}

/** What is written, and whether it was cut off. */
function outcome() {
  const [text, count] = [translation.text(), translation.ids.length];
  const cut = translation.ids.at(-1) !== translation.eos && `Cut off after ${count} tokens.`;
  if (!hasSource() && !cut && bars.method.input.value === "beam")
    return (
      `Beam search ended the text after ${tokens(count - translation.prompt.length)} of its own. ` +
      "Each further token lowers log p, so the shortest text often wins."
    );
  if (!hasSource()) return cut || `The model ended the text after ${tokens(count)}.`;
  return cut ? `${text} … ${cut}` : text;
}

const tokens = (count) => `${count} token${count === 1 ? "" : "s"}`;

/** Let beam search choose the text, and show its tree. */
function showBeam() {
  const { steps, ended } = translation.beam({ width: bars.width.value, alpha: bars.alpha.value });
  translation.rewind(0);
  for (const id of [...translation.prompt, ...ended[0].tokens]) translation.step(() => id);
  const label = (id) => translation.label(id);
  const { tokens: written, logProb, score } = ended[0];
  const numbers = [logProb, score].map((number) => decimals(number, 2));
  tree.querySelector(".live-says")?.remove();
  tree.prepend(
    element(
      "p",
      { class: "live-says" },
      "In each box: a token, and log p of the text up to it. Thick border: ended; dashed: dropped. " +
        "Of the texts that ended, the one with the highest log p / ((5 + length) / 6)^α wins: here " +
        `${numbers[0]} at ${tokens(written.length)}, so ${numbers[1]}. ` +
        "The tree can be scrolled sideways.",
    ),
  );
  tree.querySelector(".scroll").replaceChildren(drawTree(steps, ended[0], label));
  tree.querySelector("details")?.remove();
  tree.append(treeInWords(steps, label));
}

/** A setting was moved: what comes after the shown step is written again. */
function changed(what) {
  pause();
  bars.arrange();
  if (!translation) return undefined;
  if (what === "again") seed += 1;
  const method = bars.method.input.value;
  write(what === "setting" && method === "sample" ? cursor : 0);
  if (what !== "setting" && !hasSource()) return reveal();
  cursor = Math.min(cursor, translation.ids.length - 1);
  show();
  return say(outcome());
}

/** Write this token at the shown step, and go on from there. */
function take(id) {
  pause();
  if (bars.method.input.value === "beam") {
    // its text is left
    bars.method.input.value = "greedy";
    bars.arrange();
    tree.hidden = true;
  }
  undone.push({ ids: translation.ids, prompt: translation.prompt, forced, cursor });
  forced = new Set([...[...forced].filter((step) => step < cursor), cursor]);
  translation.replace(cursor, id);
  goOn();
  show();
  say(outcome());
}

/** Take the last token back that the reader wrote, and what followed from it. */
function undo() {
  const { ids, prompt, ...before } = undone.pop();
  ({ forced, cursor } = before);
  translation.prompt = prompt;
  translation.rewind(cursor);
  for (const id of ids.slice(cursor)) translation.step(() => id);
  show();
  say(outcome());
}

// --- stepping ----------------------------------------------------------------------------------

/** Show the step that writes token `index`. */
function go(index) {
  cursor = Math.max(0, Math.min(index, translation.ids.length - 1));
  pointed = undefined;
  delete chosen.key; // the newest token's own
  show();
  const scores = translation.scores[cursor];
  const share = percent(bars.probs(scores)[translation.ids[cursor]]);
  const read = translation.label(translation.readIds[cursor]);
  const written = translation.label(translation.ids[cursor]);
  const count = translation.ids.length;
  say(`Step ${cursor + 1} of ${count}: reads “${read}”, writes “${written}” (${share}).`);
}

function pause() {
  clearInterval(playing);
  playing = undefined;
  result.classList.remove("live-writing");
  status.removeAttribute("aria-busy");
  controls.querySelector("[data-do=play]").textContent = "Play";
}

/** Go through the steps that are left, or all again; `then` is called at the end. */
function play(then) {
  if (playing) return pause();
  go(cursor === translation.ids.length - 1 ? 0 : cursor);
  result.classList.add("live-writing"); // what comes later is not seen
  status.setAttribute("aria-busy", true); // what is said at each step is not spoken
  controls.querySelector("[data-do=play]").textContent = "Pause";
  playing = setInterval(() => {
    if (cursor < translation.ids.length - 1) return go(cursor + 1);
    pause();
    return then?.();
  }, hasSource() ? PACE : QUICK_PACE);
  return undefined;
}

// --- showing -----------------------------------------------------------------------------------

function say(message, isError = false, ...more) {
  status.replaceChildren(message, ...more);
  status.classList.toggle("live-error", isError);
  examples.classList.toggle("live-wanted", isError);
}

/** Say why a text is not read, and what to do. */
function refuse({ refusal, hint, isListed }, usual) {
  const link = element("a", { href: "#live-words" }, "See the words that it knows.");
  link.addEventListener("click", () => (words.open = true));
  say(`${refusal} `, true, ...(isListed ? [link, " "] : []), hint ?? usual);
}

function show() {
  showWritten();
  view.show(translation, cursor);
  controls.querySelector("[data-do=undo]").hidden = !undone.length;
  look();
  const { offsetTop, offsetHeight } = result.querySelector("[aria-pressed=true]");
  result.scrollTop = offsetTop + offsetHeight - result.clientHeight; // the newest token is seen
  view.drawFlow(picture.querySelector(".live-flow"));
  if (transcript.open) showTranscript();
}

/** What is written, a button for each token; they stay while the text is the same. */
function showWritten() {
  const text = `${name} ${translation.ids} ${[...forced]}`;
  if (result.dataset.text !== text) {
    result.dataset.text = text;
    result.replaceChildren(
      ...translation.ids.flatMap((id, index) => {
        const label = translation.label(id);
        const shown = hasSource() ? label : label.replaceAll("␣", " ");
        const about = forced.has(index) ? ", written by you" : "";
        const called = `token ${index + 1}: ${label}${about}`;
        const button = tokenButton("decoder", index, called, shown);
        return isLineEnd(id) ? [button, element("br")] : [button];
      }),
    );
  }
  [...result.querySelectorAll("button")].forEach((button, index) => {
    button.classList.toggle("forced", forced.has(index));
    button.classList.toggle("later", index > cursor);
    button.classList.toggle("given", index < translation.prompt.length);
  });
}

const isLineEnd = (id) => !hasSource() && translation.label(id).endsWith("↵");

/** A token that one can point at to look at its step, and press to stay there. */
function tokenButton(side, index, name, ...content) {
  const button = element("button", { type: "button", "aria-label": name }, ...content);
  const point = () => {
    if (side === "decoder" && index > cursor) return;
    pointed = { side, index };
    look();
  };
  const leave = () => {
    if (pointed?.side !== side || pointed.index !== index) return;
    pointed = undefined;
    look();
  };
  button.addEventListener("pointerenter", point);
  button.addEventListener("focus", point);
  button.addEventListener("pointerleave", leave);
  button.addEventListener("blur", () => setTimeout(leave)); // the focus has moved by then
  button.addEventListener("click", () => {
    pause();
    if (side === "decoder") go(index);
    else pin(index);
  });
  return button;
}

/** Keep a token of the source in view; a second time releases it. */
function pin(index) {
  pinned = pinned === index ? undefined : index;
  look();
}

/**
 * The tokens that are looked at: in the decoder the step's, in the encoder what is pinned, else
 * what the chosen head of cross-attention attends to most; before both what the pointer is over.
 */
function looked() {
  const decoder = pointed?.side === "decoder" ? pointed.index : cursor;
  const kept = pointed?.side === "encoder" ? pointed.index : pinned;
  const attended = () => largest(translation.rows(crossed.box.shows)[decoder][crossed.head]);
  return { decoder, encoder: kept ?? (hasSource() ? attended() : 0), newest: cursor, pinned };
}

/** Show the numbers of the tokens that are looked at. */
function look() {
  if (!translation) return;
  const at = looked();
  result
    .querySelectorAll("button")
    .forEach((button, index) => button.setAttribute("aria-pressed", index === at.decoder));
  oneStop(result);
  bars.show(translation, at.decoder, forced.has(at.decoder));
  view.mark(at, chosen);
  detail.show(translation, at, chosen);
}

/** Choose a box or a head of the picture, at the step whose numbers the box shows. */
function choose({ side, box, head }) {
  const step = Math.max(
    0,
    box.steps.findIndex(({ name: made }) => made === box.shows),
  );
  chosen = { side, box, head, step };
  if (isCross(box)) crossed = chosen;
}

/** All heads in words, for the step that is shown. */
function showTranscript() {
  const items = view.boxes
    .filter(({ box }) => box.kind !== "output")
    .flatMap(({ side, box, canvases }) =>
      canvases.map((_, head) =>
        element(
          "li",
          {},
          `${titleOf({ side, box, head })}: ${inWords(translation, looked(), { side, box, head })}`,
        ),
      ),
    );
  transcript.querySelector("ul").replaceChildren(...items);
}

// --- the reader --------------------------------------------------------------------------------

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (document.activeElement !== input) ({ does } = event.submitter.dataset); // Enter does the same again
  run();
});
for (const button of examples.querySelectorAll("button")) {
  button.addEventListener("click", () => {
    input.value = button.textContent;
    ({ does } = button.dataset);
    run();
  });
}
controls.addEventListener("click", ({ target }) => {
  const what = target.dataset?.do;
  if (!what || !translation) return;
  if (what === "play") play();
  else if (what === "undo") {
    pause();
    undo();
    controls.querySelector("[data-do=next]").focus();
  } else {
    pause();
    go(what === "back" ? cursor - 1 : cursor + 1);
  }
});
picture.addEventListener("keydown", (event) => {
  if (!/^(Arrow|Home|End)/.test(event.key)) return;
  if (!view?.nodes?.includes(document.activeElement)) return;
  event.preventDefault();
  view.move(event.key);
});
document.addEventListener("keydown", ({ key }) => {
  if (key !== "Escape" || !translation) return;
  pinned = pointed = undefined;
  delete chosen.key;
  look();
});
rove(result);
document
  .querySelector("#live-meanings ul")
  .append(...Object.values(WORDS).map((says) => element("li", {}, says)));
transcript.addEventListener("toggle", () => transcript.open && translation && showTranscript());
words.addEventListener("toggle", async () => {
  if (!words.open) return;
  for (const model of MODELS) {
    tokenizers[model] ??= await sourceTokenizer(model);
    const sorted = tokenizers[model].words.sort(
      new Intl.Collator("en", { caseFirst: "lower" }).compare,
    );
    words.querySelector(`[data-model=${model}]`).textContent = sorted.join(" ");
  }
});
new ResizeObserver(() => translation && view.drawFlow(picture.querySelector(".live-flow"))).observe(
  picture,
);
picture.prepend(svg("svg", { class: "live-flow", "aria-hidden": true }));
if (own) {
  form.querySelector("label").textContent = "A text";
  for (const button of form.querySelectorAll("[type=submit]"))
    button.hidden = button.dataset.does !== does;
  input.value = app.dataset.text;
  result.removeAttribute("lang");
  [examples.hidden, words.hidden] = [true, true];
}
app.hidden = false; // without this script it would do nothing
if (own && !input.value) say("Type a text.");
else if (!own && navigator.connection?.saveData)
  say("Translate loads 2 megabytes, Continue 3 megabytes.");
else run();

// The page "The translator, live": what one types goes to translator.mjs, what comes back is shown.
// Nothing of a model is fetched before the reader asks for it.

const PAUSE = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 350; // ms after a token
const SMALL = 0.05; // weights below it are left to the colour

const [form, models, input, step, status, words, result, german, heads, map, links] = [
  "form", "models", "input", "step", "status", "words", "result", "german", "heads", "map", "links",
].map((name) => document.getElementById(`live-${name}`));

const loading = {}; // the promise of each translator that was asked for, by its model's name
let translation; // what is being written
let budget = 0; // how many tokens to write without being asked again
let writing = false; // whether write() is at it
let chosen; // layer and head of the large map

// --- the model -------------------------------------------------------------------------------

/** The radio button of the chosen model. */
const model = () => models.querySelector(":checked");

/** Show what belongs to the chosen model, and begin with its first example. */
function chooseModel() {
  const { value, dataset } = model();
  for (const part of document.querySelectorAll("[data-model]")) {
    part.hidden = part.dataset.model !== value;
  }
  clear();
  input.value = document.querySelector(".live-examples:not([hidden]) button").textContent;
  chosen = dataset.head.split(" ").map(Number);
  heads.querySelectorAll("label").forEach((label) => label.remove());
  words.open = false;
  words.querySelector("p").textContent = "";
}

/** List the words that the chosen model knows. */
async function listWords() {
  if (!words.open) return;
  const { value } = model();
  const { vocabulary } = await import("./translator.mjs");
  const known = await vocabulary(value);
  if (model().value !== value) return; // another one was chosen meanwhile
  const sorted = known.sort(new Intl.Collator("en", { caseFirst: "lower" }).compare);
  words.querySelector("p").textContent = sorted.join(" ");
}

// --- writing ---------------------------------------------------------------------------------

/** Begin with what stands in the input; true if that was possible. */
async function begin() {
  const { value } = model();
  forget();
  if (typeof WebAssembly === "undefined") {
    return refuse("This browser has no WebAssembly, and the model cannot run without it.");
  }
  say("Loading the model …");
  loading[value] ??= import("./translator.mjs").then(({ Translator }) => Translator.load(value));
  let translator;
  try {
    translator = await loading[value];
  } catch (error) {
    return refuse(`The model could not be loaded: ${error.message}. Reload the page to try again.`);
  }
  if (model().value !== value) return false; // another one was chosen meanwhile
  document.querySelectorAll(".live-example").forEach((picture) => picture.remove());
  const complaint = translator.complaint(input.value);
  if (complaint) {
    input.setAttribute("aria-invalid", "true");
    return refuse(complaint);
  }
  translation = translator.begin(input.value);
  say("Writing …");
  return true;
}

/** Stop writing. */
function forget() {
  budget = 0;
  translation = undefined;
  input.removeAttribute("aria-invalid");
}

/** Stop, and take from the page what belongs to another text. */
function clear() {
  forget();
  say("");
  result.hidden = true;
}

/** Write so many tokens more, or begin if there is nothing to go on with. */
async function ask(tokens) {
  const unfinished = translation && !translation.ended;
  if (!unfinished && !(await begin())) return;
  budget = tokens;
  if (!writing) write();
}

/** Write until the budget is spent. It is running once at most, whatever is clicked meanwhile. */
async function write() {
  writing = true;
  while (budget > 0 && translation && !translation.ended) {
    budget -= 1;
    await translation.step();
    show();
    if (budget > 0) await new Promise((done) => setTimeout(done, PAUSE));
  }
  writing = false;
  if (translation) report();
}

// --- showing ---------------------------------------------------------------------------------

function say(message, isError = false) {
  status.textContent = message;
  status.classList.toggle("live-error", isError);
}

function refuse(message) {
  say(message, true);
  result.hidden = true;
  return false;
}

/** Say what has come out, to screen readers too: once, not at every token. */
function report() {
  const { ended, ids, labels, text } = translation;
  if (ended) {
    say(`Done, in ${ids.length} tokens with the end`);
    return status.append(element("span", { className: "visually-hidden" }, `: ${text}`));
  }
  say(`Token ${ids.length} is “${labels.at(-1)}”. So far: ${text}`);
}

function show() {
  if (!translation?.ids.length) return;
  result.hidden = false;
  german.textContent = translation.text;
  showHeads();
  showMap();
}

/** One small map a head, each with a radio button that makes it the large one. */
function showHeads() {
  const [layers, perLayer] = translation.attention.dims;
  if (heads.querySelector("input") === null) {
    for (let layer = 0; layer < layers; layer++) {
      for (let head = 0; head < perLayer; head++) {
        const radio = element("input", { type: "radio", name: "head" });
        radio.checked = layer === chosen[0] && head === chosen[1];
        radio.addEventListener("change", () => {
          chosen = [layer, head];
          showMap();
        });
        const name = element("span", {}, radio, ` layer ${layer}, head ${head}`);
        heads.append(element("label", {}, name, element("canvas", { ariaHidden: "true" })));
      }
    }
  }
  heads.querySelectorAll("canvas").forEach((canvas, index) => {
    const weights = translation.weights(Math.floor(index / perLayer), index % perLayer);
    canvas.width = weights[0].length;
    canvas.height = weights.length;
    const pen = canvas.getContext("2d");
    weights.forEach((row, y) => row.forEach((weight, x) => {
      pen.fillStyle = colour(weight);
      pen.fillRect(x, y, 1, 1);
    }));
  });
}

/** The chosen head as a table, and its strongest links in words. */
function showMap() {
  const { sourceLabels } = translation;
  const labels = translation.labels.map((label) => label.replaceAll(" ", "␣"));
  const weights = translation.weights(...chosen);
  const name = `Layer ${chosen[0]}, head ${chosen[1]}`;
  map.caption.textContent = `${name}: where it looks (columns) to write each token (rows), in percent.`;
  const headings = sourceLabels.map((label) => element("th", { scope: "col" }, element("span", {}, label)));
  map.tHead.replaceChildren(element("tr", {}, element("td"), ...headings));
  map.tBodies[0].replaceChildren(...weights.map((row, i) => {
    const cells = Array.from(row, (weight) => {
      const cell = element("td", { title: weight.toFixed(4) }, weight < SMALL ? "" : percent(weight));
      cell.style.background = colour(weight);
      cell.style.color = weight < 0.47 ? "white" : "black"; // contrast at least 4.5 on every colour
      return cell;
    });
    return element("tr", {}, element("th", { scope: "row" }, labels[i]), ...cells);
  }));
  const strongest = weights.map((row, i) => {
    const most = Math.max(...row);
    return `“${labels[i]}” → “${sourceLabels[row.indexOf(most)]}” (${percent(most)}\u00a0%)`;
  });
  links.textContent = `${name} in words, each token with the one it looks at most: ${strongest.join(", ")}.`;
}

const percent = (weight) => (100 * weight).toFixed(0);

/** Dark blue over grey to yellow, for weights from 0 to 1: close to the cividis of the figures. */
function colour(weight) {
  const stops = [[0, 34, 78], [124, 123, 120], [254, 232, 56]];
  const [from, to] = weight < 0.5 ? stops.slice(0, 2) : stops.slice(1);
  const share = weight < 0.5 ? 2 * weight : 2 * weight - 1;
  return `rgb(${from.map((start, i) => start + share * (to[i] - start)).join(" ")})`;
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// --- the reader ------------------------------------------------------------------------------

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask(Infinity);
});
step.addEventListener("click", () => {
  if (!translation?.ended) ask(1);
});
input.addEventListener("input", clear);
models.addEventListener("change", chooseModel);
words.addEventListener("toggle", listWords);
for (const button of document.querySelectorAll(".live-examples button")) {
  button.addEventListener("click", () => {
    clear();
    input.value = button.textContent;
    ask(Infinity);
  });
}
chooseModel();
form.hidden = false; // without this script it would do nothing

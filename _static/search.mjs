// The search page: sections of the book, the best first, found by Pagefind's index.

import { STOP } from "./stop_words.mjs";

const MOST = 20;
const LOADED = 30;
const root = new URL("../", import.meta.url);
const box = document.querySelector("#search-results");
const query = new URLSearchParams(location.search).get("q") ?? "";

function asked(text) {
  const words = text.replace(/√/g, " sqrt ").replace(/[-_]/g, " ").split(/[\s?!,;:"“”()]+/).filter(Boolean);
  const telling = words.filter((word) => !STOP.has(word.toLowerCase()));
  return telling.length ? telling : words;
}

// Pagefind finds what has all words. A section that lacks one may still be the answer: so each word
// is left out once, and asked for alone, and what has more of them counts for more.
async function found(pagefind, words) {
  const without = words.map((_, left) => words.filter((_, index) => index !== left));
  const subsets = [words, ...(words.length > 2 ? without : []), ...(words.length > 1 ? words.map((word) => [word]) : [])];
  const total = new Map();
  for (const subset of subsets) {
    const { results } = await pagefind.search(subset.join(" "));
    for (const result of results) {
      const known = total.get(result.id) ?? { result, score: 0 };
      known.score += result.score * (subset.length / words.length) ** 3;
      total.set(result.id, known);
    }
  }
  return [...total.values()].sort((x, y) => y.score - x.score);
}

// A heading that has the words is worth more than a text that does, and a chapter more than a reference.
function worth({ score, data }, words) {
  const title = data.meta.title.toLowerCase().split(/[^\p{L}\p{N}]+/u);
  const stem = (word) => word.toLowerCase().slice(0, Math.max(4, word.length - 3));
  const covered = words.filter((word) => title.some((other) => other.startsWith(stem(word)))).length / words.length;
  const precise = covered ? words.length / Math.max(words.length, title.filter((word) => !STOP.has(word)).length) : 0;
  return data.meta.weight * score * (1 + 4 * covered ** 2 + 2 * covered * precise);
}

function shown({ meta, excerpt }) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = new URL(meta.address, root);
  link.textContent = meta.title;
  item.append(link);
  if (meta.page !== meta.title) item.append(` · ${meta.page}`);
  const text = document.createElement("p");
  text.className = "context";
  text.innerHTML = excerpt; // Pagefind escapes all but its marks
  item.append(text);
  return item;
}

async function search() {
  const pagefind = await import(new URL("pagefind/pagefind.js", root));
  const words = asked(query);
  const results = await found(pagefind, words);
  const first = results.slice(0, LOADED).map(async ({ result, score }) => ({ score, data: await result.data() }));
  const ranked = (await Promise.all(first)).sort((x, y) => worth(y, words) - worth(x, words));
  const best = ranked.slice(0, MOST).map(({ data }) => data);
  const summary = document.createElement("p");
  summary.className = "search-summary";
  const count = results.length > MOST ? `the best ${MOST} of ${results.length} sections` : `${results.length} sections`;
  summary.textContent = results.length ? `Found: ${count}.` : "Nothing found. Fewer words, or others, may find more.";
  const list = document.createElement("ul");
  list.className = "search";
  list.append(...best.map(shown));
  box.replaceChildren(summary, list);
}

for (const field of document.querySelectorAll('input[name="q"]')) field.value = query;
if (query) search();

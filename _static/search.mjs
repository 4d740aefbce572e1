// The search page: sections of the book, the best first, found by Pagefind's index.

import { STOP } from "./stop_words.mjs";

const MOST = 20;
const root = new URL("../", import.meta.url);
const box = document.querySelector("#search-results");
const query = new URLSearchParams(location.search).get("q") ?? "";

function asked(text) {
  const words = text.replace(/√/g, " sqrt ").replace(/-/g, " ").split(/[\s?!,;:"“”]+/).filter(Boolean);
  const telling = words.filter((word) => !STOP.has(word.toLowerCase()));
  return (telling.length ? telling : words).join(" ");
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
  const { results } = await pagefind.search(asked(query));
  const best = await Promise.all(results.slice(0, MOST).map((result) => result.data()));
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

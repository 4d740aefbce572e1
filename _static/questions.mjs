// The index of questions: those that share words with what is typed come first, the best on top.
// A word counts as much as it is rare here; common words and endings count for nothing.

import { STOP } from "./stop_words.mjs";

const words = document.querySelector("#question-words");
const page = words.closest("section");
const count = document.querySelector("#question-count");
const topics = [...page.querySelectorAll(":scope > section")];

function wordsOf(text) {
  const plain = text.toLowerCase().replace(/√|sqrt/g, " root ").replace(/[’']s\b/g, "");
  return (plain.match(/[\p{L}\p{N}]+/gu) ?? []).filter((word) => !STOP.has(word)).map(stem);
}

function stem(word) {
  return word.length > 4 ? word.replace(/(ies)$/, "y").replace(/(ing|ed|es|s)$/, "") : word;
}

const questions = topics.flatMap((section) =>
  [...section.querySelectorAll(":scope > ul > li")].map((item) => ({
    item,
    list: item.parentElement,
    words: wordsOf(`${item.textContent} ${section.querySelector("h2").textContent}`),
  })),
);
const found = document.createElement("ul");
found.id = "questions-found";
page.insertBefore(found, topics[0]);

function rarity(word) {
  const holding = questions.filter((question) => question.words.some((other) => other.startsWith(word)));
  return holding.length ? Math.log(1 + questions.length / holding.length) : 0;
}

function filter() {
  const typed = [...new Set(wordsOf(words.value))].map((word) => [word, rarity(word)]);
  for (const section of topics) section.hidden = typed.length > 0;
  for (const { item, list } of questions) list.append(item);
  if (typed.length === 0) {
    count.textContent = `${questions.length} questions`;
    return;
  }
  const score = (question) =>
    typed.reduce((sum, [word, weight]) => sum + (question.words.some((other) => other.startsWith(word)) ? weight : 0), 0);
  const scored = questions.map((question) => [score(question), question]).filter(([points]) => points > 0);
  const best = Math.max(0, ...scored.map(([points]) => points));
  const shown = scored.filter(([points]) => points >= 0.6 * best).sort(([a], [b]) => b - a);
  for (const [, { item }] of shown) found.append(item);
  count.textContent = `${shown.length} of ${questions.length} questions`;
}

words.addEventListener("input", filter);
words.form.addEventListener("submit", (event) => event.preventDefault());
words.form.hidden = false;
words.value = new URLSearchParams(location.search).get("words") ?? "";
filter();

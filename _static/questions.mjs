// The index of questions: leaves in sight those that contain every word typed;
// the link to its other half takes them along.

const words = document.querySelector("#question-words");
const page = words.closest("section");
const other = document.querySelector("#other-questions");
const count = document.querySelector("#question-count");
const questions = [...page.querySelectorAll("section > ul > li")];
const searchable = new Map(questions.map((item) => [item, item.textContent.toLowerCase()]));

function filter() {
  const typed = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const [item, text] of searchable) item.hidden = !typed.every((word) => text.includes(word));
  for (const topic of page.querySelectorAll(":scope > section")) {
    topic.hidden = topic.querySelector("li:not([hidden])") === null;
  }
  const found = questions.filter((item) => !item.hidden).length;
  other.search = new URLSearchParams(typed.length ? { words: words.value } : {});
  count.textContent = typed.length ? `${found} of ${questions.length} questions` : `${questions.length} questions`;
}

words.addEventListener("input", filter);
words.form.addEventListener("submit", (event) => event.preventDefault());
words.form.hidden = false;
words.value = new URLSearchParams(location.search).get("words") ?? "";
filter();

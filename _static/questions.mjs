// The index of questions: leaves in sight those that contain every word typed, of all its
// pages. Until the others are there, or where they cannot be read (in a page opened as a
// file), the links to them take the words along.

const words = document.querySelector("#question-words");
const page = words.closest("section");
const links = [...page.querySelectorAll(':scope > p a[href^="questions"]')];
const count = document.querySelector("#question-count");
let topics = sections(page);
let fetched;

function sections(parent) {
  return [...parent.querySelectorAll(":scope > section")].map((section) => ({
    section,
    questions: [...section.querySelectorAll(":scope > ul > li")].map((item) => [item, item.textContent.toLowerCase()]),
  }));
}

async function read(link) {
  const answer = await fetch(link.pathname);
  if (!answer.ok) throw new Error(answer.statusText);
  const other = new DOMParser().parseFromString(await answer.text(), "text/html");
  return sections(document.adoptNode(other.querySelector("#question-words").closest("section")));
}

async function readOthers() {
  const found = await Promise.all(links.map(read));
  for (const { section } of found.flat()) page.append(section);
  topics = [...topics, ...found.flat()];
}

function filter() {
  const typed = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  let all = 0;
  for (const { section, questions } of topics) {
    for (const [item, text] of questions) item.hidden = !typed.every((word) => text.includes(word));
    const shown = questions.filter(([item]) => !item.hidden).length;
    section.hidden = shown === 0;
    found += shown;
    all += questions.length;
  }
  for (const link of links) link.search = new URLSearchParams(typed.length ? { words: words.value } : {});
  count.textContent = typed.length ? `${found} of ${all} questions` : `${all} questions`;
  if (typed.length) fetched ??= readOthers().then(filter, () => {});
}

words.addEventListener("input", filter);
words.form.addEventListener("submit", (event) => event.preventDefault());
words.form.hidden = false;
words.value = new URLSearchParams(location.search).get("words") ?? "";
filter();

// Chapter 5: how `view` and `transpose` cut vectors into heads and join them, by addresses.

import { checkbox, element, fill, select, slider } from "./elements.mjs";

const WIDTH = 8;

const indices = (size) => Array.from({ length: size }, (_, index) => index);

/** Where each number of the heads, (h, n, e), stands in the sentence, (n, h * e), row by row. */
export function split(n, h, e, transposed) {
  const address = (i, t, c) => (transposed ? (t * h + i) * e + c : (i * n + t) * e + c);
  return indices(h).map((i) => indices(n).map((t) => indices(e).map((c) => address(i, t, c))));
}

/** Heads, (h, n, e), joined to (n, h * e). */
export function join(heads, transposed) {
  const [h, n, e] = [heads.length, heads[0].length, heads[0][0].length];
  if (transposed) return indices(n).map((t) => heads.flatMap((head) => head[t]));
  const numbers = heads.flat(2); // as they stand in memory
  return indices(n).map((t) => numbers.slice(t * h * e, (t + 1) * h * e));
}

export function mount(place) {
  const tokens = slider("tokens n", { min: 2, max: 4, value: 3 }, draw);
  const counts = { 2: "2", 4: "4", 8: "8" };
  const heads = select("heads h", counts, draw);
  heads.input.value = "4";
  const chosen = slider("head", { min: 0, max: 3, value: 1 }, draw);
  const there = checkbox("transpose after the split", true, draw);
  const back = checkbox("transpose before joining", true, draw);
  const controls = [tokens, heads, chosen, there, back].map((control) => control.node);
  const { sentence, view } = fill(place, "Split into heads and joined", controls);

  function draw() {
    const [n, h] = [tokens.value, Number(heads.input.value)];
    const e = WIDTH / h;
    chosen.input.max = h - 1; // a greater head becomes the last one
    chosen.write();
    const head = chosen.value;
    const all = split(n, h, e, there.input.checked);
    const joined = join(all, back.input.checked);
    const own = new Set(all[head].flat());
    const from = new Set([...own].map((address) => Math.floor(address / WIDTH)));
    const moved = joined.flat().filter((address, place) => address !== place).length;
    const whole = all[head].every((row, t) => row.every((a) => Math.floor(a / WIDTH) === t));
    sentence.textContent =
      (whole
        ? `Head ${head} has its own columns of every token, one row for each.`
        : `Head ${head} has the right shape and the wrong numbers: its ${n} rows come from ` +
          `${from.size === 1 ? "a single token" : `${from.size} tokens`}, mixed up.`) +
      (moved
        ? ` Joined, ${moved} of ${n * WIDTH} numbers are out of place.`
        : " Joined, every number is back in its place" +
          (whole ? "." : ": the round trip hides the mistake."));

    view.replaceChildren(
      grid(`the sentence, (n, d) = (${n}, ${WIDTH})`, indices(n).map(rowOf), own),
      element(
        "div",
        { class: "beside" },
        grid(`head ${head} of (h, n, e) = (${h}, ${n}, ${e})`, all[head], own),
        grid(`joined, (n, d) = (${n}, ${WIDTH})`, joined, own),
      ),
      element("p", {}, `A number is an address; those of head ${head} are framed and bold.`),
    );
  }

  draw();
}

const rowOf = (token) => indices(WIDTH).map((column) => token * WIDTH + column);

/** A table of addresses, a row for each token; the addresses in `own` are marked. */
function grid(caption, rows, own) {
  const body = rows.map((row, token) => {
    const cells = row.map((address) =>
      element("td", { class: own.has(address) ? "own-head" : "" }, `${address}`),
    );
    return element("tr", {}, element("th", { scope: "row" }, `row ${token}`), ...cells);
  });
  return element(
    "table",
    { class: "addresses" },
    element("caption", {}, caption),
    element("tbody", {}, ...body),
  );
}

// What the explorables share: making elements and controls, and writing numbers.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: element("p", { class: "note" }, "text", anotherElement). */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An element of a drawing: svg("circle", { cx: 1, cy: 1, r: 1 }). */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** A slider with its name before it and its value behind it; `write` turns the value into text. */
export function slider(name, { min, max, value, step = 1, write = String }, whenMoved) {
  const input = element("input", { type: "range", min, max, step, value });
  const text = element("span", { class: "value", "aria-hidden": true });
  const control = {
    node: element("label", { class: "slider" }, element("span", {}, name), input, text),
    input,
    get value() {
      return Number(input.value);
    },
    set value(number) {
      input.value = number;
      control.write();
    },
    write() {
      text.textContent = write(control.value);
      input.setAttribute("aria-valuetext", text.textContent);
    },
  };
  input.addEventListener("input", () => {
    control.write();
    whenMoved();
  });
  control.write();
  return control;
}

export function checkbox(name, checked, whenChanged) {
  const input = element("input", { type: "checkbox" });
  input.checked = checked;
  input.addEventListener("change", whenChanged);
  return { node: element("label", { class: "choice" }, input, name), input };
}

export function button(name, whenPressed) {
  const node = element("button", { type: "button" }, name);
  node.addEventListener("click", whenPressed);
  return node;
}

/** A choice among a few: `options` maps each value to its name. */
export function select(name, options, whenChanged) {
  const input = element("select");
  for (const [value, text] of Object.entries(options)) {
    input.append(element("option", { value }, text));
  }
  input.addEventListener("change", whenChanged);
  return { node: element("label", { class: "choice" }, name, input), input };
}

/**
 * Put controls, a sentence that says what is shown, and the picture into the place.
 * Screen readers speak the sentence whenever it changes.
 */
export function fill(place, name, controls) {
  const sentence = element("p", { role: "status" });
  const view = element("div", { class: "view" });
  place.setAttribute("role", "group");
  place.setAttribute("aria-label", name);
  place.replaceChildren(element("div", { class: "controls" }, ...controls), sentence, view);
  return { sentence, view };
}

/** A number with so many decimals, and a real minus sign. */
export function decimals(number, count) {
  const text = number.toFixed(count);
  return Number(text) < 0 ? text.replace("-", "−") : text.replace("-", "");
}

/** A small number as 1.2 · 10⁻⁵ rather than 0.0. */
export function scientific(number) {
  if (number === 0 || number >= 0.01) return decimals(number, 2);
  const [digits, exponent] = number.toExponential(1).split("e-");
  return `${digits} · 10⁻${raised(exponent)}`;
}

/** The digits of an exponent. */
export const raised = (power) => [...`${power}`].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");

/** A picture under its caption. */
export function figure(caption, picture) {
  return element("figure", {}, element("figcaption", {}, caption), picture);
}

/** A horizontal line of a plot, and the number that it is at. */
export function level(left, right, y, number) {
  const tick = svg("text", { x: left - 6, y: y + 5, class: "tick" }, number);
  return [svg("line", { x1: left, x2: right, y1: y, y2: y, class: "grid" }), tick];
}

/** What a fetch of a data file beside the modules brings. */
export async function data(file) {
  const response = await fetch(new URL(file, import.meta.url));
  if (!response.ok) throw new Error(`${file}: ${response.status} ${response.statusText}`);
  return response.json();
}

/** Wait until the reader comes near: what a place fetches may be large. */
export const near = (place) =>
  new Promise((resolve) => {
    const watch = (entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      resolve();
    };
    new IntersectionObserver(watch, { rootMargin: "800px" }).observe(place);
  });

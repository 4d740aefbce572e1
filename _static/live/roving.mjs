// A list of buttons is one stop of the Tab key: arrow keys, Home and End move inside it.

const buttonsOf = (list) => [...list.querySelectorAll("button")];

/** Let keys move between the buttons of a list, whatever they are later. */
export function rove(list) {
  list.addEventListener("keydown", (event) => {
    const all = buttonsOf(list);
    const at = all.indexOf(document.activeElement);
    const to = {
      ArrowLeft: at - 1,
      ArrowUp: at - 1,
      ArrowRight: at + 1,
      ArrowDown: at + 1,
      Home: 0,
      End: all.length - 1,
    }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    all[to]?.focus();
    oneStop(list);
  });
}

/** Leave one button to the Tab key: the focused one, or the pressed one. */
export function oneStop(list) {
  const all = buttonsOf(list);
  const isPressed = (button) => button.getAttribute("aria-pressed") === "true";
  const stop = all.find((button) => button === document.activeElement) ?? all.find(isPressed);
  for (const button of all) button.tabIndex = button === (stop ?? all[0]) ? 0 : -1;
}

/** Fill a list again; the focus stays on the button of the same number. */
export function refill(list, ...nodes) {
  const at = buttonsOf(list).indexOf(document.activeElement);
  list.replaceChildren(...nodes);
  buttonsOf(list)[at]?.focus({ preventScroll: true });
  oneStop(list);
}

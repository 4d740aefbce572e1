// Formulas that are wider than the column scroll in their box: the keyboard has to reach them.
// (The theme does the same for code, outputs and tables; a table grows when its formulas are set.)
document.addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector(".bd-article");
  if (!article) return;

  const boxes = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      if (target.scrollWidth > target.clientWidth) {
        target.tabIndex = 0;
      } else {
        target.removeAttribute("tabindex");
      }
    }
  });
  article.querySelectorAll("div.math").forEach((box) => boxes.observe(box));

  const tables = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      const box = target.parentElement;
      box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
    }
  });
  const scrolling = article.querySelectorAll(".pst-scrollable-table-container > table");
  scrolling.forEach((table) => tables.observe(table));

  // A formula in a line becomes a box of its own where it sticks out of the column. Measured anew
  // whenever the article changes its size: while formulas are being set, they can be too wide.
  // (Tables scroll as a whole.)
  const inline = [...article.querySelectorAll("span.math")].filter((m) => !m.closest("table"));
  const lines = new ResizeObserver(() => {
    inline.forEach((formula) => formula.classList.remove("wide"));
    const edge = article.getBoundingClientRect().right + 1;
    const wide = new Set(
      inline.filter((formula) => formula.firstElementChild?.getBoundingClientRect().right > edge),
    );
    for (const formula of inline) {
      formula.classList.toggle("wide", wide.has(formula));
      if (wide.has(formula)) {
        boxes.observe(formula);
      } else {
        boxes.unobserve(formula);
        formula.removeAttribute("tabindex");
      }
    }
  });
  lines.observe(article);
});

// Formulas that are wider than the column scroll in their box: the keyboard has to reach them.
// (The theme does the same for code, outputs and tables.)
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

  // A formula in a line becomes a box of its own when it sticks out of the column.
  const lines = new ResizeObserver(() => {
    const edge = article.getBoundingClientRect().right + 1;
    [...article.querySelectorAll("span.math:not(.wide)")]
      .filter((formula) => formula.firstElementChild?.getBoundingClientRect().right > edge)
      .forEach((formula) => {
        formula.classList.add("wide");
        boxes.observe(formula);
      });
  });
  lines.observe(article);
});

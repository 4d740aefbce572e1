// Formulas that are wider than the column scroll in their box: the keyboard has to reach them.
// (The theme does the same for code, outputs and tables.)
document.addEventListener("DOMContentLoaded", () => {
  const watcher = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      if (target.scrollWidth > target.clientWidth) {
        target.tabIndex = 0;
      } else {
        target.removeAttribute("tabindex");
      }
    }
  });
  document.querySelectorAll(".bd-article div.math").forEach((box) => watcher.observe(box));
});

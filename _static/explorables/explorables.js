// Fills each place for an explorable with the explorable it names.
//
// Jupyter Book puts every .js file under _static into every page. So this is the only one here: the
// explorables are .mjs files, and a page fetches those that it has a place for. Where this script
// does not run, as in a notebook, the place keeps the text that stands in it.

const folder = document.currentScript.src;

document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll("[data-explorable]")) {
    import(new URL(`${place.dataset.explorable}.mjs`, folder)).then(
      (explorable) => explorable.mount(place),
      // A browser that opens the page as a file, without a server, fetches no modules.
      (error) => console.warn(`no explorable ${place.dataset.explorable}:`, error),
    );
  }
});

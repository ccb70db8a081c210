// Sets up rapidoc.js: RapiDoc 9.3.8 (npm package rapidoc, its dist/rapidoc-min.js), MIT licence.
// Calls go to the origin of this page, whatever address the document names.
const viewer = document.querySelector("rapi-doc");
const root = new URL(viewer.dataset.root, location.href).href;
const complete = where => {
  for (const box of where.querySelectorAll("pre:not([tabindex])")) box.tabIndex = 0;
  for (const field of where.querySelectorAll("[data-pname]:not([aria-label])")) field.setAttribute("aria-label", field.dataset.pname);
  for (const inner of where.querySelectorAll("*")) if (inner.shadowRoot) watch(inner.shadowRoot);
};
const watched = new WeakSet();
function watch(where) {
  if (watched.has(where)) return;
  watched.add(where);
  new MutationObserver(() => complete(where)).observe(where, { childList: true, subtree: true });
  complete(where);
}
viewer.setAttribute("server-url", root.slice(0, -1));
viewer.setAttribute("spec-url", `${root}api/v1/openapi.json`);
customElements.whenDefined("rapi-doc").then(() => watch(viewer.shadowRoot));

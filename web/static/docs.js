// The search box of the documentation: "/" focuses it, and results appear while one types. They are
// those of the page that the form leads to.
const box = document.getElementById("docs-q");
const form = box.form;
const list = document.createElement("div");
let timer, newest = 0;

list.className = "instant";
list.hidden = true;
form.append(list);

async function showResults() {
  const text = box.value.trim(), number = ++newest;
  if (text.length < 2) { list.hidden = true; return; }
  const response = await fetch(`${form.action}?${new URLSearchParams({ q: text })}`, { credentials: "omit" });
  const found = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("results");
  if (!response.ok || !found || number !== newest) return;
  // The links are relative to the page of the search, not to this one.
  for (const link of found.querySelectorAll("a")) link.href = new URL(link.getAttribute("href"), response.url);
  found.removeAttribute("id");
  list.replaceChildren(document.importNode(found, true));
  list.hidden = false;
}

function moveFocus(step) {
  const stops = [box, ...list.querySelectorAll("a")];
  stops[Math.max(0, stops.indexOf(document.activeElement) + step)]?.focus();
}

box.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => showResults().catch(() => {}), 150); });
form.addEventListener("keydown", event => {
  if (event.key === "Escape") { list.hidden = true; box.focus(); }
  if (list.hidden || !["ArrowDown", "ArrowUp"].includes(event.key)) return;
  event.preventDefault();
  moveFocus(event.key === "ArrowDown" ? 1 : -1);
});
document.addEventListener("click", event => { if (!form.contains(event.target)) list.hidden = true; });
document.addEventListener("keydown", event => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  box.focus();
});

// A link to a heading opens the part below it.
function openTarget() {
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("details")?.setAttribute("open", "");
}
addEventListener("hashchange", openTarget);
openTarget();

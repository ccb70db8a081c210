// Everything here works without a script too, by forms and links: it only saves page loads.
const form = document.querySelector("form.filter");
const table = document.getElementById("whole");
const stars = document.getElementById("stars");

// Filters the full board while the user types. A page that is already filtered lacks the other
// rows, so there the form is sent to the server.
function isMatch(row, wanted) {
  const [head, ...cells] = row.cells;
  const label = `${row.id} ${head.querySelector("span").textContent}`.toLowerCase();
  const shown = cells.filter(cell => !cell.hidden);
  return (!wanted.asset_class || row.classList.contains(wanted.asset_class))
    && label.includes(wanted.text.trim().toLowerCase())
    && (wanted.show !== "watched" || head.querySelector("[name=remove]"))
    && (!wanted.direction || shown.some(cell =>
      cell.classList.contains(wanted.direction) || cell.querySelector(`b.${wanted.direction}`)));
}

function showColumns(indicator) {
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    if (!head.dataset.indicator) return;
    head.hidden = Boolean(indicator) && head.dataset.indicator !== indicator;
    for (const row of table.tBodies[0].rows) row.cells[place].hidden = head.hidden;
  });
}

function readFilled() {
  return new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
}

function narrow() {
  const wanted = Object.fromEntries(new FormData(form));
  const rows = [...table.tBodies[0].rows];
  showColumns(wanted.indicator);
  for (const row of rows) row.hidden = !isMatch(row, wanted);
  const left = rows.filter(row => !row.hidden).length;
  document.getElementById("shown").textContent = left;
  document.querySelector(".empty").hidden = left > 0;
  for (const file of document.querySelectorAll("a.file")) file.search = readFilled();
}

if (table) {
  form.addEventListener("input", narrow);
  narrow();
}
for (const list of form.querySelectorAll("select"))
  list.addEventListener("change", () => {
    // What the page does not hold comes from the server.
    if (!table || list.name === "changed" || ["first", "removed"].includes(list.value)) form.requestSubmit();
  });

// A star is stored in the background. If that fails, the form is sent as without a script.
async function toggle(star) {
  const body = new URLSearchParams(new FormData(stars));
  body.set(star.name, star.value);
  const answer = await fetch(stars.action, { method: "POST", body, redirect: "manual" });
  if (answer.type !== "opaqueredirect") throw new Error(answer.status);
  const isAdded = star.name === "add";
  star.name = isAdded ? "remove" : "add";
  star.setAttribute("aria-label", `${isAdded ? "Stop watching" : "Watch"} ${star.value}`);
  if (table) narrow();
}

stars?.addEventListener("submit", event => {
  const star = event.submitter;
  if (!star || star.dataset.failed) return;
  event.preventDefault();
  toggle(star).catch(() => {
    star.dataset.failed = "1";
    stars.requestSubmit(star);
  });
});

// Filters the whole list while one types; "/" focuses the field. A list that the server has already
// filtered lacks the other rows, so there the form is sent.
const form = document.querySelector("form.filter");
const table = document.getElementById("whole");

function narrow() {
  const { text, asset_class } = Object.fromEntries(new FormData(form));
  const wanted = text.trim().toLowerCase();
  let shown = 0;
  for (const body of table.tBodies) {
    const [, ...rows] = body.rows;
    for (const row of rows) {
      const label = row.cells[0].textContent.toLowerCase();
      row.hidden = !label.includes(wanted) || Boolean(asset_class && asset_class !== body.dataset.class);
      shown += !row.hidden;
    }
    body.hidden = rows.every(row => row.hidden);
  }
  document.getElementById("shown").textContent = shown;
  document.getElementById("nothing").hidden = shown > 0;
}

if (table) {
  form.addEventListener("input", narrow);
  narrow();
}
document.addEventListener("keydown", event => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  form.elements.text.focus();
});

// Filters the full heat map while the user types. A page that is already filtered lacks the other
// rows, so there the form is sent to the server.
const form = document.querySelector("form.filter");
const table = document.getElementById("whole");

function isMatch(row, kind, wanted) {
  const [ticker, name] = row.cells[0].children;
  const label = `${ticker.textContent} ${name.textContent}`.toLowerCase();
  const readings = [...row.cells].slice(1).filter(cell => !cell.hidden);
  return (!wanted.asset_class || wanted.asset_class === kind)
    && label.includes(wanted.text.trim().toLowerCase())
    && (!wanted.direction || readings.some(cell => cell.classList.contains(wanted.direction)));
}

function showColumns(indicator) {
  [...table.tHead.rows[0].cells].slice(1).forEach((head, place) => {
    head.hidden = Boolean(indicator) && head.dataset.indicator !== indicator;
    for (const row of table.querySelectorAll("tbody tr:nth-child(n + 2)"))
      row.cells[place + 1].hidden = head.hidden;
  });
}

function narrow() {
  const wanted = Object.fromEntries(new FormData(form));
  let shown = 0;
  showColumns(wanted.indicator);
  for (const body of table.tBodies) {
    const [, ...rows] = body.rows;
    for (const row of rows) row.hidden = !isMatch(row, body.dataset.class, wanted);
    const left = rows.filter(row => !row.hidden).length;
    body.hidden = left === 0;
    shown += left;
  }
  document.getElementById("shown").textContent = shown;
}

if (table) {
  form.addEventListener("input", narrow);
  narrow();
}

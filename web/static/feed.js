// Keeps relative times true while the page is open, and leaves empty fields out of the address.
const form = document.querySelector("form.filters");
const opened = Date.now();

// As format_ago of web/feed_pages.py, by the clock of the server.
function formatAgo(at, now) {
  const minutes = Math.floor((now - at) / 60000);
  if (minutes < 1) return minutes < 0 ? "" : "just now";
  if (minutes < 60) return `${minutes} min ago`;
  return minutes < 48 * 60 ? `${Math.floor(minutes / 60)} h ago` : `${Math.floor(minutes / 1440)} d ago`;
}

function refresh() {
  const now = Number(form.dataset.now) + Date.now() - opened;
  for (const span of document.querySelectorAll(".ago"))
    span.textContent = formatAgo(Date.parse(span.dataset.at), now);
}

setInterval(refresh, 30000);
form.addEventListener("formdata", event => {
  for (const [name, value] of [...event.formData]) if (!value) event.formData.delete(name);
});

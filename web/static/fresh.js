// Asks for the time of the data after each run is due, and offers newer ones. Nothing on the page
// moves by itself. The title counts the changes since it was opened, and if the reader allows them,
// notifications name them while another tab is in front.
const fresh = document.getElementById("fresh");
const MINUTE = 60_000, title = document.title;
let seen = fresh?.dataset.asOf, changes = 0;

function plan(next) {
  const due = Date.parse(next) + MINUTE / 2 * (1 + Math.random());
  if (!Number.isNaN(due)) setTimeout(ask, Math.max(due - Date.now(), MINUTE));
}

async function ask() {
  try {
    const answer = await fetch(fresh.dataset.url, { cache: "no-cache" });
    if (!answer.ok) throw new Error(answer.status);
    const latest = await answer.json();
    if (latest.as_of > seen) {
      seen = latest.as_of;
      offer(`${seen.slice(11, 16)}`, latest.changes);
    }
    plan(latest.next_update);
  } catch {
    plan(new Date(Date.now() + 5 * MINUTE));
  }
}

function offer(time, added) {
  const link = document.createElement("a"), form = document.querySelector("[role=search]");
  link.href = `?${new URLSearchParams([...new FormData(form)].filter(([, value]) => value))}`;
  link.textContent = `New readings from ${time} – show`;
  fresh.replaceChildren(link);
  if (!added) return;
  changes += added;
  document.title = `(${changes}) ${title}`;
  if (!document.hidden || window.Notification?.permission !== "granted") return;
  try {
    const notice = new Notification(`${added} change${added === 1 ? "" : "s"} at ${time} UTC`, { body: title, tag: "signals" });
    notice.onclick = () => window.focus();
  } catch { /* Some phones allow no notification without a service worker. */ }
}

// A browser asks for the permission only after a press.
function offerNotices() {
  if (window.Notification?.permission !== "default") return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet notify";
  button.textContent = "Notify me of changes";
  button.addEventListener("click", async () => {
    await Notification.requestPermission();
    button.remove();
  });
  fresh.after(button);
}

if (fresh) {
  plan(fresh.dataset.next);
  offerNotices();
}

// Sends the call of the form. The server checks the values and builds the request, as it does
// without script; this script reads it from that page. The key stays in this tab.
const form = document.getElementById("try");
const send = document.getElementById("send");
const key = document.getElementById("key");
const outcome = document.getElementById("outcome");
const STORED_KEY = "signals-api-key";
// Not form.method and form.action: a field may have one of these names.
const isPost = form.getAttribute("method") === "post", action = form.getAttribute("action");
let timer, newest = 0;

async function loadPage() {
  const values = new URLSearchParams(new FormData(form));
  const options = { credentials: "omit", cache: "no-store" };
  const response = isPost
    ? await fetch(action, { ...options, method: "POST", body: values })
    : await fetch(`${action}?${values}`, options);
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

async function refresh(showErrors) {
  const number = ++newest, page = await loadPage();
  if (number !== newest) return false;
  const made = page.getElementById("request");
  if (!made) throw new Error("The service did not accept the form. Reload the page.");
  Object.assign(document.getElementById("request").dataset, { ...made.dataset });
  for (const id of ["curl", "rpc"]) {
    const text = document.querySelector(`#${id} code`);
    if (text) text.textContent = page.querySelector(`#${id} code`).textContent;
  }
  if (!showErrors) return true;
  document.getElementById("fields").replaceChildren(...document.importNode(page.getElementById("fields"), true).childNodes);
  const wrong = form.querySelector("[aria-invalid]");
  wrong?.focus();
  return !wrong;
}

async function call() {
  const { method, address, headers, body } = document.getElementById("request").dataset;
  const sent = new Headers(headers.split("\n").filter(Boolean).map(line => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]));
  if (key?.value.trim()) sent.set("Authorization", `Bearer ${key.value.trim()}`);
  const start = performance.now();
  const response = await fetch(address, { method, headers: sent, body: body || undefined, credentials: "omit", cache: "no-store" });
  const text = await response.text();
  const left = response.headers.get("X-RateLimit-Remaining");
  show([`${response.status} ${response.statusText}`.trim(), `${Math.round(performance.now() - start)} ms`,
    ...(left === null ? [] : [`${left} calls left today`])].join(" · "), text);
}

function show(status, text) {
  let shown = text;
  try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* Not JSON: shown as it is. */ }
  document.querySelector("#body code").textContent = shown;
  document.getElementById("answer").hidden = false;
  outcome.textContent = status;
}

async function submit() {
  send.disabled = true;
  try {
    if (!await refresh(true)) return;
    if (key) sessionStorage.setItem(STORED_KEY, key.value.trim());
    await call();
    outcome.scrollIntoView({ block: "nearest" });
  } catch (error) {
    show(`No response: ${error.message}`, "");
  } finally {
    send.disabled = false;
  }
}

send.textContent = "Send the call";
if (key) {
  document.getElementById("key-field").hidden = false;
  key.value = sessionStorage.getItem(STORED_KEY) || "";
}
form.addEventListener("submit", event => { event.preventDefault(); clearTimeout(timer); submit(); });
form.addEventListener("change", event => {
  if (event.target === key) return;
  clearTimeout(timer);
  timer = setTimeout(() => refresh(false).catch(() => {}), 100);
});

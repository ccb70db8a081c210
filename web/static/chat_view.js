// Shows the result of a tool in a chat, as revision 2026-01-26 of the extension io.modelcontextprotocol/ui
// describes. The host passes the result on. The service draws the pages, which come through the host too,
// by a tool; so a view loads nothing, and its links are requests for another page.
const DRAW_TOOL = "signals_draw_page", MAX_WIDE = 25;
const page = document.getElementById("page"), back = document.getElementById("back");
const opensChart = document.body.dataset.opens === "chart";
const pending = new Map();
let lastId = 0, address = "/", asked = {};

function send(message) {
  window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
}

function request(method, params) {
  const id = ++lastId;
  send({ id, method, params });
  return new Promise(resolve => pending.set(id, resolve));
}

function say(text) {
  const line = document.createElement("p");
  line.className = "refused";
  line.textContent = text;
  page.replaceChildren(line);
}

function setTheme(context) {
  if (context?.theme) document.documentElement.style.colorScheme = context.theme;
}

// Hosts pass on the object, its text, or both.
function readResult({ structuredContent, content }) {
  return structuredContent ?? JSON.parse(content.find(block => block.type === "text").text);
}

async function draw(wanted) {
  page.setAttribute("aria-busy", "true");
  const call = request("tools/call", { name: DRAW_TOOL, arguments: { address: wanted } }), id = lastId;
  const { result, error } = await call;
  if (id !== lastId) return; // Another page was asked for meanwhile.
  page.removeAttribute("aria-busy");
  if (!result || result.isError) return say(error?.message ?? readResult(result).message);
  page.innerHTML = readResult(result).html;
  address = wanted;
  const shown = address.startsWith("/assets/") ? "chart" : "board", plot = document.getElementById("plot");
  for (const style of document.querySelectorAll("style")) style.disabled = ![shown, ""].includes(style.dataset.page);
  if (plot) startChart(plot);
  if (shown === "board") back.href = address;
  back.hidden = shown === "board" || !back.getAttribute("href");
}

// The tickers of a result in each of its forms: objects, or lines below a header.
function listTickers(answer) {
  const tickers = answer.lines?.split("\n").slice(1).map(row => row.split(" ")[0]) ?? (answer.groups ?? answer.assets).map(one => one.ticker);
  return [...new Set(tickers)].filter(ticker => ticker);
}

function showResult(result) {
  const answer = readResult(result);
  if (result.isError) return say(answer.message);
  const tickers = listTickers(answer), timeframe = asked.timeframe ?? answer.query?.timeframe;
  if (!tickers.length) return say("No reading matches.");
  if (opensChart && tickers.length === 1)
    return draw(`/assets/${encodeURIComponent(tickers[0])}?timeframe=${timeframe ?? "4h"}`);
  // All timeframes side by side are too much for a long board.
  const query = { timeframe: timeframe ?? (tickers.length > MAX_WIDE ? "4h" : "all"), watch: tickers.join(",") };
  draw(`/?${new URLSearchParams(opensChart ? query : { ...query, sort: "changed" })}`);
}

const NOTIFICATIONS = {
  "ui/notifications/tool-input": params => { asked = params.arguments ?? {}; },
  "ui/notifications/tool-result": showResult,
  "ui/notifications/tool-cancelled": () => say("The call was cancelled."),
  "ui/notifications/host-context-changed": setTheme,
};

window.addEventListener("message", ({ source, data }) => {
  if (source !== window.parent || data?.jsonrpc !== "2.0") return;
  if (data.method === undefined) {
    pending.get(data.id)?.(data);
    pending.delete(data.id);
  } else if (data.id === undefined) NOTIFICATIONS[data.method]?.(data.params);
  else if (["ping", "ui/resource-teardown"].includes(data.method)) send({ id: data.id, result: {} });
  else send({ id: data.id, error: { code: -32601, message: "The view has no such method." } });
});

document.addEventListener("click", event => {
  const link = event.target.closest("a[href]");
  if (!link) return;
  event.preventDefault();
  const { pathname, search } = new URL(link.getAttribute("href"), `http://view${address}`);
  draw(pathname + search);
});

request("ui/initialize", {
  appInfo: { name: "signals", version: "1" },
  appCapabilities: {},
  protocolVersion: "2026-01-26",
}).then(({ result }) => {
  setTheme(result?.hostContext);
  send({ method: "ui/notifications/initialized" });
  const report = () => send({
    method: "ui/notifications/size-changed",
    params: { width: window.innerWidth, height: Math.ceil(document.body.getBoundingClientRect().height) },
  });
  new ResizeObserver(report).observe(document.body);
});

// Bridges MCP over stdio to a Signals service, as `signals stdio` does. It runs inside the bundle
// that `mcp_server/bundle.py` builds, on the Node.js of the host, and uses nothing else.
"use strict";

const readline = require("node:readline");

const INTERNAL_ERROR = -32603;
const PARSE_ERROR = -32700;
const MAX_CHARS = 500;
const TIMEOUT_MS = 60_000;
const VERSION_FIELD = "io.modelcontextprotocol/protocolVersion";

const base = (process.env.SIGNALS_URL || "").trim().replace(/(\/api\/v1(\/mcp)?|\/mcp)?\/*$/, "");
const key = (process.env.SIGNALS_API_KEY || "").trim();
const url = `${base}/api/v1/mcp`;

// The service gives one to a host that shows views, in its answer to `initialize`.
let session = null;

function send(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

// Header values are Latin-1 at most, so other names go as the protocol's Base64 form.
function encodeHeader(text) {
  if (/^[\x21-\x7e]*$/.test(text)) return text;
  return `=?base64?${Buffer.from(text, "utf8").toString("base64")}?=`;
}

function buildHeaders(request) {
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (session) headers["Mcp-Session-Id"] = session;
  const version = request.params?._meta?.[VERSION_FIELD];
  if (typeof version === "string") {
    headers["MCP-Protocol-Version"] = version;
    headers["Mcp-Method"] = encodeHeader(request.method);
    const name = request.method === "resources/read" ? request.params.uri : request.params.name;
    if (typeof name === "string") headers["Mcp-Name"] = encodeHeader(name);
  }
  return headers;
}

// A failure is a result of a tool call, so that the model sees it; `initialize` must look failed.
function describeFailure(request, text) {
  const hidden = key ? text.replaceAll(key, "(the key)") : text;
  const line = hidden.replace(/\s+/g, " ").replace(/[^\x20-\x7e\xa0-\uffff]/g, "?").slice(0, MAX_CHARS);
  process.stderr.write(`${line}\n`);
  if (request.method !== "tools/call") {
    return { jsonrpc: "2.0", id: request.id, error: { code: INTERNAL_ERROR, message: line } };
  }
  const error = { error: "unavailable", message: line, docs: `${base}/api/v1` };
  const result = {
    content: [{ type: "text", text: JSON.stringify(error) }],
    isError: true,
    _meta: { "signals/error": "unavailable", "signals/status": 503 },
  };
  // Revision 2026-07-28 requires it of every result; earlier ones ignore it.
  if (request.params?._meta?.[VERSION_FIELD]) result.resultType = "complete";
  return { jsonrpc: "2.0", id: request.id, result };
}

async function forward(request) {
  let response, text;
  try {
    response = await fetch(url, {
      method: "POST",
      headers: buildHeaders(request),
      body: JSON.stringify(request),
      // A redirect could hand the key to another host.
      redirect: "manual",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    session = response.headers.get("mcp-session-id") || session;
    text = await response.text();
  } catch (failure) {
    const reason = failure.cause?.message || failure.message;
    return describeFailure(request, `${url} did not answer: ${reason}. Check the service address.`);
  }
  const message = parseObject(text);
  // The service answers a malformed request with a null id; the host waits for its own.
  if (message.jsonrpc && (message.result || message.error)) return { ...message, id: request.id };
  return describeFailure(request, describeRefusal(response, message));
}

function parseObject(text) {
  try {
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}

function describeRefusal(response, message) {
  const summary = `${url} answered ${response.status}`;
  if (response.status >= 300 && response.status < 400) {
    return `${summary}, a redirect, which is not followed, to keep the API key private. Set the address that it leads to.`;
  }
  if (typeof message.message === "string") return `${summary}: ${message.message}`;
  if (response.status === 401 || response.status === 403) return `${summary}; check the API key.`;
  return `${summary} without MCP; is that the address of a Signals service?`;
}

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  if (!line.trim()) return;
  let request;
  try {
    request = JSON.parse(line);
  } catch {
    send({ jsonrpc: "2.0", id: null, error: { code: PARSE_ERROR, message: "Parse error" } });
    return;
  }
  // Notifications and responses need no answer, because the service keeps nothing between requests.
  if (request.method === undefined || request.id === undefined) return;
  send(await forward(request));
});

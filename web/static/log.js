// Checks one row of the feed against its proof, by WebCrypto: the leaf, its path, the root, the signature of the
// log, and the open tile with the leaf. The formats are those of C2SP, RFC 8785 and RFC 9162.
const COVERED = "action change_type created_at direction id indicator price ticker tier timeframe transition".split(" ");
const TILE_WIDTH = 256;

const encode = (text) => new TextEncoder().encode(text);
const decode = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const areEqual = (one, other) => one.length === other.length && one.every((byte, at) => byte === other[at]);

async function hash(...parts) {
  const bytes = Uint8Array.from(parts.flatMap((part) => [...part]));
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

function renderCanonical(value) {
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${renderCanonical(value[name])}`);
  return `{${members.join()}}`;
}

function parseProof(text) {
  const [head, body, signatures] = text.replaceAll("\r", "").split("\n\n");
  const [first, extra, index, ...path] = head.split("\n");
  if (first !== "c2sp.org/tlog-proof@v1" || !signatures) throw Error("The proof is not a c2sp.org/tlog-proof@v1.");
  const [origin, size, root] = body.split("\n");
  return {
    salt: decode(extra.replace("extra ", "")), index: Number(index.replace("index ", "")), path: path.map(decode),
    origin, size: Number(size), root: decode(root), body: `${body}\n`, lines: signatures.trim().split("\n"),
  };
}

async function foldPath(leaf, proof) {
  let [place, last, node] = [proof.index, proof.size - 1, leaf];
  const rise = () => { [place, last] = [Math.floor(place / 2), Math.floor(last / 2)]; };
  for (const sibling of proof.path) {
    if (last === 0) return null;
    if (place % 2 || place === last) {
      node = await hash([1], sibling, node);
      while (place && place % 2 === 0) rise();
    } else {
      node = await hash([1], node, sibling);
    }
    rise();
  }
  return last === 0 ? node : null;
}

async function isSigned(proof, key) {
  const [name, id, encoded] = key.trim().split(/\+(.*?)\+(.*)/);
  const material = decode(encoded || "");
  const keyId = (await hash(encode(`${name}\n`), material)).slice(0, 4);
  const hex = [...keyId].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  if (material[0] !== 1 || hex !== id) throw Error("The key is not the key of a log.");
  if (name !== proof.origin) return false;
  const verifier = await crypto.subtle.importKey("raw", material.slice(1), "Ed25519", false, ["verify"]);
  for (const [, signer, content] of proof.lines.map((line) => line.split(" "))) {
    const signed = decode(content);
    if (signer === name && areEqual(signed.slice(0, 4), keyId)) {
      return crypto.subtle.verify("Ed25519", verifier, signed.slice(4), encode(proof.body));
    }
  }
  return false;
}

async function fetchLeaf(tiles, { index, size }) {
  const number = Math.floor(index / TILE_WIDTH);
  const width = Math.min(TILE_WIDTH, size - TILE_WIDTH * number);
  const groups = String(number).padStart(3 * Math.ceil(String(number).length / 3), "0").match(/.{3}/g);
  const path = groups.map((group, at) => (at < groups.length - 1 ? `x${group}` : group)).join("/");
  const response = await fetch(`${tiles}0/${path}${width < TILE_WIDTH ? `.p/${width}` : ""}`);
  if (!response.ok) throw Error(`The open tiles do not have leaf ${index}.`);
  const start = 32 * (index % TILE_WIDTH);
  return new Uint8Array(await response.arrayBuffer()).slice(start, start + 32);
}

async function check({ key, row, proof: text }, tiles) {
  if (!crypto.subtle) throw Error("Browsers check signatures only on https and on localhost.");
  const values = JSON.parse(row);
  const missing = COVERED.filter((name) => !(name in values));
  if (missing.length) throw Error(`The row has no ${missing.join(", ")}.`);
  const proof = parseProof(text);
  const covered = Object.fromEntries(COVERED.map((name) => [name, values[name]]));
  const leaf = await hash([0], proof.salt, encode(renderCanonical(covered)));
  const root = await foldPath(leaf, proof);
  if (!root || !areEqual(root, proof.root)) {
    throw Error("Not proven: the row and the path of the proof do not lead to the signed root.");
  }
  if (!(await isSigned(proof, key))) throw Error("Not proven: the key did not sign the checkpoint of the proof.");
  if (!areEqual(await fetchLeaf(tiles, proof), leaf)) throw Error("Not proven: the open tiles have another leaf.");
  return `Proven: the row is leaf ${proof.index} of the ${proof.size} that ${proof.origin} signed, and of the open tiles.`;
}

const form = document.querySelector("form.check");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = form.querySelector("[role=status]");
  said.textContent = "Checking";
  try {
    said.textContent = await check(Object.fromEntries(new FormData(form)), form.dataset.tiles);
  } catch (error) {
    said.textContent = error.message;
  }
});

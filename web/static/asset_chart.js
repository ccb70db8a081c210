// Zooms an asset's chart, which the server has drawn, and describes its bars and marks. Without this
// script the picture stays. A page has one chart; a view in a chat starts another with each picture.
let figure, gutter, area, time, bars, pane, observer;
const PADDING = 18, MIN_BARS = 12, MIN_BAR_WIDTH = 2.5, MIN_CANDLE_WIDTH = 1.5, TICK_WIDTH = 80, EDGE = 9;
// Positions on the axis are in bars: bar 3 lies between 3 and 4. `view` has those in view.
let chart, view, whole, tip, cursor;

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const formatTime = seconds => `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
const getWidth = () => area.getBoundingClientRect().width;
const toBar = x => view.min + x / getWidth() * (view.max - view.min);

function formatPrice(value) {
  if (value >= 10) return value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const exponent = value ? Number(value.toExponential(3).split("e")[1]) : 0;
  return value.toFixed(Math.max(4, 3 - exponent));
}

function make(name, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

function show(min, max) {
  const size = clamp(max - min, Math.min(MIN_BARS, chart.size), chart.size);
  const start = clamp((min + max - size) / 2, 0, chart.size - size);
  view = { min: start, max: start + size };
  // All within is placed in per cent of its width, so this stretches it; marks keep their size.
  time.setAttribute("width", `${100 * chart.size / size}%`);
  time.setAttribute("x", `${-100 * start / size}%`);
  figure.classList.toggle("far", getWidth() / size < MIN_CANDLE_WIDTH);
  drawTimes();
  placeMarks();
  if (chart.bars) fitPrices();
}

// The newest bar in view stays at the right edge, unless something else in the past is looked at.
function zoomBy(factor, at = view.max) {
  const end = view.max < chart.opens.length ? at : view.max, size = view.max - view.min;
  const ratio = clamp(factor, Math.min(MIN_BARS, chart.size) / size, chart.size / size);
  show(end - (end - view.min) * ratio, end + (view.max - end) * ratio);
}

// A mark in view keeps its whole width at the edges, and one out of view is hidden.
function placeMarks() {
  const scale = getWidth() / (view.max - view.min);
  // A browser that takes a picture of a long page may lay it out without any width first.
  if (!scale) return;
  for (const mark of time.querySelectorAll("use")) {
    mark.dataset.x ??= parseFloat(mark.getAttribute("x")) / 100 * chart.size;
    const x = (mark.dataset.x - view.min) * scale;
    mark.setAttribute("visibility", x < 0 || x > getWidth() ? "hidden" : "visible");
    mark.setAttribute("x", `${100 * (view.min + clamp(x, EDGE, getWidth() - EDGE) / scale) / chart.size}%`);
  }
}

function moveBy(share) {
  const step = share * (view.max - view.min);
  const start = clamp(view.min + step, 0, chart.size - (view.max - view.min));
  show(start, start + view.max - view.min);
}

function drawTimes() {
  const bottom = area.getAttribute("height") - 22;
  time.querySelector(".times").replaceChildren(...listTimes().flatMap(bar => {
    const x = `${100 * bar / chart.size}%`;
    return [
      make("line", { x1: x, x2: x, y1: 0, y2: bottom }),
      make("text", { x, y: bottom + 16, "text-anchor": "middle" }, formatTick(bar)),
    ];
  }));
}

function listTimes() {
  const first = Math.max(1, Math.ceil(view.min)), last = Math.min(chart.opens.length - 1, Math.floor(view.max));
  const countMonths = at => new Date(at * 1000).getUTCFullYear() * 12 + new Date(at * 1000).getUTCMonth();
  const periods = [1, 3, 6, 12, 24, 48, 120, 168, 336].map(hours => at => Math.floor(at / hours / 3600));
  periods.push(...[1, 2, 3, 6, 12].map(months => at => Math.floor(countMonths(at) / months)));
  let starts = [];
  for (const period of periods) {
    starts = [];
    for (let i = first; i <= last; i++)
      if (period(chart.opens[i]) !== period(chart.opens[i - 1])) starts.push(i);
    if (starts.length <= Math.max(2, getWidth() / TICK_WIDTH)) break;
  }
  return starts;
}

// The date at the first bar of a day, the time at any other.
function formatTick(bar) {
  const [day, before] = [bar, bar - 1].map(i => new Date(chart.opens[i] * 1000));
  if (day.getUTCDate() === before.getUTCDate()) return day.toISOString().slice(11, 16);
  if (day.getUTCFullYear() !== before.getUTCFullYear()) return String(day.getUTCFullYear());
  return `${MONTHS[day.getUTCMonth()]} ${day.getUTCDate()}`;
}

// Returns the lowest and the highest price of the bars between two positions.
function findRange(min, max) {
  const first = clamp(Math.floor(min), 0, chart.opens.length - 1), last = Math.max(first + 1, Math.ceil(max));
  const low = Math.min(...chart.bars[2].slice(first, last)), high = Math.max(...chart.bars[1].slice(first, last));
  return low < high ? [low, high] : [low * .99, high * 1.01];
}

// Prices fill the pane from the lowest to the highest in view.
function buildScale([low, high]) {
  return price => PADDING + (high - price) / (high - low) * (pane - 2 * PADDING);
}

function fitPrices() {
  const range = findRange(view.min, view.max), toY = buildScale(range), [low, high] = range;
  const share = (high - low) / (whole.high - whole.low);
  bars.setAttribute("viewBox", `0 ${whole.toY(high) - PADDING * share} ${whole.width} ${pane * share}`);
  for (const { mark, price, away } of whole.marks) mark.setAttribute("y", clamp(toY(price) + away, 9, pane - 9));
  const rough = (high - low) / 7, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find(n => n * power >= rough) ?? 10);
  const decimals = Math.max(0, -Math.floor(Math.log10(step)));
  const format = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  const prices = [];
  for (let n = Math.ceil(low / step); n <= Math.floor(high / step); n++) prices.push(n * step);
  area.querySelector(".prices").replaceChildren(
    ...prices.map(price => make("line", { x1: 0, x2: "100%", y1: toY(price), y2: toY(price) })));
  gutter.querySelector(".prices").replaceChildren(...prices.map(price => make(
    "text", { x: "100%", dx: -6, y: toY(price), dy: 4, "text-anchor": "end" }, price.toLocaleString("en-US", format))));
}

// Where the server drew the marks: each stands some pixels away from the bar that fired it.
function measurePrices() {
  const [low, high] = findRange(0, chart.opens.length), toY = buildScale([low, high]);
  const marks = [...time.querySelectorAll(".marks use")].map(mark => {
    const bar = Math.floor(parseFloat(mark.getAttribute("x")) / 100 * chart.size);
    const price = chart.bars[mark.classList.contains("bullish") ? 2 : 1][bar];
    return { mark, price, away: mark.getAttribute("y") - toY(price) };
  });
  whole = { low, high, toY, marks, width: bars.viewBox.baseVal.width };
}

function describeBar(bar) {
  const lines = [`${formatTime(chart.opens[bar])} to ${formatTime(chart.closes[bar]).slice(11)}`];
  if (chart.bars) {
    const [open, high, low, close] = chart.bars.map(column => column[bar]);
    lines.push(`O ${formatPrice(open)}  H ${formatPrice(high)}`, `L ${formatPrice(low)}  C ${formatPrice(close)}`);
    if (bar) {
      const change = 100 * (close / chart.bars[3][bar - 1] - 1);
      lines[2] += `  ${change < 0 ? "" : "+"}${change.toFixed(2)} %`;
    }
  }
  for (const { name, spans } of chart.lanes) {
    // The reading from the close of the bar on.
    const span = spans.findLast(([, start]) => start <= bar + 1.001);
    if (span && bar + 1 <= span[2] + .001) lines.push(`${name}: ${span[0]}`);
  }
  return lines.join("\n");
}

function findMark(x, y) {
  let nearest = null, least = 12;
  for (const mark of time.querySelectorAll("use[visibility=visible]")) {
    const box = mark.getBoundingClientRect();
    const distance = Math.hypot(box.left + box.width / 2 - x, box.top + box.height / 2 - y);
    if (distance < least) [nearest, least] = [mark, distance];
  }
  return nearest;
}

function showTip(event) {
  const box = area.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
  const mark = findMark(event.clientX, event.clientY);
  tip.textContent = mark ? mark.dataset.text : describeBar(clamp(Math.floor(toBar(left)), 0, chart.opens.length - 1));
  tip.hidden = false;
  cursor.replaceChildren(
    make("line", { x1: left, x2: left, y1: 0, y2: "100%" }), make("line", { x1: 0, x2: "100%", y1: top, y2: top }));
  const edge = figure.clientWidth - box.width, room = figure.clientWidth - tip.offsetWidth;
  const right = edge + left + 14;
  tip.style.left = `${clamp(right <= room ? right : edge + left - tip.offsetWidth - 14, 0, Math.max(0, room))}px`;
  tip.style.top = `${clamp(top - tip.offsetHeight / 2, 0, Math.max(0, figure.clientHeight - tip.offsetHeight))}px`;
}

function hideTip() {
  tip.hidden = true;
  cursor.replaceChildren();
}

const ACTIONS = {
  "−": ["Zoom out", () => zoomBy(1.6)],
  "+": ["Zoom in", () => zoomBy(1 / 1.6)],
  "←": ["Earlier", () => moveBy(-.3)],
  "→": ["Later", () => moveBy(.3)],
  "All": ["All bars", () => show(0, chart.size)],
};
const KEYS = { "-": "−", "+": "+", "=": "+", ArrowLeft: "←", ArrowRight: "→", "0": "All", Home: "All" };

function addButtons() {
  const bar = document.createElement("div");
  bar.className = "zoom";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Zoom");
  for (const [text, [label, act]] of Object.entries(ACTIONS)) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.textContent = text;
    button.setAttribute("aria-label", label);
    button.addEventListener("click", act);
    bar.append(button);
  }
  figure.parentElement.querySelector(".bar").append(bar);
}

// The time of a change leads to its bar.
function addLinks() {
  for (const link of document.querySelectorAll("a[data-at]"))
    link.addEventListener("click", () => {
      const bar = chart.closes.findIndex(close => close >= link.dataset.at);
      const half = Math.min(30, (view.max - view.min) / 2);
      if (bar < 0) return;
      show(bar - half, bar + half);
      const x = (bar + .5 - view.min) / (view.max - view.min) * getWidth();
      cursor.replaceChildren(make("line", { x1: x, x2: x, y1: 0, y2: "100%" }));
    });
}

function addKeys() {
  figure.tabIndex = 0;
  figure.setAttribute("role", "group");
  figure.setAttribute("aria-label", `Chart of ${figure.dataset.name}. Keys: plus and minus zoom, arrows move, Home shows everything.`);
  figure.addEventListener("keydown", event => {
    const action = ACTIONS[KEYS[event.key]];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action[1]();
  });
}

function addWheel() {
  area.addEventListener("wheel", event => {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      moveBy(event.deltaX / 600);
    } else if (event.deltaY < 0 || view.max - view.min < chart.size - .01) {
      // With everything in view, scrolling down moves the page.
      event.preventDefault();
      zoomBy(event.deltaY < 0 ? 1 / 1.25 : 1.25, toBar(event.clientX - area.getBoundingClientRect().left));
    }
  }, { passive: false });
}

// A mouse selects what to zoom to. One finger moves the chart and shows the bar below it, two fingers
// zoom. Vertical moves scroll.
function addPointers() {
  const pointers = new Map(), selection = make("rect", { class: "select", y: 0, height: "100%" });
  let start = null;
  const measure = () => {
    const [one, other] = [...pointers.values()];
    start = { x: one, spread: other === undefined ? 0 : Math.abs(one - other), ...view };
  };
  area.addEventListener("pointerdown", event => {
    if (event.button) return;
    pointers.set(event.pointerId, event.clientX);
    measure();
    if (event.pointerType === "touch") showTip(event);
    else area.setPointerCapture(event.pointerId);
  });
  area.addEventListener("pointermove", event => {
    if (event.pointerType !== "touch") showTip(event);
    if (!pointers.has(event.pointerId)) return;
    pointers.set(event.pointerId, event.clientX);
    const [one, other] = [...pointers.values()], size = start.max - start.min;
    if (event.pointerType !== "touch") {
      const left = Math.min(one, start.x) - area.getBoundingClientRect().left;
      selection.setAttribute("x", left);
      selection.setAttribute("width", Math.abs(one - start.x));
      cursor.append(selection);
    } else if (other === undefined) {
      const moved = clamp(start.min - (one - start.x) / getWidth() * size, 0, chart.size - size);
      show(moved, moved + size);
    } else if (start.spread > 10) {
      const factor = start.spread / Math.max(10, Math.abs(one - other)), centre = (start.min + start.max) / 2;
      show(centre - size / 2 * factor, centre + size / 2 * factor);
    }
  });
  area.addEventListener("pointerup", event => {
    const box = area.getBoundingClientRect(), ends = [start?.x, event.clientX].sort((one, other) => one - other);
    if (event.pointerType !== "touch" && pointers.has(event.pointerId) && ends[1] - ends[0] > 6)
      show(...ends.map(x => toBar(x - box.left)));
  });
  for (const name of ["pointerup", "pointercancel"])
    area.addEventListener(name, event => {
      pointers.delete(event.pointerId);
      selection.remove();
      if (pointers.size) measure();
    });
  area.addEventListener("pointerleave", event => event.pointerType !== "touch" && hideTip());
  area.addEventListener("dblclick", () => show(0, chart.size));
}

function startChart(plot) {
  figure = plot;
  [gutter, area] = figure.querySelectorAll("svg.gutter, svg.area");
  time = area.querySelector(".time");
  bars = area.querySelector(".bars");
  pane = Number(bars?.getAttribute("height"));
  chart = JSON.parse(figure.dataset.chart);
  figure.classList.add("drawn");
  tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  figure.append(tip);
  cursor = make("g", { class: "cursor" });
  area.append(cursor);
  if (chart.bars) measurePrices();
  addButtons();
  addKeys();
  addLinks();
  addWheel();
  addPointers();
  // On a narrow screen a candle needs some room, so the chart begins with the newest bars.
  const shown = Math.floor(getWidth() / MIN_BAR_WIDTH);
  show(shown < chart.opens.length ? chart.size - shown : 0, chart.size);
  observer?.disconnect();
  observer = new ResizeObserver(() => figure.isConnected && show(view.min, view.max));
  observer.observe(figure);
}

// Choosing a ticker from the list opens its page at once.
const search = document.querySelector(".find");
search?.addEventListener("submit", event => {
  const wanted = search.elements.text.value.trim().toUpperCase();
  const found = [...search.querySelectorAll("option")].find(option => option.value.toUpperCase() === wanted);
  if (!found) return;
  event.preventDefault();
  location.href = `${search.action}/${encodeURIComponent(found.value)}${location.search}`;
});

if (document.getElementById("plot")) startChart(document.getElementById("plot"));

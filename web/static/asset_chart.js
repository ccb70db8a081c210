// Draws an asset's chart over its picture, so that it can be zoomed and read at each bar. Without
// this script, or if its data cannot be loaded, the picture stays.
const figure = document.getElementById("plot");
const LANE_HEIGHT = 16, LANE_STEP = 22, PADDING = 18, VOLUME_HEIGHT = 36, MARK_STEP = 9, ALERT_STEP = 5, AXIS_HEIGHT = 22;
const MIN_BARS = 12, MIN_BAR_WIDTH = 2.5;
const HEIGHTS = { bullish: [0, 7], neutral: [7, 2], bearish: [9, 7] };
let chart, plot, tip, colours;

const two = number => String(number).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function formatTime(seconds) {
  return `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

function formatPrice(value) {
  if (value >= 10) return value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const exponent = value ? Number(value.toExponential(3).split("e")[1]) : 0;
  return value.toFixed(Math.max(4, 3 - exponent));
}

function readColours() {
  const style = getComputedStyle(figure);
  const names = ["text", "muted", "line", "edge", "card", "bullish", "bearish"];
  colours = Object.fromEntries(names.map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
  colours.neutral = colours.edge;
  colours.exit = colours.text;
}

// Positions on the axis are in bars: bar 3 lies between 3 and 4.
const count = () => chart.opens.length;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const paneHeight = () => plot.bbox.height / devicePixelRatio - chart.lanes.length * LANE_STEP - 6;

function listTicks(min, max, space) {
  const first = Math.max(0, Math.ceil(min)), last = Math.min(count() - 1, Math.floor(max));
  const most = Math.max(2, Math.floor(space / 80));
  const periods = [1, 3, 6, 12, 24, 48, 120, 168, 336].map(h => at => Math.floor(at / h / 3600));
  periods.push(...[1, 2, 3, 6, 12].map(n => at => Math.floor(countMonths(at) / n)));
  let starts = [];
  for (const period of periods) {
    starts = [];
    for (let i = Math.max(first, 1); i <= last; i++)
      if (period(chart.opens[i]) !== period(chart.opens[i - 1])) starts.push(i);
    if (starts.length <= most) break;
  }
  return starts;
}

function countMonths(seconds) {
  const day = new Date(seconds * 1000);
  return day.getUTCFullYear() * 12 + day.getUTCMonth();
}

// The date at the first bar of a day, the time at any other.
function formatTick(bar) {
  const day = new Date(chart.opens[bar] * 1000);
  if (day.getUTCDate() === new Date(chart.opens[bar - 1] * 1000).getUTCDate()) return `${two(day.getUTCHours())}:${two(day.getUTCMinutes())}`;
  const label = `${MONTHS[day.getUTCMonth()]} ${day.getUTCDate()}`;
  return day.getUTCMonth() === 0 && day.getUTCDate() === 1 ? String(day.getUTCFullYear()) : label;
}

// The scale of prices leaves room below for the lanes, which share the axis of time.
function findPriceRange() {
  const [min, max] = [plot.scales.x.min, plot.scales.x.max];
  const first = clamp(Math.floor(min), 0, count() - 1), last = clamp(Math.ceil(max), first + 1, count());
  let low = Infinity, high = -Infinity;
  for (let i = first; i < last; i++) {
    low = Math.min(low, chart.bars[2][i]);
    high = Math.max(high, chart.bars[1][i]);
  }
  return low < high ? [low, high] : [low * .99, high * 1.01];
}

function drawChart() {
  const { ctx, bbox } = plot, ratio = devicePixelRatio, pane = paneHeight();
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.translate(bbox.left, bbox.top);
  ctx.scale(ratio, ratio);
  const scale = plot.scales.x, width = bbox.width / ratio / (scale.max - scale.min);
  const toX = position => (position - scale.min) * width;
  chart.toX = toX;
  if (chart.bars) {
    const [low, high] = findPriceRange();
    chart.toY = price => PADDING + (high - price) / (high - low) * (pane - 2 * PADDING);
    drawBars(ctx, toX, width, pane);
  }
  drawLanes(ctx, toX, pane);
  drawMarks(ctx, toX, width, pane);
  ctx.restore();
  drawLabels(ctx, pane);
}

function drawBars(ctx, toX, width, pane) {
  const [opens, highs, lows, closes, volumes] = chart.bars, { toY } = chart;
  const first = Math.max(0, Math.floor(plot.scales.x.min)), last = Math.min(count(), Math.ceil(plot.scales.x.max));
  const most = Math.max(...volumes) || 1, body = Math.max(1, width * .6);
  ctx.fillStyle = colours.line;
  for (const [y] of listPriceTicks()) ctx.fillRect(0, Math.round(y), plot.bbox.width, 1);
  for (let i = first; i < last; i++) {
    const height = volumes[i] / most * VOLUME_HEIGHT;
    ctx.fillRect(toX(i + .5) - body / 2, pane - height, body, height);
  }
  if (width < 1.5) {
    ctx.strokeStyle = colours.text;
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    for (let i = first; i < last; i++) ctx.lineTo(toX(i + .5), toY(closes[i]));
    ctx.stroke();
    return;
  }
  for (let i = first; i < last; i++) {
    ctx.fillStyle = closes[i] >= opens[i] ? colours.bullish : colours.bearish;
    const x = toX(i + .5), top = toY(Math.max(opens[i], closes[i])), bottom = toY(Math.min(opens[i], closes[i]));
    ctx.fillRect(x - .5, toY(highs[i]), 1, toY(lows[i]) - toY(highs[i]));
    ctx.fillRect(x - body / 2, top, body, Math.max(1, bottom - top));
  }
}

function drawLanes(ctx, toX, pane) {
  chart.lanes.forEach((lane, number) => {
    for (const [reading, start, end] of lane.spans) {
      const [y, height] = HEIGHTS[reading];
      ctx.fillStyle = colours[reading];
      ctx.fillRect(toX(start), pane + number * LANE_STEP + y, toX(end) - toX(start), height);
    }
  });
}

function drawMarks(ctx, toX, width, pane) {
  for (const mark of chart.marks) {
    mark.spots = [];
    if (mark.lane !== null && mark.kind !== "change")
      mark.spots.push([toX(mark.x), pane + mark.lane * LANE_STEP + LANE_HEIGHT / 2]);
    if (chart.bars && mark.bar !== null) {
      const away = PADDING / 2 + MARK_STEP * mark.level + (mark.kind === "change" ? 0 : ALERT_STEP);
      const y = mark.direction === "bullish"
        ? Math.min(chart.toY(chart.bars[2][mark.bar]) + away, pane - 5)
        : Math.max(chart.toY(chart.bars[1][mark.bar]) - away, 5);
      mark.spots.push([toX(mark.bar + .5), y]);
    }
    for (const [x, y] of mark.spots) drawMark(ctx, mark, x, y);
  }
}

function drawMark(ctx, mark, x, y) {
  const size = mark.kind === "change" ? 4 : 8;
  ctx.beginPath();
  if (mark.shape.endsWith("flat")) {
    if (size === 4) ctx.arc(x, y, 2.8, 0, 7);
    else ctx.rect(x - 6, y - 6, 12, 12);
  } else {
    const turn = mark.shape.endsWith("up") ? 1 : -1;
    ctx.moveTo(x, y - turn * size);
    ctx.lineTo(x + size, y + turn * size * .75);
    ctx.lineTo(x - size, y + turn * size * .75);
    ctx.closePath();
  }
  const colour = colours[mark.direction];
  ctx.fillStyle = mark.kind === "held" ? colours.card : colour;
  ctx.strokeStyle = mark.kind === "held" ? colour : colours.card;
  ctx.lineWidth = mark.kind === "held" ? 2 : 1;
  ctx.fill();
  ctx.stroke();
}

// The names of lanes and the round prices, left of the plot.
function drawLabels(ctx, pane) {
  const ratio = devicePixelRatio, left = plot.bbox.left / ratio;
  ctx.save();
  ctx.scale(ratio, ratio);
  ctx.fillStyle = colours.muted;
  ctx.font = plot.root.clientWidth < 600 ? "11px system-ui, sans-serif" : "12px system-ui, sans-serif";
  ctx.textAlign = "right";
  chart.lanes.forEach((lane, number) => ctx.fillText(lane.name, left - 6, pane + number * LANE_STEP + 12));
  if (chart.bars) for (const [y, label] of listPriceTicks()) ctx.fillText(label, left - 6, y + 4);
  ctx.restore();
}

function listPriceTicks() {
  const [low, high] = findPriceRange(), step = findStep(high - low), ticks = [];
  const decimals = Math.max(0, -Math.floor(Math.log10(step)));
  const format = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  for (let n = Math.ceil(low / step); n <= Math.floor(high / step); n++)
    ticks.push([chart.toY(n * step), (n * step).toLocaleString("en-US", format)]);
  return ticks;
}

function findStep(size) {
  const rough = size / 7, power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find(n => n * power >= rough) ?? 10);
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
  for (const mark of chart.marks)
    for (const [left, top] of mark.spots ?? []) {
      const distance = Math.hypot(left - x, top - y);
      if (distance < least) [nearest, least] = [mark, distance];
    }
  return nearest;
}

function showTip() {
  const { left, top } = plot.cursor;
  if (left === null || left < 0) {
    tip.hidden = true;
    return;
  }
  const mark = findMark(left, top);
  const bar = clamp(Math.floor(plot.posToVal(left, "x")), 0, count() - 1);
  tip.textContent = mark ? mark.text : describeBar(bar);
  tip.hidden = false;
  const gutter = plot.bbox.left / devicePixelRatio, room = figure.clientWidth - tip.offsetWidth;
  const right = gutter + left + 14;
  tip.style.left = `${clamp(right <= room ? right : gutter + left - tip.offsetWidth - 14, 0, Math.max(0, room))}px`;
  tip.style.top = `${clamp(top - tip.offsetHeight / 2, 0, Math.max(0, figure.clientHeight - tip.offsetHeight))}px`;
}

function zoomTo(min, max) {
  const size = clamp(max - min, Math.min(MIN_BARS, chart.size), chart.size);
  const start = clamp((min + max - size) / 2, 0, chart.size - size);
  plot.setScale("x", { min: start, max: start + size });
}

function zoomBy(factor, centre) {
  const { min, max } = plot.scales.x, at = centre ?? (min + max) / 2;
  zoomTo(at - (at - min) * factor, at + (max - at) * factor);
}

function moveBy(share) {
  const { min, max } = plot.scales.x;
  const size = max - min, start = clamp(min + size * share, 0, chart.size - size);
  plot.setScale("x", { min: start, max: start + size });
}

const ACTIONS = {
  "−": ["Zoom out", () => zoomBy(1.6)],
  "+": ["Zoom in", () => zoomBy(1 / 1.6)],
  "←": ["Earlier", () => moveBy(-.3)],
  "→": ["Later", () => moveBy(.3)],
  "All": ["All bars", () => zoomTo(0, chart.size)],
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
  plot.over.addEventListener("wheel", event => {
    const { min, max } = plot.scales.x;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      moveBy(event.deltaX / 600);
    } else if (event.deltaY < 0 || max - min < chart.size - .01) {
      // With everything in view, scrolling down moves the page.
      event.preventDefault();
      zoomBy(event.deltaY < 0 ? 1 / 1.25 : 1.25, plot.posToVal(event.offsetX, "x"));
    }
  }, { passive: false });
}

// One finger moves the chart and shows the bar below it, two fingers zoom. Vertical moves scroll.
function addTouch() {
  const fingers = new Map();
  let start = null;
  const measure = () => {
    const [one, other] = [...fingers.values()];
    start = { x: one, spread: other === undefined ? 0 : Math.abs(one - other), ...plot.scales.x };
  };
  plot.over.addEventListener("pointerdown", event => {
    if (event.pointerType !== "touch") return;
    fingers.set(event.pointerId, event.clientX);
    measure();
    const box = plot.over.getBoundingClientRect();
    plot.setCursor({ left: event.clientX - box.left, top: event.clientY - box.top });
  });
  plot.over.addEventListener("pointermove", event => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, event.clientX);
    const [one, other] = [...fingers.values()], size = start.max - start.min;
    if (other === undefined) {
      const moved = clamp(start.min - (one - start.x) / plot.over.clientWidth * size, 0, chart.size - size);
      plot.setScale("x", { min: moved, max: moved + size });
    } else if (start.spread > 10) {
      const factor = start.spread / Math.max(10, Math.abs(one - other)), centre = (start.min + start.max) / 2;
      zoomTo(centre - size / 2 * factor, centre + size / 2 * factor);
    }
  });
  for (const name of ["pointerup", "pointercancel"])
    plot.over.addEventListener(name, event => {
      fingers.delete(event.pointerId);
      if (fingers.size) measure();
    });
}

const measureGutter = () => parseFloat(getComputedStyle(figure).gridTemplateColumns);

function buildOptions() {
  return {
    width: figure.clientWidth,
    height: figure.clientHeight,
    padding: [0, 0, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: true, y: false, dist: 6 }, y: Boolean(chart.bars), points: { show: false } },
    scales: {
      x: { time: false, range: (_, min, max) => min <= .5 && max >= count() - .5 ? [0, chart.size] : [min, max] },
      y: { range: [0, 1] },
    },
    axes: [
      {
        size: AXIS_HEIGHT, gap: 2, stroke: () => colours.muted, font: "12px system-ui, sans-serif",
        grid: { stroke: () => colours.line, width: 1 }, ticks: { show: false },
        splits: (self, _, min, max) => listTicks(min, max, self.over.clientWidth || 600),
        values: (_, places) => places.map(formatTick),
      },
      { size: measureGutter, splits: () => [], grid: { show: false }, ticks: { show: false } },
    ],
    series: [{}, { show: true, paths: () => null, points: { show: false } }],
    hooks: { draw: [drawChart], setCursor: [showTip] },
  };
}

function start(data) {
  chart = data;
  readColours();
  const middles = chart.opens.map((_, i) => i + .5);
  figure.classList.add("drawn");
  tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  figure.append(tip);
  plot = new uPlot(buildOptions(), [middles, middles.map(() => 0)], (self, init) => {
    plot = self;
    figure.append(self.root);
    init();
  });
  plot.root.setAttribute("aria-hidden", "true");
  addButtons();
  addKeys();
  addWheel();
  addTouch();
  // On a narrow screen a candle needs some room, so the chart begins with the newest bars.
  const shown = Math.floor((figure.clientWidth - measureGutter()) / MIN_BAR_WIDTH);
  if (shown < count()) zoomTo(chart.size - shown, chart.size);
  new ResizeObserver(() => plot.setSize({ width: figure.clientWidth, height: figure.clientHeight })).observe(figure);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    plot.redraw();
  });
}

// Choosing a ticker from the list opens its page at once.
const search = document.querySelector(".find");
search.addEventListener("submit", event => {
  const wanted = search.elements.text.value.trim().toUpperCase();
  const found = [...search.querySelectorAll("option")].find(option => option.value.toUpperCase() === wanted);
  if (!found) return;
  event.preventDefault();
  location.href = `${search.action}/${encodeURIComponent(found.value)}${location.search}`;
});

fetch(figure.dataset.source)
  .then(response => response.ok ? response.json() : null, () => null)
  .then(data => data && start(data));

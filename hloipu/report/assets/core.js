// What all screens share: elements, numbers, colours, canvases, tables.

function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else if (key in node && key !== "list") node[key] = value;
    else node.setAttribute(key, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);  // text is appended as text
  }
  return node;
}

function svgElement(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const whole = (value) => Math.round(value).toLocaleString("en-US");
const percent = (part, all) => (all ? `${((100 * part) / all).toPrecision(3)} %` : "");
const colours = new Map();  // of the theme, until it changes: asking for one takes as long as drawing hundreds of boxes

function colour(name) {
  let found = colours.get(name);
  if (found === undefined) colours.set(name, found = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return found;
}

function seconds(value) {
  if (value >= 1) return `${value.toPrecision(4)} s`;
  if (value >= 1e-3) return `${(1e3 * value).toPrecision(4)} ms`;
  return `${(1e6 * value).toPrecision(4)} µs`;
}

function short(value) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(value) >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return Number(value.toPrecision(3)).toString();
}

const BUCKETS = ["compute", "exchange", "sync", "remote", "host", "idle"];

// Kind of a step, as programs name it -> what its cycles are for.
function bucketOfKind(kind) {
  if (kind === "compute") return "compute";
  if (kind === "sync" || kind === "slots") return "sync";
  if (kind.startsWith("remote") || kind === "stored") return "remote";
  if (kind.startsWith("stream") || kind.startsWith("host") || kind.startsWith("fill")) return "host";
  if (["call", "repeat", "while", "if", "switch"].includes(kind)) return "other";
  return "exchange";
}

function legend(entries) {
  return element("div", { class: "legend" }, entries.map(([name, paint, note]) => {
    const mark = element("i");
    mark.style.background = paint;
    return element("span", {}, mark, note ? `${name} ${note}` : name);
  }));
}

function stackedBar(entries, label) {
  const sum = entries.reduce((total, entry) => total + entry[2], 0);
  const bar = element("div", { class: "stack", role: "img", "aria-label": label });
  for (const [name, paint, value] of entries) {
    if (!value) continue;
    const part = element("i", { title: `${name}: ${whole(value)}` });
    part.style.width = `${(100 * value) / sum}%`;
    part.style.background = paint;
    bar.append(part);
  }
  return bar;
}

const tip = {
  show(event, text) {
    const node = document.getElementById("tip");
    node.textContent = text;
    node.hidden = false;
    const box = node.getBoundingClientRect();
    node.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
    node.style.top = `${Math.min(event.clientY + 16, innerHeight - box.height - 8)}px`;
  },
  hide() { document.getElementById("tip").hidden = true; },
};

// A canvas that is as wide as its parent, sharp on any screen, drawn anew when either changes.
function drawing(height, label, draw) {
  const canvas = element("canvas", { tabIndex: 0, role: "img", "aria-label": label });
  const state = { canvas, width: 0, height, redraw };
  function redraw() {
    const width = canvas.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    state.width = width;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(state.height * ratio);
    canvas.style.height = `${state.height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    pen.clearRect(0, 0, width, state.height);
    draw(pen, state);
  }
  new ResizeObserver(() => { if (canvas.clientWidth !== state.width) redraw(); }).observe(canvas);
  redraws.add(redraw);
  return state;
}

const redraws = new Set();

function clipped(pen, text, room) {
  const width = pen.measureText(text).width;
  if (width <= room) return text;
  let end = Math.max(0, Math.floor((text.length * room) / Math.max(1, width)) - 1);
  while (end > 0 && pen.measureText(`${text.slice(0, end)}…`).width > room) end -= 1;
  return end > 1 ? `${text.slice(0, end)}…` : "";
}

// A table that makes some rows at a time; `columns`: [title, key or function, kind], where kinds are
// number, share (of 1), code (on one line), text (with room), or none.
const styleOf = (column) => ({ number: "n", share: "n", code: "code", text: "text" })[column[2]] || "";

const byText = new Intl.Collator();  // ten times as fast as localeCompare

function sortedTable(columns, rows, { caption, most = 60, sort = -1, chosen, onRow } = {}) {
  let order = sort, descending = true, shown = most, sorted = rows;
  const value = (row, column) => (typeof column[1] === "function" ? column[1](row) : row[column[1]]);
  const body = element("tbody");
  const more = element("button", { type: "button", onclick: () => { shown += 10 * most; fill(); } });
  const heads = columns.map((column, number) =>
    element("th", { scope: "col", class: styleOf(column) },
      element("button", { type: "button", onclick: () => {
        descending = order === number ? !descending : styleOf(column) === "n";
        order = number;
        arrange();
      } }, column[0])));
  function arrange() {
    sorted = rows;
    if (order >= 0) {
      const column = columns[order], sign = descending ? -1 : 1;
      const keyed = rows.map((row) => [value(row, column), row]), isNumber = keyed.every(([key]) => typeof key === "number");
      keyed.sort(isNumber ? ([x], [y]) => sign * (x - y) : ([x], [y]) => sign * byText.compare(String(x ?? ""), String(y ?? "")));
      sorted = keyed.map((each) => each[1]);
    }
    heads.forEach((head, number) => {
      if (number === order) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    fill();
  }
  function fill() {
    body.replaceChildren(...sorted.slice(0, shown).map((row) => {
      const line = element("tr", { class: chosen && chosen(row) ? "on" : "" });
      columns.forEach((column, place) => {
        const content = value(row, column);
        const text = typeof content !== "number" ? String(content ?? "") : column[2] === "share" ? percent(content, 1) : Number.isInteger(content) ? whole(content) : short(content);
        const inside = onRow && place === 0
          ? element("button", { type: "button", class: "link", onclick: () => onRow(row) }, text || "(none)") : text;
        line.append(element("td", { class: styleOf(column) }, inside));
      });
      return line;
    }));
    more.hidden = sorted.length <= shown;
    more.textContent = `${whole(sorted.length - shown)} more rows`;
  }
  arrange();
  const node = element("div", { class: "tall", tabIndex: 0, role: "region", "aria-label": caption || "table" },
    element("table", {}, element("caption", {}, caption || ""),
      element("thead", {}, element("tr", {}, heads)), body), more);
  return { node, set(next) { rows = next; shown = most; arrange(); } };
}

function choice(label, options, value, changed) {
  const select = element("select", { onchange: () => changed(select.value) },
    options.map(([key, text]) => element("option", { value: key, selected: key === value }, text)));
  return element("label", {}, `${label} `, select);
}

// Zoom and pan along x: `view` is [first, last]; the wheel zooms, dragging pans, arrow keys do both.
function zoomable(picture, limits, view, changed) {
  const canvas = picture.canvas;
  const margin = () => picture.margin || 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return (event.clientX - box.left - margin()) / Math.max(1, box.width - margin());
  };
  function zoom(centre, factor) {
    const span = Math.min(limits[1] - limits[0], Math.max(limits[2] || 1e-6, (view[1] - view[0]) * factor));
    const middle = view[0] + centre * (view[1] - view[0]);
    view[0] = middle - centre * span;
    view[1] = view[0] + span;
    settle(span);
  }
  function settle(span) {
    if (view[0] < limits[0]) { view[0] = limits[0]; view[1] = limits[0] + span; }
    if (view[1] > limits[1]) { view[1] = limits[1]; view[0] = limits[1] - span; }
    changed();
  }
  function pan(share) {
    const span = view[1] - view[0];
    view[0] += share * span;
    view[1] += share * span;
    settle(span);
  }
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey) pan(event.deltaY / 1000);
    else zoom(Math.min(1, Math.max(0, at(event))), event.deltaY > 0 ? 1.25 : 0.8);
  }, { passive: false });
  let from = null;
  canvas.addEventListener("pointerdown", (event) => { from = event.clientX; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { from = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (from === null) return;
    pan((from - event.clientX) / Math.max(1, canvas.clientWidth - margin()));
    from = event.clientX;
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.5, 0.6),
      "=": () => zoom(0.5, 0.6), "-": () => zoom(0.5, 1.6), "0": () => { view[0] = limits[0]; view[1] = limits[1]; changed(); } };
    if (moves[event.key]) { event.preventDefault(); event.stopPropagation(); moves[event.key](); }
  });
  return { zoom, pan };
}

// A sweep: its points against two figures, those that none beats, and all rows.

const NONE = "nothing";
const words = (name) => name.replace("_per_", "/").replaceAll("_", " ");
const PALETTE = ["#3b5b92", "#c96a12", "#1c7c70", "#7a4bb0", "#d0455a", "#8a6d1d", "#5cc0b2", "#9aa3ae"];

function rowsOf(study) {
  return study.number.map((number, n) => ({
    n, number, verdict: study.code[n] || (study.fits[n] ? "fits" : "does not fit"), message: study.message[n], command: study.command[n],
    best: study.best.includes(number), axes: Object.fromEntries(Object.entries(study.axes).map(([axis, values]) => [axis, values[n]])),
    ...Object.fromEntries(Object.entries(study.figures).map(([figure, values]) => [figure, values[n] ?? ""])),
  }));
}

function describe(row) {
  const axes = Object.entries(row.axes).map(([axis, value]) => `${axis}=${value}`).join(", ");
  return `row ${row.number}: ${axes}, ${row.verdict}`;
}

function scatter(study, rows, state, chosen) {
  const margin = { left: 76, right: 12, top: 12, bottom: 40 };
  let places = [];
  const picture = drawing(380, "points of the sweep", (pen, { width, height }) => {
    const shown = rows.filter((row) => typeof row[state.x] === "number" && typeof row[state.y] === "number" && (state.all || row.verdict === "fits"));
    places = [];
    pen.fillStyle = colour("text");
    if (!shown.length) { pen.fillText("no row has both figures and fits", margin.left, 40); return; }
    const scale = (name, from, to) => {
      const values = shown.map((row) => row[name]);
      const low = Math.min(...values), high = Math.max(...values);
      const log = low > 0 && high / low > 20, place = (v) => (log ? Math.log(v) : v);
      const span = place(high) - place(low) || 1;
      return { low, high, log, at: (v) => from + ((place(v) - place(low)) / span) * (to - from) };
    };
    const x = scale(state.x, margin.left + 8, width - margin.right - 8), y = scale(state.y, height - margin.bottom - 8, margin.top + 8);
    pen.strokeStyle = colour("line");
    pen.strokeRect(margin.left, margin.top, width - margin.left - margin.right, height - margin.top - margin.bottom);
    pen.fillText(short(x.low), margin.left, height - 22);
    pen.textAlign = "right";
    pen.fillText(short(x.high), width - margin.right, height - 22);
    pen.fillText(short(y.high), margin.left - 6, margin.top + 10);
    pen.fillText(short(y.low), margin.left - 6, height - margin.bottom);
    pen.textAlign = "center";
    pen.fillText(`${words(state.x)}${x.log ? ", logarithmic" : ""}`, width / 2, height - 6);
    pen.save();
    pen.translate(12, height / 2); pen.rotate(-Math.PI / 2);
    pen.fillText(`${words(state.y)}${y.log ? ", logarithmic" : ""}`, 0, 0);
    pen.restore();
    pen.textAlign = "left";
    const values = state.colour === NONE ? [] : [...new Set(study.axes[state.colour])];
    for (const row of [...shown].sort((a, b) => a.best - b.best)) {
      const [px, py] = [x.at(row[state.x]), y.at(row[state.y])];
      places.push([px, py, row]);
      pen.beginPath();
      pen.arc(px, py, row.best ? 6 : 4, 0, 7);
      pen.fillStyle = PALETTE[Math.max(0, values.indexOf(row.axes[state.colour])) % PALETTE.length];
      pen.globalAlpha = row.verdict === "fits" ? 0.85 : 0.3;
      pen.fill();
      pen.globalAlpha = 1;
      if (row.best || row.n === state.chosen) { pen.lineWidth = 2; pen.strokeStyle = colour("text"); pen.stroke(); pen.lineWidth = 1; }
    }
  });
  const nearest = (event) => {
    const box = picture.canvas.getBoundingClientRect(), [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const near = places.map(([x, y, row]) => [Math.hypot(x - px, y - py), row]).filter((one) => one[0] < 12).sort((a, b) => a[0] - b[0]);
    return near.length ? near[0][1] : null;
  };
  picture.canvas.addEventListener("pointermove", (event) => { const row = nearest(event); if (row) tip.show(event, describe(row)); else tip.hide(); });
  picture.canvas.addEventListener("pointerleave", () => tip.hide());
  picture.canvas.addEventListener("click", (event) => { const row = nearest(event); if (row) chosen(row); });
  return picture;
}

function studyScreen(study) {
  const rows = rowsOf(study), figures = Object.keys(study.figures), axes = Object.keys(study.axes);
  if (!figures.length) figures.push("seconds");
  const state = { x: figures[0], y: figures[1] || figures[0], colour: axes.find((axis) => new Set(study.axes[axis]).size > 1) || NONE, all: false, chosen: -1 };
  const detail = element("section", { "aria-live": "polite" }), key = element("div");
  const chosen = (row) => {
    state.chosen = row.n;
    detail.replaceChildren(element("h3", {}, describe(row)), row.message ? element("p", {}, row.message) : "", element("pre", {}, element("code", {}, row.command)));
    picture.redraw();
  };
  const picture = scatter(study, rows, state, chosen);
  const paint = () => {
    const values = state.colour === NONE ? [] : [...new Set(study.axes[state.colour])];
    key.replaceChildren(legend(values.slice(0, PALETTE.length).map((value, n) => [value, PALETTE[n]])), values.length > PALETTE.length ? `and ${values.length - PALETTE.length} more values in the same colours again` : "");
    picture.redraw();
  };
  const named = figures.map((name) => [name, words(name)]);
  const all = element("input", { type: "checkbox", onchange: () => { state.all = all.checked; picture.redraw(); } });
  const columns = [["row", "number", "number"], ...axes.map((axis) => [axis, (row) => row.axes[axis], "code"]), ["verdict", "verdict", "code"], ...named.map(([name, title]) => [title, name, "number"])];
  const table = sortedTable(columns, rows, { caption: "All rows", sort: -1, chosen: (row) => row.best, onRow: chosen });
  const best = rows.filter((row) => row.best);
  const goals = study.goals.map((goal) => `${study.larger.includes(goal) ? "most" : "least"} ${words(goal)}`).join(" and ");
  paint();
  return { find(text) { table.set(rows.filter((row) => `${describe(row)} ${row.message}`.toLowerCase().includes(text))); },
    node: element("div", {},
      element("section", {}, element("h2", {}, "Points"),
        element("p", {}, `${whole(rows.length)} rows, ${whole(rows.filter((row) => row.verdict === "fits").length)} fit. Ringed: ${goals || "goals"} that no other row beats in all.`),
        choice("across", named, state.x, (value) => { state.x = value; picture.redraw(); }), " ", choice("up", named, state.y, (value) => { state.y = value; picture.redraw(); }), " ",
        choice("colour", [NONE, ...axes].map((axis) => [axis, axis]), state.colour, (value) => { state.colour = value; paint(); }), " ",
        element("label", {}, all, " also those that do not fit"), picture.canvas, key),
      detail,
      element("section", {}, element("h2", {}, "What none beats"), best.length ? sortedTable(columns, best, { caption: goals, onRow: chosen }).node : element("p", {}, "No row fits.")),
      element("section", {}, element("h2", {}, "Rows"), table.node)) };
}

async function readStudy() {
  const bytes = Uint8Array.from(atob(document.getElementById("data").textContent), (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

readStudy().then((study) => {
  document.getElementById("title").textContent = study.name;
  document.getElementById("subtitle").textContent = `sweep over ${Object.keys(study.axes).join(", ")}`;
  const screen = studyScreen(study);
  document.getElementById("screen").replaceChildren(screen.node);
  document.getElementById("keys").remove();
  document.getElementById("find").addEventListener("input", (event) => screen.find(event.target.value.toLowerCase()));
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    for (const redraw of redraws) redraw();
  });
}).catch((error) => { document.getElementById("screen").textContent = `This page cannot be read: ${error.message}`; });

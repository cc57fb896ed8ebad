// Cycles of single tiles within a step: which are slow, and how well the work is spread.

function tilesByStep(report) {
  if (!report.tilesByStep) report.tilesByStep = new Map(((report.step_tiles || {}).steps || []).map((each) => [each.step, each.ipus]));
  return report.tilesByStep;
}

// A panel that shows the tiles of a step; `set` chooses another.
function tilesPanel(report) {
  const known = tilesByStep(report), timeline = report.timeline, node = element("section", {});
  const title = (step) => `${timeline.step_names[step] || "(program)"}: ${timeline.step_kinds[step]}, ${whole(timeline.step_cycles[step])} cycles`;
  const options = [...known.keys()].map((step, n) => [String(step), `${n + 1}. ${title(step)}`]);
  const picker = element("select", { "aria-label": "step", onchange: () => set(Number(picker.value)) }, options.map(([key, text]) => element("option", { value: key }, text)));
  const inside = element("div");
  node.append(element("h3", {}, "Tiles within a step"), element("div", { class: "bar" }, element("label", {}, "step ", picker), element("span", {}, "dearest first; or click a step above")), inside);
  function set(step) {
    const ipus = known.get(step);
    if (!ipus) { inside.replaceChildren(element("p", {}, `${title(step)}. Its tiles are not in this report: it is not a compute set or an exchange, or not among the dearest ${known.size}.`)); return; }
    picker.value = String(step);
    inside.replaceChildren(...ipus.map((each) => tilesOfIpu(each, ipus.length)), element("p", {}, timeline.step_kinds[step] === "exchange"
      ? "What transfers ask of a range of tiles counts for all tiles between its ends; what links take is not here." : "By each tile's own parts. Tiles wait for the slowest."));
  }
  if (options.length) set(Number(options[0][0]));
  return { node: options.length ? node : element("span"), set };
}

function tilesOfIpu({ ipu, runs }, ipus) {
  let tiles = 0, sum = 0, most = 0, busy = 0;
  const classes = new Map();
  for (const [count, cycles] of runs) {
    const found = classes.get(cycles) || { cycles, count: 0, first: tiles };
    found.count += count; classes.set(cycles, found);
    tiles += count; sum += count * cycles; most = Math.max(most, cycles);
    if (cycles) busy += count;
  }
  const left = 78, height = ipus > 2 ? 110 : 170;
  const picture = drawing(height, `cycles of each tile of IPU ${ipu}; the table beside has the same`, (pen, state) => {
    const room = state.width - left, y = (cycles) => state.height - 18 - (cycles / Math.max(1, most)) * (state.height - 30);
    let at = 0;
    pen.fillStyle = colour("idle"); pen.fillRect(left, y(most), room, y(0) - y(most));
    for (const [count, cycles] of runs) {
      pen.fillStyle = colour(cycles === most ? "exchange" : "compute");
      pen.fillRect(left + (room * at) / tiles, y(cycles), Math.max(0.7, (room * count) / tiles), y(0) - y(cycles));
      at += count;
    }
    pen.fillStyle = colour("text");
    for (const share of [0, 0.5, 1]) pen.fillText(whole(most * share), 2, y(most * share) + 4);
    pen.fillText("tiles by number", left, state.height - 4);
  });
  picture.canvas.addEventListener("mousemove", (event) => {
    const box = picture.canvas.getBoundingClientRect(), tile = Math.floor(((event.clientX - box.left - left) / Math.max(1, box.width - left)) * tiles);
    let at = 0;
    const run = runs.find(([count]) => { at += count; return tile < at; });
    if (tile >= 0 && run) tip.show(event, `tile ${tile}: ${whole(run[1])} cycles, ${percent(run[1], most) || "0 %"} of the slowest`); else tip.hide();
  });
  picture.canvas.addEventListener("mouseleave", tip.hide);
  const rows = [...classes.values()].sort((a, b) => b.cycles - a.cycles);
  return element("div", {}, element("p", {}, `IPU ${ipu}: ${whole(busy)} of ${whole(tiles)} tiles at work, the slowest ${whole(most)} cycles, the mean ${whole(sum / tiles)}: ${percent(sum, most * tiles) || "0 %"} of all tiles' time is used`),
    element("div", { class: "two" }, element("div", {}, picture.canvas, legend([["works", colour("compute")], ["slowest", colour("exchange")], ["waits", colour("idle")]])),
      sortedTable([["cycles", "cycles", "number"], ["tiles", "count", "number"], ["the first", "first", "number"], ["share of the slowest", (row) => row.cycles / Math.max(1, most), "share"]], rows, { caption: "Tiles alike, the slowest first", most: 40 }).node));
}

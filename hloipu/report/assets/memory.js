// Memory: tile by tile, and over the steps of the program.

function memoryScreen(report) {
  if (!report.tiles) return element("p", {}, "A profile has no bytes of single tiles: make the report from HLO text or an executable.");
  const limit = report.profile.memory.available_bytes_per_tile;
  let ipu = report.profile.memory.peak.ipu, chosen = -1, withGaps = true, order = "tile";
  const isSmall = report.profile.memory.peak.total_bytes < limit / 3;
  let scale = isSmall ? "fullest" : "limit";
  let classes = [];
  const detail = element("div");
  const shownParts = () => CATEGORIES.filter(([name]) => withGaps || name !== "gaps");
  const data = () => report.tiles.find((each) => each.ipu === ipu);
  const needed = (number) => data().needed_bytes[number] - (withGaps ? 0 : data().parts.gaps[number]);
  function tilesOf() {
    classes = [];
    for (const [number, count] of data().classes) for (let n = 0; n < count; n += 1) classes.push(number);
    return classes;
  }
  function ordered() {
    const list = classes.map((number, tile) => [tile, number]);
    return order === "bytes" ? list.sort((a, b) => needed(b[1]) - needed(a[1])) : list;
  }
  const bars = drawing(280, "bytes of each tile by category", (pen, state) => {
    const top = Math.max(scale === "limit" ? limit : 1, ...data().needed_bytes) * 1.05, left = 78;
    state.margin = left;
    const y = (bytes) => state.height - 22 - (bytes / top) * (state.height - 34);
    const list = ordered(), width = (state.width - left) / list.length, parts = data().parts;
    list.forEach(([tile, number], place) => {
      let base = 0;
      for (const [name, paint] of shownParts()) {
        const bytes = parts[name][number];
        if (!bytes) continue;
        pen.fillStyle = paint;
        pen.fillRect(left + place * width, y(base + bytes), Math.max(width, 0.6), y(base) - y(base + bytes) + 0.3);
        base += bytes;
      }
      if (tile === chosen) { pen.strokeStyle = colour("text"); pen.lineWidth = 2; pen.strokeRect(left + place * width - 1, y(base), width + 2, y(0) - y(base)); }
    });
    pen.fillStyle = colour("text");
    for (let n = 0; n <= 4; n += 1) pen.fillText(whole((top * n) / 4), 2, y((top * n) / 4) + 4);
    if (limit <= top) {
      pen.strokeStyle = colour("bad"); pen.lineWidth = 2; pen.setLineDash([6, 4]);
      pen.beginPath(); pen.moveTo(left, y(limit)); pen.lineTo(state.width, y(limit)); pen.stroke(); pen.setLineDash([]);
      pen.fillStyle = colour("bad"); pen.fillText(`limit ${whole(limit)}`, state.width - 120, y(limit) - 4);
    }
    pen.fillStyle = colour("text"); pen.fillText(order === "tile" ? "tiles by number" : "tiles, fullest first", left, state.height - 6);
  });
  const heat = drawing(260, "heat map of the tiles by how full they are", (pen, state) => {
    const { across, size } = grid(state);
    classes.forEach((number, tile) => {
      const share = needed(number) / heatTop();
      pen.fillStyle = heatColour(share);
      pen.fillRect((tile % across) * size, Math.floor(tile / across) * size, size - 1, size - 1);
      if (tile === chosen) { pen.strokeStyle = colour("text"); pen.lineWidth = 2; pen.strokeRect((tile % across) * size, Math.floor(tile / across) * size, size - 1, size - 1); }
    });
  });
  const heatTop = () => (scale === "limit" ? limit : Math.max(...data().needed_bytes));
  function grid(state) {
    const across = Math.max(1, Math.ceil(Math.sqrt((classes.length * state.width) / Math.max(1, state.height))));
    return { across, size: Math.min(state.width / across, state.height / Math.ceil(classes.length / across)) };
  }
  function say(tile) { return `tile ${tile}: ${whole(needed(classes[tile]))} bytes, ${percent(needed(classes[tile]), limit)} of its memory`; }
  function tileAt(event, picture) {
    const area = picture.canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
    if (picture === heat) {
      const { across, size } = grid(heat);
      return x < across * size ? Math.floor(y / size) * across + Math.floor(x / size) : -1;
    }
    const place = Math.floor(((x - bars.margin) / (bars.width - bars.margin)) * classes.length);
    return place >= 0 && place < classes.length ? ordered()[place][0] : -1;
  }
  for (const picture of [bars, heat]) {
    picture.canvas.addEventListener("mousemove", (event) => { const tile = tileAt(event, picture); if (tile >= 0 && tile < classes.length) tip.show(event, say(tile)); else tip.hide(); });
    picture.canvas.addEventListener("mouseleave", tip.hide);
    picture.canvas.addEventListener("click", (event) => { const tile = tileAt(event, picture); if (tile >= 0 && tile < classes.length) choose(tile); });
    picture.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid(heat).across, ArrowDown: grid(heat).across }[event.key];
      if (step) { event.preventDefault(); choose(Math.min(classes.length - 1, Math.max(0, chosen + step))); }
    });
  }
  function choose(tile) {
    chosen = tile;
    const number = classes[tile], parts = data().parts;
    const rows = CATEGORIES.map(([name]) => ({ name, bytes: parts[name][number] })).filter((row) => row.bytes);
    detail.replaceChildren(element("h3", {}, say(tile)),
      element("p", {}, `${whole(data().always_live_bytes[number])} bytes are always live; ${whole(classes.filter((each) => each === number).length)} tiles are alike.`),
      sortedTable([["category", "name"], ["bytes", "bytes", "number"], ["share", (row) => row.bytes / data().needed_bytes[number], "share"]],
        rows, { caption: "At this tile's own peak", sort: 1 }).node);
    bars.redraw(); heat.redraw();
  }
  const number = element("input", { type: "number", min: 0, value: report.profile.memory.peak.tile, onchange: () => choose(Math.min(classes.length - 1, Math.max(0, Number(number.value) || 0))) });
  const screen = element("div", {}, element("h2", {}, "Memory by tile"),
    element("div", { class: "bar" },
      choice("IPU", report.tiles.map((each) => [String(each.ipu), `${each.ipu}: ${whole(Math.max(...each.needed_bytes))} bytes at most`]), String(ipu), (value) => { ipu = Number(value); tilesOf(); choose(fullest()); }),
      element("label", {}, "tile ", number), choice("order", [["tile", "by number"], ["bytes", "fullest first"]], order, (value) => { order = value; bars.redraw(); }),
      choice("scale", [["limit", "to the limit"], ["fullest", "to the fullest tile"]], scale, (value) => { scale = value; choose(chosen); }),
      element("label", {}, element("input", { type: "checkbox", checked: true, onchange: (event) => { withGaps = event.target.checked; choose(chosen); } }), " gaps")),
    bars.canvas, legend(CATEGORIES),
    element("div", { class: "two" }, element("div", {}, heat.canvas, legend([["empty", heatColour(0)], ["half", heatColour(0.5)], ["full", heatColour(1)], ["over the limit", heatColour(1.1)]])), detail));
  function fullest() { return classes.indexOf(data().needed_bytes.indexOf(Math.max(...data().needed_bytes))); }
  tilesOf(); choose(fullest());
  return screen;
}

function heatColour(share) {
  if (share > 1) return "#8b0f2f";
  const shade = Math.max(0, Math.min(1, share));
  return `hsl(212, ${30 + 40 * shade}%, ${92 - 66 * shade}%)`;  // ever darker: readable without colours
}

function livenessScreen(report) {
  if (!report.liveness) return element("p", {}, "A profile does not tell what lives when: make the report from HLO text or an executable.");
  let ipu = report.profile.memory.peak.ipu, point = 0, plot = null;
  let withLimit = report.profile.memory.peak.total_bytes > report.profile.memory.available_bytes_per_tile / 3;
  const box = element("div"), table = element("div"), title = element("h3"), span = element("div");
  const data = () => report.liveness.find((each) => each.ipu === ipu);
  const limit = report.profile.memory.available_bytes_per_tile;
  function draw() {
    const { curve, always_live_bytes: always, points } = data();
    const xs = [], live = [], floor = [], line = [];
    for (const [at, bytes] of [...curve, [points, curve.at(-1)[1]]]) { xs.push(at); live.push(bytes + always); floor.push(always); line.push(limit); }
    if (plot) plot.destroy();
    const marks = { show: false };
    const ink = colour("text"), grid = { stroke: colour("line"), width: 1 };
    const stepped = uPlot.paths.stepped({ align: 1 });
    plot = new uPlot({
      width: Math.max(300, box.clientWidth || screenWidth()), height: 300, cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, high * 1.05] } },
      axes: [{ stroke: ink, grid, label: "step of the program (loops once)" }, { stroke: ink, grid, size: 90, values: (_, ticks) => ticks.map(whole) }],
      series: [{ label: "step" }, { label: "live", points: marks, stroke: colour("exchange"), fill: `${colour("exchange")}55`, width: 1.5, paths: stepped, value: (_, v) => (v === null ? "" : whole(v)) },
        { label: "always live", points: marks, stroke: colour("compute"), fill: `${colour("compute")}88`, width: 1.5, value: (_, v) => (v === null ? "" : whole(v)) },
        { label: "limit", points: marks, show: withLimit, stroke: colour("bad"), dash: [6, 4], width: 2, value: (_, v) => (v === null ? "" : whole(v)) }],
      hooks: { draw: [(u) => {
        const at = data().peak_point;
        u.ctx.save(); u.ctx.fillStyle = colour("bad");
        const x = u.valToPos(at, "x", true), y = u.valToPos(data().needed_bytes - data().gap_bytes, "y", true);
        u.ctx.beginPath(); u.ctx.arc(x, y, 5 * devicePixelRatio, 0, 7); u.ctx.fill();
        u.ctx.font = `${12 * devicePixelRatio}px sans-serif`;
        const right = x > u.bbox.left + u.bbox.width * 0.75;
        u.ctx.textAlign = right ? "right" : "left";
        u.ctx.fillText(`peak: ${whole(data().needed_bytes)} bytes, ${whole(data().gap_bytes)} of them gaps`, x + (right ? -9 : 9) * devicePixelRatio, y + 4 * devicePixelRatio);
        u.ctx.strokeStyle = colour("text"); u.ctx.beginPath();
        const here = u.valToPos(point, "x", true); u.ctx.moveTo(here, u.bbox.top); u.ctx.lineTo(here, u.bbox.top + u.bbox.height); u.ctx.stroke(); u.ctx.restore();
      }] },
    }, [xs, live, floor, line], box);
    plot.over.addEventListener("click", () => { if (plot.cursor.left >= 0) choose(Math.floor(plot.posToVal(plot.cursor.left, "x"))); });
  }
  const screenWidth = () => Math.min(1840, document.documentElement.clientWidth - 42);
  function stepAt(at) {
    const { curve, steps } = data();
    let low = 0, high = curve.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (curve[middle][0] <= at) low = middle; else high = middle - 1; }
    return [low, steps[low]];
  }
  function choose(at) {
    point = Math.max(0, Math.min(data().points - 1, at));
    const [place, step] = stepAt(point);
    const rows = data().tensors.filter((tensor) => tensor.ranges.some(([first, last]) => first <= point && point <= last));
    const listed = rows.reduce((sum, row) => sum + row.bytes, 0), live = data().curve[place][1] + data().always_live_bytes - data().fixed_bytes;
    title.textContent = `Step ${whole(point)}${step[1] ? `, ${step[1]}` : ""} (${step[0]}): ${whole(live)} bytes of tensors live on tile ${data().tile}`;
    table.replaceChildren(sortedTable([["tensor", "name"], ["instruction", "origin"], ["line", "source", "code"], ["type", (row) => (row.type ? `${row.type}[${row.shape}]` : "")],
      ["category", "category"], ["bytes on the tile", "bytes", "number"], ["address", "address", "number"], ["lives", (row) => row.ranges.slice(0, 4).map(([a, b]) => `${a}–${b}`).join(", ") + (row.ranges.length > 4 ? ", …" : "")]],
    rows, { caption: listed < live ? `The largest; ${whole(live - listed)} bytes are of smaller ones` : "All that is live at this step", sort: 5, onRow: keeps }).node);
    if (plot) plot.redraw();
  }
  function keeps(tensor) {
    const first = tensor.ranges[0][0], last = tensor.ranges.at(-1)[1];
    const made = stepAt(first)[1], used = stepAt(last)[1];
    const always = first === 0 && last === data().points - 1;
    span.replaceChildren(element("h3", {}, `What keeps ${tensor.name}`),
      element("p", {}, always ? `It is always live: ${tensor.category}.` : `It is written at step ${whole(first)}, ${made[1] || made[0]}, and needed until step ${whole(last)}, ${used[1] || used[0]}: ${whole(tensor.bytes)} bytes for ${whole(last - first + 1)} steps.`),
      element("button", { type: "button", onclick: () => go("graph", tensor.origin) }, "Show it in the graph"));
    span.scrollIntoView({ block: "nearest" });
  }
  const screen = element("div", {}, element("h2", {}, "Liveness on the fullest tile"),
    element("div", { class: "bar" }, choice("IPU", report.liveness.map((each) => [String(each.ipu), `${each.ipu}, tile ${each.tile}`]), String(ipu), (value) => { ipu = Number(value); draw(); choose(data().peak_point); }),
      element("button", { type: "button", onclick: () => choose(data().peak_point) }, "Peak"),
      element("button", { type: "button", onclick: () => choose(point - 1) }, "Step before"), element("button", { type: "button", onclick: () => choose(point + 1) }, "Step after"),
      element("label", {}, element("input", { type: "checkbox", checked: withLimit, onchange: (event) => { withLimit = event.target.checked; draw(); } }), " limit"),
      element("span", {}, "Click a step to see what is live; drag to zoom, double-click to zoom out.")),
    box, title, table, span);
  choose(data().peak_point);
  const redraw = () => { if (box.isConnected) draw(); };
  redraws.add(redraw);
  requestAnimationFrame(redraw);
  return screen;
}

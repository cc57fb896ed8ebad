// Flame graph: cycles or bytes by the user's call stacks, or by the framework's scopes.

function flameTree(report, by, weight) {
  const root = { name: "all", value: 0, children: new Map(), parent: null };
  const module = report.module, peakBytes = new Map();
  if (weight === "bytes") {
    for (const ipu of report.liveness || []) {
      for (const tensor of ipu.tensors) {
        if (tensor.ranges.some(([first, last]) => first <= ipu.peak_point && ipu.peak_point <= last)) {
          peakBytes.set(tensor.origin, (peakBytes.get(tensor.origin) || 0) + tensor.bytes);
        }
      }
    }
  }
  const value = new Map(originRows(report).map((row) => [row.name, weight === "bytes" ? 0 : row.cycles]));
  if (weight === "bytes") for (const [name, bytes] of peakBytes) value.set(name, bytes);
  const rows = new Map(originRows(report).map((row) => [row.name, row]));
  const index = rowsByName(module);
  for (const [name, amount] of value) {
    if (!amount) continue;
    let node = root;
    node.value += amount;
    for (const part of [...path(index.get(name), rows.get(name)), name || "(program)"]) {
      if (!node.children.has(part)) node.children.set(part, { name: part, value: 0, children: new Map(), parent: node });
      node = node.children.get(part);
      node.value += amount;
    }
  }
  return root;

  function path(row, origin) {
    if (by === "scope") return row === undefined ? ["(no scope)"] : (module.scopes[module.scope[row]] || "(no scope)").split("/");
    const found = [];
    for (let frame = row === undefined ? -1 : module.frame[row]; frame >= 0; frame = module.frames[frame][0]) {
      const [, called, file, line] = module.frames[frame];
      found.unshift(`${called ? `${called} ` : ""}${file.split("/").pop()}:${line}`);
    }
    return found.length ? found : [(origin && origin.source) || "(no source line)"];
  }
}

function flameScreen(report) {
  let by = "line", weight = "cycles", tree, zoomed, boxes = [], find = "";
  const ROW = 20;
  const crumbs = element("p"), children = element("div");
  const picture = drawing(400, "flame graph; the table below has the same as text", (pen, state) => {
    boxes = [];
    const shades = [colour("compute"), colour("exchange"), colour("host"), colour("remote"), colour("other")];
    let level = 0;
    const chain = [];
    for (let node = zoomed; node; node = node.parent) chain.unshift(node);
    chain.slice(0, -1).forEach((node) => box(node, 0, state.width, level++));
    draw(zoomed, 0, state.width, level);
    function draw(node, x, width, depth) {
      box(node, x, width, depth);
      let left = x;
      for (const child of [...node.children.values()].sort((a, b) => b.value - a.value)) {
        const room = (width * child.value) / node.value;
        if (room >= 0.5) draw(child, left, room, depth + 1);
        left += room;
      }
    }
    function box(node, x, width, depth) {
      const y = depth * ROW;
      if (y > state.height) return;
      boxes.push([x, y, width, node]);
      const hit = find && node.name.toLowerCase().includes(find);
      let sum = 0;
      for (let n = 0; n < node.name.length; n += 1) sum = (sum * 31 + node.name.charCodeAt(n)) >>> 0;
      pen.globalAlpha = hit || !find ? 0.85 : 0.25;
      pen.fillStyle = hit ? colour("bad") : shades[sum % shades.length];
      pen.fillRect(x, y, Math.max(0.5, width - 1), ROW - 1);
      pen.globalAlpha = 1;
      if (width > 30) {
        const text = clipped(pen, node.name, width - 8);
        pen.fillStyle = colour("ground");
        pen.fillText(text, x + 4, y + 14);
      }
    }
  });
  const under = (event) => {
    const area = picture.canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
    return boxes.find((each) => x >= each[0] && x < each[0] + each[2] && y >= each[1] && y < each[1] + ROW);
  };
  const unit = () => (weight === "bytes" ? "bytes at the peaks" : "cycles");
  picture.canvas.addEventListener("mousemove", (event) => {
    const hit = under(event);
    if (hit) tip.show(event, `${hit[3].name}\n${whole(hit[3].value)} ${unit()} (${percent(hit[3].value, tree.value)})`);
    else tip.hide();
  });
  picture.canvas.addEventListener("mouseleave", tip.hide);
  picture.canvas.addEventListener("click", (event) => { const hit = under(event); if (hit) zoom(hit[3]); });
  function deepest(node) { return 1 + Math.max(0, ...[...node.children.values()].map(deepest)); }
  function zoom(node) {
    zoomed = node;
    let above = 0;
    for (let each = node.parent; each; each = each.parent) above += 1;
    picture.height = Math.min(1400, Math.max(80, (above + deepest(node)) * ROW));
    crumbs.textContent = `${node.name}: ${whole(node.value)} ${unit()} of ${whole(tree.value)} (${percent(node.value, tree.value)})`;
    const rows = [...node.children.values()].map((child) => ({ name: child.name, value: child.value, child }));
    children.replaceChildren(
      node.parent ? element("button", { type: "button", onclick: () => zoom(node.parent) }, `Up to ${node.parent.name}`) : element("span"),
      sortedTable([["inside", "name"], [unit(), "value", "number"], ["share", (row) => row.value / tree.value, "share"]],
        rows, { caption: "What is inside, as a table", sort: 1, onRow: (row) => (row.child.children.size ? zoom(row.child) : go("ops", row.name)) }).node);
    picture.redraw();
  }
  function rebuild() { tree = flameTree(report, by, weight); zoom(tree); }
  const screen = element("div", {}, element("h2", {}, "Flame graph"),
    element("div", { class: "bar" },
      choice("by", [["line", "call stack and source line"], ["scope", "framework scope"]], by, (value) => { by = value; rebuild(); }),
      choice("of", [["cycles", "cycles, host included"], ["bytes", "bytes at the peak of each IPU's fullest tile"]], weight, (value) => { weight = value; rebuild(); })),
    report.module ? null : element("p", {}, "Call stacks and scopes are in reports of HLO text; an executable or a profile has source lines alone."),
    picture.canvas, crumbs, children);
  rebuild();
  return { node: screen, find(text) { find = text; picture.redraw(); } };
}

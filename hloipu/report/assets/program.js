// The program as a tree, and instructions as a table.

function programScreen(report) {
  const timeline = report.timeline, time = timeOf(report);
  if (!timeline) return element("p", {}, "A profile has no program: make the report from HLO text or an executable.");
  const counts = blockCounts(timeline), total = timeline.blocks[timeline.root].cycles * timeline.runs;
  const body = element("tbody");
  function line(level, name, kind, cycles, executions, open, note = "") {
    const opener = open ? element("button", { type: "button", class: "open", "aria-expanded": "false", "aria-label": `open ${name}` }, "▸") : element("span", {}, "\u2003");
    const bar = element("span", { class: "share" });
    bar.style.width = `${Math.min(100, (120 * cycles) / Math.max(1, total))}px`;
    const first = element("td", {}, opener, name);
    first.style.paddingLeft = `${8 + 18 * level}px`;
    const row = element("tr", {}, first, element("td", {}, kind), element("td", { class: "n" }, whole(executions)), element("td", { class: "n" }, whole(cycles)),
      element("td", {}, bar, ` ${percent(cycles, total)}`), element("td", {}, note));
    row.level = level;
    row.cycles = cycles;
    if (open) {
      opener.addEventListener("click", () => {
        const isOpen = opener.getAttribute("aria-expanded") === "true";
        opener.setAttribute("aria-expanded", String(!isOpen));
        opener.textContent = isOpen ? "▸" : "▾";
        if (isOpen) { while (row.nextSibling && row.nextSibling.level > level) row.nextSibling.remove(); } else row.after(...open(level + 1));
      });
    }
    return row;
  }
  const MOST = 100;
  function blockRows(number, level, from = 0) {
    const block = timeline.blocks[number], rows = [], entries = block.entries;
    for (const entry of entries.slice(from, from + MOST)) {
      if (entry >= 0) {
        const kind = timeline.step_kinds[entry], ipus = timeline.step_ipus[entry];
        rows.push(line(level, timeline.step_names[entry] || "(program)", kind, timeline.step_cycles[entry] * counts[number], counts[number], null,
          [timeline.step_tiles[entry] ? `${whole(timeline.step_tiles[entry])} tiles` : "", ipus.length ? `IPU ${ipus.join(", ")}` : ""].filter(Boolean).join(", ")));
        continue;
      }
      const inner = timeline.inner[~entry];
      const cycles = time.lengthOf(entry) * counts[number];
      rows.push(line(level, inner.name || inner.kind, inner.kind, cycles, counts[number], (deeper) => inner.blocks.flatMap((each, n) => (inner.blocks.length === 1
        ? blockRows(each, deeper)
        : [line(deeper, (inner.names || [])[n] || `${n}`, inner.kind === "pipeline" ? `position${n < (inner.ipus || []).length ? ` on IPU ${inner.ipus[n].join(", ")}` : " beside"}` : "branch",
          timeline.blocks[each].cycles * counts[each], counts[each], (level2) => blockRows(each, level2))])), inner.kind === "pipeline" ? "positions work side by side" : ""));
    }
    if (entries.length > from + MOST) {
      const more = element("button", { type: "button" }, `${whole(entries.length - from - MOST)} more`);
      const row = element("tr", {}, element("td", { colSpan: 6 }, more));
      row.level = level;
      more.addEventListener("click", () => row.replaceWith(...blockRows(number, level, from + MOST)));
      rows.push(row);
    }
    return rows;
  }
  body.append(...blockRows(timeline.root, 0));
  // What nearly all of the time is spent in is open from the start.
  for (let level = 0; level < 4; level += 1) {
    const rows = [...body.rows].filter((row) => row.level === level && row.cycles > 0.6 * total);
    if (rows.length === 1 && rows[0].querySelector(".open")) rows[0].querySelector(".open").click(); else break;
  }
  return element("div", {}, element("h2", {}, "Program"), element("div", { class: "wide tree", tabIndex: 0, role: "region", "aria-label": "program tree" }, element("table", {},
    element("caption", {}, "Steps in their order; cycles are of all executions"),
    element("thead", {}, element("tr", {}, ["step", "kind", "executions", "cycles", "share", "where"].map((text, n) => element("th", { scope: "col", class: n === 2 || n === 3 ? "n" : "" }, text)))), body)));
}

function blockCounts(timeline) {
  const counts = new Array(timeline.blocks.length).fill(0);
  counts[timeline.root] = timeline.runs;
  for (let number = timeline.root; number >= 0; number -= 1) {
    for (const entry of timeline.blocks[number].entries) {
      if (entry >= 0) continue;
      const inner = timeline.inner[~entry];
      inner.blocks.forEach((block, n) => { counts[block] += counts[number] * inner.times[n]; });
    }
  }
  return counts;
}

function opsScreen(report, wanted) {
  const all = originRows(report);
  let text = wanted || "", group = "none";
  const box = element("div");
  const columns = [["instruction", "name"], ["opcode", "opcode", "code"], ["line", "source", "code"], ["scope", "scope", "text"], ["cycles", "device", "number"],
    ["share", (row) => row.device / Math.max(1, report.profile.device_cycles), "share"], ["compute", "compute", "number"], ["exchange", "exchange", "number"],
    ["assumed", "assumed", "number"], ["tiles", "tiles", "number"], ["FLOPs", "flops", "number"], ["bytes moved", "moved", "number"], ["shape", "shape"]];
  const table = sortedTable(columns, [], { caption: "Instructions; cycles are the device's own", sort: 4, onRow: (row) => go("graph", row.name), chosen: (row) => row.name === wanted });
  function grouped(rows) {
    const key = { opcode: (row) => row.opcode, line: (row) => row.source, scope: (row) => row.scope.split("/").slice(0, 3).join("/") }[group];
    if (!key) return rows;
    const found = new Map();
    for (const row of rows) {
      const name = key(row) || "(none)";
      const sum = found.get(name) || { name, opcode: "", source: "", scope: "", shape: "", device: 0, compute: 0, exchange: 0, assumed: 0, tiles: 0, flops: 0, moved: 0, count: 0 };
      for (const each of ["device", "compute", "exchange", "assumed", "flops", "moved"]) sum[each] += row[each];
      sum.tiles = Math.max(sum.tiles, row.tiles); sum.count += 1; sum.opcode = `${sum.count} instructions`;
      found.set(name, sum);
    }
    return [...found.values()];
  }
  function show() {
    const part = text.toLowerCase();
    const rows = all.filter((row) => !part || [row.name, row.opcode, row.source, row.scope].some((each) => each.toLowerCase().includes(part)));
    table.set(grouped(rows));
    note.textContent = `${whole(rows.length)} of ${whole(all.length)} instructions, ${whole(rows.reduce((sum, row) => sum + row.device, 0))} cycles`;
  }
  const note = element("span", { role: "status" });
  const input = element("input", { type: "search", value: text, oninput: () => { text = input.value; show(); } });
  box.append(element("h2", {}, "Operations"), element("div", { class: "bar" }, element("label", {}, "search ", input),
    choice("group by", [["none", "nothing"], ["opcode", "opcode"], ["line", "source line"], ["scope", "scope", "text"]], group, (value) => { group = value; show(); }), note), table.node);
  show();
  return { node: box, find(value) { text = value; input.value = value; show(); } };
}

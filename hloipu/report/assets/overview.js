// First screen: the verdict, where cycles and bytes go, ranked findings, queues.

function overviewScreen(report) {
  const p = report.profile, memory = p.memory || {}, peak = memory.peak;
  const cards = element("div", { class: "cards" });
  const card = (title, text, note, state = "") =>
    cards.append(element("div", { class: `card ${state}` }, element("span", {}, title), element("b", {}, text), element("span", {}, note)));
  if (peak) {
    const share = percent(peak.total_bytes, memory.available_bytes_per_tile);
    card("Fits", memory.fits ? "yes" : "no", `${whole(peak.total_bytes)} of ${whole(memory.available_bytes_per_tile)} bytes (${share}) on tile ${peak.tile} of IPU ${peak.ipu}`, memory.fits ? "good" : "bad");
  }
  const clock = p.machine.clock_hz;
  card(p.total_cycles === null ? "Device, at least" : "Device", seconds(p.device_cycles / clock), `${whole(p.device_cycles)} cycles, ${percent(p.device_assumed_cycles, p.device_cycles) || "0 %"} assumed`);
  card("Host stops the device", seconds(p.host.each_run_cycles / clock), `${whole(p.host.each_run_cycles)} cycles; ${whole(p.host.bytes_in)} bytes in, ${whole(p.host.bytes_out)} out`);
  card("Tiles at work", percent(p.tile_use, 1), `${machineText(p.machine)} of ${whole(p.machine.tiles_per_ipu)} tiles`);
  for (const feed of p.feeds && p.feeds.verdict ? [p.feeds] : []) {
    card("Feeds", feed.verdict, `the device takes ${short(feed.device_elements_per_second || 0)} elements/s` + (feed.slowest ? `; slowest: ${feed.slowest}` : ""), feed.verdict === "host-bound" ? "bad" : "good");
  }
  const screen = element("div", {}, element("h2", {}, "Verdict"), cards);
  const spent = Object.entries(p.device_by_bucket).map(([name, cycles]) => [name, colour(name), cycles]);
  screen.append(element("section", {}, element("h3", {}, "Device cycles"), stackedBar(spent, "device cycles by what they are for"),
    legend(spent.filter((x) => x[2]).map((x) => [x[0], x[1], `${whole(x[2])} (${percent(x[2], p.device_cycles)})`]))));
  if (peak) {
    const parts = CATEGORIES.map(([name, paint]) => [name, paint, peak.parts[name] || 0]);
    screen.append(element("section", {}, element("h3", {}, `Fullest tile: ${whole(peak.total_bytes)} bytes at ${peak.step_name || peak.step}`),
      stackedBar(parts, "bytes of the fullest tile by category"),
      legend(parts.filter((x) => x[2]).map((x) => [x[0], x[1], whole(x[2])]))));
  }
  screen.append(findingsSection(report), dearestSection(report));
  if (p.by_ipu.length > 1) screen.append(ipuSection(report));
  screen.append(element("details", {}, element("summary", {}, "The same as text"), element("pre", {}, report.verdict.join("\n"))));
  return screen;
}

function machineText(machine) {
  const ipus = machine.ipus === 1 ? "1 IPU" : `${machine.ipus} IPUs`;
  return machine.replicas === 1 ? ipus : `${machine.replicas} replicas of ${ipus}`;
}

function findingsSection(report) {
  const p = report.profile;
  const rows = p.findings.map((finding, number) => ({ ...finding, number: number + 1 }));
  const settings = (row) => Object.entries(row.settings || {}).map(([key, value]) => `--${key.replaceAll("_", "-")} ${value}`).join(" ");
  const measured = (row) => (row.measured ? `measured: ${JSON.stringify(row.measured)}` : "");
  const fitting = p.fitting ? [...(p.fitting.found || [])] : [];
  return element("section", {}, element("h2", {}, "Findings, dearest first"),
    fitting.length ? element("ul", {}, fitting.map((x) => element("li", {}, typeof x === "string" ? x : x.line || JSON.stringify(x)))) : null,
    rows.length ? sortedTable([
      ["what", "statement"], ["cure", (row) => [row.cure, settings(row), measured(row)].filter(Boolean).join(" · ")],
      ["saves cycles, at most", "gain_cycles", "number"], ["of the device", (row) => (row.is_of_host ? 0 : row.gain_cycles / Math.max(1, p.device_cycles)), "share"],
      ["saves bytes, at most", "gain_bytes", "number"], ["line", "source", "code"],
    ], rows, { caption: "What keeps it slow or large; gains do not add up", onRow: (row) => go("ops", row.name) }).node
      : element("p", {}, "Nothing was found that would make it faster or smaller."));
}

function dearestSection(report) {
  const rows = originRows(report).slice(0, 12);
  return element("section", {}, element("h2", {}, "Dearest instructions"), sortedTable([
    ["instruction", "name"], ["opcode", "opcode", "code"], ["line", "source", "code"], ["cycles", "device", "number"],
    ["share", (row) => row.device / Math.max(1, report.profile.device_cycles), "share"], ["kinds", "kinds"],
  ], rows, { caption: "By the device's own cycles", onRow: (row) => go("ops", row.name) }).node);
}

function ipuSection(report) {
  const p = report.profile;
  return element("section", {}, element("h2", {}, "By IPU"), p.by_ipu.map((row) => {
    const parts = BUCKETS.map((name) => [name, colour(name), row[name]]);
    return element("div", {}, element("span", {}, `IPU ${row.ipu}: idle ${percent(row.idle, p.lower_bound_cycles) || "0 %"}`), stackedBar(parts, `cycles of IPU ${row.ipu}`));
  }), legend(BUCKETS.map((name) => [name, colour(name)])));
}

// Rows of the module by name; of several in different computations, the one that works.
function rowsByName(module) {
  const found = new Map();
  (module ? module.name : []).forEach((name, row) => {
    const before = found.get(name);
    if (before === undefined || module.bytes[row] > module.bytes[before]) found.set(name, row);
  });
  return found;
}

// Instructions with all that is known of each.
function originRows(report) {
  if (report.rows) return report.rows;
  const { origins, steps } = report.profile, module = report.module;
  const index = rowsByName(module);
  const tiles = new Map(), moved = new Map();
  (steps.name || []).forEach((name, n) => {
    tiles.set(name, Math.max(tiles.get(name) || 0, steps.tiles[n]));
    moved.set(name, (moved.get(name) || 0) + steps.moved_bytes[n] * steps.executions[n]);
  });
  report.rows = (origins.name || []).map((name, n) => {
    const row = index.get(name), outer = (report.outer_runs || {})[name] ?? 1;
    const kinds = (report.origin_kinds || {})[name] || {};
    return {
      name, row, source: origins.source[n], cycles: origins.cycles[n], device: origins.cycles[n] - origins.host_cycles[n],
      assumed: origins.assumed_cycles[n], steps: origins.steps[n], tiles: tiles.get(name) || 0, moved: moved.get(name) || 0,
      compute: kinds.compute || 0, exchange: kinds.exchange || 0,
      kinds: Object.entries(kinds).sort((a, b) => b[1] - a[1]).map(([kind, cycles]) => `${kind} ${whole(cycles)}`).join(", "),
      opcode: row === undefined ? "" : module.opcodes[module.opcode[row]], scope: row === undefined ? "" : module.scopes[module.scope[row]],
      shape: row === undefined ? "" : module.shape[row],
      flops: row === undefined ? 0 : module.flops[row] * outer, bytes: row === undefined ? 0 : module.bytes[row] * outer,
    };
  }).sort((a, b) => b.device - a.device);
  return report.rows;
}

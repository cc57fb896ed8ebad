// Two programs side by side: figures, what cycles and bytes are for, instructions that differ most.

function compareScreen(report) {
  const other = report.compared;
  if (!other) return element("p", {}, "This page is of one program: hloipu compare A B -o page.html writes one of two.");
  const [a, b] = [other.profile, report.profile], [first, second] = other.names;
  const bars = (title, entries) => element("section", {}, element("h3", {}, title), [[first, a], [second, b]].map(([name, profile]) => {
    const parts = entries(profile);
    const sum = parts.reduce((total, part) => total + part[2], 0);
    const most = Math.max(...[a, b].map((each) => entries(each).reduce((total, part) => total + part[2], 0)), 1);
    const bar = stackedBar(parts, `${title} of ${name}`);
    bar.style.width = `${(100 * sum) / most}%`;
    return element("div", {}, element("span", {}, `${name}: ${whole(sum)}`), bar);
  }), legend(entries(b).map((part) => [part[0], part[1]])));
  const buckets = (profile) => Object.entries(profile.device_by_bucket || {}).map(([name, cycles]) => [name, colour(name), cycles]);
  const parts = (profile) => CATEGORIES.map(([name, paint]) => [name, paint, ((profile.memory || {}).peak || { parts: {} }).parts[name] || 0]);
  const cycles = new Map();
  for (const [place, profile] of [[0, a], [1, b]]) {
    const { origins } = profile;
    (origins.name || []).forEach((name, n) => {
      const row = cycles.get(name) || { name, source: origins.source[n], values: [0, 0] };
      row.values[place] += origins.cycles[n] - origins.host_cycles[n];
      cycles.set(name, row);
    });
  }
  const rows = [...cycles.values()].map((row) => ({ ...row, first: row.values[0], second: row.values[1], change: row.values[1] - row.values[0] }))
    .filter((row) => row.change).sort((x, y) => Math.abs(y.change) - Math.abs(x.change));
  const figures = Object.entries(other.figures).map(([name, [x, y]]) => ({ name: name.trim(), first: x ?? "", second: y ?? "",
    change: typeof x === "number" && typeof y === "number" ? y - x : "", ratio: typeof x === "number" && typeof y === "number" && x ? y / x : "" }));
  return element("div", {}, element("h2", {}, `${first} and ${second}`),
    element("p", {}, `The other screens are of ${second}.`),
    bars("Device cycles", buckets), bars("Fullest tile, bytes", parts),
    element("section", {}, element("h3", {}, "Figures"), sortedTable([["figure", "name"], [first, "first", "number"], [second, "second", "number"], ["change", "change", "number"], ["ratio", "ratio", "number"]], figures, { caption: "" }).node),
    element("section", {}, element("h3", {}, "Instructions that differ most"), sortedTable([["instruction", "name"], ["line", "source", "code"], [first, "first", "number"], [second, "second", "number"], ["change", "change", "number"]],
      rows, { caption: "Cycles of the device", onRow: (row) => go("ops", row.name) }).node));
}

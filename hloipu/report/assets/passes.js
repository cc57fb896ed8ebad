// What each pass of the compiler changed.

function passesScreen(report) {
  const rows = report.module && report.module.passes;
  if (!rows) return element("p", {}, "A profile or an executable tells nothing of passes: make the report from HLO text.");
  let all = false;
  const change = (key) => (row) => row[key] - row[`${key}_before`];
  const signed = (value) => (value ? `${value > 0 ? "+" : "−"}${short(Math.abs(value))}` : "");
  const shown = () => rows.map((row, number) => ({ ...row, number: number + 1 }))
    .filter((row) => all || ["instructions", "flops", "bytes", "live_bytes"].some((key) => row[key] !== row[`${key}_before`]));
  const columns = [["run", "number", "number"], ["pass", "name", "code"], ["round", "round", "number"], ["ms", (row) => 1e3 * row.seconds, "number"]];
  for (const [title, key] of [["instructions", "instructions"], ["FLOPs", "flops"], ["bytes read and written", "bytes"], ["bytes live at once", "live_bytes"]]) {
    columns.push([title, key, "number"], ["change", (row) => signed(change(key)(row)), "number"]);
  }
  const table = sortedTable(columns, shown(), { caption: "In the order in which they ran, on the module as it was read", onRow: null });
  const last = rows.at(-1), first = rows[0];
  return element("div", {}, element("h2", {}, "Passes"),
    first ? element("p", {}, `${whole(first.instructions_before)} instructions became ${whole(last.instructions)}, ${short(first.live_bytes_before)} bytes live at once became ${short(last.live_bytes)}, in ${whole(rows.length)} runs and ${(1e3 * rows.reduce((sum, row) => sum + row.seconds, 0)).toFixed(0)} ms.`) : null,
    element("div", { class: "bar" }, element("label", {}, element("input", { type: "checkbox", onchange: (event) => { all = event.target.checked; table.set(shown()); } }), " those that changed nothing, too")),
    table.node);
}

// Links between IPUs: the ladder with what each bundle carries in each direction.

const LINK_KINDS = [["bytes", "all"], ["exchanges", "exchanges between IPUs"], ["channels", "pipeline channels"], ["collectives", "collectives"], ["decisions", "decisions"]];
const LINK_NAMES = { rung: "rung", crossing: "crossing to another rung", up: "rail up", down: "rail down", "gateway out": "gateway out", "gateway in": "gateway in" };

// Rows of the segments; `seconds` is how long a segment takes for what it carries of a kind.
function linkRows(links, kind) {
  const { segments } = links;
  return segments.kind.map((name, n) => ({
    place: n, name, from: segments.from[n], to: segments.to[n], rate: segments.bytes_per_second[n], carried: segments[kind][n],
    seconds: segments[kind][n] / segments.bytes_per_second[n], ...Object.fromEntries(LINK_KINDS.map(([key]) => [key, segments[key][n]])),
  }));
}

function linkText(row) {
  const gateway = row.name.startsWith("gateway");
  return gateway ? `${LINK_NAMES[row.name]} of chassis ${row.from}` : `${LINK_NAMES[row.name]}, IPU ${row.from} → ${row.to}`;
}

function linksScreen(report) {
  const links = report.links;
  if (!links) return element("p", {}, "A profile does not tell what crosses links: make the report from HLO text or an executable.");
  if (!links.segments.kind.length) return element("p", {}, "Nothing crosses a link between IPUs: the program is on one IPU, or each works alone.");
  const clock = report.profile.machine.clock_hz, runSeconds = report.profile.lower_bound_cycles / clock;
  let kind = "bytes", chosen = -1;
  const picture = element("div", { class: "wide", tabIndex: 0, role: "region", "aria-label": "ladder of links" }), note = element("p", { role: "status" });
  const sum = Object.values(links.total_bytes).reduce((total, each) => total + each, 0);
  const kinds = LINK_KINDS.filter(([key]) => key === "bytes" || links.total_bytes[key]);
  const table = sortedTable([["link", linkText], ...kinds.map(([key, title]) => [key === "bytes" ? "bytes" : title, key, "number"]),
    ["GB/s", (row) => row.rate / 1e9, "number"], ["busy for", (row) => seconds(row.bytes / row.rate), "code"], ["share of the time", (row) => row.bytes / row.rate / runSeconds, "share"]],
  linkRows(links, kind), { caption: "Each bundle of links in each direction; a byte counts on each bundle of its way", sort: kinds.length + 3, chosen: (row) => row.place === chosen, onRow: (row) => { chosen = row.place; show(); } });
  function show() {
    const rows = linkRows(links, kind), hottest = rows.reduce((most, row) => (row.seconds > most.seconds ? row : most));
    picture.replaceChildren(ladder(links, rows, hottest.seconds, runSeconds, chosen, (place) => { chosen = place; show(); }));
    note.textContent = hottest.seconds ? `Busiest: ${linkText(hottest)}, ${whole(hottest.carried)} bytes in ${seconds(hottest.seconds)}, ${percent(hottest.seconds, runSeconds)} of the time.` : "None of these crosses a link.";
    table.set(rows);
  }
  const steps = links.steps.map((row) => ({ ...row, all: row.bytes * row.executions, name: report.timeline.step_names[row.step] || report.timeline.step_kinds[row.step], cycles: report.timeline.step_cycles[row.step],
    link: linkText({ name: row.fullest[0], from: row.fullest[1], to: row.fullest[2] }) }));
  const { ipu_links: near = 0, gateway_links: far = 0 } = report.profile.link_cycles || {};
  const screen = element("div", {}, element("h2", {}, "Links between IPUs"),
    element("div", { class: "bar" }, choice("bytes of", kinds, kind, (value) => { kind = value; show(); }),
      element("span", {}, `${whole(sum)} bytes leave an IPU in all: ${LINK_KINDS.slice(1).filter(([key]) => links.total_bytes[key]).map(([key, title]) => `${title} ${whole(links.total_bytes[key])}`).join(", ")}.`),
      element("span", {}, `${whole(near)} cycles on IPU-Links, ${whole(far)} on GW-Links.`)),
    note, picture, legend([["a bundle in one direction, as wide as it is busy", colour("compute")], ["the busiest", colour("bad")]]), table.node,
    element("h3", {}, "Steps that send most"),
    sortedTable([["instruction", "name"], ["what", "kind"], ["executions", "executions", "number"], ["bytes of one", "bytes", "number"], ["bytes in all", "all", "number"], ["fullest link", "link"],
      ["bytes on it", "fullest_bytes", "number"], ["cycles it takes", "link_cycles", "number"], ["of the step's", (row) => row.link_cycles / Math.max(1, row.cycles), "share"]],
    steps, { caption: "Where links take nearly all of a step, it waits for them", sort: 4, onRow: (row) => go("ops", row.name) }).node,
    element("details", {}, element("summary", {}, "Bytes from IPU to IPU"),
      sortedTable([["way", (row) => `IPU ${row[0]} → IPU ${row[1]}`], ["bytes", 2, "number"]], links.pairs, { caption: "Each byte once, whatever its way", sort: 1 }).node));
  show();
  return screen;
}

// IPUs in two rows, a rung above each other; rails run along the rows, lines lie beside each other by direction.
function ladder(links, rows, most, runSeconds, chosen, choose) {
  const WIDE = 64, HIGH = 34, LEVEL = 130, TOP = 34, LEFT = 190, WIDEST = 13;
  const size = links.ipus_per_link_domain, count = links.system_ipus, domains = Math.ceil(count / size), rungs = Math.ceil(Math.min(size, count) / 2);
  const GAP = Math.max(150, Math.min(220, (document.documentElement.clientWidth - 42 - LEFT) / rungs - WIDE));
  const gateways = rows.some((row) => row.name.startsWith("gateway")), chassis = gateways ? 46 : 0, row = LEVEL + HIGH + TOP + 40 + chassis;
  const width = LEFT + rungs * (WIDE + GAP), height = domains * row;
  const svg = svgElement("svg", { width, height, role: "group", "aria-label": "IPUs and the links between them" });
  const corner = (ipu) => { const domain = Math.floor(ipu / size), inside = ipu % size; return [LEFT / 2 + Math.floor(inside / 2) * (WIDE + GAP), domain * row + TOP + (inside % 2) * LEVEL]; };
  const thick = (each) => (each.seconds ? Math.max(1.5, (WIDEST * each.seconds) / most) : 0);
  const draw = (each, d, x, y, text, anchor = "middle") => {
    if (!each.carried) return;
    const path = svgElement("path", { d, tabindex: 0, role: "button", "aria-label": `${linkText(each)}: ${whole(each.carried)} bytes`, class: "link-line" });
    path.style.fill = "none";
    path.style.stroke = colour(each.place === chosen ? "accent" : each.seconds === most ? "bad" : "compute");
    path.style.strokeWidth = thick(each);
    path.addEventListener("mousemove", (event) => tip.show(event, `${linkText(each)}\n${whole(each.carried)} bytes, ${seconds(each.seconds)} at ${short(each.rate / 1e9)} GB/s\n${percent(each.seconds, runSeconds)} of the time`));
    path.addEventListener("mouseleave", tip.hide);
    path.addEventListener("click", () => choose(each.place));
    path.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(each.place); });
    svg.append(path);
    const label = svgElement("text", { x, y, "text-anchor": anchor });
    label.textContent = text;
    svg.append(label);
  };
  for (let ipu = 0; ipu < count; ipu += 1) {
    const [x, y] = corner(ipu), box = svgElement("rect", { x, y, width: WIDE, height: HIGH, rx: 4 }), name = svgElement("text", { x: x + WIDE / 2, y: y + HIGH / 2 + 4, "text-anchor": "middle" });
    box.style.fill = colour("panel"); name.textContent = `IPU ${ipu}`;
    svg.append(box, name);
  }
  for (const each of rows) {
    const bytes = `${short(each.carried)}B`;
    if (each.name.startsWith("gateway")) {
      const first = each.from * links.ipus_per_machine, [x] = corner(first), y = corner(first)[1] + LEVEL + HIGH, isOut = each.name === "gateway out", at = x + WIDE / 2 + (isOut ? -14 : 14);
      draw(each, isOut ? `M${at} ${y + 8}V${y + 34}` : `M${at} ${y + 34}V${y + 8}`, at + (isOut ? -12 : 12), y + 26, `${isOut ? "out" : "in"} ${bytes}`, isOut ? "end" : "start");
      continue;
    }
    const [x, y] = corner(each.from), [u, v] = corner(each.to), isOdd = each.from % 2;
    if (each.name === "rung" || each.name === "crossing") {
      // Beside each other: what stays on the rung inside, what crosses to another one outside.
      const isCrossing = each.name === "crossing", side = isOdd ? 1 : -1, at = x + WIDE / 2 + side * (isCrossing ? 24 : 9), [from, to] = isOdd ? [y, v + HIGH] : [y + HIGH, v];
      draw(each, `M${at} ${from}V${to}`, x + WIDE / 2 + side * 35, (from + to) / 2 + 4 + (isCrossing ? 9 : -9), `${isOdd ? "↑" : "↓"} ${bytes} ${isCrossing ? "across" : ""}`, isOdd ? "start" : "end");
      continue;
    }
    const isUp = each.name === "up", lane = y + HIGH / 2 + (isUp ? -8 : 8);
    const wraps = Math.abs(u - x) > WIDE + GAP + 1 || (isUp ? u < x : u > x);
    if (!wraps) {
      const [from, to] = isUp ? [x + WIDE, u] : [x, u + WIDE];
      draw(each, `M${from} ${lane}H${to}`, (from + to) / 2, isUp ? lane - 10 : lane + 19, isUp ? `${bytes} →` : `← ${bytes}`);
    } else {
      const bow = isOdd ? y + HIGH + 26 : y - 22, edge = isOdd ? y + HIGH : y, shift = isUp ? 8 : -8;
      draw(each, `M${x + WIDE / 2 + shift} ${edge}V${bow + shift / 2}H${u + WIDE / 2 + shift}V${edge}`, (x + u + WIDE) / 2, bow + (isOdd ? 14 : -4) + shift / 2, `ring ${isUp ? "up" : "down"} ${bytes}`);
    }
  }
  return svg;
}

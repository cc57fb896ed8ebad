// The neighbourhood of an instruction, at most 300 nodes, with the heat of its cycles.

const MOST_NODES = 300;

function graphScreen(report, wanted) {
  const module = report.module;
  if (!module) return element("p", {}, "A profile or an executable has no graph: make the report from HLO text.");
  const index = rowsByName(module), cycles = new Map(originRows(report).map((row) => [row.name, row.device]));
  const users = module.name.map(() => []);
  module.operands.forEach((operands, row) => operands.forEach((operand) => users[operand].push(row)));
  const most = Math.max(1, ...cycles.values());
  let centre = index.get(wanted) ?? index.get((originRows(report).find((row) => row.row !== undefined) || {}).name) ?? 0, radius = 2;
  const box = element("div", { class: "wide", tabIndex: 0, role: "region", "aria-label": "graph" }), note = element("p", { role: "status" }), detail = element("p");
  const names = element("datalist", { id: "names" });
  const input = element("input", { type: "search", value: module.name[centre], onchange: () => { if (index.has(input.value)) show(index.get(input.value)); else note.textContent = `There is no instruction ${input.value}.`; } });
  input.setAttribute("list", "names");
  input.addEventListener("input", () => {  // names that have what was typed, as many as anybody reads
    const found = [];
    for (const name of module.name) if (name.includes(input.value) && found.push(name) === 50) break;
    names.replaceChildren(...found.map((name) => element("option", { value: name })));
  });
  function neighbourhood() {
    const found = new Set([centre]);
    let front = [centre];
    for (let n = 0; n < radius && found.size < MOST_NODES; n += 1) {
      const next = [];
      for (const row of front) {
        for (const other of [...module.operands[row], ...users[row]]) {
          if (found.has(other)) continue;
          if (found.size >= MOST_NODES) return [found, true];
          found.add(other); next.push(other);
        }
      }
      front = next;
    }
    return [found, false];
  }
  function show(row) {
    centre = row;
    input.value = module.name[row];
    const [nodes, isCut] = neighbourhood(), graph = new dagre.graphlib.Graph();
    graph.setGraph({ nodesep: 14, ranksep: 34, marginx: 8, marginy: 8 });
    graph.setDefaultEdgeLabel(() => ({}));
    const label = (each) => [module.name[each].slice(0, 34), `${module.opcodes[module.opcode[each]]} ${module.shape[each].slice(0, 28)}`];
    for (const each of nodes) graph.setNode(String(each), { width: 16 + 6.6 * Math.max(...label(each).map((text) => text.length)), height: 38 });
    for (const each of nodes) for (const operand of module.operands[each]) if (nodes.has(operand)) graph.setEdge(String(operand), String(each));
    dagre.layout(graph);
    const size = graph.graph(), picture = svgElement("svg", { width: size.width, height: size.height, role: "group", "aria-label": `instructions around ${module.name[row]}` });
    const arrow = svgElement("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svgElement("path", { d: "M0 0 8 4 0 8z" }));
    arrow.firstChild.style.fill = colour("soft");
    picture.append(svgElement("defs", {}, arrow));
    for (const edge of graph.edges()) picture.append(svgElement("path", { class: "edge", "marker-end": "url(#arrow)", d: graph.edge(edge).points.map((point, n) => `${n ? "L" : "M"}${point.x.toFixed(1)} ${point.y.toFixed(1)}`).join("") }));
    for (const each of nodes) {
      const place = graph.node(String(each)), spent = cycles.get(module.name[each]) || 0, node = svgElement("g", { class: each === centre ? "node on" : "node", tabindex: 0, role: "button" });
      const rect = svgElement("rect", { x: place.x - place.width / 2, y: place.y - 19, width: place.width, height: 38, rx: 4 });
      rect.style.fill = spent ? `color-mix(in srgb, ${colour("exchange")} ${Math.round(15 + 70 * Math.sqrt(spent / most))}%, ${colour("ground")})` : colour("panel");
      const texts = label(each).map((text, n) => { const node = svgElement("text", { x: place.x, y: place.y - 4 + 14 * n, "text-anchor": "middle" }); node.textContent = text; return node; });
      node.append(rect, ...texts);
      node.addEventListener("click", () => show(each));
      node.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); show(each); } });
      node.addEventListener("mousemove", (event) => tip.show(event, `${module.name[each]}\n${module.opcodes[module.opcode[each]]} ${module.shape[each]}\n${module.scopes[module.scope[each]]}\n${whole(spent)} cycles`));
      node.addEventListener("mouseleave", tip.hide);
      picture.append(node);
    }
    box.replaceChildren(picture);
    note.textContent = `${whole(nodes.size)} of ${whole(module.name.length)} instructions${isCut ? `; more than ${MOST_NODES} are left out` : ""}`;
    const scope = module.scopes[module.scope[row]];
    detail.replaceChildren(`${module.name[row]} = ${module.shape[row]} ${module.opcodes[module.opcode[row]]} in ${module.computations[module.computation[row]]}${scope ? `; ${scope}` : ""}; ${whole(cycles.get(module.name[row]) || 0)} cycles. `,
      ...module.calls[row].filter((each) => module.roots.length).map((each) => element("button", { type: "button", onclick: () => show(module.roots[each]) }, `Into ${module.computations[each]}`)));
    const on = box.querySelector(".on");
    if (on) box.scrollTo(graph.node(String(centre)).x - box.clientWidth / 2, 0);
  }
  const screen = element("div", {}, element("h2", {}, "Graph"), element("div", { class: "bar" }, element("label", {}, "around ", input), names,
    choice("steps", ["1", "2", "3", "4", "6", "8"].map((each) => [each, each]), "2", (value) => { radius = Number(value); show(centre); }), note), detail, box);
  requestAnimationFrame(() => show(centre));
  return { node: screen, find(text) { const hit = module.name.findIndex((name) => name.includes(text)); if (text && hit >= 0) show(hit); } };
}

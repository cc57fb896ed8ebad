// Reads the data, and shows the screen that the address names.

const SCREENS = [
  ["overview", "Overview", overviewScreen], ["flame", "Flame graph", flameScreen], ["roofline", "Roofline", rooflineScreen],
  ["memory", "Memory", memoryScreen], ["liveness", "Liveness", livenessScreen], ["program", "Program", programScreen], ["ops", "Operations", opsScreen],
  ["trace", "Trace", traceScreen], ["pipeline", "Pipelines", pipelineScreen], ["graph", "Graph", graphScreen],
  ["links", "Links", linksScreen], ["queues", "Queues", queuesScreen], ["passes", "Passes", passesScreen], ["compare", "Compared", compareScreen],
];
let report = null, current = null;

function go(screen, what = "") { location.hash = what ? `${screen}/${encodeURIComponent(what)}` : screen; }

function route() {
  const [name, what = ""] = location.hash.slice(1).split("/");
  const [key, title, make] = SCREENS.find((each) => each[0] === (name || (report.compared ? "compare" : ""))) || SCREENS[0];
  for (const link of document.querySelectorAll("#tabs a")) {
    if (link.hash === `#${key}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  redraws.clear();
  tip.hide();
  let text = "";
  try { text = decodeURIComponent(what); } catch { text = ""; }
  const made = make(report, text);
  current = made.node ? made : { node: made, find() {} };
  document.getElementById("screen").replaceChildren(current.node);
  document.title = `${title}: ${report.profile.program}`;
}

async function read() {
  const bytes = Uint8Array.from(atob(document.getElementById("data").textContent), (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function keys() {
  const dialog = document.getElementById("help"), close = () => dialog.close();
  dialog.replaceChildren(element("h2", {}, "Keys"), element("table", {}, element("tbody", {}, [
    ["1 to 9, 0", "screens"], ["/", "find"], ["t", "light or dark"], ["?", "this list"], ["arrows, + - 0", "move and zoom in a picture that has the focus"],
  ].map(([key, what]) => element("tr", {}, element("th", { scope: "row" }, key), element("td", {}, what))))), element("button", { type: "button", onclick: close }, "Close"));
  dialog.showModal();
}

function theme() {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  repaint();
}

function repaint() {
  colours.clear();
  for (const redraw of redraws) redraw();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (/^[0-9]$/.test(event.key)) { const screen = SCREENS[(Number(event.key) + 9) % 10]; if (screen) go(screen[0]); }
  else if (event.key === "/") { event.preventDefault(); document.getElementById("find").focus(); }
  else if (event.key === "t") theme();
  else if (event.key === "?") keys();
});

read().then((record) => {
  report = record;
  const p = report.profile;
  document.getElementById("title").textContent = p.program || "program";
  document.getElementById("subtitle").textContent = `${p.machine.name}, ${machineText(p.machine)}, ${p.mode}`;
  document.getElementById("tabs").replaceChildren(...SCREENS.filter((each) => each[0] !== "compare" || report.compared).map(([key, title], n) => element("a", { href: `#${key}`, title: n < 10 ? `key ${(n + 1) % 10}` : "" }, title)));
  document.getElementById("theme").addEventListener("click", theme);
  document.getElementById("keys").addEventListener("click", keys);
  document.getElementById("find").addEventListener("input", (event) => {
    if (!["flame", "ops", "graph"].includes(location.hash.slice(1).split("/")[0])) go("ops");
    requestAnimationFrame(() => current.find(event.target.value.toLowerCase()));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  addEventListener("hashchange", route);
  route();
}).catch((error) => { document.getElementById("screen").textContent = `This report cannot be read: ${error.message}`; });

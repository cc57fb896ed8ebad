// Queues between host and device: what goes through each, how fast, and who waits for whom.

function queuesScreen(report) {
  const p = report.profile, queues = p.queues || [];
  if (!queues.length) return element("p", {}, "This program has no queues: compile it with --loop, --feed and --outfeed.");
  const screen = element("div", {}, element("h2", {}, "Queues")), cards = element("div", { class: "cards" });
  const isRun = p.mode !== "estimate", clock = p.machine.clock_hz;
  for (const queue of queues) {
    const said = { device: "the device waits for the host", host: "the host waits for the device", nobody: queue.to_device ? "data is always ready" : "whoever reads it waits for the device" }[queue.waits];
    const fill = !queue.to_device || queue.waits === "nobody" ? "" : queue.waits === "device" ? "; it stands empty" : "; it stands full";
    cards.append(element("div", { class: `card ${queue.waits === "device" ? "bad" : "good"}` }, element("span", {}, `${queue.to_device ? "infeed" : "outfeed"} ${queue.name}`),
      element("b", {}, queue.waits === "device" ? `starved ${percent(queue.starved_share, 1)}` : "in time"), element("span", {}, `${said}${fill}`)));
  }
  screen.append(cards);
  const rated = queues.filter((queue) => queue.to_device);
  const most = Math.max(1, ...rated.flatMap((queue) => [queue.needed_elements_per_second, queue.given_elements_per_second || 0]));
  if (rated.length) {
    screen.append(element("section", {}, element("h3", {}, "Elements per second"), element("div", { class: "rates" }, rated.flatMap((queue) => [
      rateBar(`${queue.name}: the device takes`, queue.needed_elements_per_second, most, "compute"),
      queue.given_elements_per_second === null ? element("p", {}, `${queue.name}: no rate of the host is stated${isRun ? "" : "; --producer-rate of hloipu run states one"}`)
        : rateBar(`${queue.name}: the host makes`, queue.given_elements_per_second, most, queue.waits === "device" ? "bad" : "host"),
    ]))));
  }
  screen.append(sortedTable([["queue", "name"], ["way", (row) => (row.to_device ? "in" : `out, ${row.mode}`), "code"], ["elements", "elements", "number"], ["a step", "elements_per_step", "number"], ["bytes each", "element_bytes", "number"],
    ["bytes in all", (row) => row.elements * row.element_bytes, "number"], ["device, elements/s", (row) => Math.round(row.needed_elements_per_second * 10) / 10, "number"],
    ["host, elements/s", (row) => row.given_elements_per_second ?? "", "number"], ["starved", "starved_share", "share"], ["in this run, cycles", "starved_cycles", "number"], ["that is", (row) => (row.starved_cycles ? seconds(row.starved_cycles / clock) : ""), "code"]],
  queues, { caption: `In simulated time, ${isRun ? "of the run" : "of one run by estimate"}; starved: the share of a long run that the device waits for this queue` }).node);
  const counted = queues.filter((queue) => Object.keys(queue.host).length).map((queue) => ({ name: queue.name, ...queue.host }));
  if (counted.length) {
    const time = (key) => (row) => (row[key] === undefined ? "" : seconds(row[key]));
    screen.append(element("h3", {}, "What the queues counted on this host"), sortedTable([["queue", "name"], ["elements", (row) => row.taken ?? row.given, "number"], ["dropped", (row) => row.dropped ?? "", "number"],
      ["holds at most", (row) => row.capacity ?? "", "number"], ["on their way at once", (row) => row.prefetch_depth ?? "", "number"], ["filled", (row) => (row.inline === undefined ? "" : row.inline ? "as they are taken" : "ahead, by a thread"), "code"],
      ["the source took", time("source_seconds"), "code"], ["the program waited", time("waited_seconds"), "code"], ["source, elements/s", (row) => row.source_rate ?? "", "number"]],
    counted, { caption: "In the host's own time, while the simulator ran: what a source can deliver here" }).node);
  }
  return screen;
}

function rateBar(title, value, most, paint) {
  const bar = element("span", { class: "share" });
  bar.style.width = `${Math.max(0.2, (100 * value) / most)}%`;
  bar.style.background = colour(paint);
  return element("div", {}, element("div", {}, `${title} ${short(value)}`), bar);
}

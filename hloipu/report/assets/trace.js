// Execution trace: the timeline unfolded only as far as can be seen, however long the program runs.

class Timeline {
  constructor(record) {
    this.record = record;
    this.lengths = record.blocks.map((block) => block.cycles);
    this.offsets = new Map();
    this.slots = new Map();
  }
  // Shares of a block's cycles by what they are for, with what is inside.
  mixOf(number) {
    if (!this.mixes) this.mixes = new Map();
    if (!this.mixes.has(number)) {
      const sums = {}, add = (name, cycles) => { sums[name] = (sums[name] || 0) + cycles; };
      for (const entry of this.record.blocks[number].entries) {
        if (entry >= 0) { add(bucketOfKind(this.record.step_kinds[entry]), this.record.step_cycles[entry]); continue; }
        const inner = this.record.inner[~entry];
        inner.blocks.forEach((block, n) => { for (const [name, share] of this.mixOf(block)) add(name, share * this.lengths[block] * inner.times[n]); });
      }
      const total = Object.values(sums).reduce((sum, each) => sum + each, 0) || 1;
      this.mixes.set(number, [...BUCKETS, "other"].filter((name) => sums[name]).map((name) => [name, sums[name] / total]));
    }
    return this.mixes.get(number);
  }
  get length() { return this.lengths[this.record.root] * this.record.runs; }
  lengthOf(entry) {
    if (entry >= 0) return this.record.step_cycles[entry];
    const inner = this.record.inner[~entry];
    if (inner.kind === "together") return Math.max(0, ...inner.blocks.map((block) => this.lengths[block]));
    if (inner.kind === "pipeline") return this.slotsOf(inner).at(-1);
    return inner.blocks.reduce((sum, block, n) => sum + this.lengths[block] * inner.times[n], 0);
  }
  // Where each entry of a block begins, and where the last ends.
  offsetsOf(number) {
    if (!this.offsets.has(number)) {
      let at = 0;
      const found = this.record.blocks[number].entries.map((entry) => { const begin = at; at += this.lengthOf(entry); return begin; });
      found.push(at);
      this.offsets.set(number, found);
    }
    return this.offsets.get(number);
  }
  active(inner, slot) {
    const positions = inner.ipus.length, count = inner.micro_batches, group = inner.group;
    if (group > 1) {
      const number = Math.floor(slot / (group * positions)), rest = slot % (group * positions), first = number * group;
      const here = Math.min(group, count - first), position = Math.floor(rest / here);
      return here > 0 && position < positions ? [[position, first + (rest % here)]] : [];
    }
    const found = [];
    for (let position = slot % inner.interval; position < Math.min(positions, slot + 1); position += inner.interval) {
      const batch = (slot - position) / inner.interval;
      if (batch < count) found.push([position, batch]);
    }
    return found;
  }
  slotCount(inner) { return inner.micro_batches && inner.ipus.length ? (inner.group > 1 ? inner.micro_batches * inner.ipus.length : inner.interval * (inner.micro_batches - 1) + inner.ipus.length) : 0; }
  // Where each position of a slot begins: those of an IPU take turns, later positions first.
  starts(inner, slot) {
    const free = new Map(), found = [];
    for (const [position, batch] of this.active(inner, slot).reverse()) {
      const begin = Math.max(0, ...inner.ipus[position].map((ipu) => free.get(ipu) || 0));
      const end = begin + this.lengths[inner.blocks[position]];
      for (const ipu of inner.ipus[position]) free.set(ipu, end);
      found.push([position, batch, begin, end]);
    }
    return found;
  }
  slotsOf(inner) {
    if (!this.slots.has(inner)) {
      const count = this.slotCount(inner), found = new Float64Array(count + 1), ends = count ? inner.slot_end_cycles / count : 0, known = new Map();
      for (let slot = 0; slot < count; slot += 1) {
        const key = this.active(inner, slot).map((each) => each[0]).join();
        if (!known.has(key)) {
          const beside = new Map();
          for (const [n, each] of (inner.beside || []).entries()) if (key.split(",").includes(String(each.position))) beside.set(each.chassis, (beside.get(each.chassis) || 0) + this.lengths[inner.blocks[inner.ipus.length + n]]);
          known.set(key, Math.max(0, ...beside.values(), ...this.starts(inner, slot).map((each) => each[3])));
        }
        found[slot + 1] = found[slot] + known.get(key) + ends;
      }
      this.slots.set(inner, found);
    }
    return this.slots.get(inner);
  }
  // Call `leaf(begin, end, entry, block, ipus, label)` for what is visible and at least `least` long.
  visit(first, last, least, leaf) {
    const { record } = this;
    const below = (block, begin, ipus, label) => {
      const end = begin + this.lengths[block];
      if (end <= first || begin >= last) return;
      if (this.lengths[block] < least) { leaf(begin, end, null, block, record.blocks[block].ipus.length ? record.blocks[block].ipus : ipus, label); return; }
      const offsets = this.offsetsOf(block), entries = record.blocks[block].entries;
      let low = 0, high = entries.length;
      while (low < high) { const middle = (low + high) >> 1; if (begin + offsets[middle + 1] <= first) low = middle + 1; else high = middle; }
      let pending = null;
      for (let n = low; n < entries.length && begin + offsets[n] < last; n += 1) {
        const from = begin + offsets[n], until = begin + offsets[n + 1], entry = entries[n];
        if (until - from < least) {  // steps too short to see are drawn as one
          if (!pending) pending = [from, until, entry]; else pending[1] = until;
          if (pending[1] - pending[0] >= least) { leaf(pending[0], pending[1], pending[2] >= 0 ? pending[2] : null, block, ipus, label, true); pending = null; }
          continue;
        }
        if (pending) { leaf(pending[0], pending[1], pending[2] >= 0 ? pending[2] : null, block, ipus, label, true); pending = null; }
        if (entry >= 0) leaf(from, until, entry, block, record.step_ipus[entry].length ? record.step_ipus[entry] : ipus, label);
        else inside(record.inner[~entry], from, until, ipus, label);
      }
      if (pending) leaf(pending[0], pending[1], pending[2] >= 0 ? pending[2] : null, block, ipus, label, true);
    };
    const inside = (inner, begin, end, ipus, label) => {
      const named = inner.name ? (label ? `${label} / ${inner.name}` : inner.name) : label;
      if (inner.kind === "together") { for (const block of inner.blocks) below(block, begin, record.blocks[block].ipus, named); return; }
      if (inner.kind === "pipeline") {
        const slots = this.slotsOf(inner);
        let low = 0, high = slots.length - 1;
        while (low < high) { const middle = (low + high) >> 1; if (begin + slots[middle + 1] <= first) low = middle + 1; else high = middle; }
        for (let slot = low; slot < slots.length - 1 && begin + slots[slot] < last;) {
          const size = slots[slot + 1] - slots[slot];
          if (size < least) {  // several slots at once
            let until = slot + 1;
            while (until < slots.length - 1 && slots[until] - slots[slot] < least) until += 1;
            leaf(begin + slots[slot], begin + slots[until], null, inner.blocks[0], record.blocks[inner.blocks[0]] ? [...new Set(inner.ipus.flat())] : ipus, `${named} slots ${slot}–${until - 1}`, true);
            slot = until;
            continue;
          }
          for (const [position, batch, from] of this.starts(inner, slot)) below(inner.blocks[position], begin + slots[slot] + from, inner.ipus[position], `${inner.names[position]} of micro-batch ${batch}`);
          slot += 1;
        }
        return;
      }
      const turn = inner.blocks.reduce((sum, block, n) => sum + this.lengths[block] * (inner.kind === "while" ? inner.times[n] / Math.max(1, inner.times.at(-1)) : 1), 0);
      const times = inner.kind === "repeat" || inner.kind === "while" ? Math.max(1, inner.times.at(-1)) : 1;
      if (times > 1) {
        if (turn < least) { leaf(begin, end, null, inner.blocks.at(-1), ipus, `${named}: ${whole(times)} iterations`, true); return; }
        for (let n = Math.max(0, Math.floor((first - begin) / turn)); n < times && begin + n * turn < last; n += 1) {
          let at = begin + n * turn;
          for (const block of inner.blocks) { below(block, at, ipus, `${named} #${n}`); at += this.lengths[block]; }
        }
        return;
      }
      let at = begin;
      inner.blocks.forEach((block, n) => { if (inner.times[n] > 0) below(block, at, ipus, named); at += this.lengths[block] * inner.times[n]; });
    };
    const run = this.lengths[record.root];
    for (let n = Math.max(0, Math.floor(first / run)); n < record.runs && n * run < last; n += 1) below(record.root, n * run, [], record.runs > 1 ? `run ${n}` : "");
  }
}

function timeOf(report) {
  if (!report.time && report.timeline) report.time = new Timeline(report.timeline);
  return report.time;
}

function traceScreen(report) {
  if (!report.timeline) return element("p", {}, "A profile has no order of steps: make the report from HLO text or an executable.");
  const timeline = timeOf(report), clock = report.profile.machine.clock_hz;
  const ipus = Array.from({ length: report.profile.machine.ipus }, (_, n) => n);
  const view = [0, timeline.length], LANE = Math.max(18, Math.min(46, 620 / ipus.length)), left = 62;
  let boxes = [];
  const note = element("p", { role: "status" });
  const picture = drawing(30 + LANE * ipus.length, "execution trace, a lane for each IPU; arrow keys move, + and - zoom, 0 shows all", (pen, state) => {
    state.margin = left;
    const room = state.width - left, scale = room / (view[1] - view[0]);
    boxes = [];
    pen.fillStyle = colour("text");
    for (let n = 0; n <= 6; n += 1) pen.fillText(seconds((view[0] + ((view[1] - view[0]) * n) / 6) / clock), left + (room * n) / 6 - (n === 6 ? 60 : 0), 14);
    for (const ipu of ipus) {
      pen.fillStyle = colour("idle"); pen.fillRect(left, 22 + ipu * LANE, room, LANE - 3);
      pen.fillStyle = colour("text"); pen.fillText(`IPU ${ipu}`, 4, 22 + ipu * LANE + LANE / 2 + 2);
    }
    const paint = Object.fromEntries([...BUCKETS, "other"].map((name) => [name, colour(name)]));
    timeline.visit(view[0], view[1], 1.2 / scale, (begin, end, entry, block, on, label, several) => {  // several: by their mix, from top to bottom
      const kind = entry === null ? "several" : timeline.record.step_kinds[entry], bucket = entry === null ? "compute" : bucketOfKind(kind);
      const x = left + Math.max(0, (begin - view[0]) * scale), width = Math.min(left + room, left + (end - view[0]) * scale) - x;
      for (const ipu of on.length ? on : ipus) {
        const y = 22 + ipu * LANE;
        const shown = Math.max(0.6, width - (width > 3 ? 0.6 : 0));
        let top = y;
        for (const [name, share] of several || entry === null ? timeline.mixOf(block) : [[bucket, 1]]) {
          pen.fillStyle = paint[name]; pen.fillRect(x, top, shown, share * (LANE - 3));
          top += share * (LANE - 3);
        }
        boxes.push([x, y, width, entry, begin, end, label, several]);
        if (width > 44 && LANE > 16) {
          pen.fillStyle = colour("ground");
          pen.fillText(clipped(pen, entry === null ? label : timeline.record.step_names[entry] || kind, width - 6), x + 3, y + LANE / 2 + 2);
        }
      }
    });
  });
  const moves = zoomable(picture, [0, timeline.length, 10], view, () => { picture.redraw(); tell(); });
  function tell() { note.textContent = `${whole(view[0])} to ${whole(view[1])} of ${whole(timeline.length)} cycles, ${seconds((view[1] - view[0]) / clock)}; ${whole(boxes.length)} boxes drawn`; }
  function boxAt(event) {
    const area = picture.canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
    return boxes.find((box) => x >= box[0] && x <= box[0] + Math.max(1, box[2]) && y >= box[1] && y < box[1] + LANE);
  }
  const tiles = tilesPanel(report);
  picture.canvas.addEventListener("click", (event) => {
    const hit = boxAt(event);
    if (hit && hit[3] !== null && !hit[7]) tiles.set(hit[3]);
  });
  picture.canvas.addEventListener("mousemove", (event) => {
    const hit = boxAt(event);
    if (!hit) { tip.hide(); return; }
    const [, , , entry, begin, end, label, several] = hit;
    const what = entry === null || several ? `${label || "several steps"} (zoom in to see them)` : `${timeline.record.step_names[entry] || "(program)"}: ${timeline.record.step_kinds[entry]}${timeline.record.step_tiles[entry] ? ` on ${whole(timeline.record.step_tiles[entry])} tiles` : ""}\n${label}`;
    tip.show(event, `${what}\n${whole(end - begin)} cycles from ${whole(begin)}, ${seconds((end - begin) / clock)}`);
  });
  picture.canvas.addEventListener("mouseleave", tip.hide);
  const waited = report.profile.by_bucket.idle, idle = waited ? ` Not drawn are ${whole(waited)} cycles in which the device waits for the host's data.` : "";
  const screen = element("div", {}, element("h2", {}, "Execution trace"),
    element("div", { class: "bar" },
      element("button", { type: "button", onclick: () => moves.zoom(0.5, 0.5) }, "Zoom in"), element("button", { type: "button", onclick: () => moves.zoom(0.5, 2) }, "Zoom out"),
      element("button", { type: "button", onclick: () => { view[0] = 0; view[1] = timeline.length; picture.redraw(); tell(); } }, "Show all"),
      element("span", {}, "The wheel zooms, dragging moves, a click shows a step's tiles.")),
    picture.canvas, legend([...BUCKETS.map((name) => [name, colour(name)]), ["loops, calls, branches", colour("other")]]), note,
    element("p", {}, `Steps too short to see are drawn together, what their cycles are for from top to bottom. A step lasts as long as its slowest tile; all IPUs that take part are drawn at work. Where data decides, iterations are drawn at their mean.${idle}`), tiles.node);
  requestAnimationFrame(() => requestAnimationFrame(tell));
  return screen;
}

function pipelineScreen(report) {
  const rows = report.profile.pipelines, timeline = timeOf(report);
  if (!rows.length) return element("p", {}, "This program has no pipeline: nothing was cut into stages.");
  const screen = element("div", {}, element("h2", {}, "Pipelines"));
  const inners = timeline ? report.timeline.inner.filter((inner) => inner.kind === "pipeline") : [];
  for (const row of rows) {
    const inner = inners.find((each) => each.name === row.name && each.micro_batches === row.micro_batches);
    screen.append(element("h3", {}, `${row.name || row.path}: ${whole(row.micro_batches)} micro-batches, ${whole(row.cycles)} cycles, bubble ${percent(row.bubble, 1) || "0 %"}`));
    if (inner) screen.append(pipelineChart(inner, timeline, report.profile.machine.clock_hz));
    const shares = row.positions.flatMap((position) => position.shares.map((share) => ({ ...share, name: position.name, depth: position.depth })));
    screen.append(sortedTable([["position", "name"], ["IPU", "ipu", "number"], ["cycles", "cycles", "number"], ["micro-batches waiting", "depth", "number"],
      ["stash bytes", "stash_bytes", "number"], ["received bytes", "received_bytes", "number"], ["remote bytes", "remote_bytes", "number"]], shares,
    { caption: "What each position takes for a micro-batch, and what waits for it" }).node);
  }
  screen.append(element("details", {}, element("summary", {}, "The same as text"), element("pre", {}, report.chart)));
  return screen;
}

function pipelineChart(inner, timeline, clock) {
  const slots = timeline.slotsOf(inner), ipus = [...new Set(inner.ipus.flat())].sort((a, b) => a - b), LANE = 34, left = 62;
  const view = [0, slots.at(-1)];
  let boxes = [];
  const picture = drawing(24 + LANE * ipus.length, "pipeline: micro-batches of each IPU over time", (pen, state) => {
    state.margin = left;
    boxes = [];
    const room = state.width - left, scale = room / (view[1] - view[0]);
    pen.fillStyle = colour("text");
    for (let n = 0; n < 6; n += 1) pen.fillText(seconds((view[0] + ((view[1] - view[0]) * n) / 6) / clock), left + (room * n) / 6, 13);
    ipus.forEach((ipu, lane) => {
      pen.fillStyle = colour("idle"); pen.fillRect(left, 20 + lane * LANE, room, LANE - 4);
      pen.fillStyle = colour("text"); pen.fillText(`IPU ${ipu}`, 4, 20 + lane * LANE + 18);
    });
    let slot = 0;
    while (slot < slots.length - 1 && slots[slot + 1] < view[0]) slot += 1;
    const drawn = new Map();
    for (; slot < slots.length - 1 && slots[slot] < view[1]; slot += 1) {
      for (const [position, batch, from, until] of timeline.starts(inner, slot)) {
        const x = left + (slots[slot] + from - view[0]) * scale, width = (until - from) * scale;
        for (const ipu of inner.ipus[position]) {
          if (x + width < (drawn.get(ipu) ?? -1) + 0.4) continue;
          drawn.set(ipu, x + width);
          const y = 20 + ipus.indexOf(ipu) * LANE, name = inner.names[position] || "";
          pen.fillStyle = colour(name.startsWith("B") ? "exchange" : "compute");
          pen.fillRect(Math.max(left, x), y, Math.max(0.5, Math.min(width, x + width - left) - 0.7), LANE - 4);
          boxes.push([x, y, width, `${name} of micro-batch ${batch} on IPU ${ipu}\n${whole(until - from)} cycles in slot ${slot}`]);
          if (width > 24) { pen.fillStyle = colour("ground"); pen.fillText(clipped(pen, `${name} ${batch}`, width - 4), Math.max(left, x) + 3, y + 19); }
        }
      }
    }
  });
  zoomable(picture, [0, slots.at(-1), 100], view, picture.redraw);
  picture.canvas.addEventListener("mousemove", (event) => {
    const area = picture.canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
    const hit = boxes.find((box) => x >= box[0] && x <= box[0] + box[2] && y >= box[1] && y < box[1] + LANE);
    if (hit) tip.show(event, hit[3]); else tip.hide();
  });
  picture.canvas.addEventListener("mouseleave", tip.hide);
  return element("div", {}, picture.canvas, legend([["forward", colour("compute")], ["backward", colour("exchange")], ["waits", colour("idle")]]));
}

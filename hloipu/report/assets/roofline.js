// Roofline: what instructions reach against what an IPU's products, loads and exchanges allow.

function rooflineScreen(report) {
  const roofs = report.roofs, clock = report.profile.machine.clock_hz;
  const points = originRows(report).filter((row) => row.flops > 0 && row.device > 0 && row.bytes > 0).map((row) => ({
    ...row, intensity: row.flops / row.bytes, rate: (row.flops * clock) / row.device,
    of_peak: 0,
  }));
  for (const point of points) point.of_peak = point.rate / Math.min(roofs.f16_flops, point.intensity * roofs.load_bytes);
  if (!points.length) return element("p", {}, "No instruction computes here, or the report has no module: compile it from HLO text.");
  const xs = [0.01, 10000], ys = [1e8, 1e15];
  for (const point of points) {
    xs[0] = Math.min(xs[0], point.intensity); xs[1] = Math.max(xs[1], point.intensity);
    ys[0] = Math.min(ys[0], point.rate);
  }
  ys[1] = roofs.f16_flops * 3;
  const margin = { left: 74, right: 20, top: 14, bottom: 40 };
  let spots = [];
  const largest = Math.max(...points.map((point) => point.device));
  const picture = drawing(460, "roofline of instructions; the table below has the same as text", (pen, state) => {
    const x = (value) => margin.left + ((Math.log10(value) - Math.log10(xs[0])) / (Math.log10(xs[1]) - Math.log10(xs[0]))) * (state.width - margin.left - margin.right);
    const y = (value) => state.height - margin.bottom - ((Math.log10(value) - Math.log10(ys[0])) / (Math.log10(ys[1]) - Math.log10(ys[0]))) * (state.height - margin.top - margin.bottom);
    pen.strokeStyle = colour("line"); pen.fillStyle = colour("text"); pen.lineWidth = 1;
    for (let power = Math.ceil(Math.log10(xs[0])); power <= Math.log10(xs[1]); power += 1) {
      pen.beginPath(); pen.moveTo(x(10 ** power), margin.top); pen.lineTo(x(10 ** power), state.height - margin.bottom); pen.stroke();
      pen.fillText(short(10 ** power), x(10 ** power) - 8, state.height - margin.bottom + 16);
    }
    for (let power = Math.ceil(Math.log10(ys[0])); power <= Math.log10(ys[1]); power += 1) {
      pen.beginPath(); pen.moveTo(margin.left, y(10 ** power)); pen.lineTo(state.width - margin.right, y(10 ** power)); pen.stroke();
      pen.fillText(`${short(10 ** power)}FLOP/s`, 2, y(10 ** power) + 4);
    }
    pen.fillText("FLOPs for each byte read or written", margin.left + 6, state.height - 8);
    pen.lineWidth = 2;
    for (const [name, peak, bytes, paint] of [["f16 products", roofs.f16_flops, roofs.load_bytes, colour("compute")],
      ["f32 products", roofs.f32_flops, roofs.load_bytes, colour("remote")], ["exchanged bytes", roofs.f16_flops, roofs.exchange_bytes, colour("exchange")]]) {
      const knee = Math.min(xs[1], Math.max(xs[0], peak / bytes));
      pen.strokeStyle = paint; pen.fillStyle = paint; pen.beginPath();
      pen.moveTo(x(xs[0]), y(Math.max(ys[0], xs[0] * bytes))); pen.lineTo(x(knee), y(Math.min(peak, knee * bytes))); pen.lineTo(x(xs[1]), y(peak)); pen.stroke();
      if (name !== "exchanged bytes") pen.fillText(`${name}: ${short(peak)}FLOP/s`, x(xs[1]) - 190, y(peak) - 5);
    }
    spots = points.map((point) => [x(point.intensity), y(Math.max(ys[0], point.rate)), 3 + 13 * Math.sqrt(point.device / largest), point]);
    for (const [left, top, size, point] of [...spots].sort((a, b) => b[2] - a[2])) {
      pen.globalAlpha = 0.65; pen.fillStyle = colour(point.exchange > point.compute ? "exchange" : "compute");
      pen.beginPath(); pen.arc(left, top, size, 0, 7); pen.fill(); pen.globalAlpha = 1;
      pen.lineWidth = 1; pen.strokeStyle = colour("text"); pen.stroke();
    }
  });
  const under = (event) => {
    const area = picture.canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
    return spots.filter((spot) => Math.hypot(spot[0] - x, spot[1] - y) <= spot[2] + 2).sort((a, b) => a[2] - b[2])[0];
  };
  picture.canvas.addEventListener("mousemove", (event) => {
    const spot = under(event);
    if (spot) tip.show(event, `${spot[3].name} (${spot[3].opcode}) ${spot[3].source}\n${short(spot[3].rate)}FLOP/s, ${percent(spot[3].of_peak, 1)} of its roof\n${whole(spot[3].device)} cycles`);
    else tip.hide();
  });
  picture.canvas.addEventListener("mouseleave", tip.hide);
  picture.canvas.addEventListener("click", (event) => { const spot = under(event); if (spot) go("ops", spot[3].name); });
  return element("div", {}, element("h2", {}, "Roofline"),
    element("p", {}, "Each disc is an instruction, as large as its cycles; its time is computing and exchanging together. Roofs are those of one IPU: products of the AMP unit, loads of tile memory, and bytes received in exchanges."),
    picture.canvas, legend([["mostly computes", colour("compute")], ["mostly exchanges", colour("exchange")]]),
    sortedTable([["instruction", "name"], ["opcode", "opcode", "code"], ["line", "source", "code"], ["cycles", "device", "number"], ["FLOPs", "flops", "number"],
      ["bytes", "bytes", "number"], ["FLOPs a byte", "intensity", "number"], ["FLOP/s", "rate", "number"], ["of its roof", "of_peak", "share"]],
    points, { caption: "The same as a table", sort: 3, onRow: (row) => go("ops", row.name) }).node);
}

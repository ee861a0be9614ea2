"use strict";
// What the search tried, and what it found.

function searchView(report) {
  const search = report.search, trace = search.trace;
  const text = (cost) => costText(cost, search.in_seconds);
  const covered = search.how.includes("is of plans that") ? "no such plan" : "no plan";
  const found = [section("Certificate",
    `${search.status === "optimal" ? "Proven optimal" : "Found"} by ${search.how}. `
    + `${search.objective_is === "overlapped step" ? "The overlapped step" : "The cost"} is ${text(search.objective)}; `
    + (search.lower_bound > 0 ? `${covered} ${search.lower_bound_covers} takes less than ${text(search.lower_bound)} (gap ${percent(search.gap)}).` : "there is no lower bound."))];
  const pins = Object.entries(search.pin_prices);
  if (pins.length) found.push(section("Pins", "What the plan without each pin saves.", table([["pin", (p) => p[0]], ["saves", (p) => text(p[1]), (p) => p[1], true]], pins)));
  if (!trace) return found;
  found.push(frontSection(search, text));
  if (trace.memory.length) found.push(memorySection(trace, text));
  found.push(plansSection(trace, text), triedSection(search, text));
  return found;
}

function configurationText(item) {
  const parts = [`mesh ${item.mesh || "1"}`];
  if (item.stages > 1) parts.push(`${item.stages} stages${item.chunks > 1 ? ` of ${item.chunks} chunks` : ""} (${item.schedule})`);
  if (item.micro_batches > 1) parts.push(`${item.micro_batches} micro-batches`);
  return parts.join(", ");
}

function frontSection(search, text) {
  const priced = search.trace.tried.filter((item) => item.cost !== null && item.memory_bytes !== null);
  const front = priced.filter((item) => !priced.some((other) => other.cost <= item.cost && other.memory_bytes < item.memory_bytes))
    .sort((a, b) => a.memory_bytes - b.memory_bytes);
  const point = (item) => ({ value: [item.memory_bytes, item.cost], name: configurationText(item) });
  return section("Front",
    `${search.outcomes}. Each dot is the best plan of a configuration: its memory and its step. The line joins those that no other beats in both.`,
    chart(360, {
      grid: { left: 90, right: 24, top: 16, bottom: 46 },
      tooltip: { formatter: (dot) => `${escaped(dot.name)}<br>${text(dot.value[1])}, ${bytesText(dot.value[0])}` },
      xAxis: { type: "value", scale: true, interval: bytesInterval(Math.max(...priced.map((item) => item.memory_bytes))), axisLabel: { formatter: bytesText, hideOverlap: true } },
      yAxis: { type: "value", scale: true, axisLabel: { formatter: text } },
      series: [
        { type: "line", step: "end", symbol: "none", silent: true, lineStyle: { color: "#9db4cc" }, data: front.map((item) => [item.memory_bytes, item.cost]) },
        { type: "scatter", symbolSize: 11, itemStyle: { color: "#2463a8" }, data: priced.map(point) },
      ],
    }));
}

function plansSection(trace, text) {
  return section("Best plans", "Each of another configuration, best first.", table([
    ["configuration", configurationText],
    ["step", (plan) => text(plan.cost), (plan) => plan.cost, true],
    ["memory", (plan) => bytesText(plan.memory_bytes), (plan) => plan.memory_bytes, true],
    ["differs from the best", (plan) => plan.differs.join("; ")],
  ], trace.plans));
}

function memorySection(trace, text) {
  return section("Price of memory", "The best plan of the chosen configuration within other memory limits.", table([
    ["limit", (point) => bytesText(point.limit_bytes), (point) => point.limit_bytes, true],
    ["step", (point) => point.cost === null ? "none found" : text(point.cost), (point) => point.cost, true],
    ["memory", (point) => bytesText(point.memory_bytes), (point) => point.memory_bytes, true],
    ["no plan takes less than", (point) => text(point.lower_bound), (point) => point.lower_bound, true],
  ], trace.memory));
}

function triedSection(search, text) {
  return section("Tried", "Every configuration: its proven bound, its best plan, and what became of it.", table([
    ["configuration", configurationText],
    ["at least", (item) => text(item.lower_bound), (item) => item.lower_bound, true],
    ["plan", (item) => text(item.cost), (item) => item.cost ?? Infinity, true],
    ["memory", (item) => bytesText(item.memory_bytes), (item) => item.memory_bytes, true],
    ["outcome", (item) => item.outcome],
    ["proof or reason", (item) => item.reason || item.proof],
    ["searched for", (item) => secondsText(item.seconds), (item) => item.seconds, true],
  ], search.trace.tried));
}

"use strict";
// Memory over the step by kind, and at the peak by layer.

function memoryView(report) {
  const memory = report.memory;
  const found = [overTime(report)];
  if (memory.by_group.length) found.push(groupsSection(memory));
  if (memory.layers.length) found.push(layersSection(memory));
  return found;
}

function overTime(report) {
  const memory = report.memory, place = make("div");
  const show = (group) => place.replaceChildren(chart(360, seriesOptions(report, memory.series[group])));
  const fullest = memory.by_group.length ? memory.by_group.indexOf(Math.max(...memory.by_group)) : 0;
  show(fullest);
  const controls = memory.series.length > 1
    ? make("div", { class: "controls" }, "device group ", make("select", { onchange: (event) => show(Number(event.target.value)) },
      ...memory.series.map((_, group) => make("option", { value: group, selected: group === fullest ? "" : null }, String(group))))) : null;
  const kinds = Object.entries(memory.by_kind).filter(([, bytes]) => bytes >= 0.5).map(([kind, bytes]) => `${kind} ${bytesText(bytes)}`);
  const series = memory.series[fullest];
  return section("Memory over the step",
    `${bytesText(memory.peak_bytes)} at the peak, during \`${memory.at}\`: ${kinds.join(", ")}.`
    + (memory.limit_bytes ? ` The limit is ${bytesText(memory.limit_bytes)}.` : "")
    + (memory.host_bytes ? ` In host memory ${bytesText(memory.host_bytes)}.` : "")
    + (series.times.length < series.moments ? ` Of ${series.moments} moments ${series.times.length} are drawn: of each part the one with the most bytes.` : "")
    + (memory.by_group.length ? " Of each segment the most bytes that it takes, until it ends." : ""),
    controls, place);
}

function seriesOptions(report, series) {
  const memory = report.memory;
  const lines = memory.kinds.map((kind, position) => ({
    name: kind, type: "line", stack: "bytes", step: "end", symbol: "none", lineStyle: { width: 0 },
    areaStyle: { color: COLOURS[kind], opacity: 0.85 }, itemStyle: { color: COLOURS[kind] },
    data: series.times.map((time, moment) => [time, series.bytes[moment][position]]),
  }));
  if (memory.limit_bytes) {
    lines[0].markLine = { symbol: "none", silent: true, lineStyle: { color: "#c0392b", type: "dashed" }, data: [{ yAxis: memory.limit_bytes, label: { formatter: "limit", position: "insideEndTop" } }] };
  }
  const highest = Math.max(series.peak_bytes, memory.limit_bytes && memory.limit_bytes < 3 * series.peak_bytes ? memory.limit_bytes : 0);
  return {
    legend: { top: 0 }, grid: { left: 90, right: 24, top: 36, bottom: 70 },
    tooltip: { trigger: "axis", valueFormatter: bytesText },
    xAxis: { type: "value", min: 0, max: report.timeline.step_seconds, axisLabel: { formatter: secondsText }, axisPointer: { label: { formatter: (point) => secondsText(point.value) } } },
    yAxis: { type: "value", max: highest * 1.04, interval: bytesInterval(highest), axisLabel: { formatter: bytesText, showMaxLabel: false } },
    dataZoom: [{ type: "slider", showDataShadow: false, height: 20, bottom: 12, labelFormatter: secondsText }, { type: "inside" }],
    series: lines,
  };
}

function groupsSection(memory) {
  return section("Device groups", "Peak memory of a rank of each device group.", chart(80 + 18 * memory.by_group.length, {
    grid: { left: 130, right: 24, top: 6, bottom: 30 },
    tooltip: { valueFormatter: bytesText },
    xAxis: { type: "value", interval: bytesInterval(Math.max(...memory.by_group)), axisLabel: { formatter: bytesText } },
    yAxis: { type: "category", inverse: true, data: memory.by_group.map((_, group) => `device group ${group}`) },
    series: [{ type: "bar", data: memory.by_group, itemStyle: { color: "#2463a8" } }],
  }));
}

function layersSection(memory) {
  const series = memory.kinds.map((kind) => ({
    name: kind, type: "bar", stack: "bytes", itemStyle: { color: COLOURS[kind] }, data: memory.layers.map((layer) => layer.bytes[kind] || 0),
  }));
  const highest = Math.max(...memory.layers.map((layer) => Object.values(layer.bytes).reduce((a, b) => a + b, 0)));
  return section("Layers", "What each layer of the model takes at the peak.", chart(340, {
    legend: { top: 0 }, grid: { left: 90, right: 24, top: 36, bottom: 90 },
    tooltip: { trigger: "axis", valueFormatter: bytesText },
    xAxis: { type: "category", data: memory.layers.map((layer) => layer.layer), axisLabel: { rotate: 60 } },
    yAxis: { type: "value", interval: bytesInterval(highest), axisLabel: { formatter: bytesText } },
    series,
  }));
}

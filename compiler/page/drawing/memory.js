"use strict";
// Memory over the step by kind, and at the peak by layer.

function memoryView(report) {
  const memory = report.memory, place = make("div");
  const peaks = memory.series.map((series) => series.peak_bytes), fullest = fullestGroup(memory);
  const show = (group) => place.replaceChildren(overTime(report, group), layersSection(report, group));
  show(fullest);
  if (memory.series.length < 2) return [place];
  const choice = make("div", { class: "controls" },
    make("select", { onchange: (event) => show(Number(event.target.value)) },
      ...memory.series.map((_, group) => make("option", { value: group, selected: group === fullest ? "" : null },
        `${groupText(report, group)}: ${bytesText(peaks[group])} ${limitText(memory.series[group])}${group === fullest ? ", the fullest" : ""}`))));
  return [groupsSection(report), choice, place];
}

function ofGroup(report, group) { return report.memory.series.length > 1 ? `, ${groupText(report, group)}` : ""; }

function limitText(series) { return series.limit_bytes ? `of ${bytesText(series.limit_bytes)}` : ""; }

// The device group that takes most of its limit; without limits, most bytes.
function fullestGroup(memory) {
  const shares = memory.series.map((series) => series.peak_bytes / (series.limit_bytes || 1));
  return shares.indexOf(Math.max(...shares));
}

// The bytes at the peak of a device group, by kind.
function kindsAtPeak(memory, group) {
  const found = {};
  for (const layer of memory.peaks[group].layers) for (const [kind, bytes] of Object.entries(layer.bytes)) found[kind] = (found[kind] || 0) + bytes;
  return found;
}

function overTime(report, group) {
  const memory = report.memory, series = memory.series[group], found = kindsAtPeak(memory, group);
  const kinds = memory.kinds.filter((kind) => found[kind] >= 0.5).map((kind) => `${kind} ${bytesText(found[kind])}`);
  return section(`Memory over the step${ofGroup(report, group)}`,
    `${bytesText(series.peak_bytes)} at the peak, during \`${memory.peaks[group].at}\`: ${kinds.join(", ")}.`
    + (series.limit_bytes ? ` The limit is ${bytesText(series.limit_bytes)}.` : "")
    + (memory.host_bytes ? ` In host memory ${bytesText(memory.host_bytes)}.` : "")
    + (series.times.length < series.moments ? ` Of ${series.moments} moments ${series.times.length} are drawn: of each part the one with the most bytes.` : "")
    + (memory.by_group.length ? " Of each segment the most bytes that it takes, until it ends." : ""),
    chart(360, seriesOptions(report, series)));
}

function seriesOptions(report, series) {
  const memory = report.memory;
  const lines = memory.kinds.map((kind, position) => ({
    name: kind, type: "line", stack: "bytes", step: "end", symbol: "none", lineStyle: { width: 0 },
    areaStyle: { color: COLOURS[kind], opacity: 0.85 }, itemStyle: { color: COLOURS[kind] },
    data: series.times.map((time, moment) => [time, series.bytes[moment][position]]),
  }));
  if (series.limit_bytes) {
    lines[0].markLine = { symbol: "none", silent: true, lineStyle: { color: "#c0392b", type: "dashed" }, data: [{ yAxis: series.limit_bytes, label: { formatter: "limit", position: "insideEndTop" } }] };
  }
  const highest = Math.max(series.peak_bytes, series.limit_bytes && series.limit_bytes < 3 * series.peak_bytes ? series.limit_bytes : 0);
  return {
    legend: { type: "scroll", top: 0 }, grid: { left: 90, right: 24, top: 36, bottom: 70 },
    tooltip: { trigger: "axis", valueFormatter: bytesText },
    xAxis: { type: "value", min: 0, max: report.timeline.step_seconds, axisLabel: { formatter: secondsText, hideOverlap: true }, axisPointer: { label: { formatter: (point) => secondsText(point.value) } } },
    yAxis: { type: "value", max: highest * 1.04, interval: bytesInterval(highest), axisLabel: { formatter: bytesText, showMaxLabel: false } },
    dataZoom: [{ type: "slider", showDataShadow: false, height: 20, bottom: 12, labelFormatter: secondsText }, { type: "inside" }],
    series: lines,
  };
}

// Bars of several kinds, one on the other.
function kindBars(kinds, bytesOf) {
  return kinds.map((kind) => ({ name: kind, type: "bar", stack: "bytes", itemStyle: { color: COLOURS[kind] }, data: bytesOf(kind) }));
}

function groupsSection(report) {
  const memory = report.memory, groups = memory.peaks.map((_, group) => kindsAtPeak(memory, group));
  const names = groups.map((_, group) => groupText(report, group));
  return section("Device groups", "What a rank of each device group takes at its own peak, by kind.", chart(110 + 18 * groups.length, {
    legend: { type: "scroll", top: 0 }, grid: { left: sideWidth(names, 130), right: 24, top: 36, bottom: 30 },
    tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, valueFormatter: bytesText },
    xAxis: { type: "value", interval: bytesInterval(Math.max(...memory.series.map((series) => series.peak_bytes))), axisLabel: { formatter: bytesText, showMaxLabel: false, hideOverlap: true } },
    yAxis: { type: "category", inverse: true, data: names },
    series: kindBars(memory.kinds, (kind) => groups.map((found) => found[kind] || 0)),
  }));
}

function layersSection(report, group) {
  const memory = report.memory, layers = memory.peaks[group].layers;
  const highest = Math.max(...layers.map((layer) => Object.values(layer.bytes).reduce((a, b) => a + b, 0)));
  return section(`Layers${ofGroup(report, group)}`,
    "What each layer of the model takes at this peak, by kind. A tensor belongs to the layer whose operator makes it; a parameter, its states and its gradient to the layer that it is of.",
    chart(340, {
      legend: { type: "scroll", top: 0 }, grid: { left: 90, right: 24, top: 36, bottom: 90 },
      tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, valueFormatter: bytesText },
      xAxis: { type: "category", data: layers.map((layer) => layer.layer), axisLabel: { rotate: 60 } },
      yAxis: { type: "value", interval: bytesInterval(highest), axisLabel: { formatter: bytesText, showMaxLabel: false } },
      series: kindBars(memory.kinds, (kind) => layers.map((layer) => layer.bytes[kind] || 0)),
    }));
}

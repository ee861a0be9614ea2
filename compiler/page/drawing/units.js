"use strict";
// Numbers as people read them, and small helpers to make elements.

function secondsText(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds === 0) return "0";
  for (const [unit, factor] of [["ns", 1e9], ["us", 1e6], ["ms", 1e3]]) {
    if (Math.abs(seconds) * factor < 999.5) return `${short(seconds * factor)} ${unit}`;
  }
  return `${short(seconds)} s`;
}

function bytesText(bytes) {
  if (bytes === null || bytes === undefined) return "";
  let unit = "B";
  for (const next of ["KiB", "MiB", "GiB", "TiB"]) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = next;
  }
  return `${unit === "B" ? Math.round(bytes) : bytes.toFixed(2)} ${unit}`;
}

// The distance of the ticks of an axis of bytes: a power of two, at most about six ticks.
function bytesInterval(most) { return 2 ** Math.ceil(Math.log2(Math.max(most, 6) / 6)); }

function short(number) { return String(Number(number.toPrecision(3))); }

function percent(share) {
  if (share === 0) return "0%";
  return share >= 0.0005 ? `${(100 * share).toFixed(share < 0.1 ? 2 : 1)}%` : `${(100 * share).toPrecision(1)}%`;
}

function numberText(number) { return number >= 1000 ? Math.round(number).toLocaleString("en") : short(number); }

// A device group of a pipeline; its device, where there are several kinds.
function groupText(report, group) {
  const device = report.plan.device_by_group[group];
  return device ? `device group ${group}, ${device}` : `device group ${group}`;
}

// The width of names at the side of a chart.
function sideWidth(names, least) { return Math.max(least, 24 + 6.6 * Math.max(...names.map((name) => name.length))); }

// Costs are seconds, but for cost models that have another unit.
function costText(cost, inSeconds) {
  if (cost === null || cost === undefined) return "";
  return inSeconds ? secondsText(cost) : String(Number(cost.toPrecision(6)));
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function section(title, text, ...children) {
  return make("section", {}, make("h2", {}, title), text ? sentenceElement(text) : null, ...children);
}

// What stands between backticks in a sentence is code.
function sentenceElement(sentence) {
  return make("p", {}, ...sentence.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part)));
}

// Facts are [label, value, note]; those that are null are left out.
function factElements(facts) {
  return facts.filter(Boolean).map(([label, value, note]) => make("div", {}, make("dt", {}, label), make("dd", {}, value, note ? make("small", {}, ` ${note}`) : "")));
}

// Returns an element that draws a chart once it is in the page.
function chart(height, options, follow) {
  const place = make("div", { class: "chart", style: `height: ${height}px` });
  requestAnimationFrame(() => {
    const drawn = echarts.init(place, null, { renderer: "canvas" });
    drawn.setOption({ animation: false, ...options });
    if (follow) follow(drawn);
    window.addEventListener("resize", () => drawn.resize());
  });
  return place;
}

const COLOURS = {
  compute: "#2463a8", blocking: "#c0392b", gathers: "#2a9d8f", reductions: "#e09f3e",
  forward: "#4c8fd0", backward: "#1d4e89", weights: "#7aa974", before: "#9aa7b4", after: "#9aa7b4",
  parameters: "#2463a8", "optimizer states": "#7aa974", gradients: "#e09f3e", inputs: "#9aa7b4", activations: "#c0392b",
};

"use strict";
// The head of the page, and its views; a view is made when it is first shown.

const VIEWS = {
  model: ["Model", modelView], timeline: ["Timeline", timelineView], memory: ["Memory", memoryView],
  communication: ["Communication", communicationView], strategies: ["Strategies", strategiesView], search: ["Search", searchView],
};

function planFacts(report) {
  const plan = report.plan, search = report.search, memory = report.memory, fullest = fullestGroup(memory);
  const facts = [
    ["step", secondsText(plan.overlapped_step_seconds), plan.software ? `as ${plan.software} runs it` : "overlapped"],
    ["serial step", secondsText(plan.serial_step_seconds), ""],
    ["MFU", percent(plan.model_flops_utilization), ""],
    ["samples", `${numberText(plan.samples_per_second)}/s`, ""],
    plan.tokens_per_second_per_device === null ? null : ["tokens", `${numberText(plan.tokens_per_second_per_device)}/s`, "on each device"],
    ["memory", bytesText(memory.series[fullest].peak_bytes), limitText(memory.series[fullest]) + (plan.device_by_group.length ? ` on ${plan.device_by_group[fullest]}` : "")],
    ["exposed communication", secondsText(report.timeline.exposed_communication_seconds), `of ${secondsText(report.timeline.communication_seconds)}`],
    plan.stages > 1 ? ["bubble", secondsText(report.timeline.bubble_seconds), ""] : null,
    ["plan", search.certificate, ""],
  ];
  return factElements(facts);
}

function subtitle(plan) {
  const mesh = Object.entries(plan.mesh).map(([name, size]) => `${name}=${size}`).join(" ") || "1";
  const parts = [`${plan.devices} device${plan.devices > 1 ? "s" : ""} of ${plan.cluster}`, `mesh ${mesh}`];
  if (plan.stages > 1) parts.push(`${plan.stages} stages (${plan.schedule})`);
  if (plan.micro_batches > 1) parts.push(`${plan.micro_batches} micro-batches`);
  for (const device of new Set(plan.device_by_group)) {
    const count = plan.device_by_group.filter((one) => one === device).length;
    parts.push(`${count} device group${count > 1 ? "s" : ""} on ${device}`);
  }
  return [...parts, `precision ${plan.precision}`, `optimizer ${plan.optimizer}`, `${plan.mode}, search ${plan.search}`].join(", ");
}

function showView(report) {
  const name = location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "model";
  for (const link of document.querySelectorAll("nav a")) link.classList.toggle("current", link.hash === `#${name}`);
  document.getElementById("view").replaceChildren(...VIEWS[name][1](report));
}

function start() {
  const report = JSON.parse(document.getElementById("document").textContent);
  document.title = `${report.plan.model}: shardwright`;
  document.getElementById("title").textContent = report.plan.model;
  document.getElementById("said").replaceChildren(...report.said.map(sentenceElement));
  document.getElementById("subtitle").textContent = subtitle(report.plan);
  document.getElementById("facts").replaceChildren(...planFacts(report));
  document.getElementById("views").replaceChildren(...Object.entries(VIEWS).map(([name, [title]]) => make("a", { href: `#${name}` }, title)));
  window.addEventListener("hashchange", () => showView(report));
  showView(report);
}

start();

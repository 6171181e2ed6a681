// Fetches the documents beside this page again and again, and draws them. See model.js and view.js.
//
// An agent serves its own node's document; `kaishare ui` serves {version, names, failure, isListed, nodes}, with
// the nodes that have changed since the version that was asked for.

import { byUrgency, counted, duration, matches, percent, podName, readNode, size, sizeOf, sums, troublesOf } from "./model.js";
import { address, gpuCard, h, nodeCard, plain, podDetails, podRow, troubleItem, update } from "./view.js";

const AGENT_SECONDS = 5, FLEET_SECONDS = 2, OLD_AFTER = 20, TIMEOUT = 20000;
const MOST_TROUBLES = 500, FEW_TROUBLES = 10, FEW_OF_A_KIND = 4, ROWS = 100;
const find = (id) => document.getElementById(id);

const nodes = new Map(); // by name, as readNode returns them
const cards = new WeakMap(); // by node; a node that has not changed keeps its element
let isFleet = false, version = 0, failure = "", answeredAt = 0, most = ROWS, showsAll = false, history = null, timer = 0;
let listed = null, listFailure = ""; // the names of all nodes with an agent, and why the list is not current
let chosenNode = "", openPod = ""; // what the address names: one of several nodes, and the key of a row

async function get(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT), cache: "no-store" });
  if (!response.ok) throw new Error(`${response.status}: ${(await response.text()).slice(0, 200)}`);
  return { document: await response.json(), now: Date.parse(response.headers.get("Date")) / 1000 };
}

function merge({ document, now }) {
  const at = performance.now();
  isFleet = Array.isArray(document.nodes);
  let entries = document.nodes;
  if (isFleet) {
    [version, listFailure] = [document.version, document.failure];
    listed = document.isListed ? new Set(document.names) : null;
    for (const name of nodes.keys()) if (!listed?.has(name)) nodes.delete(name);
  } else {
    nodes.clear();
    const sampledAt = document.lastGoodSampleTimestamp;
    entries = [{ node: document.node, answer: document, ageSeconds: sampledAt === null ? null : Math.max(now - sampledAt, 0) }];
  }
  for (const entry of entries) {
    const last = nodes.get(entry.node);
    nodes.set(entry.node, readNode({ ...entry, answer: entry.answer ?? last?.answer }, at));
  }
}

// The last 15 minutes of a node's pods, or why there are none: an older agent has no such path.
async function past(node) {
  try {
    return (await get(`api/v1/history?node=${encodeURIComponent(node)}`)).document;
  } catch (error) {
    return { node, failure: error.message };
  }
}

async function poll() {
  clearTimeout(timer);
  try {
    merge(await get(`api/v1/shares?since=${version}`));
    [failure, answeredAt] = ["", performance.now()];
    if (openPod) history = await past(nodeOfPod());
  } catch (error) {
    failure = error.name === "TimeoutError" ? "no answer in time" : error.message;
  }
  if (getSelection().isCollapsed) draw(); // a selection would be lost
  clearTimeout(timer);
  timer = setTimeout(poll, 1000 * (isFleet ? FLEET_SECONDS : AGENT_SECONDS));
}

const nodeOfPod = () => openPod.slice(0, openPod.indexOf(" "));
const chosenNodes = () => (nodes.has(chosenNode) ? [nodes.get(chosenNode)] : [...nodes.values()]);

function draw() {
  const [all, chosen] = [[...nodes.values()], chosenNodes()];
  const isWide = chosen.length > 1;
  drawHead(all, chosen);
  if (!all.length && !listed) return;
  const runbooksUrl = isFleet ? null : all[0]?.answer.runbooksUrl; // no link by the word of a node
  const troubles = troublesOf(chosen);
  const ofRank = new Map();
  const few = troubles.filter(({ rank }) => ofRank.set(rank, (ofRank.get(rank) ?? 0) + 1).get(rank) <= FEW_OF_A_KIND);
  const chosenTroubles = showsAll || troubles.length <= FEW_TROUBLES ? troubles.slice(0, MOST_TROUBLES) : few;
  const items = chosenTroubles.map((trouble) => troubleItem(trouble, isWide, runbooksUrl));
  find("all").hidden = chosenTroubles.length === troubles.length || showsAll;
  find("all").textContent = `Show all ${troubles.length}`;
  const isEmpty = chosen.every((node) => !node.answer?.gpus.length);
  update(find("troubles"), items.length ? items : [h("li", { class: "fine" }, isEmpty ? "There are no figures yet." : "Nothing.")]);
  find("wrong").classList.toggle("fine", !items.length);
  find("nodes-title").textContent = isWide ? "Nodes" : "GPUs";
  find("gpus").className = isWide ? "fleet" : "gpus";
  update(find("gpus"), isWide ? sorted(chosen).map(card) : chosen.flatMap((node) => node.gpus.map(gpuCard)));
  drawPods();
  drawDetails();
}

const urgency = (node) => Math.min(4, ...node.rows.map((row) => row.tier)) - Number(node.gpus.some((gpu) => gpu.atRisk || gpu.lost)) - Number(Boolean(node.failure));
const sorted = (chosen) => chosen.map((node) => [urgency(node), node]).sort(([one, first], [other, second]) => one - other || first.name.localeCompare(second.name, "en", { numeric: true })).map(([, node]) => node);

function card(node) {
  if (!cards.has(node)) cards.set(node, nodeCard(node));
  return cards.get(node);
}

function drawHead(all, chosen) {
  const only = chosen.length === 1 ? chosen[0] : null;
  const total = sums(chosen);
  const name = only ? only.name : isFleet ? counted(all.length, "node") : "";
  find("title").textContent = plain(name ? `GPU shares on ${name}` : "GPU shares");
  const simulated = chosen.filter((node) => node.simulated).length;
  update(find("facts"), [
    simulated ? h("span", { class: "mark simulated" }, only ? "simulated: these figures are synthetic" : `${counted(simulated, "node")} simulated`) : null,
    total.atRisk ? h("strong", { class: "alarm" }, `${counted(total.atRisk, "GPU")} at risk`) : null,
    h("strong", { class: total.flags ? "alarm" : "" }, counted(total.flags, "flag")),
    isFleet && listed?.size > all.length ? h("span", {}, `asking ${counted(listed.size - all.length, "agent")} …`) : null,
    isFleet && listed?.size === 0 ? h("span", {}, "There are no agents in their namespace.") : null,
    total.silent ? h("strong", { class: "grace" }, `${counted(total.silent, "node")} without an answer`) : null,
    h("span", {}, `${counted(total.gpus, "GPU")}, ${counted(total.pods, "pod")}`),
    h("span", {}, `${sizeOf(total.used, total.total)} used (${percent(total.total ? total.used / total.total : null)}), ${size(total.promised)} promised`),
    only?.answer?.driverVersion ? h("span", { class: "faint" }, `driver ${only.answer.driverVersion}`) : null,
  ].filter(Boolean));
  const fleetUrl = isFleet ? "" : all[0]?.answer.fleetUrl;
  update(find("links"), [
    isFleet && only && all.length > 1 ? h("a", { href: "#", "data-key": "all nodes" }, "All nodes") : null,
    fleetUrl ? h("a", { href: fleetUrl }, "Other nodes") : null,
    isFleet ? null : h("a", { href: "metrics" }, "Metrics"),
    isFleet ? null : h("a", { href: "api/v1/shares" }, "JSON"),
  ].filter(Boolean));
  const troubles = total.atRisk ? `${counted(total.atRisk, "GPU")} at risk, ${counted(total.flags, "flag")}` : counted(total.flags, "flag");
  document.title = `${isOld() ? "OLD: " : ""}${plain(name || "GPU shares")}${all.length ? `: ${troubles}` : ""}`;
  drawAge();
}

// The age of the figures of one node; that of the last answer, for many.
function age() {
  const [only, ...others] = chosenNodes();
  if (only && !others.length) return only.age === null ? null : only.age + (performance.now() - only.at) / 1000;
  return answeredAt ? (performance.now() - answeredAt) / 1000 : null;
}

const isOld = () => Boolean(failure || listFailure) || (age() ?? 0) > OLD_AFTER;

function drawAge() {
  const seconds = age();
  find("age").textContent = !nodes.size && !failure ? "asking …" : seconds === null ? "no sample yet" : isOld() ? `as of ${duration(seconds)} ago` : "live";
  find("age").className = isOld() ? "old" : "";
  document.body.classList.toggle("stale", isOld());
  find("banner").hidden = !failure && !listFailure;
  const advice = failure.startsWith("401") ? " The agent asks for a token: type kaishare ui." : "";
  const text = plain(failure ? `No answer: ${failure}.${advice}` : `The list of agents is not current: ${listFailure}`);
  if (find("banner").textContent !== text) find("banner").textContent = text;
  if (isOld() && !document.title.startsWith("OLD: ")) document.title = `OLD: ${document.title}`;
}

function drawPods() {
  const words = find("filter").value.toLowerCase().split(" ").filter(Boolean);
  const chosen = chosenNodes();
  const rows = chosen.flatMap((node) => node.rows).filter((row) => !words.length || matches(row, words)).sort(byUrgency);
  const shown = rows.slice(0, most);
  update(find("rows"), shown.map((row) => podRow(row, chosen.length > 1)));
  find("count").textContent = shown.length < rows.length ? `${shown.length} of ${rows.length}, the most urgent first` : rows.length ? "" : words.length ? "No pod matches." : "No pod has a GPU share or uses GPU memory.";
  find("more").hidden = shown.length === rows.length;
  find("more").textContent = `Show ${Math.min(ROWS, rows.length - shown.length)} more`;
}

function drawDetails() {
  const dialog = find("details");
  const node = nodes.get(nodeOfPod());
  const row = node?.rows.find((each) => each.key === openPod);
  if (!row) {
    if (dialog.open && (!openPod || node)) dialog.close();
    return;
  }
  find("details-title").textContent = plain(podName(row));
  const rows = node.rows.filter((each) => each.pod.uid === row.pod.uid).sort((one, other) => Number(other === row) - Number(one === row));
  update(find("details-body"), podDetails(rows, history?.node === node.name ? history : null, isFleet ? null : node.answer.runbooksUrl, isFleet));
  if (!dialog.open) dialog.showModal();
}

function readAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  openPod = values.get("pod") ?? "";
  if (!openPod) chosenNode = values.get("node") ?? "";
}

find("filter").addEventListener("input", () => { most = ROWS; drawPods(); });
find("all").addEventListener("click", () => { showsAll = true; draw(); });
find("more").addEventListener("click", () => { most += ROWS; drawPods(); });
find("rows").addEventListener("click", (event) => {
  if (!event.target.closest("a") && getSelection().isCollapsed) event.target.closest("tr")?.querySelector("a").click();
});
find("details").addEventListener("close", () => {
  if (openPod) location.hash = chosenNode ? address({ node: chosenNode }) : "";
});
addEventListener("hashchange", () => {
  const last = chosenNode;
  readAddress();
  if (chosenNode !== last) most = ROWS;
  draw();
  if (chosenNode !== last) scrollTo(0, 0);
  if (openPod) poll();
});
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || find("details").open || document.activeElement === find("filter")) return;
  event.preventDefault();
  find("filter").focus();
});
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : poll()));
setInterval(drawAge, 1000);
readAddress();
poll();

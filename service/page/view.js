// Builds the page's elements. Every text from a document passes `plain`, and becomes a text node.

import { byUrgency, counted, duration, endedText, known, percent, podName, size, sizeOf, whyCommand } from "./model.js";

const ASCII = /^[ -~]*$/; // most texts; one class of characters takes linear time
const LATIN_END = 0x250, PUNCTUATION = "–—‘’“”…•→×≥≤", LONGEST = 1000;
const MOST_NAMED = 4, MOST_CANDIDATES = 8, MOST_NODES = 8;

// Names in Kubernetes are ASCII. Other scripts, controls and what reorders or joins characters become U+FFFD.
export function plain(text) {
  const start = String(text).slice(0, LONGEST);
  if (ASCII.test(start)) return start;
  let line = "";
  for (const char of start) {
    const code = char.codePointAt(0);
    const isShown = (code >= 0x20 && code < 0x7f) || (code > 0xa0 && code < LATIN_END && code !== 0xad) || PUNCTUATION.includes(char);
    line += isShown ? char : code <= 0x20 || code === 0xa0 ? " " : "\ufffd";
  }
  return line;
}

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = ["svg", "path", "line", "text"];

// Makes an element; a child that is a text becomes a text node, and null and "" are left out.
export function h(name, attributes = {}, ...children) {
  const element = SHAPES.includes(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value) element.setAttribute(key, key === "href" ? value : plain(value));
  for (const child of children.flat(2)) {
    if (child !== null && child !== undefined && child !== "") element.append(child instanceof Node ? child : plain(child));
  }
  return element;
}

// Replaces only the children that differ, so that focus, selection and scrolling stay.
export function update(parent, fresh) {
  const focused = document.activeElement?.dataset.key;
  const old = [...parent.children];
  fresh.forEach((element, number) => {
    if (!old[number]) parent.append(element);
    else if (old[number] !== element && !old[number].isEqualNode(element)) old[number].replaceWith(element);
  });
  for (const element of old.slice(fresh.length)) if (!fresh.includes(element)) element.remove();
  if (focused && document.activeElement === document.body) {
    parent.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}

export const address = (values) => `#${new URLSearchParams(values)}`;
const podLink = (row, label = podName(row), place = "") => h("a", { href: address({ pod: row.key }), class: "pod", "data-key": `${place} ${row.key}` }, label);
const nodeLink = (name, label = name, place = "") => h("a", { href: address({ node: name }), "data-key": `${place} node ${name}` }, label);
const command = (pod) => (whyCommand(pod) ? h("code", {}, whyCommand(pod)) : null);

function firstAct(act, section, runbooksUrl) {
  if (!act) return null;
  const isWeb = (runbooksUrl ?? "").startsWith("https://") || (runbooksUrl ?? "").startsWith("http://");
  const place = section && (isWeb ? h("a", { href: `${runbooksUrl}#${encodeURIComponent(section.toLowerCase())}` }, section) : h("span", { class: "faint" }, `docs/runbooks.md, ${section}`));
  return h("p", { class: "act" }, h("strong", {}, "First: "), act, place ? [" ", place] : null);
}

const MORE_WORDS = (count) => (count > 0 ? ` and ${count} more` : "");
const listed = (rows, say, place) => [rows.slice(0, MOST_NAMED).map((row, number) => [number ? ", " : "", podLink(row, podName(row), place), ` (${say(row)})`]).flat(), MORE_WORDS(rows.length - MOST_NAMED)];

export function troubleItem(trouble, isFleet, runbooksUrl) {
  const { row, gpu, nodes, causes, victims } = trouble;
  const place = `${trouble.kind} ${nodes[0]} ${gpu?.uuid ?? row?.key ?? ""}`;
  const names = isFleet || nodes.length > 1 ? [nodes.slice(0, MOST_NODES).map((name, number) => [number ? ", " : "", nodeLink(name, name, place)]).flat(), MORE_WORDS(nodes.length - MOST_NODES), " "] : null;
  const head = h("p", {}, h("span", { class: `mark ${trouble.tone}` }, trouble.kind), " ", nodes.length > 1 ? `${counted(nodes.length, "node")}: ` : "", names,
    gpu ? h("strong", {}, `GPU ${gpu.index}:`) : null, row ? h("strong", {}, podLink(row, podName(row), place)) : null, gpu || row ? " " : "", trouble.text);
  return h("li", { class: trouble.tone }, head,
    causes.length ? h("p", {}, "Caused by ", listed(causes, (each) => `${size(each.excess)} ${each.share === null ? "without a share here" : "above its share"}`, `${place} cause`)) : null,
    victims.length ? h("p", {}, "At risk: ", listed(victims, (each) => `${size(each.unused)} of its share unused`, `${place} victim`)) : null,
    firstAct(trouble.act, trouble.runbook, runbooksUrl),
    row ? h("p", {}, command(row.pod)) : causes.length ? h("p", {}, command(causes[0].pod)) : null);
}

// A bar of parts of a whole: [colour, bytes] from left to right. A line separates parts of one colour.
function bar(parts, whole, label) {
  const stops = [];
  let end = 0;
  for (const [tone, bytes] of parts) {
    const start = end;
    end = Math.min(end + (100 * bytes) / whole, 100);
    const line = end - start > 1 ? ` calc(${end.toFixed(2)}% - 1px), var(--card) calc(${end.toFixed(2)}% - 1px)` : "";
    if (end > start) stops.push(`var(--bar-${tone}) ${start.toFixed(2)}%${line} ${end.toFixed(2)}%`);
  }
  const element = h("div", { class: "bar", role: "img", "aria-label": label });
  element.style.backgroundImage = `linear-gradient(90deg, ${[...stops, `var(--bar-free) ${end.toFixed(2)}% 100%`].join(", ")})`;
  return element;
}

const gpuText = (gpu) => (gpu.lost ? gpu.lost : gpu.total === null ? `memory unknown${gpu.memoryUnknown ? `: ${gpu.memoryUnknown}` : ""}`
  : `${sizeOf(gpu.used, gpu.total)} used, ${size(gpu.promised)} promised, ${size(gpu.free)} free`);

function gpuBar(gpu) {
  const label = `GPU ${gpu.index}: ${gpuText(gpu)}`;
  if (gpu.total === null || gpu.used === null) return h("div", { class: "bar unknown", role: "img", "aria-label": label });
  const byPods = gpu.rows.filter((row) => row.used).sort(byUrgency);
  const parts = byPods.map((row) => [row.flags.length || row.excess ? "over" : "pods", row.used]);
  const promised = gpu.rows.reduce((total, row) => total + Math.max((row.pod.shares[row.uuid] ? row.share ?? 0 : 0) - (row.used ?? 0), 0), 0);
  const other = Math.max(gpu.used - byPods.reduce((total, row) => total + row.used, 0), 0);
  const whole = Math.max(gpu.total, gpu.used + promised);
  const element = bar([...parts, ["other", other], ["promised", promised]], whole, label);
  if (whole > gpu.total) {
    const mark = h("span", { class: "end" });
    mark.style.left = `${((100 * gpu.total) / whole).toFixed(2)}%`;
    element.append(mark);
  }
  return element;
}

function notes(gpu) {
  const xid = gpu.xid ? `XID ${gpu.xid.code} at ${new Date(gpu.xid.time * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC` : "";
  const all = [["alarm", gpu.lost], ["alarm", gpu.atRisk && "at risk"], ["grace", gpu.excess && "overpromised"], ["quiet", gpu.suspended && "verdicts suspended"], ["quiet", gpu.mig && "MIG: not judged"], ["quiet", xid]];
  return all.filter(([, text]) => text).map(([tone, text]) => [" ", h("span", { class: `mark ${tone}` }, text)]);
}

export function gpuCard(gpu) {
  const sensors = [gpu.utilization !== null && `kernels ${percent(gpu.utilization)}`, Number.isFinite(gpu.temperature) && `${gpu.temperature} °C`, Number.isFinite(gpu.power) && `${Math.round(gpu.power)} W`];
  const others = [gpu.host > 0 && `${size(gpu.host)} by host processes`, endedText(gpu), gpu.unattributed > 2 ** 20 && `${size(gpu.unattributed)} by no process`];
  return h("article", { class: "gpu" },
    h("h3", {}, `GPU ${gpu.index} `, h("span", { class: "faint" }, gpu.model), notes(gpu)),
    gpuBar(gpu),
    h("p", {}, gpuText(gpu)),
    h("p", { class: "faint" }, [counted(gpu.rows.length, "pod"), ...others, ...sensors].filter(Boolean).join(", ")));
}

export function nodeCard(node) {
  const flags = node.rows.filter((row) => row.flags.length).length;
  const [used, total] = ["used", "total"].map((key) => node.gpus.reduce((sum, gpu) => sum + (gpu[key] ?? 0), 0));
  return h("article", { class: "node" },
    h("h3", {}, nodeLink(node.name, node.name, "card"), node.failure ? [" ", h("span", { class: "mark grace" }, "no answer")] : null,
      node.gpus.some((gpu) => gpu.atRisk) ? [" ", h("span", { class: "mark alarm" }, "at risk")] : null, flags ? [" ", h("span", { class: "mark alarm" }, counted(flags, "flag"))] : null),
    node.gpus.map(gpuBar),
    h("p", { class: "faint" }, node.answer ? `${sizeOf(used, total)} used by ${counted(node.answer.pods.length, "pod")}` : "no figures yet"));
}

export const TONES = ["alarm", "grace", "alarm", "grace", "quiet"]; // by tier

export function podRow(row, isFleet) {
  const tone = TONES[row.tier];
  const memory = row.share ? `${size(row.used)} of ${size(row.share)}` : row.used === null && !row.holding ? "-" : `${size(row.used)}${row.share === null && row.pod.hasUnsizedGpus ? " of unknown" : ""}`;
  const part = row.ofShare === null ? h("div", { class: "bar none" })
    : bar([[row.tier < 3 ? "over" : "pods", row.ofShare]], Math.max(1, row.ofShare), `${percent(row.ofShare)} of the share`);
  if (row.ofShare > 1) {
    const mark = h("span", { class: "end" });
    mark.style.left = `${(100 / row.ofShare).toFixed(2)}%`;
    part.append(mark);
  }
  const where = [isFleet ? row.node : null, row.gpuName].filter(Boolean).join(" ");
  return h("tr", { class: tone },
    h("th", { scope: "row" }, podLink(row, podName(row), "row"), h("span", { class: `state ${tone}` }, row.state, row.over === null ? "" : `, for ${duration(row.over)}`), h("span", { class: "faint narrow" }, where)),
    h("td", { class: "memory" }, part, memory),
    h("td", { class: "number" }, row.share ? percent(row.ofShare) : "-"),
    h("td", { class: "number wide" }, row.holding ? percent(row.utilization) : "-"),
    h("td", { class: "wide" }, row.pod.queue ?? "-"),
    h("td", { class: "wide" }, where || "-"));
}

// The last 15 minutes of a pod on a GPU: `series` has whole MiB, oldest first.
function course(series, bucketSeconds, failure) {
  if (!series || !Array.isArray(series.usedMebibytes)) return h("p", { class: "faint" }, "No figures of the last 15 minutes", failure ? `: ${failure}` : ".");
  const points = series.usedMebibytes.map(known);
  const share = known(series.shareMebibytes);
  const most = Math.max(1, share ?? 0, ...points) * 1.1;
  const [width, height] = [600, 120];
  const x = (number) => ((width * (number + 0.5)) / points.length).toFixed(1);
  const y = (value) => (height - (height * value) / most).toFixed(1);
  let path = "";
  points.forEach((value, number) => {
    if (value !== null) path += points[number - 1] === null || number === 0 ? `M${x(number)} ${y(value)}h.1` : `L${x(number)} ${y(value)}`;
  });
  const seen = points.filter((value) => value !== null);
  const peak = seen.length ? size(Math.max(...seen) * 2 ** 20) : "unknown";
  const label = `Peak ${peak} in the last ${duration(points.length * bucketSeconds)}${share === null ? "" : `, share ${size(share * 2 ** 20)}`}`;
  return h("figure", {},
    h("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
      h("path", { class: "used", d: path }), share === null ? null : h("line", { class: "share", x1: "0", x2: `${width}`, y1: y(share), y2: y(share) })),
    h("figcaption", { class: "faint" }, `${label}. Gaps are times in which the memory was unknown.`));
}

const figures = (pairs) => h("dl", {}, pairs.filter(([, value]) => value || value === 0).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

export function podDetails(rows, history, runbooksUrl, isFleet) {
  const { pod, node } = rows[0];
  const policy = pod.overSharePolicy;
  const grace = policy && policy.graceSeconds !== null ? ` after ${duration(policy.graceSeconds)}` : "";
  const flags = pod.verdicts.filter((each) => each.flagged);
  const ofPod = (history?.pods ?? []).filter((each) => each.uid === pod.uid);
  return [
    ...flags.map((flag) => h("div", { class: "trouble alarm" }, h("p", {}, h("span", { class: "mark alarm" }, flag.reason), ` ${flag.message ?? ""}`), firstAct(flag.firstAct, flag.runbook, runbooksUrl))),
    ...rows.filter((row) => row.gpu?.atRisk && (row.excess || row.unused)).map((row) => h("div", { class: "trouble alarm" },
      h("p", {}, h("span", { class: "mark alarm" }, "at risk"), ` GPU ${row.gpu.index}: ${size(row.gpu.atRisk)} promised and not free. The pod: ${row.risk}.`),
      firstAct(row.gpu.firstAct, row.gpu.runbook, runbooksUrl))),
    h("p", {}, command(pod)),
    ...rows.flatMap((row) => [
      h("h3", {}, row.gpuName || "No GPU", " ", h("span", { class: "faint" }, row.uuid)),
      row.uuid ? course(ofPod.find((each) => each.gpuUuid === row.uuid), history?.bucketSeconds ?? 0, history?.failure) : null,
      figures([
        ["state", row.state], ["used", row.holding && size(row.used)], ["share", row.share !== null && `${size(row.share)}${row.source && ` (${row.source})`}`],
        ["of share", row.share && percent(row.ofShare)], ["limit", row.limit !== null && `${size(row.limit)} (${pod.limits[row.uuid].source})`],
        ["kernels", row.holding && percent(row.utilization)], ["processes", row.holding && (row.holding.processes ?? "unknown")],
        ["over for", row.over !== null && duration(row.over)], ["counts to grace", row.visible.length && duration(Math.max(...row.visible.map((each) => each.balanceSeconds ?? 0)))],
      ]),
    ].filter(Boolean)),
    h("h3", {}, "Pod"),
    figures([
      ["node", isFleet ? nodeLink(node, node, "details") : node], ["queue", pod.queue], ["size", pod.size], ["workload", pod.workload && `${pod.workload.kind} ${pod.workload.name}`],
      ["vCluster", pod.vcluster && `${pod.vcluster.name}: ${pod.vcluster.namespace}/${pod.vcluster.pod}`], ["phase", pod.phase], ["UID", pod.uid],
      ["GPU groups", pod.gpuGroups.slice(0, MOST_CANDIDATES).join(", ")],
      ...pod.candidates.slice(0, MOST_CANDIDATES).map((each) => [`share by ${plain(each.source)}`, `${each.text}${each.counts === false ? " (does not count)" : ""}`]),
      ["above the share", policy && `${policy.evict ? "evict" : "report"}${grace}, by the namespace`], ["difference", pod.shareChanged],
      ["reservation", pod.lacksReservation && "its GPU group has no reservation pod"], ...pod.notes.map((note) => ["note", note]),
    ]),
  ].filter(Boolean);
}

// What the page shows, computed from the agents' documents (docs/api.md). Nothing here touches the page.
// null is unknown, never 0. Texts are raw: view.js makes each of them safe.

const NOTICEABLE = 256 * 2 ** 20; // bytes above a share that make a pod a cause of a risk
const IDLE_AFTER = 3600; // seconds
const FINISHED = ["Succeeded", "Failed"];

export const known = (value) => (Number.isSafeInteger(value) && value >= 0 ? value : null);
const ratio = (value) => (value >= 0 && value <= 1 ? value : null);

export function size(bytes) {
  if (bytes === null) return "unknown";
  const [unit, worth] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, each]) => bytes >= each) ?? ["B", 1];
  return `${(bytes / worth).toFixed(worth > 1 ? 1 : 0)} ${unit}`;
}

// "30.1 of 45.0 GiB", and the unit of each where they differ.
export function sizeOf(part, whole) {
  const [first, second] = [size(part), size(whole)];
  const [, unit] = second.split(" ");
  return first.endsWith(` ${unit}`) ? `${first.slice(0, -unit.length - 1)} of ${second}` : `${first} of ${second}`;
}

export function duration(seconds) {
  const [unit, worth] = [["d", 86400], ["h", 3600], ["min", 60]].find(([, each]) => seconds >= 2 * each) ?? ["s", 1];
  return `${Math.round(seconds / worth)} ${unit}`;
}

export const percent = (part) => (part === null ? "unknown" : part < 100 ? `${Math.round(part * 100)}%` : ">9999%");
export const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

const overSeconds = (verdict) => Math.max(verdict.lastedSeconds ?? 0, verdict.balanceSeconds ?? 0);

// One node: an agent's document, or why there is none. `entry` is {node, answer, ageSeconds, failure, firstAct}.
export function readNode(entry, at) {
  const answer = entry.answer ?? null;
  const node = {
    name: entry.node, failure: entry.failure ?? "", firstAct: entry.firstAct ?? "", answer, at,
    age: entry.ageSeconds ?? null, gpus: [], rows: [], simulated: Boolean(answer?.simulated),
  };
  if (!answer) return node;
  node.gpus = [...answer.gpus.map(present), ...answer.lostGpus.map(lost)].sort((one, other) => one.index - other.index);
  const byUuid = new Map(node.gpus.filter((gpu) => gpu.uuid).map((gpu) => [gpu.uuid, gpu]));
  for (const pod of answer.endedPods ?? []) byUuid.get(pod.gpuUuid)?.endedPods.push(pod);
  const byIndex = new Map(node.gpus.map((gpu) => [gpu.index, gpu]));
  for (const pod of answer.pods) {
    const holdings = new Map(pod.gpus.map((each) => [each.gpuUuid, each]));
    const judged = pod.verdicts.filter((each) => each.flagged || each.lastedSeconds !== null).map((each) => each.gpuUuid);
    const uuids = new Set([...judged, ...holdings.keys(), ...pod.gpuUuids]);
    for (const uuid of uuids.size ? uuids : [""]) {
      const holding = holdings.get(uuid) ?? null;
      const gpu = byUuid.get(uuid) ?? (holding ? byIndex.get(holding.gpu) : null) ?? null;
      const row = readRow(node.name, pod, uuid, holding, gpu);
      row.grace = graceOf(row, answer.graceSeconds);
      node.rows.push(row);
      gpu?.rows.push(row);
    }
  }
  for (const gpu of node.gpus) if (gpu.atRisk) setRisks(gpu);
  for (const row of node.rows) finish(row);
  return node;
}

// Memory at risk, if it is more than the driver itself takes: 256 MiB and a hundredth of the GPU.
const noticeableRisk = (bytes, total) => (bytes > Math.max(NOTICEABLE, (total ?? 0) / 100) ? bytes : null);

function present(gpu) {
  const [total, used, reserved] = [known(gpu.totalBytes), known(gpu.usedBytes), known(gpu.reservedBytes)];
  const promised = known(gpu.promisedBytes);
  return {
    uuid: gpu.uuid, index: gpu.index, model: gpu.model, total, used, promised, lost: "", mig: gpu.mig,
    ended: known(gpu.endedPodsBytes), endedPods: [], causes: gpu.riskCauses ?? [],
    free: total === null || used === null ? null : Math.max(total - used - (reserved ?? 0), 0),
    host: known(gpu.hostBytes), unattributed: Number.isSafeInteger(gpu.unattributedBytes) ? gpu.unattributedBytes : null,
    atRisk: noticeableRisk(known(gpu.atRiskBytes), total), excess: promised !== null && total ? Math.max(promised - total, 0) : 0,
    suspended: gpu.verdictsSuspended, memoryUnknown: gpu.memoryUnknown ?? "", xid: gpu.xid, rows: [],
    firstAct: gpu.firstAct, runbook: gpu.runbook, utilization: ratio(gpu.utilizationRatio ?? NaN),
    temperature: gpu.temperatureCelsius, power: gpu.powerWatts, powerLimit: gpu.powerLimitWatts,
  };
}

function lost(gpu) {
  return {
    uuid: gpu.uuid, index: gpu.index, model: gpu.model, total: null, used: null, promised: null, free: null, host: null,
    unattributed: null, atRisk: null, excess: 0, lost: gpu.lost === false ? "no answer" : "lost", mig: false, suspended: false, memoryUnknown: "", xid: gpu.xid,
    rows: [], firstAct: gpu.firstAct, runbook: gpu.runbook, utilization: null, ended: null, endedPods: [], causes: [],
  };
}

function readRow(node, pod, uuid, holding, gpu) {
  const verdicts = pod.verdicts.filter((each) => each.gpuUuid === uuid);
  const best = pod.candidates.find((each) => each.counts !== false);
  const compared = verdicts.find((each) => each.reason === "over-share" && each.allowedBytes !== null);
  const amount = pod.shares[uuid] ?? (holding
    ? compared && { bytes: compared.allowedBytes, source: best?.source ?? "" }
    : best && { bytes: best.bytesPerGpu[uuid], source: best.source });
  const [used, share] = [known(holding?.usedBytes), known(amount?.bytes)];
  const flags = verdicts.filter((each) => each.flagged);
  const visible = flags.length ? flags : verdicts.filter((each) => each.lastedSeconds !== null);
  return {
    key: `${node} ${pod.uid} ${uuid}`, node, pod, uuid, holding, gpu, verdicts, flags, visible, used, share, excess: 0, unused: 0, risk: "",
    index: gpu?.index ?? holding?.gpu ?? Infinity, text: "",
    source: share === null ? "" : amount.source, limit: known(pod.limits[uuid]?.bytes),
    ofShare: used !== null && share ? used / share : null, utilization: ratio(holding?.utilizationRatio ?? NaN),
    over: visible.length ? Math.max(...visible.map(overSeconds)) : null,
    gpuName: gpu ? `GPU ${gpu.index}${gpu.mig ? " MIG" : ""}` : holding ? `GPU ${holding.gpu}` : uuid || amount ? "GPU unknown" : "",
  };
}

// The length of the shortest grace that applies to a row: " of 2 min".
function graceOf(row, ofAgent) {
  const own = row.pod.overSharePolicy?.graceSeconds ?? ofAgent;
  const graces = row.visible.map((each) => (["over-share", "limit-bypassed"].includes(each.reason) ? own : ofAgent)).filter((each) => each >= 0);
  return graces.length ? ` of ${duration(Math.min(...graces))}` : "";
}

// Sets by how much the pods of a GPU at risk are above their shares, or have not used them.
function setRisks(gpu) {
  const allowed = (row) => {
    if (row.pod.shares[row.uuid]) return known(row.pod.shares[row.uuid].bytes);
    const limits = row.verdicts.map((each) => known(each.allowedBytes)).filter((each) => each !== null);
    return limits.length ? Math.max(...limits) : row.pod.gpuUnresolved || row.pod.hasUnsizedGpus ? null : 0;
  };
  const atLeast = (row) => row.used ?? Math.max(0, ...row.verdicts.map((each) => known(each.usedAtLeastBytes) ?? 0));
  for (const row of gpu.rows) {
    if (allowed(row) === null) continue;
    const excess = atLeast(row) - allowed(row);
    if (excess >= NOTICEABLE) row.excess = excess;
    else if (excess < 0 && row.pod.shares[row.uuid]) row.unused = -excess;
  }
}

// Sets a row's state: its text, and its place in the order.
function finish(row) {
  const bound = (word, bytes) => `${row.used === null ? `${word} ` : ""}${size(bytes)}`;
  if (row.excess) row.risk = `holds ${bound("at least", row.excess)} ${row.share === null ? "without a share here" : "above its share"}`;
  else if (row.unused) row.risk = `at risk: ${bound("up to", row.unused)} of its share unused, ${size(row.gpu.free)} free`;
  const idle = row.holding?.idleSeconds >= IDLE_AFTER ? `idle for ${duration(row.holding.idleSeconds)}: no ${row.used ? "kernel" : "memory"}` : "";
  const reasons = [...new Set(row.visible.map((each) => each.reason))].join(", ");
  if (row.visible.length) row.state = [`${row.flags.length ? "flagged" : `in grace${row.grace}`}: ${reasons}`, row.risk].filter(Boolean).join("; ");
  else if (row.verdicts.some((each) => each.usedBytes !== null || each.usedAtLeastBytes !== null)) {
    row.state = row.risk || (row.ofShare > 1 ? "within slack" : row.share === null ? "in order" : idle || "within share");
  } else row.state = [row.risk || idle, notJudged(row)].filter(Boolean).join("; ");
  row.tier = row.flags.length ? 0 : row.visible.length ? 1 : row.excess ? 2 : row.unused ? 3 : 4;
  row.figure = row.over ?? (row.excess || row.unused || (row.ofShare ?? -1));
}

function notJudged(row) {
  const { pod, holding, uuid } = row;
  const hasShare = Object.keys(pod.shares).length || pod.gpuUnresolved || pod.candidates.some((each) => each.counts !== false);
  const why = !holding ? (uuid ? "its GPU does not respond" : hasShare ? "its GPU is unknown" : "no share")
    : FINISHED.includes(pod.phase) ? "the pod has ended"
      : holding.mig ? "MIG"
        : row.gpu?.suspended ? "verdicts are suspended"
          : holding.usedBytes === null ? "memory unknown"
            : Object.values(pod.shares).length && Object.values(pod.shares).every((each) => each.source === "whole-gpu") ? "whole GPU"
              : pod.hasUnsizedGpus ? "share of unknown size" : "";
  return why ? `not judged: ${why}` : "not judged";
}

export const byUrgency = (one, other) => one.tier - other.tier || other.figure - one.figure || one.index - other.index
  || (`${one.pod.namespace} ${one.pod.name}` < `${other.pod.namespace} ${other.pod.name}` ? -1 : 1);

export const podName = (row) => `${row.pod.namespace}/${row.pod.name}`;

// Whether a row has all words, which are in lower case. The text is made when it is first looked at.
export function matches(row, words) {
  const { pod } = row;
  row.text ||= [row.node, podName(row), pod.size, pod.queue, pod.workload?.name, pod.vcluster?.name, row.state].join(" ").toLowerCase();
  return words.every((word) => row.text.includes(word));
}


const CAUSES = {
  "pods-above-share": "pods hold above their shares", "promised-above-total": "are promised above its total", "host-processes": "host processes hold",
  "ended-pods": "ended pods hold", unattributed: "no process accounts for",
};

// What has taken the memory at risk, the largest first: "host processes hold 29.3 GiB".
const causesOf = (gpu) => gpu.causes.filter((each) => CAUSES[each.cause]).map((each) => `${CAUSES[each.cause]} ${size(known(each.bytes))}`).join(", ");

// Memory of pods that the API server no longer has, with their names.
export const endedText = (gpu) => (gpu.ended || gpu.endedPods.length
  ? `${size(gpu.ended)} by ended pods: ${gpu.endedPods.slice(0, 3).map((pod) => `${pod.namespace}/${pod.name}`).join(", ")}` : "");

// Everything that is wrong, the most urgent first; what many nodes have in common is one entry.
export function troublesOf(nodes) {
  const troubles = [], shared = new Map();
  const share = (rank, kind, key, node, text, trouble) => {
    const entry = shared.get(key) ?? { rank, kind, size: 0, tone: "grace", nodes: [], text, causes: [], victims: [], ...trouble };
    entry.nodes.push(node.name);
    entry.size += 1;
    shared.set(key, entry);
  };
  for (const node of nodes) {
    if (node.failure) share(2, "no answer", `failure ${node.failure}`, node, node.failure, { act: node.firstAct });
    for (const gpu of node.gpus) {
      const act = { act: gpu.firstAct, runbook: gpu.runbook };
      const place = { nodes: [node.name], gpu, causes: [], victims: [] };
      const excess = gpu.excess ? `${size(gpu.promised)} are promised, ${size(gpu.excess)} more than its ${size(gpu.total)}.` : "";
      if (gpu.atRisk) {
        const ranked = (key) => gpu.rows.filter((row) => row[key]).sort((one, other) => other[key] - one[key]);
        const text = `${size(gpu.atRisk)} promised and not free. Its pods may still take ${size(gpu.atRisk + (gpu.free ?? 0))} of their shares, and ${size(gpu.free)} are free. ${causesOf(gpu) ? `Causes: ${causesOf(gpu)}. ` : ""}${excess}`;
        troubles.push({ ...place, ...act, rank: 0, kind: "at risk", size: gpu.atRisk, tone: "alarm", text, causes: ranked("excess"), victims: ranked("unused") });
      } else if (gpu.excess) troubles.push({ ...place, ...act, rank: 4, kind: "overpromised", size: gpu.excess, tone: "grace", text: excess });
      if (gpu.lost) troubles.push({ ...place, ...act, rank: 3, kind: gpu.lost, size: 0, tone: "alarm", text: "The GPU does not respond." });
    }
    for (const row of node.rows) for (const verdict of row.flags) {
      const text = (verdict.message ?? "").replace(` (${verdict.gpuUuid})`, "");
      troubles.push({
        rank: 1, kind: verdict.reason, size: overSeconds(verdict), tone: "alarm", nodes: [node.name], row, text, causes: [],
        victims: [], act: verdict.firstAct, runbook: verdict.runbook,
      });
    }
    const lostUuids = new Set(node.gpus.filter((gpu) => gpu.lost).map((gpu) => gpu.uuid || `index-${gpu.index}`));
    for (const problem of node.answer?.problems ?? []) {
      if (problem.reason === "nvml" && lostUuids.has(problem.gpuUuid)) {
        const trouble = troubles.find((each) => each.gpu?.lost && each.nodes[0] === node.name && [each.gpu.uuid, `index-${each.gpu.index}`].includes(problem.gpuUuid));
        trouble.text = problem.detail || trouble.text;
      } else {
        const gpu = node.gpus.find((each) => each.uuid && each.uuid === problem.gpuUuid);
        const key = `problem ${problem.reason}${nodes.length > 1 ? "" : ` ${problem.gpuUuid} ${problem.detail}`}`;
        share(5, problem.reason, key, node, problem.detail, { gpu, act: problem.firstAct, runbook: problem.runbook });
      }
    }
  }
  return [...troubles, ...shared.values()].sort((one, other) => one.rank - other.rank || other.size - one.size);
}

const NAME = "abcdefghijklmnopqrstuvwxyz0123456789-.";
const isName = (text) => text.length > 0 && text.length <= 253 && text[0] !== "-" && [...text].every((char) => NAME.includes(char));

// The command that tells a pod's story; empty for names that are not Kubernetes', since it is for a shell.
export const whyCommand = (pod) => (isName(pod.namespace) && isName(pod.name) ? `kaishare why -n ${pod.namespace} ${pod.name}` : "");

export function sums(nodes) {
  const gpus = nodes.flatMap((node) => node.gpus);
  const sum = (key) => gpus.reduce((total, gpu) => total + (gpu[key] ?? 0), 0);
  return {
    gpus: gpus.length, used: sum("used"), total: sum("total"), promised: sum("promised"),
    atRisk: gpus.filter((gpu) => gpu.atRisk).length, flags: nodes.reduce((total, node) => total + node.rows.filter((row) => row.flags.length).length, 0),
    pods: nodes.reduce((total, node) => total + (node.answer?.pods.length ?? 0), 0), silent: nodes.filter((node) => node.failure).length,
  };
}

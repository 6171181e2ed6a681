"use strict";
// Reloads the page at the sampling interval, shows the age of its figures, and lists the processes of a pod on demand.
// A reload keeps the focus, the scroll position, and which details are open.
(() => {
  let renderedAt = performance.now();
  let title = document.title;
  const page = () => document.getElementById("page");
  const interval = () => Number(page().dataset.interval) * 1000;

  function words(seconds) {
    for (const [unit, worth] of [["d", 86400], ["h", 3600], ["min", 60]]) {
      if (seconds >= 2 * worth) return `${Math.round(seconds / worth)} ${unit}`;
    }
    return `${Math.round(seconds)} s`;
  }

  function updateAge() {
    const age = document.getElementById("age");
    const isKnown = age !== null && age.textContent !== "no sample yet";
    const seconds = Number(page().dataset.age) + (performance.now() - renderedAt) / 1000;
    const isOld = isKnown && seconds * 1000 > 3 * interval() + 2000;
    document.title = isOld ? `OLD: ${title}` : title; // all that a tab in the background shows
    if (!isKnown) return;
    age.classList.toggle("old", isOld);
    age.textContent = isOld ? `OLD: as of ${words(seconds)} ago` : `as of ${words(seconds)} ago`;
  }

  // An element is found again by the nearest ID, and by its place among the focusable elements below that ID.
  const FOCUSABLE = "a[href], summary";
  function placeOf(element) {
    const holder = element === null ? null : element.closest("#page [id], #page");
    if (holder === null) return null;
    return { id: holder.id, index: [...holder.querySelectorAll(FOCUSABLE)].indexOf(element) };
  }

  function elementAt(place) {
    const holder = place === null ? null : document.getElementById(place.id);
    return holder === null ? null : [...holder.querySelectorAll(FOCUSABLE)][place.index] ?? null;
  }

  function markTarget() {
    if (location.hash.length < 2) return;
    for (const element of document.querySelectorAll(".target")) element.classList.remove("target");
    document.getElementById(location.hash.slice(1))?.classList.add("target");
  }

  function openTarget() {
    const folds = location.hash.length < 2 ? null : document.getElementById(location.hash.slice(1))?.closest("details");
    if (folds) folds.open = true; // a browser may open the details around a target by itself, or not
    markTarget();
  }

  // The processes of a pod are names that its owner chose: they are set as text, never as markup.
  let refusedAt = null; // ID of the row at which the agent refused to list processes
  function addProcesses(root) {
    for (const row of root.querySelectorAll("tr[data-uid]")) {
      const place = row.querySelector("th");
      if (refusedAt === row.id) place.append(small("Its processes are not available to you."));
      if (refusedAt !== null) continue;
      const fold = document.createElement("details");
      const summary = document.createElement("summary");
      fold.id = `processes-${row.id}`;
      fold.className = "processes";
      summary.textContent = "processes";
      fold.append(summary, document.createElement("div"));
      fold.addEventListener("toggle", () => { if (fold.open) listProcesses(row, fold); });
      place.append(fold);
    }
  }

  function small(text) {
    const element = document.createElement("small");
    element.textContent = text;
    return element;
  }

  async function listProcesses(row, fold) {
    const list = fold.lastElementChild;
    try {
      const path = `api/v1/processes?pod=${encodeURIComponent(row.dataset.uid)}`;
      const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(interval() + 5000) });
      if ([401, 403].includes(response.status)) return refuse(row);
      if (!response.ok) throw new Error(response.statusText);
      list.replaceChildren(...processLines(await response.json(), row.dataset.gpu));
    } catch {
      list.replaceChildren(small("The agent does not respond."));
    }
  }

  // The name comes last, so that no name reads as a figure.
  function processLines(answer, ownGpu) {
    if (answer.sampleTimestamp === null) return [small("There is no sample, or the last one is too old.")];
    const gpus = answer.pods.flatMap((pod) => pod.gpus);
    const lines = gpus.flatMap((gpu) => gpu.processes.map((each) => {
      const place = gpu.gpuUuid === ownGpu ? "" : ` on ${gpu.gpuUuid}`;
      return small(`${each.pid}: ${bytes(each.usedBytes)}${place}, ${each.name ?? "name unknown"}`);
    }));
    if (answer.hidden > 0) lines.push(small(`${answer.hidden} more`));
    return lines.length > 0 ? lines : [small("The driver lists no process of this pod.")];
  }

  function bytes(number) {
    if (number === null || number === undefined) return "unknown";
    const power = number < 1 ? 0 : Math.min(Math.floor(Math.log2(number) / 10), 3);
    return `${power === 0 ? number : (number / 1024 ** power).toFixed(1)} ${["B", "KiB", "MiB", "GiB"][power]}`;
  }

  function refuse(row) {
    refusedAt = row.id;
    for (const fold of document.querySelectorAll("details.processes")) fold.remove();
    row.querySelector("th").append(small("Its processes are not available to you."));
  }

  function replace(next) {
    const place = placeOf(document.activeElement);
    const top = elementAt(place)?.getBoundingClientRect().top;
    const scroll = [window.scrollX, window.scrollY];
    addProcesses(next);
    const lists = new Map([...document.querySelectorAll("details.processes[open]")].map((each) => [each.id, each]));
    const open = new Map([...document.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
    page().replaceWith(document.adoptNode(next));
    for (const [id, isOpen] of open) {
      const details = document.getElementById(id);
      if (details !== null) details.open = isOpen; // an open list of processes is loaded again
      if (details !== null && lists.has(id)) details.lastElementChild.replaceWith(lists.get(id).lastElementChild);
    }
    markTarget();
    const focused = elementAt(place);
    focused?.focus({ preventScroll: true });
    const isVisible = top !== undefined && top >= 0 && top <= window.innerHeight;
    const moved = focused !== null && isVisible ? focused.getBoundingClientRect().top - top : 0;
    window.scrollTo(scroll[0], moved === 0 ? scroll[1] : window.scrollY + moved);
  }

  async function reload() {
    try {
      const response = await fetch("./", { cache: "no-store", signal: AbortSignal.timeout(interval() + 5000) });
      if (!response.ok) return;
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      const next = fresh.getElementById("page");
      if (next === null) return;
      replace(next);
      title = fresh.title;
      renderedAt = performance.now();
    } catch {
      return; // the displayed age grows
    } finally {
      updateAge();
    }
  }

  async function loop() {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, interval()));
      if (!document.hidden) await reload();
    }
  }

  setInterval(updateAge, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) reload(); });
  window.addEventListener("hashchange", openTarget);
  addProcesses(document);
  openTarget();
  loop();
})();

"use strict";
// Reloads the page at the sampling interval, and shows the age of its figures.
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

  function replace(next) {
    const place = placeOf(document.activeElement);
    const top = elementAt(place)?.getBoundingClientRect().top;
    const scroll = [window.scrollX, window.scrollY];
    const open = new Map([...document.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
    page().replaceWith(document.adoptNode(next));
    for (const [id, isOpen] of open) {
      const details = document.getElementById(id);
      if (details !== null) details.open = isOpen;
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
  openTarget();
  loop();
})();

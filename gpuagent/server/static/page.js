"use strict";
// Reloads the page at the sampling interval, and shows the age of its figures.
(() => {
  let shownAt = performance.now();
  const main = () => document.querySelector("main");
  const interval = () => Number(main().dataset.interval) * 1000;

  function words(seconds) {
    for (const [unit, worth] of [["d", 86400], ["h", 3600], ["min", 60]]) {
      if (seconds >= 2 * worth) return `${Math.round(seconds / worth)} ${unit}`;
    }
    return `${Math.round(seconds)} s`;
  }

  function tellAge() {
    const age = document.getElementById("age");
    if (age === null || age.textContent === "no sample yet") return;
    const seconds = Number(main().dataset.age) + (performance.now() - shownAt) / 1000;
    const isOld = seconds * 1000 > 3 * interval() + 2000;
    age.classList.toggle("old", isOld);
    age.textContent = isOld ? `OLD: as of ${words(seconds)} ago` : `as of ${words(seconds)} ago`;
  }

  async function renew() {
    try {
      const answer = await fetch("./", { cache: "no-store", signal: AbortSignal.timeout(interval() + 5000) });
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = fresh.querySelector("main");
      if (next === null) return;
      main().replaceWith(document.adoptNode(next));
      document.title = fresh.title;
      shownAt = performance.now();
    } catch {
      return; // the displayed age grows
    } finally {
      tellAge();
    }
  }

  async function loop() {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, interval()));
      if (!document.hidden) await renew();
    }
  }

  setInterval(tellAge, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) renew(); });
  loop();
})();

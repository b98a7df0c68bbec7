// Keyboard shortcuts and live figures. The page works without this script.
"use strict";

// Shortcuts: "/" focuses the search, "g" and a letter opens a view, "j" and "k" move along the rows of a table.
const views = { o: "/", t: "/types", j: "/jobs", f: "/failures", s: "/schedules", w: "/workers" };
const base = new URL(document.querySelector(".brand").href).pathname.replace(/\/$/, "");
let went = 0;

function alongRows(step) {
  const links = [...document.querySelectorAll("tbody th a")];
  if (links.length === 0) return;
  const at = links.indexOf(document.activeElement);
  links[Math.min(Math.max(at + step, 0), links.length - 1)].focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const path = views[event.key];
  if (Date.now() - went < 1500 && path) {
    went = 0;
    location.assign(base + path);
  } else if (event.key === "g") {
    went = Date.now();
  } else if (event.key === "j") {
    alongRows(1);
  } else if (event.key === "k") {
    alongRows(-1);
  } else if (event.key === "/") {
    const find = document.querySelector(".find input");
    if (find) {
      event.preventDefault();
      find.focus();
    }
  }
});

// Updates the figures of the overview. Pauses while text is selected, because an update would lose the selection.
if (document.querySelector("[data-live]") && location.pathname === base + "/") {
  const show = (event) => {
    if (document.hidden || !getSelection().isCollapsed || document.querySelector("dialog[open]")) return;
    for (const [name, text] of Object.entries(JSON.parse(event.data))) {
      const place = document.querySelector(`[data-live="${name}"]`);
      if (place && place.textContent !== text) place.textContent = text;
    }
  };
  let live = null;
  const follow = () => {
    if (document.hidden) {
      live?.close();
      live = null;
    } else if (!live) {
      live = new EventSource(base + "/live");
      live.onmessage = show;
    }
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}

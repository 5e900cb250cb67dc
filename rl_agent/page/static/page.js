// Keeps a view fresh while its run lives, and lets the keyboard move through it. Everything works without it.
"use strict";

const main = () => document.querySelector("main");
let etag = null;

// Fetch this view again; what is open stays open, and nothing moves if nothing changed or a form is filled in.
function refresh() {
  const request = new XMLHttpRequest();
  request.open("GET", location.pathname + location.search);
  request.responseType = "document"; // parsed, never run
  request.onload = () => {
    const fresh = request.response && request.response.querySelector("main");
    const found = request.getResponseHeader("ETag");
    if (request.status === 200 && fresh && found !== etag) {
      if (fresh.innerHTML !== main().innerHTML) swap(fresh);
      etag = found;
    }
  };
  request.onloadend = schedule;
  request.send();
}

function swap(fresh) {
  const open = new Set([...document.querySelectorAll("details[open][id]")].map((one) => one.id));
  const focused = document.activeElement && document.activeElement.id;
  for (const one of fresh.querySelectorAll("details[id]")) one.open = open.has(one.id);
  main().replaceWith(document.adoptNode(fresh));
  const again = focused && document.getElementById(focused);
  if (again) again.focus({ preventScroll: true });
}

function schedule() {
  const seconds = Number(main().dataset.refresh);
  if (!seconds) return;
  const waits = () => document.hidden || document.activeElement?.form;
  setTimeout(() => (waits() ? schedule() : refresh()), 1000 * seconds);
}

// Rows of the list and turns of an episode: j and k move, Enter opens.
let at = -1;
function move(step) {
  const places = [...document.querySelectorAll("[data-stop]")];
  if (!places.length) return;
  if (at < 0 && location.hash) at = places.findIndex((one) => "#" + one.id === location.hash);
  at = Math.max(0, Math.min(places.length - 1, at + step));
  const link = places[at].matches("a") ? places[at] : places[at].querySelector("a");
  places[at].scrollIntoView({ block: "nearest" });
  if (places[at].id) {
    history.replaceState(null, "", "#" + places[at].id);
    places[at].scrollIntoView({ block: "start" });
  }
  if (link) link.focus({ preventScroll: true });
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  "/": () => document.querySelector("[name=text]")?.focus(),
  n: () => document.querySelector("a[rel=next]")?.click(),
  p: () => document.querySelector("a[rel=prev]")?.click(),
  u: () => document.querySelector("a[rel=up]")?.click(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const action = KEYS[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
});

schedule();

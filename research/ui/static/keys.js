// Keys for those who would rather not point: none of them costs, ends or signs anything. `?` lists them.
(() => {
  "use strict";
  const off = () => localStorage.getItem("keys") === "off";
  const rows = () => [...document.querySelectorAll("[data-row]")].filter(row => row.offsetParent !== null);
  const places = {d: "/", r: "/runs", c: "/compare", a: "/ask"};
  let gone = false;

  function step(by) {
    const all = rows(), now = all.findIndex(row => row.contains(document.activeElement));
    const next = all[Math.min(all.length - 1, Math.max(0, now < 0 ? 0 : now + by))];
    if (next) { if (!next.matches("a,[tabindex]")) next.tabIndex = -1; next.focus(); next.scrollIntoView({block: "nearest"}); }
  }
  const click = selector => document.querySelector(selector)?.click();
  const open = selector => {
    const here = document.activeElement?.closest("[data-row],[data-claim]");
    const found = here?.querySelector(selector) || document.querySelector(selector);
    if (!found) return;
    if (found.matches("details")) { found.open = true; found.querySelector("textarea,select,input:not([type=hidden])")?.focus(); } else found.click();
  };
  const keys = {
    "/": () => document.querySelector("[type=search]")?.focus(), "?": () => location.assign("/help"),
    j: () => step(1), k: () => step(-1), u: () => click("[data-up]"), n: () => click("[rel=next]"),
    p: () => click("[rel=prev]"), c: () => open("details.comment"), e: () => open("[data-evidence]"),
    t: () => click("[data-tokens]"), ".": () => document.querySelector("[data-open-comment]")?.scrollIntoView(),
    r: () => window.ajetRefresh?.(), Enter: () => document.activeElement?.querySelector?.("a")?.click(),
  };
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.matches("input,textarea,select");
    if (event.key === "Escape" && field) { event.target.blur(); return; }
    if (off() || field) return;
    if (gone) { gone = false; if (places[event.key]) location.assign(places[event.key]); return; }
    if (event.key === "g") { gone = true; setTimeout(() => { gone = false; }, 1500); return; }
    if (event.key === "Enter" && event.target.matches("a,button,summary")) return;
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  const toggle = document.getElementById("keys");
  if (toggle) {
    toggle.checked = !off();
    toggle.addEventListener("change", () => localStorage.setItem("keys", toggle.checked ? "on" : "off"));
  }
})();

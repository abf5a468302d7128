// Keeps a page as a reload would show it: at each event the page's own address is fetched again, and each part whose
// markup differs is put in the place of the old one. A part with the focus or a selection in it waits.
(() => {
  "use strict";
  const body = document.body, watched = body.dataset.watch, sign = document.getElementById("live");
  if (!watched || !window.EventSource) return;
  const say = (text, state) => { sign.textContent = text; sign.dataset.state = state; };
  const known = new WeakMap();  // what each part was when it came, since scripts and readers open things in it
  const parts = root => [...root.querySelectorAll("[data-part]")];
  parts(document).forEach(part => known.set(part, part.outerHTML));
  let source, heard = 0, timer = 0, busy = false, again = false, last = 0;

  const inUse = part => {
    const selection = document.getSelection();
    const selected = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
    return selected || (part.contains(document.activeElement) && document.activeElement.matches("input,textarea,select"))
      || [...part.querySelectorAll("textarea,input[type=text]")].some(field => field.value !== field.defaultValue);
  };

  function swap(fresh) {
    let waiting = 0;
    for (const part of parts(document)) {
      const next = fresh.getElementById(part.id);
      if (!next || known.get(part) === next.outerHTML) continue;
      if (inUse(part)) { waiting += 1; part.classList.add("changed"); continue; }
      const open = [...part.querySelectorAll("details[open][id]")].map(each => each.id);
      const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
      const markup = next.outerHTML, node = document.adoptNode(next);
      open.forEach(id => { const found = node.querySelector("#" + CSS.escape(id)); if (found) found.open = true; });
      part.replaceWith(node);
      known.set(node, markup);
      if (focused) document.getElementById(focused)?.focus({preventScroll: true});
    }
    document.title = fresh.title;
    const news = document.getElementById("news"), told = fresh.getElementById("news");
    if (news && told && news.textContent !== told.textContent) news.textContent = told.textContent;
    say(waiting ? "changed, press r" : "live", waiting ? "waiting" : "live");
    if (document.querySelector("[data-again]")) soon();
  }

  function fetchPage() {
    if (busy) { again = true; return; }
    busy = true; last = performance.now();
    const asked = new XMLHttpRequest();
    asked.open("GET", location.pathname + location.search);
    asked.responseType = "document";
    asked.onloadend = () => {
      busy = false;
      if (asked.status === 200 && asked.response && asked.responseURL.endsWith(location.pathname + location.search)) swap(asked.response);
      else if (asked.status === 202) { say("being read", "waiting"); again = true; }
      else say(asked.status ? "cannot be shown any more, reload" : "not live, trying again", "dead");
      if (again) { again = false; soon(); }
    };
    asked.send();
  }

  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(fetchPage, Math.max(0, 600 - (performance.now() - last)));
  };
  const concerns = event => {
    const studies = JSON.parse(event.data).studies;
    return watched === "*" || studies.includes(watched);
  };
  const hear = () => { heard = Date.now(); if (sign.dataset.state === "dead") { say("live", "live"); soon(); } };

  function listen() {
    source = new EventSource("/live");
    source.addEventListener("alive", hear);
    for (const name of ["moved", "progress"])
      source.addEventListener(name, event => { hear(); if (concerns(event)) soon(); });
    source.onopen = () => { heard = Date.now(); say("live", "live"); soon(); };
    source.onerror = () => say(`not live since ${new Date(heard || Date.now()).toLocaleTimeString()}, trying again`, "dead");
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source.close(); say("asleep", "asleep"); } else listen();
  });
  setInterval(() => {
    if (!document.hidden && heard && Date.now() - heard > 25000) { source.close(); listen(); }
  }, 5000);
  window.ajetRefresh = () => { document.activeElement?.blur(); document.getSelection()?.removeAllRanges(); fetchPage(); };
  heard = Date.now();
  if (!document.hidden) listen();
})();

// Keeps a page as a reload would show it: at each event the page's own address is fetched again, and each part whose
// markup differs is put in the place of the old one. A part with the focus or a selection in it waits.
(() => {
  "use strict";
  const body = document.body, watched = body.dataset.watch, sign = document.getElementById("live");
  if (!watched || !window.EventSource || !navigator.locks) return;
  const say = (text, state) => { sign.textContent = text; sign.dataset.state = state; };
  const known = new WeakMap();  // what each part was when it came, since scripts and readers open things in it
  const parts = root => [...root.querySelectorAll("[data-part]")];
  parts(document).forEach(part => known.set(part, part.outerHTML));
  let heard = 0, timer = 0, busy = false, again = false, last = 0;

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
  const hear = () => { heard = Date.now(); if (!["live", "waiting"].includes(sign.dataset.state)) { say("live", "live"); soon(); } };
  function take([name, studies]) {
    if (name === "dead") { say(`not live since ${new Date(heard || Date.now()).toLocaleTimeString()}, trying again`, "dead"); return; }
    hear();
    if (name === "open" || studies.includes(watched) || (studies.length && watched === "*")) soon();
  }

  // A browser has six connections to a host: of its tabs in sight one listens, and tells the others.
  const others = new BroadcastChannel("live");
  let source = null, waits = null, release = () => {};
  function connect() {
    const tell = (name, studies = []) => { others.postMessage([name, studies]); take([name, studies]); };
    source = new EventSource("/live");
    for (const name of ["alive", "moved", "progress"])
      source.addEventListener(name, event => tell(name, JSON.parse(event.data).studies));
    source.onopen = () => tell("open");
    source.onerror = () => tell("dead");
  }
  others.onmessage = ({data}) => {
    if (data[0] === "new") { if (source && source.readyState === EventSource.OPEN) others.postMessage(["alive", []]); }
    else if (!document.hidden) take(data);
  };
  function listen() {
    waits = new AbortController();
    navigator.locks.request("live", {signal: waits.signal}, () => new Promise(done => { release = done; connect(); })).catch(() => {});
    others.postMessage(["new", []]);
  }
  function leave() {
    waits?.abort();
    source?.close();
    source = null;
    release();
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { leave(); say("asleep", "asleep"); } else listen();
  });
  setInterval(() => {
    if (!document.hidden && heard && Date.now() - heard > 25000) { leave(); listen(); }
  }, 5000);
  window.ajetRefresh = () => { document.activeElement?.blur(); document.getSelection()?.removeAllRanges(); fetchPage(); };
  heard = Date.now();
  if (!document.hidden) listen();
})();

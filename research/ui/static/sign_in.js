// Takes the key from the address, where no log, proxy or referrer has it, and signs in with it.
(() => {
  "use strict";
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!key) return;
  history.replaceState(null, "", location.pathname + location.search);
  document.getElementById("key").value = key;
  document.getElementById("sign-in").submit();
})();

"use strict";
// The live page in an article has the site's colours. A page from file:// may only send it a message.

const told = () => {
  const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
  document.querySelectorAll(".microscope iframe").forEach((frame) => frame.contentWindow.postMessage({ theme }, "*"));
};
document.querySelectorAll(".microscope iframe").forEach((frame) => frame.addEventListener("load", told));
new MutationObserver(told).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
told();

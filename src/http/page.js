// Replaces the content of the page every few seconds. While nothing answers, the page stays, and shows since when: it is complete
// again when the instance has restarted.
"use strict";
const seconds = Number(document.documentElement.dataset.refresh);
let failing = null;

async function update() {
  try {
    const options = { cache: "no-store", signal: AbortSignal.timeout(seconds * 1000) };
    const response = await fetch(location.href, options);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const version = page.documentElement.dataset.version;
    if (!response.ok || !version) throw new Error("this is not the status page");
    if (version !== document.documentElement.dataset.version) location.reload();
    document.title = page.title;
    document.body.replaceWith(page.body);
    failing = null;
  } catch {
    failing ??= new Date();
    const notice = document.getElementById("unanswered");
    notice.querySelector("time").textContent = failing.toISOString().slice(0, 19) + "Z";
    notice.hidden = false;
    // Whether it is ready is not known.
    notice.nextElementSibling.hidden = true;
    document.title = "No answer: " + document.title.replace(/^.*?: /, "");
  }
  setTimeout(update, seconds * 1000);
}

setTimeout(update, seconds * 1000);

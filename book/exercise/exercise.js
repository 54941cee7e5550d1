/* An exercise that is solved on the page: an editor, Run, Check, Reset, and what they say.

   The directive {py-exercise} (book/_ext/py_exercise.py) writes <div class="py-exercise"> with the starting code as a
   block, which paper and readers without scripts keep, and a script with the data: name, title, start, setup, tests and
   packages of the exercise, and the texts of worker.js and run.py. Its attributes say where Pyodide comes from
   (data-pyodide) and how many seconds a run may take (data-seconds).

   Nothing is loaded before the first click on Run or Check. The reader's text is kept in this browser alone. */

"use strict";

(() => {
  /** Seconds that Python may take to load. */
  const LOADING = 180;
  const KEY = "distributed-training-code-";

  // ---- the reader's text ----

  function kept(name) {
    try {
      return localStorage.getItem(KEY + name);
    } catch {
      return null;
    }
  }

  /** Keep a text; null forgets it. Where the browser stores nothing, it lasts as long as the page. */
  function keep(name, text) {
    try {
      if (text === null) localStorage.removeItem(KEY + name);
      else localStorage.setItem(KEY + name, text);
    } catch {
      // said nowhere: the editor still holds it
    }
  }

  // ---- Python ----

  /** A URL for a script. A page opened from disk may not start a module from a Blob; a worker from a data: URL counts as
      another site, which a server need not let at the Pyodide beside its pages. */
  function address(script) {
    return location.protocol === "file:"
      ? `data:text/javascript,${encodeURIComponent(script)}`
      : URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  }

  class Python {
    constructor(url, data) {
      this.url = url;
      this.data = data;
      this.worker = null;
    }

    /** Load Python unless it is there; an error if it cannot be had. */
    async load() {
      if (this.worker) return;
      try {
        await this.start(true);
      } catch (error) {
        console.warn(`Pyodide from ${this.url}, as a module: ${error.message}`);
        await this.start(false);
      }
    }

    async start(module) {
      const { worker, packages, program } = this.data;
      const source = address(worker);
      let timer = 0;
      try {
        await new Promise((resolve, reject) => {
          const fail = (why) => reject(new Error(why));
          timer = setTimeout(() => fail("it took too long"), 1000 * LOADING);
          this.worker = new Worker(source, { type: module ? "module" : "classic" });
          this.worker.onerror = (event) => fail(event.message ?? "the browser starts no such worker");
          this.worker.onmessage = ({ data }) => (data.ready ? resolve() : fail(data.failed));
          this.worker.postMessage({ load: { url: this.url, packages, program, module } });
        });
      } catch (error) {
        this.stop();
        throw error;
      } finally {
        clearTimeout(timer);
        URL.revokeObjectURL(source);
      }
    }

    /** Run sources; what they said, or {stopped: true} after so many seconds, or {broken: why}. */
    run(sources, seconds, wrote) {
      return new Promise((resolve) => {
        const end = (result) => {
          clearTimeout(timer);
          if (result.stopped || result.broken) this.stop();
          resolve(result);
        };
        const timer = setTimeout(() => end({ stopped: true }), 1000 * seconds);
        this.worker.onerror = (event) => end({ broken: event.message });
        this.worker.onmessage = ({ data }) => {
          if (data.wrote) wrote(data.wrote);
          else end(data.done ?? { broken: data.broken });
        };
        this.worker.postMessage({ run: sources });
      });
    }

    stop() {
      this.worker?.terminate();
      this.worker = null;
    }
  }

  // ---- the page ----

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function open(place) {
    const data = JSON.parse(place.querySelector(".py-data").textContent);
    const seconds = Number(place.dataset.seconds);
    const hint = `py-hint-${data.name}`;
    const says = element("p", { class: "py-says", role: "status" });
    const output = element("pre", { class: "py-output", role: "region", tabindex: "0", "aria-label": "Output" });
    const button = (text, act) => element("button", { type: "button", class: "py-button", onclick: act }, text);
    const buttons = [button("Run", () => go(false)), button("Check", () => go(true)), button("Reset", reset)];
    let python = null;
    let busy = false;

    /** How it went, in a line: kind is right, wrong or nothing. */
    function say(kind, ...text) {
      says.className = `py-says ${kind ? `py-${kind}` : ""}`;
      says.replaceChildren(...text);
    }

    function print(text) {
      output.textContent += text;
      output.hidden = !output.textContent;
    }

    function work(on) {
      busy = on;
      // Not `disabled`, which would take the focus away from the button that was pressed.
      for (const each of buttons) each.setAttribute("aria-disabled", String(on));
    }

    function reset() {
      if (busy) return;
      editor.replace(data.start);
      output.textContent = "";
      output.hidden = true;
      say("", "The starting code is back. Undo (Ctrl-Z in the editor) brings back yours.");
    }

    async function go(checking) {
      if (busy) return;
      work(true);
      output.textContent = "";
      output.hidden = true;
      const url = new URL(place.dataset.pyodide, location.href).href;
      if (python?.url !== url) python = new Python(url, data);
      try {
        if (!python.worker) say("", "Loading Python, about 10 MB the first time …");
        await python.load();
      } catch (error) {
        console.warn(`Pyodide from ${url}: ${error.message}`);
        say("wrong", ...absent(url));
        return work(false);
      }
      say("", checking ? "Checking …" : "Running …");
      const sources = [data.setup, editor.text(), checking ? data.tests : ""];
      tell(checking, await python.run(sources, seconds, print));
      work(false);
    }

    function tell(checking, result) {
      if (result.stopped) {
        return say("wrong", `Stopped after ${seconds} seconds. Does a loop never end? The next click starts Python anew.`);
      }
      if (result.broken) {
        return say("wrong", `Python broke down (${result.broken.split("\n")[0]}). The next click starts it anew.`);
      }
      if (result.where) print((output.textContent ? "\n" : "") + result.where);
      if (result.headline) return say("wrong", checking ? `Not yet: ${result.headline}` : result.headline);
      if (checking) return say("right", "All of these tests pass. The notebook's grader has more of them.");
      say("", output.hidden ? "Done; nothing was printed." : "Done.");
    }

    /** Why there is no Python, and where the exercise can be done all the same. */
    function absent(url) {
      const { protocol, host } = new URL(url);
      const why = protocol === "file:"
        ? "Python does not load on a page opened from disk: serve the book's folder (python -m http.server) and open it there."
        : `Python could not be loaded from ${host}: check the network and try again.`;
      const links = [...place.querySelectorAll(".py-from a")].map((link) => link.cloneNode(true));
      return [`${why} Or do the exercise in `, links[0], ": ", links[1], "."];
    }

    const code = element("div", { class: "py-editor" });
    const keys = element("p", { class: "py-keys", id: hint }, "Ctrl-Enter runs the code. Escape, then Tab leaves the editor.");
    const below = element("div", { class: "py-buttons" }, ...buttons, keys);
    const live = element("div", { class: "py-live" }, code, below, says, output);
    output.hidden = true;
    place.querySelector(".py-start").after(live);
    const editor = codeMirror.pythonEditor({
      parent: code,
      text: kept(data.name) ?? data.start,
      attributes: { "aria-label": `Your code for ${data.title}`, "aria-describedby": hint, tabindex: "0" },
      changed: (text) => keep(data.name, text === data.start ? null : text),
      run: () => go(false),
    });
    place.classList.add("is-live");
  }

  for (const place of document.querySelectorAll(".py-exercise")) open(place);
})();

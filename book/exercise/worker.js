/* The worker that holds Python. The page makes it from this text, so that it also starts on a page opened from disk.

   It takes {load: {url, packages, program, module}} and then any number of {run: [setup, code, tests]}. It answers
   {ready: true} or {failed: why}, and for each run {wrote: text}, many times, and at last {done: result} or
   {broken: why}, after which it is of no more use. */

"use strict";

let run = null;

async function load({ url, packages, program, module }) {
  // New Pyodides want to be imported by a worker that is a module, old ones by one that is not.
  const { loadPyodide } = module ? await import(`${url}pyodide.mjs`) : (importScripts(`${url}pyodide.js`), self);
  const python = await loadPyodide({ indexURL: url });
  if (packages.length) await python.loadPackage(packages);
  python.runPython(program);
  run = python.globals.get("run");
  // Imports take long the first time; this is not the reader's time.
  const { headline } = JSON.parse(run(packages.map((name) => `import ${name}`).join("\n"), "", "", () => {}));
  if (headline) throw new Error(headline);
}

onmessage = async ({ data }) => {
  if (data.load) {
    try {
      await load(data.load);
      postMessage({ ready: true });
    } catch (error) {
      postMessage({ failed: String(error) });
    }
    return;
  }
  try {
    postMessage({ done: JSON.parse(run(...data.run, (text) => postMessage({ wrote: text }))) });
  } catch (error) {
    postMessage({ broken: String(error) });
  }
};

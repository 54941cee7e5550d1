/* <figure-crash>: two ranks save a checkpoint, call by call; what a crash leaves of it, and what is then loaded. */

"use strict";

(() => {
  const OLD = "step_00000010", NEW = "step_00000020", TEMPORARY = `.tmp_${NEW}`, ROOT = "root";
  const SHARDS = ["shard_00000.bin", "shard_00001.bin"], MANIFEST = ["manifest.json", "manifest.sha256"];
  const FILES = [...SHARDS, ...MANIFEST];
  const CRASHES = [["power", "power is cut"], ["kill", "all ranks are killed"]];
  const LEFT = [["none", "none"], ["files", "those of files"], ["folders", "those of folders"], ["both", "all"]];
  const STEP_10 = "step 10", STEP_20 = "step 20", DAMAGED = "a damaged step 20";

  /** The calls of the lesson's `save_sharded` in their order; where both ranks write, they take turns. */
  function calls() {
    const call = (kind, rank, name) => ({ kind, rank, name });
    const both = (kind) => SHARDS.map((name, rank) => call(kind, rank, name));
    const alone = MANIFEST.flatMap((name) => ["create", "write", "fsync"].map((kind) => call(kind, 0, name)));
    const meet = call("together", null, "");
    return [call("make", 0, TEMPORARY), meet, ...["create", "write", "fsync"].flatMap(both), meet, ...alone,
      call("fsync", 0, TEMPORARY), call("rename", 0, TEMPORARY), call("fsync", 0, ROOT), meet];
  }

  /** Is this call an fsync that is left out? */
  const isLeft = ({ kind, name }, left) =>
    kind === "fsync" && (left === "both" || left === (FILES.includes(name) ? "files" : "folders"));

  /** What there is after a call. `entry`: the new folder's name in the page cache. `entries`: the names of which the
      disk has one, or null for none. Of each file: are its bytes in the page cache (`written`), are they on the disk
      for sure (`synced`), and is its name (`named`)? */
  function after({ entry, entries, files }, { kind, name }) {
    const change = (more) => ({ entry, entries, files: { ...files, [name]: { ...files[name], ...more } } });
    if (kind === "make") return { entry: TEMPORARY, entries: [...entries, TEMPORARY], files };
    if (kind === "rename") return { entry: NEW, entries: [...entries, NEW], files };
    if (kind === "create") return change({ written: false, synced: true, named: false });
    if (kind === "write") return change({ written: true, synced: false });
    if (kind === "together") return { entry, entries, files };
    if (name === ROOT) return { entry, entries: [entry], files };
    if (FILES.includes(name)) return change({ synced: true });
    const named = Object.entries(files).map(([file, held]) => [file, { ...held, named: true }]);
    return { entry, entries, files: Object.fromEntries(named) };
  }

  /** All that `load_sharded` may find after a crash, in the folder with the highest step. */
  function finds({ entry, entries, files }, crash) {
    if (crash === "kill") return [entry === NEW ? STEP_20 : STEP_10];
    const sure = Object.values(files).every(({ synced, named }) => synced && named);
    const found = entries.some((name) => name !== NEW) ? [STEP_10] : [];
    return entries.includes(NEW) ? [...found, STEP_20, ...(sure ? [] : [DAMAGED])] : found;
  }

  /** By what a damaged step 20 may be noticed: `latest` passes over it by its manifest, or only a digest shows it. */
  function noticed(state, crash) {
    if (!finds(state, crash).includes(DAMAGED)) return [];
    return SHARDS.every((name) => state.files[name].synced) ? ["manifest"] : ["digest", "manifest"];
  }

  /** A call in words. */
  function told({ kind, rank, name }, left, { entry, files }) {
    const who = `Rank ${rank}`;
    const what = FILES.includes(name) ? `the bytes of ${name}` : `the names in ${name}`;
    const where = Object.values(files).every(({ synced }) => synced) ? "on the disk" : "written";
    if (kind === "fsync" && left) return `Here ${who.toLowerCase()} would wait for ${what}. This fsync is left out.`;
    if (kind === "fsync") return `${who} waits in fsync until ${what} are on the disk.`;
    if (kind === "make") return `${who} makes the folder ${name}.`;
    if (kind === "create") return `${who} opens ${name}, a new file.`;
    if (kind === "write") return `${who} writes ${name}. The bytes are in the page cache.`;
    if (kind === "rename") return `${who} renames the folder to ${NEW}.`;
    if (entry === NEW) return "The ranks meet, and save_sharded returns.";
    return `The ranks meet: ${SHARDS[0] in files ? `all shards are ${where}` : "the folder is there"}.`;
  }

  /** What a crash at this moment does, in words. */
  function crashed(state, crash) {
    const found = finds(state, crash);
    if (crash === "kill") return `Killed here: the page cache lives on, and load_sharded finds ${found[0]}.`;
    if (found.includes(DAMAGED)) {
      const unsure = (key) => FILES.some((name) => !state.files[name][key]);
      const lost = [unsure("named") && "names", unsure("synced") && "bytes"].filter(Boolean).join(" or the ");
      const by = noticed(state, crash).includes("digest")
        ? "If only bytes are missing, latest may take it, and only the digests show the damage."
        : "latest finds no manifest in it and goes back to step 10.";
      return `Power cut here, at worst: the name ${NEW} is on the disk, but not the ${lost} of its files. ${by}`;
    }
    if (found.length === 2) return "Power cut here: the new name is on the disk or not. Both checkpoints are whole.";
    return `Power cut here: ${found[0]} is found. ` +
      (found[0] === STEP_20 ? "All of it is on the disk." : "Whatever else is on the disk has no checkpoint's name.");
  }

  /** What all moments together show, in words. */
  function conclusion(moments, { crash, left }) {
    const spoiled = moments.filter((moment) => moment.finds.includes(DAMAGED)).length;
    if (crash === "kill") {
      const although = left === "none" ? "" : ", although fsyncs are left out";
      return `At each of ${moments.length} moments a kill leaves a whole step 10 or step 20${although}. ` +
        "The rename decides which. Only a power cut needs the fsyncs.";
    }
    if (!spoiled) {
      return `At each of ${moments.length} moments a power cut leaves a whole step 10 or step 20. ` +
        "Once save_sharded has returned, it is step 20 for sure.";
    }
    const back = moments.at(-1).finds.includes(STEP_10) ? ", or step 10" : "";
    return `Up to the rename a power cut leaves step 10. After it, at ${spoiled} of ${moments.length} moments, ` +
      `it may leave a damaged step 20${back}. The danger is not over when save_sharded has returned.`;
  }

  /** The frames: the start, one a call, and what all of them show. */
  function frames({ crash, left }) {
    let state = { entry: null, entries: [null], files: {} };
    const frame = (call) => {
      const out = call !== null && isLeft(call, left);
      if (call && !out) state = after(state, call);
      const words = call ? told(call, out, state) : "Step 10 is on the disk, and two ranks begin to save step 20.";
      const found = { finds: finds(state, crash), noticed: noticed(state, crash) };
      return { ...state, ...found, call, left: out, says: `${words} ${crashed(state, crash)}` };
    };
    const moments = [null, ...calls()].map(frame);
    return [...moments, { ...moments.at(-1), call: null, says: conclusion(moments, { crash, left }) }];
  }

  const LETTERS = { make: "m", create: "o", write: "w", fsync: "f", rename: "r" };
  const own = (rank) => ({ "--own": window.figures.color(rank ?? 7) });

  /** A lane of calls for each rank; the call that was just made has a frame. */
  function tape(html, left, step) {
    const cell = (call, k) => {
      const looks = { past: k < step, now: k === step - 1, left: isLeft(call, left), together: call.rank === null };
      const look = Object.keys(looks).filter((name) => looks[name]).map((name) => `crash-${name}`).join(" ");
      const place = { gridColumn: k + 2, gridRow: call.rank === null ? "1 / 3" : call.rank + 1 };
      return html`<i class=${look} style=${{ ...place, ...own(call.rank) }}>${LETTERS[call.kind]}</i>`;
    };
    return html`<div class="crash-tape" style=${{ "--calls": calls().length }}>
      ${SHARDS.map((_, rank) => html`<span style=${{ gridRow: rank + 1 }}>rank ${rank}</span>`)}
      ${calls().map(cell)}</div>`;
  }

  function draw({ entry, entries, files, finds: found }, { html, settings, step }) {
    const how = (there, sure) => (!there ? "none" : sure ? "sure" : "maybe");
    const box = (look, words, more = "") =>
      html`<i class=${`crash-box crash-${look} ${more}`}>${words}${look === "maybe" && "?"}</i>`;
    const folder = (name, sure) => box(how(name, sure), name?.replace("000000", "…") ?? "–", "crash-folder");
    const pair = (named, written) => html`${box(named, "name")}${box(written, "bytes")}`;
    const row = (words, rank, cache, disk) =>
      html`<tr style=${own(rank)}><th>${words}</th><td>${cache}</td><td>${disk}</td></tr>`;
    const file = (name, k) => {
      const { written, named, synced } = files[name] ?? {};
      const disk = pair(how(files[name], named), how(written, synced));
      return row(name, k === 1 ? 1 : 0, pair(how(files[name], true), how(written, true)), disk);
    };
    const chip = (words) => {
      const look = [found.includes(words) && "crash-found", words === DAMAGED && "crash-bad"].filter(Boolean).join(" ");
      return html`<b class=${look}>${words}</b>`;
    };
    return html`<div aria-hidden="true">${tape(html, settings.left, step)}
        <table class=${`crash crash-by-${settings.crash}`}>
          <thead><tr><th></th><th>page cache</th><th>disk</th></tr></thead>
          <tbody>${row("step 10", null, folder(OLD, true), folder(OLD, true))}
            ${row("step 20", 0, folder(entry, true), folder(entries.at(-1), entries.length === 1))}
            ${FILES.map(file)}</tbody>
        </table>
        <p class="crash-finds">load_sharded finds ${[STEP_10, STEP_20, DAMAGED].map(chip)}</p>
      </div>
      <p class="figure-key">m makes a folder, o opens, w writes, f fsyncs (dashed: left out), r renames; at a bar the
        ranks meet. With a question mark: perhaps on the disk, perhaps not. Pale: out of reach after this crash.</p>`;
  }

  window.figures.define("crash", {
    label: "A sharded save, call by call, and a crash at any moment",
    keeps: true,
    settings: {
      crash: { label: "The crash", options: CRASHES, value: "power" },
      left: { label: "Fsyncs left out", options: LEFT, value: "none" },
    },
    logic: { calls, frames },
    draw,
  });
})();

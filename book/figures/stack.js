/* <figure-stack>: the bytes that one rank holds for a model in mixed precision, stage by stage of ZeRO. */

"use strict";

(() => {
  const PARTS = [
    { name: "parameters", bytes: 2, from: 3 },
    { name: "gradients", bytes: 4, from: 2 },
    { name: "master copies", bytes: 4, from: 1 },
    { name: "m", bytes: 4, from: 1 },
    { name: "v", bytes: 4, from: 1 },
  ];
  const GB = 1e9;
  const LIMIT = 80 * 2 ** 30; // what makers call 80 GB
  const ROOM = `${Math.round(LIMIT / GB)} GB`;
  const BYTES = PARTS.reduce((sum, { bytes }) => sum + bytes, 0);

  /** The bytes of each part that a rank holds; a sharded part is that of ⌈P/N⌉ parameters. */
  function held(parameters, ranks, stage) {
    const shard = Math.ceil(parameters / ranks);
    return PARTS.map(({ bytes, from }) => bytes * (stage >= from ? shard : parameters));
  }

  const total = (parts) => parts.reduce((sum, bytes) => sum + bytes, 0);

  /** The fewest ranks with which a stage fits into `limit` bytes, or null if no number of ranks does. */
  function fewest(parameters, stage, limit) {
    const fits = (ranks) => total(held(parameters, ranks, stage)) <= limit;
    if (!fits(parameters)) return null;
    let [low, high] = [1, parameters];
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (fits(middle)) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  const NAMES = ["every rank holds everything", "the optimizer is sharded", "the gradients are sharded too", "the parameters are sharded too"];
  const gigabytes = (bytes) => `${Number((bytes / GB).toPrecision(3))} GB`;

  /** The frames: one a stage. */
  function frames({ billions, ranks }) {
    const parameters = billions * 1e9;
    return NAMES.map((what, stage) => {
      const parts = held(parameters, ranks, stage);
      const least = fewest(parameters, stage, LIMIT);
      const sum = total(parts);
      const fit = least === null ? `no number of ranks makes it fit into ${ROOM}` : `it fits into ${ROOM} from ${least} rank${least === 1 ? "" : "s"} on`;
      const says = `Stage ${stage}: ${what}. A rank holds ${gigabytes(sum)}; ${fit}.`;
      return { stage, parts, total: sum, fewest: least, says };
    });
  }

  /** One bar for each stage up to the frame's, in one scale, and a line at an H100's memory. */
  function draw(frame, { html, settings }) {
    const most = Math.max(BYTES * settings.billions * GB, LIMIT);
    const share = (bytes) => `${(100 * bytes) / most}%`;
    const bar = (stage) => {
      const parts = held(settings.billions * GB, settings.ranks, stage);
      const shown = stage <= frame.stage;
      return html`<div class="stack-name">stage ${stage}</div>
        <div class="stack-track">${shown && parts.map((bytes, k) => html`<div class=${`stack-part stack-${k}`} style=${{ width: share(bytes) }}></div>`)}
          <div class="stack-limit" style=${{ left: share(LIMIT) }}></div></div>
        <div class="stack-sum">${shown && gigabytes(total(parts))}</div>`;
    };
    return html`<div class="stack" aria-hidden="true">${NAMES.map((_, stage) => bar(stage))}</div>
      <ul class="stack-key">${PARTS.map(({ name, bytes }, k) => html`<li><span class=${`stack-part stack-${k}`}></span>${name}, ${bytes} bytes</li>`)}
        <li><span class="stack-limit"></span>${ROOM}, an H100's memory</li></ul>`;
  }

  window.figures.define("stack", {
    label: "Bytes on one rank, stage by stage",
    whole: true,
    settings: {
      billions: { label: "billions of parameters", from: 1, to: 100, value: 8 },
      ranks: { label: "ranks", from: 1, to: 64, value: 8 },
    },
    logic: { held, fewest, frames },
    draw,
  });
})();

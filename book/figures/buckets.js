/* <figure-buckets>: gradients that become ready one by one, and the all-reduces of their buckets, in time. */

"use strict";

(() => {
  const COUNT = 24; // gradients
  const BYTES = 4e6; // of each
  const EACH = 1.2e-3; // seconds from one gradient to the next
  const SIZES = [1, 2, 3, 4, 6, 8, 12, 24]; // gradients a bucket

  /** Seconds of a ring all-reduce of `count` gradients. */
  const cost = (count, { ranks, alpha, speed }) => 2 * (ranks - 1) * (alpha * 1e-6 + (count * BYTES) / (ranks * speed * 1e9));

  /** For each bucket when it is complete, and when its all-reduce starts and ends. */
  function timeline(split, settings) {
    let [there, before] = [0, 0];
    return split.map((count) => {
      there += count;
      const ready = there * EACH;
      const start = Math.max(ready, before);
      before = start + cost(count, settings);
      return { count, ready, start, end: before };
    });
  }

  /** The last bucket that found the network idle: from it on, one all-reduce follows another. */
  function critical(buckets) {
    return buckets.map(({ ready, start }) => start === ready).lastIndexOf(true);
  }

  const ms = (seconds) => `${(1e3 * seconds).toFixed(1)} ms`;

  /** The frames: one a size of buckets. */
  function frames(settings) {
    return SIZES.map((size) => {
      const buckets = timeline(Array(COUNT / size).fill(size), settings);
      const [backward, end, decides] = [COUNT * EACH, buckets.at(-1).end, critical(buckets)];
      const which = buckets.length === 1 ? "" : ` Bucket ${decides} decides: from it on the network never rests.`;
      const says = `${buckets.length} bucket${buckets.length === 1 ? "" : "s"} of ${size * 4} MB, ${ms(cost(size, settings))} each. ` +
        `Backward ends after ${ms(backward)}, the last sum arrives after ${ms(end)}: ${ms(end - backward)} are exposed.${which}`;
      return { size, buckets, backward, end, exposed: end - backward, critical: decides, says };
    });
  }

  function draw(frame, { html }) {
    const whole = Math.max(frame.end, frame.backward);
    const at = (seconds) => `${(100 * seconds) / whole}%`;
    const fill = (bucket, k, kind) => html`<div class=${`figure-bar buckets-${k % 2} ${kind} ${k === frame.critical ? "buckets-critical" : ""}`}
      style=${kind === "fill"
        ? { left: at(bucket.ready - bucket.count * EACH), width: at(bucket.count * EACH) }
        : { left: at(bucket.start), width: at(bucket.end - bucket.start) }}>${frame.buckets.length <= 12 ? k : ""}</div>`;
    return html`<div class="figure-rows" aria-hidden="true">
        <div class="figure-row">backward</div>
        <div class="figure-track">${frame.buckets.map((bucket, k) => fill(bucket, k, "fill"))}</div>
        <div class="figure-row">network</div>
        <div class="figure-track">${frame.buckets.map((bucket, k) => fill(bucket, k, "send"))}
          <div class="buckets-end" style=${{ left: at(frame.backward) }}></div></div>
      </div>
      <dl class="buckets-sums">
        <div><dt>size of a bucket</dt><dd>${frame.size * 4} MB</dd></div>
        <div><dt>last sum</dt><dd>${ms(frame.end)}</dd></div>
        <div><dt>exposed</dt><dd>${ms(frame.exposed)}</dd></div>
      </dl>
      <p class="figure-key">The line is the end of backward. The outlined bucket decides.</p>`;
  }

  window.figures.define("buckets", {
    label: "Buckets of gradients, from one size to the next",
    settings: {
      speed: { label: "Network", options: [[50, "50 GB/s"], [10, "10 GB/s"], [7, "7 GB/s"], [5, "5 GB/s"]], value: 10 },
      ranks: { label: "Ranks", from: 2, to: 64, value: 16 },
      alpha: { label: "α in µs", from: 0, to: 100, value: 20 },
    },
    logic: { frames, timeline, critical, cost },
    draw,
  });
})();

/* <figure-ledger>: the recorded ledger of a run, one event a step. It appears below each picture that carries a ledger
   (`data-ledger`, written by `ranks.playable`), behind a button; a run that never ended is open from the start. */

"use strict";

(() => {
  const { bytes, color } = window.figures;
  const RECEIVES = ["recv", "irecv"];
  const SENDS = ["send", "isend"];
  /** Calls that return at once; the others hold their rank until they are over. */
  const RETURN_AT_ONCE = ["isend", "irecv"];

  const known = new WeakMap();

  /** The calls and spans of a ledger as objects, the same ones each time; `kind` is send, receive or collective. */
  function read(data) {
    if (!known.has(data)) known.set(data, objects(data));
    return known.get(data);
  }

  function objects(data) {
    const kind = (call) => (SENDS.includes(call) ? "send" : RECEIVES.includes(call) ? "receive" : "collective");
    const calls = data.calls.map(([rank, call, peer, size, begin, end, partner], id) => ({
      id, rank, call, peer, bytes: size, begin, end, partner, kind: kind(call),
    }));
    const spans = data.spans.map(([rank, name, begin, end]) => ({ rank, name, begin, end, kind: "span" }));
    return { calls, spans };
  }

  /** What happened, in the order of time: {time, what, begins} for the begin and the end of each call and span. */
  function events({ calls, spans }) {
    const found = [];
    for (const what of [...calls, ...spans]) {
      found.push({ time: what.begin, what, begins: true });
      if (what.end !== null) found.push({ time: what.end, what, begins: false });
    }
    // Two things at one microsecond: a begin comes first, so nothing ends before it has begun.
    return found.sort((a, b) => a.time - b.time || b.begins - a.begins);
  }

  /** The frames: before anything happened, and after each event.

      open: the calls and spans that have begun and are not over. over: the calls that are. event: what just happened. */
  function frames(settings, data) {
    const run = read(data);
    const found = [{ time: 0, open: [], over: [], event: null }];
    for (const event of events(run)) {
      const before = found.at(-1);
      const open = event.begins ? [...before.open, event.what] : before.open.filter((what) => what !== event.what);
      const over = event.begins || event.what.kind === "span" ? before.over : [...before.over, event.what];
      found.push({ time: event.time, open, over, event });
    }
    const told = found.map((frame) => ({ ...frame, says: says(frame, run, data) }));
    if (data.stuck) told.push({ ...told.at(-1), event: null, says: `From here on nothing moves. ${data.stuck}`, stuck: true });
    return told;
  }

  const milliseconds = (time) => `${(time / 1000).toFixed(2)} ms`;
  const partner = (call, run) => (call.partner === null ? null : run.calls[call.partner]);

  function says({ time, open, over, event }, run, data) {
    if (!event) {
      return `A recorded run of ${data.ranks} ranks: ${run.calls.length} calls. Nothing has happened yet.`;
    }
    return `${milliseconds(time)}: ${happened(event, open, over, run, data)}`;
  }

  function happened({ what, begins }, open, over, run, data) {
    const who = `rank ${what.rank}`;
    if (what.kind === "span") return `${who} ${begins ? "enters" : "leaves"} “${what.name}”.`;
    if (what.kind === "collective") {
      const inside = open.filter((other) => other.call === what.call).length;
      return begins
        ? `${who} calls ${what.call}; ${inside} of ${data.ranks} ranks are in it.`
        : `${who}'s ${what.call} is over.`;
    }
    const other = partner(what, run);
    const there = other && (open.includes(other) || over.includes(other));
    const peer = what.peer === null ? "any rank" : `rank ${what.peer}`;
    if (what.kind === "send") {
      if (!begins) return `${who}'s ${what.call} to ${peer} is over.`;
      const rest = there ? `, which is waiting for them` : `, which does not receive yet`;
      return `${who} calls ${what.call}: ${bytes(what.bytes)} for ${peer}${rest}.`;
    }
    if (!begins) return `${who} has received ${bytes(what.bytes)} from ${peer}.`;
    return there
      ? `${who} calls ${what.call}: the message of ${peer} is on its way.`
      : `${who} calls ${what.call} and waits for ${peer}, which has sent nothing yet.`;
  }

  /** What a rank does at a frame, in words. */
  function doing({ open, over }, rank, run) {
    const mine = open.filter((what) => what.rank === rank);
    const holding = mine.filter((what) => what.kind !== "span" && !RETURN_AT_ONCE.includes(what.call)).at(-1);
    const spans = mine.filter((what) => what.kind === "span").map((what) => what.name);
    if (holding) {
      const whom = holding.peer === null ? "" : ` ${holding.kind === "send" ? "to" : "from"} rank ${holding.peer}`;
      const other = partner(holding, run);
      const met = other && (open.includes(other) || over.includes(other));
      return `${met ? "in" : "waits in"} ${holding.call}${whom}`;
    }
    if (spans.length) return spans.at(-1);
    const begun = run.calls.some((call) => call.rank === rank && (open.includes(call) || over.includes(call)));
    const left = run.calls.some((call) => call.rank === rank && !over.includes(call) && !open.includes(call));
    if (mine.length) return "goes on";
    return begun && !left ? "is done" : "computes";
  }

  /** The arrows of a frame: {from, to, state}, one for each pair of ranks and state.

      offered: sent, not received yet. awaited: received, not sent yet; it points from the waiting rank to the other.
      moving: both have begun. arrived: just received. */
  function arrows({ open, over, event }, run) {
    const found = new Map();
    const add = (from, to, state) => found.set(`${from} ${to} ${state}`, { from, to, state });
    for (const call of open) {
      if (call.kind === "span" || call.kind === "collective" || call.peer === null) continue;
      const other = partner(call, run);
      const met = other && (open.includes(other) || over.includes(other));
      if (call.kind === "send" && !(other && over.includes(other))) add(call.rank, call.peer, met ? "moving" : "offered");
      if (call.kind === "receive" && !met) add(call.rank, call.peer, "awaited");
      if (call.kind === "receive" && met && over.includes(other)) add(call.peer, call.rank, "moving");
    }
    if (event && !event.begins && event.what.kind === "receive") add(event.what.peer, event.what.rank, "arrived");
    return [...found.values()];
  }

  /** The bytes and messages that a rank has sent and received at a frame. A send counts from its begin. */
  function counts({ open, over }, rank) {
    const sent = [...open, ...over].filter((call) => call.rank === rank && call.kind === "send");
    const got = over.filter((call) => call.rank === rank && call.kind === "receive");
    const sum = (calls) => calls.reduce((total, call) => total + call.bytes, 0);
    return { sent: sent.length, sentBytes: sum(sent), received: got.length, receivedBytes: sum(got) };
  }

  const RADIUS = 105;
  const NODE = 21;

  const place = (rank, ranks) => window.figures.around(rank, ranks, RADIUS);

  /** A slightly bent line between two ranks, so that one each way can be told apart. */
  function path(from, to, ranks, node) {
    const [a, b] = [place(from, ranks), place(to, ranks)];
    const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
    const [dx, dy] = [(b.x - a.x) / length, (b.y - a.y) / length];
    const bend = Math.min(18, length / 6);
    const middle = { x: (a.x + b.x) / 2 + dy * bend, y: (a.y + b.y) / 2 - dx * bend };
    const end = { x: b.x - dx * (node + 4) + dy * 5, y: b.y - dy * (node + 4) - dx * 5 };
    const start = { x: a.x + dx * (node + 1) + dy * 5, y: a.y + dy * (node + 1) - dx * 5 };
    return `M${start.x} ${start.y}Q${middle.x} ${middle.y} ${end.x} ${end.y}`;
  }

  function draw(frame, { html, data, step }) {
    const run = read(data);
    const seen = frame.event?.what.rank;
    const node = data.ranks > 12 ? 12 : NODE;
    const all = [...Array(data.ranks).keys()];
    const waits = (rank) => doing(frame, rank, run).startsWith("waits");
    const heads = ["offered", "awaited", "moving", "arrived"];
    const rest = (count, size) => (count ? `${count} · ${bytes(size)}` : "–");
    return html`<div class="ledger">
      <svg class="ledger-ring" viewBox="-140 -140 280 280" aria-hidden="true">
        <defs>${heads.map((state) => html`<marker id=${`ledger-${state}`} viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7"
          markerHeight="7" markerUnits="userSpaceOnUse" orient="auto" class=${`ledger-head-${state}`}><path d="M0 0 8 4 0 8z" /></marker>`)}</defs>
        ${arrows(frame, run).map(({ from, to, state }) => html`<path key=${`${step} ${from} ${to} ${state}`}
          class=${`ledger-arrow ledger-${state}${frame.stuck ? " ledger-stuck" : ""}`} d=${path(from, to, data.ranks, node)}
          style=${{ stroke: state === "awaited" ? null : color(from) }} marker-end=${`url(#ledger-${state})`} />`)}
        ${all.map((rank) => window.figures.disk(rank, place(rank, data.ranks), node, waits(rank), rank === seen ? "ledger-seen" : ""))}
        <text class="ledger-time" x="0" y="0">${frame.stuck ? "nothing moves" : milliseconds(frame.time)}</text>
      </svg>
      <div class="ledger-table"><table>
        <caption class="figure-hidden">What each rank has sent and received at this step, and what it does</caption>
        <thead><tr><th scope="col">rank</th><th scope="col">has sent</th><th scope="col">has received</th>
          <th scope="col">now</th></tr></thead>
        <tbody>${all.map((rank) => {
          const sum = counts(frame, rank);
          return html`<tr class=${rank === seen ? "ledger-seen" : ""}>
            <th scope="row"><span class="figure-dot" style=${{ background: color(rank) }}></span>${rank}</th>
            <td>${rest(sum.sent, sum.sentBytes)}</td><td>${rest(sum.received, sum.receivedBytes)}</td>
            <td>${doing(frame, rank, run)}</td></tr>`;
        })}</tbody></table></div>
      </div>
      <p class="figure-key"><span class="ledger-sample ledger-moving"></span> on its way
        <span class="ledger-sample ledger-offered"></span> sent, nobody receives it yet
        <span class="ledger-sample ledger-awaited"></span> waits for</p>`;
  }

  window.figures.define("ledger", {
    label: "Recorded run, step by step",
    logic: { frames, events, read, doing, arrows, counts },
    draw,
  });

  /** Put a player below a picture: closed behind a button, or open if the run never ended. */
  function attach(picture) {
    const data = JSON.parse(picture.dataset.ledger);
    const details = document.createElement("details");
    details.className = "ledger-player";
    const summary = document.createElement("summary");
    summary.textContent = data.stuck ? "Play this run until nothing moves" : "Play this run, message by message";
    details.append(summary);
    const player = document.createElement("figure-ledger");
    player.data = data;
    const open = () => details.open && !player.isConnected && details.append(player);
    details.addEventListener("toggle", open);
    details.open = Boolean(data.stuck);
    open();
    (picture.closest(".zoom-frame") ?? picture).after(details);
  }

  const start = () => document.querySelectorAll("img[data-ledger]").forEach(attach);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();

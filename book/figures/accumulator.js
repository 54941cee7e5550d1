/* <figure-accumulator>: one number is added again and again in a format of few bits, until the sum no longer grows. */

"use strict";

(() => {
  /** name -> [exponent bits, mantissa bits]. No sum here comes near the largest number of its format. */
  const FORMATS = { bf16: [8, 7], fp16: [5, 10], e4m3: [4, 3], e5m2: [5, 2] };
  const TIMES = 4000;

  /** The power of two at or below x > 0, as an exponent. */
  function exponentOf(x) {
    const guess = Math.floor(Math.log2(x));
    if (2 ** guess > x) return guess - 1;
    return 2 ** (guess + 1) <= x ? guess + 1 : guess;
  }

  /** The distance between x and the next number of the format. */
  function stepAt(x, [exponentBits, mantissaBits]) {
    return 2 ** (Math.max(exponentOf(x), 2 - 2 ** (exponentBits - 1)) - mantissaBits);
  }

  /** x > 0 rounded to the nearest number of the format; a tie goes to the even neighbor. */
  function round(x, format) {
    const step = stepAt(x, format);
    const [below, over] = [Math.floor(x / step), x / step - Math.floor(x / step)];
    return (over > 0.5 || (over === 0.5 && below % 2) ? below + 1 : below) * step;
  }

  /** The sums after 0, 1, … TIMES additions. */
  function sums({ format, addend }) {
    const [how, all] = [FORMATS[format], [0]];
    const term = round(addend, how);
    for (let n = 1; n <= TIMES; n += 1) all.push(round(all[n - 1] + term, how));
    return all;
  }

  const words = (number) => Number(number.toPrecision(7)).toLocaleString("en", { maximumFractionDigits: 9 });

  /** The frames: the first addition, the one that reaches each power of two, the last two, and the end. */
  function frames(settings) {
    const [all, format] = [sums(settings), FORMATS[settings.format]];
    const term = all[1];
    const stops = all.findIndex((sum, n) => n > 0 && sum === all[n - 1]);
    const moments = all.map((_, n) => n).slice(2, stops).filter((n) => exponentOf(all[n]) > exponentOf(all[n - 1]));
    const shown = [...new Set([2, ...moments, stops - 1, stops])].sort((a, b) => a - b);
    const whole = { high: exponentOf(all[stops]), low: exponentOf(term) - format[1], stops, term };
    const list = shown.map((n) => {
      const [before, after] = [all[n - 1], all[n]];
      const [exact, step] = [before + term, stepAt(before + term, format)];
      const lost = after === exact ? "Nothing is lost." : `It is rounded to ${words(after)}.`;
      const says = `Addition ${words(n)}: ${words(before)} + ${words(term)} = ${words(exact)}. Here the numbers of the format are ${words(step)} apart. ` +
        (after === before ? `The nearest one is ${words(after)} again: the sum no longer grows.` : lost);
      return { ...whole, n, before, exact, after, step, says };
    });
    const says = `After ${words(TIMES)} additions the sum is ${words(all[TIMES])} instead of ${words(TIMES * term)}. It has not changed since addition ${words(stops - 1)}.`;
    return [...list, { ...list.at(-1), n: TIMES, says }];
  }

  function draw(frame, { html, settings }) {
    const [exponentBits, mantissaBits] = FORMATS[settings.format];
    const powers = Array.from({ length: frame.high - frame.low + 1 }, (_, k) => frame.high - k);
    const top = Math.max(exponentOf(frame.exact), 2 - 2 ** (exponentBits - 1));
    const kept = (power) => power <= top && power >= top - mantissaBits;
    const row = (name, number, look) => {
      const highest = exponentOf(number);
      return html`<div class="acc-name">${name}</div>
        ${powers.map((power) => {
          const bit = Math.floor(number / 2 ** power) % 2;
          return html`<div class=${`acc-bit ${kept(power) ? "acc-kept" : "acc-out"} ${bit ? look : ""}`}>${power <= highest ? bit : ""}</div>`;
        })}<div class="acc-value">${words(number)}</div>`;
    };
    const columns = `auto repeat(${powers.length}, minmax(0, 1.5rem)) auto`;
    return html`<div class="acc" aria-hidden="true" style=${{ gridTemplateColumns: columns }}>
        <div></div>${powers.map((power) => html`<div class="acc-power">${power === 0 || power === frame.high || power === frame.low ? html`2<sup>${power}</sup>` : ""}</div>`)}<div></div>
        ${row("sum", frame.before, "acc-sum")}${row("addend", frame.term, "acc-term")}
        ${row("exact", frame.exact, "acc-sum")}${row("rounded", frame.after, "acc-sum")}
      </div>
      <p class="figure-key">Bits by their powers of two. Boxed: the ${mantissaBits + 1} bits that the format keeps of this sum.</p>`;
  }

  window.figures.define("accumulator", {
    label: "A sum in few bits, addition by addition",
    settings: {
      format: {
        label: "Format",
        options: [["bf16", "bfloat16"], ["fp16", "float16"], ["e4m3", "e4m3fn"], ["e5m2", "e5m2"]],
        value: "bf16",
      },
      addend: { label: "Addend", options: [[1, "1"], [0.3, "0.3"], [0.1, "0.1"]], value: 1 },
    },
    logic: { round, sums, frames },
    draw,
  });
})();

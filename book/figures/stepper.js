/* The base of all figures that move: a figure is a list of frames, and a stepper shows one of them at a time.

   figures.define("ring", figure) registers the element <figure-ring>. A figure is an object with

     label      its name for screen readers
     whole      true if it first shows its last frame, the whole picture; otherwise it shows the first one
     keeps      true if every choice of the settings has the same steps: the reader then stays at the step
     settings   name -> {label, from, to, value} for a slider, or {label, options: [[value, words], …], value}
     logic      pure functions; logic.frames(settings, data) returns an array of frames, each with `says`: what this
                step shows, in words; `data` is what the element carries (`data-recorded`, as JSON)
     draw       (frame, {html, settings, data, forward}) -> what stands above the controls; `forward` is true if the
                frame was reached by one step forward, the only case in which things may be seen to move

   Tests reach the pure functions as window.figures.ring.logic. Nothing is fetched, nothing is stored. */

"use strict";

window.figures = (() => {
  const { html, render, Component } = window.htmPreact;
  const SECONDS_PER_STEP = 1.1;
  const MOVES = ["input", "select", "textarea", "button", "a", "summary"];

  /** The settings that the figure starts with; an attribute of the element may replace each of them. */
  function initial(figure, element) {
    const entries = Object.entries(figure.settings ?? {}).map(([name, setting]) => {
      const given = element?.getAttribute(name);
      return [name, given === null || given === undefined ? setting.value : read(setting, given)];
    });
    return Object.fromEntries(entries);
  }

  /** A setting's value from the text of a control; what is out of range goes to the nearest end. */
  function read(setting, text) {
    if (setting.options) {
      return (setting.options.find(([value]) => String(value) === text) ?? setting.options[0])[0];
    }
    return Math.min(setting.to, Math.max(setting.from, Math.round(Number(text)) || setting.from));
  }

  class Stepper extends Component {
    constructor(props) {
      super(props);
      this.state = { settings: initial(props.figure, props.element), playing: false, forward: false, alone: false };
      this.frames = this.framesOf(this.state.settings);
      this.state.step = this.first;
    }

    /** The frame that is shown before anybody has moved the figure. */
    get first() {
      return this.props.figure.whole ? this.last : 0;
    }

    framesOf(settings) {
      return this.props.figure.logic.frames(settings, this.props.data);
    }

    /** An element with the attribute `playing` runs by itself, once, unless the reader wants less motion. */
    componentDidMount() {
      if (!this.props.element?.hasAttribute("playing") || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
      this.play();
      this.setState({ alone: true });
    }

    componentWillUnmount() {
      clearInterval(this.timer);
    }

    get last() {
      return this.frames.length - 1;
    }

    go(step) {
      const to = Math.min(this.last, Math.max(0, step));
      if (to !== this.state.step) this.setState({ step: to, forward: to === this.state.step + 1 });
    }

    /** One step by hand ends playing. */
    move(step) {
      this.pause();
      this.go(step);
    }

    pause() {
      clearInterval(this.timer);
      this.setState({ playing: false, alone: false });
    }

    play() {
      if (this.state.playing) return this.pause();
      this.setState({ playing: true });
      this.go(this.state.step === this.last ? 0 : this.state.step + 1);
      this.timer = setInterval(() => {
        if (this.state.step >= this.last - 1) this.pause();
        this.go(this.state.step + 1);
      }, 1000 * SECONDS_PER_STEP);
    }

    change(name, text) {
      const settings = { ...this.state.settings, [name]: read(this.props.figure.settings[name], text) };
      this.pause();
      this.frames = this.framesOf(settings);
      this.setState({ settings, step: this.props.figure.keeps ? this.state.step : this.first, forward: false });
    }

    key(event) {
      const own = MOVES.includes(event.target.localName);
      if (event.altKey || event.ctrlKey || event.metaKey || (own && event.target.type !== "button")) return;
      const does = {
        ArrowRight: () => this.move(this.state.step + 1),
        ArrowLeft: () => this.move(this.state.step - 1),
        Home: () => this.move(0),
        End: () => this.move(this.last),
        " ": own ? null : () => this.play(),
      }[event.key];
      if (!does) return;
      event.preventDefault();
      does();
    }

    render({ figure, data }, { settings, step, playing, forward, alone }) {
      const frame = this.frames[step];
      const button = (words, sign, does, off) => html`
        <button type="button" class="figure-button" aria-label=${words} title=${words} aria-disabled=${String(off)}
          onClick=${() => !off && does()}><svg viewBox="0 0 16 16" aria-hidden="true"><path d=${sign} /></svg></button>`;
      return html`
        <div class="figure-box" role="group" aria-label=${figure.label} tabindex="0"
          onKeyDown=${(event) => this.key(event)}>
          ${Object.keys(settings).length > 0 && html`<div class="figure-settings">
            ${Object.entries(settings).map(([name, value]) => this.control(name, value))}</div>`}
          <div class="figure-stage">${figure.draw(frame, { html, settings, data, forward, step })}</div>
          <div class="figure-controls">
            ${button("Restart", "M3 3v10M13 3 6 8l7 5z", () => this.move(0), step === 0)}
            ${button("Back", "M11 3 4 8l7 5z", () => this.move(step - 1), step === 0)}
            ${button(playing ? "Pause" : "Play", playing ? "M4 3h3v10H4zM9 3h3v10H9z" : "M4 2l10 6-10 6z", () => this.play(), false)}
            ${button("Step", "M5 3l7 5-7 5z", () => this.move(step + 1), step === this.last)}
            <input class="figure-scrub" type="range" min="0" max=${this.last} value=${step} aria-label="Step"
              aria-valuetext=${`step ${step} of ${this.last}`} onInput=${(event) => this.move(Number(event.target.value))} />
            <span class="figure-count">${step} / ${this.last}</span>
          </div>
          <p class="figure-says" aria-live=${alone ? "off" : "polite"}>${frame.says}</p>
        </div>`;
    }

    control(name, value) {
      const setting = this.props.figure.settings[name];
      const change = (event) => this.change(name, event.target.value);
      if (setting.options) {
        return html`<label class="figure-setting"><span>${setting.label}</span>
          <select name=${name} onChange=${change}>
            ${setting.options.map(([key, words]) => html`<option value=${key} selected=${key === value}>${words}</option>`)}
          </select></label>`;
      }
      return html`<label class="figure-setting"><span>${setting.label} <output>${value}</output></span>
        <input type="range" name=${name} min=${setting.from} max=${setting.to} value=${value} onInput=${change} /></label>`;
    }
  }

  const all = {};

  /** Register a figure and its element. The element shows itself in place of the still that stands next to it. */
  function define(name, figure) {
    all[name] = figure;
    customElements.define(
      `figure-${name}`,
      class extends HTMLElement {
        connectedCallback() {
          this.closest(".live-figure")?.classList.add("is-live");
          this.data ??= this.dataset.recorded && JSON.parse(this.dataset.recorded);
          render(html`<${Stepper} figure=${figure} element=${this} data=${this.data} />`, this);
        }

        disconnectedCallback() {
          render(null, this);
        }
      },
    );
  }

  /** A number of bytes in words: 5,040 bytes, 1.5 MB. */
  function bytes(count) {
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e5]]) {
      if (count >= size) return `${Number((count / (unit === "kB" ? 1e3 : size)).toPrecision(4))} ${unit}`;
    }
    return count === 1 ? "1 byte" : `${count.toLocaleString("en")} bytes`;
  }

  /** The color of a rank, as everywhere in the book; from rank 8 on they repeat. */
  const color = (rank) => `var(--rank-${rank % 8})`;

  /** Where a rank stands: on a circle around the origin, rank 0 at the top, clockwise. */
  function around(rank, ranks, radius) {
    const angle = (2 * Math.PI * rank) / ranks - Math.PI / 2;
    return { x: radius * Math.cos(angle), y: radius * Math.sin(angle) };
  }

  /** A rank at its place, a disk in its color; hollow and dashed while it waits. classes: more of them, if any. */
  function disk(rank, { x, y }, size, waits, classes = "") {
    return html`<g class=${`figure-rank${waits ? " figure-waits" : ""} ${classes}`}>
      <circle cx=${x} cy=${y} r=${size} style=${{ stroke: color(rank), fill: waits ? null : color(rank) }} />
      <text x=${x} y=${y}>${rank}</text></g>`;
  }

  return Object.assign(all, { define, bytes, color, around, disk });
})();

// A card for a link to a source, a theorem, an equation or a term: what it leads to, shown while one points at the link
// or comes to it by keyboard. The pages hold the cards as templates (book/_ext/cards.py). Esc closes one; the pointer may
// move onto it. On a device without a pointer that hovers, a link is a link.
"use strict";
(() => {
  const made = new Map();
  for (const template of document.querySelectorAll("template[data-card]")) made.set(template.dataset.card, template);
  if (!made.size || !matchMedia("(any-hover: hover)").matches) return;

  const card = document.createElement("div");
  card.id = "link-card";
  card.className = "link-card";
  card.role = "tooltip";
  card.hidden = true;
  document.body.append(card);

  let link = null;
  let timer = 0;
  const soon = (act, milliseconds) => {
    clearTimeout(timer);
    timer = setTimeout(act, milliseconds);
  };

  function hide() {
    clearTimeout(timer);
    if (!link) return;
    link.removeAttribute("aria-describedby");
    link = null;
    card.hidden = true;
  }

  function show(next) {
    clearTimeout(timer);
    if (next === link) return;
    hide();
    link = next;
    card.replaceChildren(made.get(link.getAttribute("href")).content.cloneNode(true));
    // A tooltip is no place for the keyboard to go to.
    for (const inner of card.querySelectorAll("a")) inner.tabIndex = -1;
    card.hidden = false;
    link.setAttribute("aria-describedby", card.id);
    place();
  }

  // Below the link, or above it where there is more room; never outside of the window.
  function place() {
    const box = link.getClientRects()[0];
    const { clientWidth: width, clientHeight: height } = document.documentElement;
    const left = Math.max(8, Math.min(box.left, width - card.offsetWidth - 8));
    const above = box.bottom + card.offsetHeight + 12 > height && box.top > height - box.bottom;
    card.style.left = `${left + scrollX}px`;
    card.style.top = `${(above ? box.top - card.offsetHeight - 6 : box.bottom + 6) + scrollY}px`;
  }

  for (const one of document.querySelectorAll("article a[href*='#']")) {
    if (!made.has(one.getAttribute("href")) || one.matches(".headerlink")) continue;
    one.removeAttribute("title");
    one.addEventListener("pointerenter", (event) => event.pointerType === "touch" || soon(() => show(one), 250));
    one.addEventListener("pointerleave", () => soon(hide, 250));
    one.addEventListener("focus", () => one.matches(":focus-visible") && show(one));
    one.addEventListener("blur", hide);
    one.addEventListener("click", hide);
  }
  card.addEventListener("pointerenter", () => clearTimeout(timer));
  card.addEventListener("pointerleave", () => soon(hide, 250));
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("resize", hide);
})();

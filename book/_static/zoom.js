// A picture that a cell has drawn, and one that never moves, opens large in a dialog, by a click or by its button. Esc,
// the button and a click close it, and the focus returns to where it was.
"use strict";
(() => {
  const SIGN = '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M9.5 2H14v4.5M14 2 9 7M6.5 14H2V9.5M2 14l5-5"/></svg>';
  let dialog = null;

  function open(picture, name) {
    dialog?.remove();
    dialog = document.createElement("dialog");
    dialog.className = "zoom";
    dialog.setAttribute("aria-label", name);
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "Close";
    const large = picture.cloneNode(true);
    large.removeAttribute("style"); // its size on the page
    const stage = document.createElement("div");
    stage.className = "zoom-stage";
    stage.tabIndex = 0;
    stage.setAttribute("role", "group");
    stage.setAttribute("aria-label", "The picture; it scrolls");
    stage.append(large);
    dialog.append(close, stage);
    for (const one of [close, large]) one.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    document.body.append(dialog);
    dialog.showModal();
  }

  for (const picture of document.querySelectorAll("div.cell_output img, .live-still svg.two-nodes")) {
    const caption = picture.closest("figure")?.querySelector("figcaption");
    const name = caption?.querySelector(".figure-number")?.textContent ?? "the picture";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "zoom-button";
    button.setAttribute("aria-label", `Enlarge ${name}`);
    button.title = "Enlarge";
    button.innerHTML = SIGN;
    button.addEventListener("click", () => open(picture, name));
    picture.classList.add("zoomable");
    // The dialog gives the focus back to what had it when it opened.
    picture.addEventListener("click", () => {
      button.focus({ preventScroll: true });
      open(picture, name);
    });
    if (caption) caption.append(button);
    else {
      const frame = document.createElement("span");
      frame.className = "zoom-frame";
      picture.before(frame);
      frame.append(picture, button);
    }
  }
})();

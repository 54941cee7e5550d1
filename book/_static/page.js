// What every page needs: it is printed in light colors, and the keyboard reaches a formula that scrolls.
"use strict";
(() => {
  const root = document.documentElement;
  let theme = null;
  addEventListener("beforeprint", () => {
    theme = root.dataset.theme;
    root.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    if (theme) root.dataset.theme = theme;
  });

  const reach = () => {
    for (const formula of document.querySelectorAll("div.math > math")) {
      if (formula.scrollWidth > formula.clientWidth) formula.setAttribute("tabindex", "0");
      else formula.removeAttribute("tabindex");
    }
  };
  addEventListener("load", reach);
  addEventListener("resize", reach);
})();

// How far a reader has come. It is kept in this browser and sent nowhere.
//
// State: {chapters: {"01_collectives": {finished: true, questions: 6, answers: {"question-1a2b3c4d": {letter: "B",
// right: false}}}}}. The first option that a reader opens counts as the answer. A chapter's page records; the home page
// shows, saves to a file, loads from one and erases. Where the browser stores nothing, the state lasts as long as the page.
"use strict";
(() => {
  const KEY = "distributed-training-progress";

  // ---- the state ----

  let remembered = { chapters: {} };

  function read() {
    try {
      return checked(JSON.parse(localStorage.getItem(KEY))) || { chapters: {} };
    } catch {
      return remembered;
    }
  }

  function write(state) {
    remembered = state;
    try {
      localStorage.setItem(KEY, JSON.stringify(state));
      return true;
    } catch {
      return false;
    }
  }

  // The state in what was stored or loaded, or null. Anything else in it is dropped.
  function checked(value) {
    if (!value || typeof value.chapters !== "object" || !value.chapters) return null;
    const chapters = {};
    for (const [name, chapter] of Object.entries(value.chapters)) {
      if (!/^\d\d_\w+$/.test(name) || !chapter) continue;
      const answers = {};
      for (const [question, answer] of Object.entries(chapter.answers || {})) {
        if (/^question-\w+$/.test(question) && /^[A-Z]$/.test(answer && answer.letter)) {
          answers[question] = { letter: answer.letter, right: answer.right === true };
        }
      }
      chapters[name] = { finished: chapter.finished === true, questions: Number(chapter.questions) || 0, answers };
    }
    return { chapters };
  }

  const chapterOf = (state, name) => state.chapters[name] || { finished: false, questions: 0, answers: {} };

  function changed(name, change) {
    const state = read();
    state.chapters[name] = { ...chapterOf(state, name), ...change };
    return write(state);
  }

  // ---- words ----

  const count = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;

  function answered(chapter) {
    const answers = Object.values(chapter.answers);
    const right = answers.filter((answer) => answer.right).length;
    return answers.length
      ? `${answers.length} of ${count(chapter.questions, "question")} answered, ${right} right at the first try`
      : `${count(chapter.questions, "question")}, none answered yet`;
  }

  function summary(state, names) {
    const chapters = names.map((name) => chapterOf(state, name));
    const finished = chapters.filter((chapter) => chapter.finished).length;
    const answers = chapters.flatMap((chapter) => Object.values(chapter.answers));
    const right = answers.filter((answer) => answer.right).length;
    return `${finished} of ${count(names.length, "chapter")} finished; ` +
      `${count(answers.length, "question")} answered, ${right} right at the first try.`;
  }

  // ---- small pieces of a page ----

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  // ---- a chapter ----

  function showAnswer(quiz, answer) {
    const said = answer ? `Your first answer was ${answer.letter}: ${answer.right ? "right" : "wrong"}.` : "";
    quiz.querySelector(".quiz-memory").textContent = said;
    for (const option of quiz.querySelectorAll(".quiz-option")) {
      option.classList.toggle("quiz-chosen", Boolean(answer) && option.dataset.letter === answer.letter);
    }
  }

  function openChapter(name, quizzes) {
    changed(name, { questions: quizzes.length });
    const progress = element("span", { class: "chapter-answers", role: "status" });
    const box = element("input", { type: "checkbox" });
    const show = () => {
      const chapter = chapterOf(read(), name);
      box.checked = chapter.finished;
      progress.textContent = answered(chapter);
      for (const quiz of quizzes) showAnswer(quiz, chapter.answers[quiz.getAttribute("aria-labelledby")]);
    };
    for (const quiz of quizzes) {
      quiz.append(element("p", { class: "quiz-memory", role: "status" }));
      const question = quiz.getAttribute("aria-labelledby");
      for (const option of quiz.querySelectorAll(".quiz-option")) {
        option.addEventListener("toggle", () => {
          const { answers } = chapterOf(read(), name);
          if (!option.open || answers[question]) return;
          const answer = { letter: option.dataset.letter, right: option.dataset.right === "true" };
          changed(name, { answers: { ...answers, [question]: answer } });
          show();
        });
      }
    }
    box.addEventListener("change", () => {
      changed(name, { finished: box.checked });
      show();
    });
    const label = element("label", {}, box, " I have finished this chapter");
    document.querySelector("article").append(element("div", { class: "chapter-progress" }, label, progress));
    show();
  }

  // ---- the home page ----

  function openHome(place) {
    const links = [...document.querySelectorAll(".course-map a")].filter((link) => nameOf(link.href));
    const line = element("p", { role: "status" });
    const file = element("input", { type: "file", accept: ".json,application/json", "aria-label": "Progress to load" });
    const show = (note) => {
      const state = read();
      line.textContent = summary(state, links.map((link) => nameOf(link.href))) + (note ? ` ${note}` : "");
      for (const link of links) mark(link, chapterOf(state, nameOf(link.href)));
    };
    file.hidden = true;
    file.addEventListener("change", async () => {
      let state = null;
      try {
        state = checked(JSON.parse(await file.files[0].text()));
      } catch {
        // said below
      }
      file.value = "";
      if (state) write(state);
      show(state ? "Loaded." : "This file holds no progress: choose one that was saved here.");
    });
    const save = () => {
      const text = URL.createObjectURL(new Blob([JSON.stringify(read(), null, 1)], { type: "application/json" }));
      element("a", { href: text, download: "distributed-training-progress.json" }).click();
      URL.revokeObjectURL(text);
    };
    const erase = () => {
      if (!confirm("Erase your answers and finished chapters from this browser?")) return;
      write({ chapters: {} });
      show("Erased.");
    };
    const button = (text, act) => element("button", { type: "button", onclick: act }, text);
    const buttons = [button("Save to a file", save), button("Load a file", () => file.click()), button("Erase", erase)];
    place.append(line, element("div", { class: "progress-buttons" }, ...buttons, file));
    place.hidden = false;
    show(write(read()) ? "" : "This browser stores nothing for the book: it is forgotten when you leave.");
  }

  function mark(link, chapter) {
    link.parentElement.querySelector(".progress-mark")?.remove();
    const answers = Object.keys(chapter.answers).length;
    const text = chapter.finished ? "✓" : answers ? `${answers}/${chapter.questions}` : "";
    if (!text) return;
    const meaning = chapter.finished ? "finished" : `${answers} of ${count(chapter.questions, "question")} answered`;
    link.after(element("span", { class: "progress-mark", title: meaning, "aria-label": meaning, role: "img" }, text));
  }

  // "01_collectives" for the address of that chapter's page; undefined for other addresses.
  function nameOf(address) {
    return /\/book\/(\d\d_\w+)\.html(?:$|[?#])/.exec(address)?.[1];
  }

  // ---- which page is this? ----

  const quizzes = [...document.querySelectorAll(".quiz")];
  const home = document.getElementById("progress");
  const name = nameOf(location.href);
  if (home) openHome(home);
  else if (name && quizzes.length) openChapter(name, quizzes);
})();

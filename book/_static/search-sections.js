// The search page: sections that hold all words of the question, the best first, each with the passage that fits.
// The texts are window.bookSections, from sections.js: JSON, packed with gzip, in base64. Nothing is fetched.
"use strict";
(() => {
  const MOST = 40; // results that are shown
  const AROUND = 110; // characters of a passage on each side of the first hit

  // "All-Reduce" and "all_reduce" are the words "all-reduce". Every character keeps its place.
  const plain = (text) => text.toLowerCase().replace(/[-_‑–]/g, "-");

  // A pattern for each word of the question, which it finds at the beginning of words: with or without hyphens between
  // its letters, so that "allreduce" finds "all-reduce"; a hyphen of the question also finds a space.
  function patterns(question) {
    const words = question.split(/\s+/).map((word) => plain(word).replace(/^-+|-+$/g, "")).filter(Boolean);
    const letter = (one) => (one === "-" ? "[- ]?" : one.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    return words.map((word) => new RegExp(`(?<![\\p{L}\\p{N}])${[...word].map(letter).join("-?")}`, "gu"));
  }

  const count = (text, pattern) => [...text.matchAll(pattern)].length;

  // How well a section fits; 0 if one of the words is missing. The words in a row count more, and chapters come first.
  function score([address, page, title, text], all, row) {
    const [inPage, inTitle, inText] = [page, title, text].map(plain);
    let sum = 0;
    for (const pattern of all) {
      const hits = 12 * count(inTitle, pattern) + 3 * count(inPage, pattern) + Math.min(8, count(inText, pattern));
      if (!hits) return 0;
      sum += hits;
    }
    sum += 5 * Math.min(3, count(inText, row));
    return sum * (address.startsWith("notebooks/") ? 0.3 : address.startsWith("book/reference/") ? 0.6 : 1);
  }

  // The results for a question: [{section, score}], the best first.
  function find(question, sections) {
    const [all, [row]] = [patterns(question), patterns(question.replace(/\s+/g, "-"))];
    if (!all.length) return [];
    const found = sections.map((section) => ({ section, score: score(section, all, row) })).filter((one) => one.score);
    return found.sort((a, b) => b.score - a.score);
  }

  // The passage around the first hit, as nodes, with the words marked.
  function passage(text, all) {
    const low = plain(text);
    const hits = all.flatMap((pattern) => [...low.matchAll(pattern)].map((hit) => [hit.index, hit.index + hit[0].length]));
    hits.sort((a, b) => a[0] - b[0]);
    const first = hits.length ? hits[0][0] : 0;
    const begin = first < AROUND ? 0 : text.indexOf(" ", first - AROUND) + 1;
    const end = Math.min(text.length, first + 2 * AROUND);
    const nodes = [begin ? "… " : ""];
    let done = begin;
    for (const [from, to] of hits) {
      if (from < done || to > end) continue;
      const mark = document.createElement("mark");
      mark.textContent = text.slice(from, to);
      nodes.push(text.slice(done, from), mark);
      done = to;
    }
    nodes.push(text.slice(done, end), end < text.length ? " …" : "");
    return nodes;
  }

  async function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  }

  async function show(place, question) {
    const [found, all] = [find(question, await unpack(window.bookSections)), patterns(question)];
    const status = document.createElement("p");
    status.setAttribute("role", "status");
    const shown = found.length > MOST ? `, the best ${MOST} are shown` : "";
    status.textContent = found.length
      ? `${found.length} section${found.length === 1 ? "" : "s"} with “${question}”${shown}.`
      : `No section has all words of “${question}”. Try fewer words, or the beginning of one.`;
    const list = document.createElement("ul");
    for (const { section: [address, page, title, text] } of found.slice(0, MOST)) {
      const [item, link, words] = ["li", "a", "p"].map((name) => document.createElement(name));
      link.href = address;
      link.textContent = page.endsWith(title) ? page : `${page} › ${title}`;
      words.append(...passage(text, all));
      item.append(link, words);
      list.append(item);
    }
    place.replaceChildren(status, list);
  }

  const question = new URLSearchParams(location.search).get("q")?.trim();
  const theirs = document.getElementById("search-results");
  if (!question || !theirs) return;
  const place = document.createElement("div");
  place.className = "search-sections";
  theirs.hidden = true;
  theirs.after(place);
  document.title = `Search: ${question}`;
  show(place, question);
})();

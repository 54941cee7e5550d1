/* What the page uses of CodeMirror, as one function; README.md says how codemirror.js is made from this file. */

import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { bracketMatching, indentOnInput, indentUnit, LanguageSupport, syntaxHighlighting } from "@codemirror/language";
import { pythonLanguage } from "@codemirror/lang-python";
import { EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";

/** An editor for Python. attributes: of the element that holds the text. changed: called with each new text.
    run: called on Ctrl-Enter (on a Mac, Cmd-Enter). Escape, then Tab leaves the editor. */
export function pythonEditor({ parent, text, attributes, changed, run }) {
  const mine = { key: "Mod-Enter", run: () => (run(), true) };
  const view = new EditorView({
    parent,
    doc: text,
    extensions: [
      lineNumbers(),
      history(),
      highlightActiveLine(),
      bracketMatching(),
      indentOnInput(),
      indentUnit.of("    "),
      new LanguageSupport(pythonLanguage),
      syntaxHighlighting(classHighlighter),
      keymap.of([mine, indentWithTab, ...defaultKeymap, ...historyKeymap]),
      EditorView.contentAttributes.of(attributes),
      EditorView.updateListener.of((update) => update.docChanged && changed(update.state.doc.toString())),
    ],
  });
  return {
    text: () => view.state.doc.toString(),
    replace: (whole) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: whole } }),
  };
}

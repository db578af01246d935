"use strict";

/* Finding and marking quotes. As in the analyzer's validation, white space is forgiven and nothing else is. */
const quotes = (() => {
  const { h } = dom;
  const BLANK = "[\\s\\x1c-\\x1f\\x85]+"; // what Python's `split` takes for white space

  /** [start, end] of a quote in a text, or null. */
  function find(text, quote) {
    const parts = quote.split(new RegExp(BLANK)).filter((part) => part !== "");
    if (parts.length === 0) return null;
    const pattern = parts.map((part) => part.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&")).join(BLANK);
    const match = new RegExp(pattern).exec(text);
    return match && [match.index, match.index + match[0].length];
  }

  /** Marks a quote in an element that holds plain text; the whole text when the quote is not in it. */
  function mark(element, quote) {
    const text = element.textContent;
    const [start, end] = find(text, quote) ?? [0, text.length];
    const marked = h("mark.quoted", text.slice(start, end));
    dom.show(element, text.slice(0, start), marked, text.slice(end));
    return marked;
  }

  /** Takes all marks away. */
  function clear(root) {
    for (const element of root.querySelectorAll("mark.quoted")) {
      const parent = element.parentNode;
      element.replaceWith(...element.childNodes);
      parent.normalize();
    }
    for (const element of root.querySelectorAll(".is-quoted")) element.classList.remove("is-quoted");
  }

  return { find, mark, clear };
})();

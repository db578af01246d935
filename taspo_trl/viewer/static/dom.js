"use strict";

/* Elements out of plain data. The only way in which this page makes content: texts become text nodes, never markup. */
const dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  /**
   * An element: h("p.task", "text", node, [more], null) or h("a.button", { href: "#", onclick: f }, "text").
   *
   * Attributes that are null, undefined or false are left out, true gives an empty one, functions become listeners,
   * and `style` is an object of properties. Children that are null, undefined or false are left out.
   */
  function h(name, ...content) {
    const [tag, ...classes] = name.split(".");
    return made(document.createElement(tag), classes, content);
  }

  /** The same for SVG elements. */
  function svg(name, ...content) {
    const [tag, ...classes] = name.split(".");
    return made(document.createElementNS(SVG, tag), classes, content);
  }

  function made(node, classes, content) {
    const hasAttributes = Object.getPrototypeOf(content[0] ?? "") === Object.prototype;
    const { class: more, ...attributes } = hasAttributes ? content.shift() : {};
    const names = [...classes, more].filter(Boolean);
    if (names.length > 0) node.setAttribute("class", names.join(" "));
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") node.addEventListener(name.slice(2), value);
      // Through the object model: the page's policy refuses style attributes.
      else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
      else node.setAttribute(name, value === true ? "" : value);
    }
    return show(node, content);
  }

  /** Puts `children` in the place of what `node` holds. */
  function show(node, ...children) {
    node.replaceChildren(
      ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
    );
    return node;
  }

  const byId = (id) => document.getElementById(id);

  return { h, svg, show, byId };
})();

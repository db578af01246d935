"use strict";

/*
 * Where the reader is, in the hash of the address, so that every place can be linked and the browser's back works.
 *
 * Two kinds of parameters: the place (PLACES) and the filters of the list (everything else). Going to another place
 * keeps the filters. In a page that is embedded in a notebook the address stays as it is and the state is kept here.
 */
const router = (() => {
  const PLACES = ["view", "trajectory", "siblings", "turn", "mark", "from"];
  const isEmbedded = document.documentElement.hasAttribute("data-embedded");
  let state = new URLSearchParams(isEmbedded ? "" : location.hash.slice(1));
  let listener = () => {};

  /** The address of a place, with the filters of now. */
  function href(place) {
    const next = new URLSearchParams();
    for (const name of PLACES) if (place[name] !== undefined && place[name] !== null) next.set(name, place[name]);
    for (const [name, value] of state) if (!PLACES.includes(name)) next.set(name, value);
    return `#${next}`;
  }

  /** Goes to a place. `isReplacing` leaves no step for the browser's back. */
  function go(place, isReplacing = false) {
    move(href(place), isReplacing);
  }

  /** Changes filters and stays. Empty values take a filter away. */
  function filter(changes) {
    const next = new URLSearchParams(state);
    for (const [name, value] of Object.entries(changes)) {
      if (value === "" || value === null || value === undefined) next.delete(name);
      else next.set(name, value);
    }
    move(`#${next}`, true);
  }

  /** At once, so that a second key finds the place of the first. */
  function move(hash, isReplacing) {
    state = new URLSearchParams(hash.slice(1));
    if (!isEmbedded) history[isReplacing ? "replaceState" : "pushState"](null, "", hash);
    listener(state);
  }

  /** Calls `render` with the state, now and after each change; gives what the first call gives. */
  function start(render) {
    listener = render;
    // The browser's back and forward, and addresses that are typed in.
    addEventListener("hashchange", () => {
      state = new URLSearchParams(location.hash.slice(1));
      listener(state);
    });
    // Links were made with the filters of their time; they lead to their place with the filters of now.
    document.addEventListener("click", (event) => {
      const link = event.target.closest?.('a[href^="#"]');
      if (!link || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      const target = new URLSearchParams(link.getAttribute("href").slice(1));
      if (link.dataset.filters !== undefined) move(`#${target}`, false);
      else go(Object.fromEntries(target));
    });
    return listener(state);
  }

  return {
    href,
    go,
    filter,
    start,
    isEmbedded,
    get state() {
      return state;
    },
  };
})();

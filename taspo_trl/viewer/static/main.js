"use strict";

/* Opens the data, shows the view that the address names, and listens to the keyboard. */
const main = (() => {
  const { h } = dom;
  const VIEWS = ["overview", "trajectories", "siblings"];

  async function start() {
    if (typeof DecompressionStream === "undefined")
      throw new Error("This browser is too old for this page: it lacks DecompressionStream (2023).");
    const index = await store.open();
    const sizes = Float64Array.from(index.rows.tilts.flat(), Math.abs).sort();
    words.scaleTo((sizes[Math.floor(0.98 * (sizes.length - 1))] ?? 0) / 100);
    dom.byId("run-name").textContent = index.name;
    dom.byId("nav-trajectories").append(h("span.quiet", ` ${index.rows.key.length.toLocaleString("en")}`));
    dom.byId("help-button").addEventListener("click", () => dom.byId("help").showModal());
    document.addEventListener("keydown", press);
    list.build(dom.byId("list"));
    dom.byId("status").hidden = true;
    await router.start((state) => render(state).catch(report));
    // After the first frame, in which the charts learn how wide they are.
    await new Promise((resume) => requestAnimationFrame(() => setTimeout(resume)));
    document.documentElement.dataset.ready = performance.now().toFixed(0);
    renew();
  }

  /** A page of a run that goes on loads itself again, where the reader is, unless they are busy with it. */
  function renew() {
    const seconds = Number(document.documentElement.dataset.reload);
    if (!(seconds > 0)) return;
    const pane = () =>
      dom.byId("detail").hidden ? document.querySelector("main > section:not([hidden])") : dom.byId("detail");
    if (history.state?.top) pane().scrollTop = history.state.top;
    const isBusy = () =>
      document.hidden ||
      dom.byId("help").open ||
      !getSelection().isCollapsed ||
      document.activeElement?.matches?.("input, select");
    setInterval(() => {
      if (isBusy()) return;
      history.replaceState({ top: pane().scrollTop }, "", location.href);
      location.reload();
    }, seconds * 1000);
  }

  /** The row of the trajectory that the address names; undefined when it names none. */
  function opened() {
    const { state } = router;
    if (state.has("trajectory")) return store.rowOf(state.get("trajectory"));
    return router.isEmbedded && !state.has("siblings") ? store.index.opened : undefined;
  }

  /** Shows what the address names; an unknown trajectory leads to the list, an unknown view to the overview. */
  async function render(state) {
    const row = opened();
    const group = state.has("siblings") ? store.groupOf(state.get("siblings")) : -1;
    const view = viewOf(state, row, group);
    for (const name of VIEWS) dom.byId(name).hidden = name !== view;
    mark("nav-overview", view === "overview");
    mark("nav-trajectories", view !== "overview");
    dom.byId("detail").hidden = row === undefined;
    dom.byId("trajectories").classList.toggle("is-open", row !== undefined);
    list.fold(row !== undefined);
    if (row === undefined) trajectory.close();
    if (view === "overview") overview.show(dom.byId("overview"));
    if (view === "siblings") await siblings.show(dom.byId("siblings"), group, state);
    if (view !== "overview" && !router.isEmbedded) await list.show(state, row ?? null);
    if (view === "trajectories" && row !== undefined) await trajectory.show(dom.byId("detail"), row, state);
  }

  function viewOf(state, row, group) {
    if (group >= 0) return "siblings";
    if (row !== undefined || state.has("trajectory") || state.has("siblings")) return "trajectories";
    return state.get("view") === "trajectories" ? "trajectories" : "overview";
  }

  function mark(id, isCurrent) {
    const link = dom.byId(id);
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }

  // ---- keyboard --------------------------------------------------------------------------------------------------

  const KEYS = {
    j: () => step(1),
    k: () => step(-1),
    n: () => stepTurn(1),
    p: () => stepTurn(-1),
    g: toggleSiblings,
    l: () => dom.byId("trajectories").classList.toggle("is-alone"),
    o: () => router.go({ view: "overview" }),
    "/": search,
    "?": () => dom.byId("help").showModal(),
    Escape: close,
  };

  function press(event) {
    if (event.metaKey || event.ctrlKey || event.altKey || dom.byId("help").open) return;
    const isTyping = event.target.matches?.("input, select, textarea");
    if (isTyping && event.key === "Escape") event.target.blur();
    if (isTyping || !Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    KEYS[event.key]();
  }

  /** To the next (1) or previous (-1) trajectory of the list, or group in the view of groups. */
  function step(way) {
    const order = router.isEmbedded ? store.rows.key.map((_, row) => row) : list.found;
    const { state } = router;
    if (state.has("siblings")) {
      const groups = [...new Set(order.map((row) => store.rows.group[row]))];
      const next = groups[groups.indexOf(store.groupOf(state.get("siblings"))) + way];
      if (next !== undefined) router.go({ siblings: store.index.groups.key[next] }, true);
      return;
    }
    const row = opened();
    const now = order.indexOf(row);
    const next = order[now < 0 ? 0 : now + way];
    if (next !== undefined) router.go({ trajectory: store.rows.key[next] }, row !== undefined);
  }

  function stepTurn(way) {
    const row = opened();
    if (row === undefined) return;
    const now = trajectory.turnOf(router.state) ?? -1;
    const turn = Math.max(0, Math.min(store.rows.turns[row] - 1, now + way));
    router.go({ trajectory: store.rows.key[row], turn }, true);
  }

  let left = null; // the trajectory from which the view of the group was opened

  function toggleSiblings() {
    const { state } = router;
    if (state.has("siblings")) {
      const [first] = store.membersOf(store.groupOf(state.get("siblings")));
      const isFromHere = left !== null && store.rows.group[left] === store.rows.group[first];
      router.go({ trajectory: store.rows.key[isFromHere ? left : first] });
    } else if (opened() !== undefined) {
      left = opened();
      router.go({ siblings: store.index.groups.key[store.rows.group[left]] });
    }
  }

  function search() {
    if (dom.byId("trajectories").hidden) router.go({ view: "trajectories" });
    dom.byId("trajectories").classList.remove("is-alone");
    requestAnimationFrame(() => dom.byId("search-field")?.select());
  }

  function close() {
    const { state } = router;
    if (state.has("siblings")) toggleSiblings();
    else if (opened() !== undefined) router.go({ view: "trajectories" });
  }

  function report(error) {
    dom.byId("status").hidden = false;
    dom.byId("status").textContent = `This could not be shown. ${error.message}`;
    throw error;
  }

  start().catch(report);

  return { step };
})();

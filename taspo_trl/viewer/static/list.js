"use strict";

/*
 * The list of trajectories: filters, sortable heads, and only as many rows in the document as fit on the screen.
 *
 * A row is a link, so that it opens in a new tab, and is read out with its place in the list.
 */
const list = (() => {
  const { h } = dom;
  const ROW_HEIGHT = 46; // as in list.css
  const COLUMNS = [
    ["outcome", "", "Outcome"],
    ["step", "step", "Step"],
    ["group", "group", "Group"],
    ["task", null, "Task"],
    ["family", "family", "Family"],
    ["stop", "end", "End"],
    ["turns", "turns", "Turns"],
    ["reward", "reward", "Reward"],
    ["advantage", "A", "Advantage"],
    ["guided", "guidance", "Guidance"],
    ["spread", "credit by turn", "Spread of the weights"],
  ];
  const ORDERS = [
    ["", "order of the run"],
    ["-step", "latest step first"],
    ["step", "step"],
    ["-reward", "highest reward"],
    ["reward", "lowest reward"],
    ["-advantage", "highest advantage"],
    ["advantage", "lowest advantage"],
    ["-spread", "widest weights"],
    ["-turns", "most turns"],
    ["turns", "fewest turns"],
    ["-invalid", "most invalid actions"],
    ["outcome", "successes first"],
    ["family", "family"],
  ];
  const MARKS = {
    success: ["✓", "success"],
    failure: ["✗", "no success"],
    infrastructure: ["!", "ended by infrastructure"],
    unknown: ["?", "outcome not recorded"],
  };
  let found = []; // row numbers in the order of the list
  let selected = null;
  let parts = null;
  let applied = null; // the filters that `found` belongs to

  /** Builds the list once. */
  function build(container) {
    const rows = h("ol.rows");
    const viewport = h("div.viewport", { onscroll: () => draw() }, rows);
    parts = { rows, viewport, head: h("div.list-head"), ...controls() };
    dom.show(container, parts.bar, parts.head, viewport);
    new ResizeObserver(() => draw()).observe(viewport);
  }

  // ---- filters ---------------------------------------------------------------------------------------------------

  function controls() {
    const { rows } = store;
    const distinct = (column) => [...new Set(rows[column])].filter(Boolean).sort();
    const fields = {
      q: input("search", "Search tasks and actions  ( / )"),
      outcome: choice(selection.OUTCOMES.map((one) => [one, MARKS[one][1]])),
      stop: choice(distinct("stop").map((one) => [one, words.reason(one)])),
      family: choice(distinct("family").map((one) => [one, one])),
      environment: choice(distinct("environment").map((one) => [one, one])),
      guided: choice([
        ["yes", "with guidance"],
        ["no", "without guidance"],
        ["unknown", "not recorded"],
      ]),
      credit: choice(distinct("credit").map((one) => [one, words.reason(one)])),
      flagged: choice([["yes", "refused, yet credited"]]),
      steps: input("text", "12 or 10-20"),
      rollout: input("text", "12 or 10-20"),
      group: input("text", "r3-g1"),
      sort: h(
        "select",
        ORDERS.map(([value, label]) => h("option", { value }, label)),
      ),
    };
    for (const [name, field] of Object.entries(fields)) listen(name, field);
    const labelled = (text, field) => h("label", h("span", text), field);
    fields.q.setAttribute("aria-label", "Search tasks and actions");
    fields.q.id = "search-field";
    const several = distinct("environment").length > 1;
    const filters = h(
      "details.filters",
      { open: true },
      h("summary", "Filters"),
      h(
        "div.filter-grid",
        labelled("Outcome", fields.outcome),
        labelled("End", fields.stop),
        labelled("Family", fields.family),
        several && labelled("Environment", fields.environment),
        labelled("Guidance", fields.guided),
        labelled("Credit", fields.credit),
        labelled("Flag", fields.flagged),
        labelled("Steps", fields.steps),
        labelled("Rollout", fields.rollout),
        labelled("Group", fields.group),
        labelled("Order", fields.sort),
      ),
    );
    const reset = h(
      "button",
      {
        type: "button",
        class: "reset",
        onclick: () => router.filter(Object.fromEntries(selection.FILTERS.map((name) => [name, null]))),
      },
      "Reset",
    );
    const count = h("p.count", { role: "status" });
    const bar = h(
      "form.filter-bar",
      { role: "search", onsubmit: (event) => event.preventDefault() },
      fields.q,
      filters,
      h("div.count-line", count, reset),
    );
    return { fields, filters, reset, count, bar };
  }

  function input(type, placeholder) {
    return h("input", { type, placeholder, autocomplete: "off", spellcheck: "false" });
  }

  function choice(options) {
    return h(
      "select",
      h("option", { value: "" }, "any"),
      options.map(([value, label]) => h("option", { value }, label)),
    );
  }

  function listen(name, field) {
    let timer = 0;
    const isText = field.tagName === "INPUT";
    field.addEventListener(isText ? "input" : "change", () => {
      clearTimeout(timer);
      timer = setTimeout(() => router.filter({ [name]: field.value.trim() }), isText ? 150 : 0);
    });
  }

  /** Beside a trajectory there is little room: the filters fold. */
  function fold(isFolded) {
    if (parts.isFolded !== isFolded) parts.filters.open = !isFolded;
    parts.isFolded = isFolded;
  }

  function fillControls(state) {
    for (const [name, field] of Object.entries(parts.fields)) {
      const value = state.get(name) ?? "";
      if (document.activeElement !== field && field.value !== value) field.value = value;
    }
  }

  // ---- rows ------------------------------------------------------------------------------------------------------

  /** Shows the selection of `state`; resolves when the rows are there. */
  async function show(state, row) {
    selected = row;
    const filters = JSON.stringify([...selection.FILTERS, "sort"].map((name) => state.get(name)));
    fillControls(state);
    if (filters !== applied) {
      const now = await selection.apply(state);
      if (router.state !== state) return; // typed on in the meantime
      [found, applied] = [now, filters];
      parts.rows.style.setProperty("height", `${found.length * ROW_HEIGHT}px`);
      parts.viewport.scrollTop = 0;
      const total = store.rows.key.length;
      parts.count.textContent =
        found.length === total
          ? words.count(total, "trajectory", "trajectories")
          : `${found.length.toLocaleString("en")} of ${words.count(total, "trajectory", "trajectories")}`;
      const set = selection.count(state);
      parts.reset.hidden = set === 0;
      parts.filters.querySelector("summary").textContent = set ? `Filters · ${set} set` : "Filters";
      drawHead(state.get("sort") ?? "");
    }
    reveal();
    draw();
  }

  function drawHead(sort) {
    dom.show(
      parts.head,
      COLUMNS.map(([name, label, title]) => {
        if (label === null) return h("span", { class: `cell ${name}` }, "task");
        const way = sort === name ? "up" : sort === `-${name}` ? "down" : "";
        const next = way === "up" ? `-${name}` : way === "down" ? "" : name;
        return h(
          "button",
          {
            type: "button",
            class: `cell ${name} ${way}`,
            title: `Sort by ${title.toLowerCase()}`,
            "aria-label": `${title}${way ? `, sorted ${way}` : ""}`,
            onclick: () => router.filter({ sort: next }),
          },
          label,
          way === "up" ? " ↑" : way === "down" ? " ↓" : "",
        );
      }),
    );
  }

  function reveal() {
    const place = found.indexOf(selected);
    if (place < 0) return;
    const { viewport } = parts;
    const top = place * ROW_HEIGHT;
    const isSeen = top >= viewport.scrollTop && top + ROW_HEIGHT <= viewport.scrollTop + viewport.clientHeight;
    if (!isSeen) viewport.scrollTop = top - (viewport.clientHeight - ROW_HEIGHT) / 2;
  }

  /** Puts the rows on the screen into the document, and no others. */
  function draw() {
    const { viewport, rows } = parts;
    const first = Math.max(0, Math.floor(viewport.scrollTop / ROW_HEIGHT) - 5);
    const last = Math.min(found.length, Math.ceil((viewport.scrollTop + viewport.clientHeight) / ROW_HEIGHT) + 5);
    const focused = rows.contains(document.activeElement) ? document.activeElement.dataset.row : null;
    dom.show(
      rows,
      found.slice(first, last).map((row, k) => item(row, first + k)),
    );
    if (focused !== null) rows.querySelector(`a[data-row="${focused}"]`)?.focus({ preventScroll: true });
  }

  function item(row, place) {
    const { rows, groups } = store.index;
    const [mark, outcome] = MARKS[rows.outcome[row]];
    const guided = rows.guided[row];
    const cell = (name, ...content) => h("span", { class: `cell ${name}` }, content);
    return h(
      "li",
      { style: { top: `${place * ROW_HEIGHT}px` }, "aria-posinset": place + 1, "aria-setsize": found.length },
      h(
        "a",
        {
          href: router.href({ trajectory: rows.key[row] }),
          "data-row": row,
          "aria-current": row === selected ? "true" : null,
        },
        h(
          "span",
          { class: `cell outcome ${rows.outcome[row]}`, role: "img", "aria-label": outcome, title: outcome },
          mark,
        ),
        cell("step", rows.step[row] ?? "–"),
        cell("group", h("span", groups.key[rows.group[row]]), h("span.quiet", ` #${rows.member[row] ?? "–"}`)),
        cell(
          "task",
          h("span.task-text", groups.task[rows.group[row]] || rows.key[row]),
          h("span.under.quiet", `${rows.key[row]} · ${rows.family[row]} · ${words.reason(rows.stop[row])}`),
        ),
        cell("family", rows.family[row]),
        cell(
          "stop",
          words.reason(rows.stop[row]),
          rows.partial[row] && h("span.tag", "partial file"),
          rows.flagged[row] > 0 && h("b.flag", { title: "a refused action was credited" }, " ⚑"),
        ),
        cell("turns", rows.turns[row]),
        cell("reward", words.short(rows.reward[row])),
        cell("advantage", words.signed(rows.advantage[row], 2)),
        cell(
          "guided",
          h(
            "span",
            { class: `tag ${guided ? "yes" : "no"}`, title: words.reason(rows.credit[row]) },
            guided === null ? "not recorded" : guided ? "yes" : "no",
          ),
        ),
        cell("spread", strip(row)),
      ),
    );
  }

  /** The credit of all turns as a strip of colours. */
  function strip(row) {
    const { rows } = store;
    const turns = rows.turns[row];
    const weights = rows.weights[row];
    const tilts = rows.tilts[row];
    const label = weights.length
      ? `weights ${(Math.min(...weights) / 100).toFixed(2)} to ${(Math.max(...weights) / 100).toFixed(2)}`
      : rows.credit[row] === "not recorded"
        ? "weights not recorded"
        : `all weights 1: ${words.reason(rows.credit[row])}`;
    const stops = Array.from({ length: turns }, (_, turn) => {
      const colour = words.tiltColour(
        tilts.length ? tilts[turn] / 100 : rows.credit[row] === "not recorded" ? null : 0,
      );
      return `${colour} ${((100 * turn) / turns).toFixed(2)}% ${((100 * (turn + 1)) / turns).toFixed(2)}%`;
    });
    return h("span.strip", {
      role: "img",
      "aria-label": label,
      title: label,
      style: turns ? { "background-image": `linear-gradient(to right, ${stops.join(", ")})` } : {},
    });
  }

  return {
    build,
    show,
    fold,
    MARKS,
    get found() {
      return found;
    },
  };
})();

"use strict";

/* One trajectory: its facts, turns and guidance; and the way to a turn or a quote in it. */
const trajectory = (() => {
  const { h } = dom;
  let shown = null; // the row on the page

  /** Shows a trajectory, then goes to the turn and quote that `state` names. */
  async function show(container, row, state) {
    const at = await store.trajectory(row);
    if (router.state !== state) return; // gone on in the meantime
    if (shown !== row) {
      shown = row;
      document.title = `${store.rows.key[row]} · ${store.index.name}`;
      const hadFocus = container.contains(document.activeElement);
      dom.show(
        container,
        h("div.from-bar", { hidden: true }),
        head(at),
        h(
          "div.columns",
          h("div.turns", at.member.turns.length ? turns.cards(at) : h("p.empty", "No turn was played.")),
          guidance.panel(at),
        ),
      );
      container.scrollTop = 0;
      if (hadFocus) container.focus({ preventScroll: true }); // what had it is gone
    }
    goTo(container, at, state);
  }

  function close() {
    shown = null;
  }

  // ---- facts -----------------------------------------------------------------------------------------------------

  function head(at) {
    const { row, group, member } = at;
    const { rows, groups } = store.index;
    const number = rows.group[row];
    const [mark, outcome] = list.MARKS[rows.outcome[row]];
    return h(
      "header.trajectory-head",
      h(
        "div.title-line",
        h("h2", rows.key[row]),
        h("span", { class: `pill ${rows.outcome[row]}` }, `${mark} ${outcome}`),
        h("span.quiet", words.reason(rows.stop[row])),
        rows.partial[row] && h("span.tag.bad", "from a partial file"),
        h("span.grow"),
        tools(row),
      ),
      h("p.task", { dir: "auto" }, groups.task[number]),
      h(
        "dl.facts",
        facts(at).map(([name, value]) => h("div", h("dt", name), h("dd", value))),
      ),
      rows.credit[row] !== "weighted" &&
        h(
          "p.reason",
          rows.credit[row] === "not recorded"
            ? "Weights are not recorded: the run ended before this batch was weighed."
            : `All weights are 1: ${words.reason(member.fallback)}.`,
        ),
      member.error !== "" && h("p.error", { dir: "auto" }, member.error),
      member.turns.length > 0 && turns.minimap(at),
      reading.panel("trajectory"),
      details(at, group),
    );
  }

  function tools(row) {
    if (router.isEmbedded && store.rows.key.length === 1) return null;
    const number = store.rows.group[row];
    return h(
      "div.tools",
      h("a.button", { href: router.href({ siblings: store.index.groups.key[number] }), title: "g" }, "Side by side"),
      h(
        "button",
        {
          type: "button",
          onclick: () => main.step(-1),
          title: "Previous trajectory (k)",
          "aria-label": "Previous trajectory",
        },
        "↑",
      ),
      h(
        "button",
        { type: "button", onclick: () => main.step(1), title: "Next trajectory (j)", "aria-label": "Next trajectory" },
        "↓",
      ),
      !router.isEmbedded &&
        h(
          "a.button",
          { href: router.href({ view: "trajectories" }), title: "Close (Esc)", "aria-label": "Close" },
          "✕",
        ),
    );
  }

  function facts({ row, member }) {
    const { rows } = store;
    const parts = member.rewards.map(([name, value]) => `${name} ${words.short(value)}`).join(", ");
    return [
      ["Step", rows.step[row] ?? "–"],
      ["Rollout", rows.rollout[row] ?? "–"],
      ["Family", rows.family[row] || "–"],
      rows.environment[row] && ["Environment", rows.environment[row]],
      ["Turns", `${rows.turns[row]}${rows.invalid[row] ? `, ${rows.invalid[row]} refused` : ""}`],
      ["Reward", `${words.short(rows.reward[row])}${parts ? ` (${parts})` : ""}`],
      ["Advantage", words.signed(rows.advantage[row], 3)],
      member.seconds !== null && ["Seconds", words.short(member.seconds)],
    ].filter(Boolean);
  }

  function details({ member }, group) {
    return h(
      "div.details-line",
      member.opening.length > 0 &&
        h(
          "details",
          h("summary", "First prompt"),
          member.opening.map(([role, text]) =>
            h("div.block-text", h("span.label", role), h("pre", { dir: "auto" }, group.texts[text])),
          ),
        ),
      member.task.length > 0 &&
        h(
          "details",
          h("summary", "Task row"),
          h(
            "dl.task-row",
            member.task.map(([name, value]) => [h("dt", name), h("dd", h("code", { dir: "auto" }, value))]),
          ),
        ),
    );
  }

  // ---- the way to a turn -----------------------------------------------------------------------------------------

  /** Goes to what the address names: a quote, the place in the guidance from which one was followed, or a turn. */
  function goTo(container, at, state) {
    quotes.clear(container);
    fromBar(container, state);
    const mark = state.get("mark") ?? "";
    const isWayBack = mark.startsWith("e") && !state.has("from");
    const quote = isWayBack ? null : cited(at, mark, state.get("from"));
    const link = state.has("from") ? null : container.querySelector(`[data-mark="${CSS.escape(mark)}"]`);
    const number = quote ? quote.turn : turnOf(state);
    for (const one of container.querySelectorAll("[data-mark]")) one.classList.toggle("is-current", one === link);
    for (const one of container.querySelectorAll(".turn, .minimap a"))
      one.classList.toggle("is-current", Number(one.dataset.turn) === number && quote?.field !== "task");

    if (quote) scrollTo(marked(container, at, quote), "center");
    else if (isWayBack && link) {
      for (let one = link.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
      scrollTo(link, "center");
      link.focus({ preventScroll: true });
    } else if (number !== null) {
      const turn = container.querySelector(`#turn-${number}`);
      scrollTo(turn, "start");
      turn?.focus({ preventScroll: true });
    }
  }

  function scrollTo(target, block) {
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    target?.scrollIntoView({ block, behavior: isCalm ? "auto" : "smooth" });
  }

  /** The quote behind a mark: in the guidance of this trajectory, of the sibling it was followed from, or of the group. */
  function cited({ group, member }, mark, from) {
    const by = from === null ? member : group.members.find((one) => store.rows.key[one.row] === from);
    return guidance.resolve(group, by, mark);
  }

  function turnOf(state) {
    const turn = state.get("turn") ?? "";
    return /^\d+$/.test(turn) ? Number(turn) : null;
  }

  function marked(container, { member }, { turn, field, text }) {
    if (field === "task") return quotes.mark(container.querySelector(".trajectory-head .task"), text);
    const one = member.turns[turn];
    if (!one) return null;
    const next = member.turns[turn + 1];
    // What an action led to is shown once: as the next turn's observation where that is the same text.
    const isShownBelow = field === "post" && next && next.before === one.after;
    const card = container.querySelector(`#turn-${isShownBelow ? turn + 1 : turn}`);
    if (field === "action") {
      const action = card.querySelector("mark.action") ?? card.querySelector(".reply");
      action.classList.add("is-quoted");
      return action;
    }
    const block = card.querySelector(field === "pre" || isShownBelow ? ".observation" : ".answer");
    const pre = block?.querySelector("pre");
    if (!pre) return card;
    pre.classList.remove("is-folded");
    return quotes.mark(pre, text);
  }

  function fromBar(container, state) {
    const bar = container.querySelector(".from-bar");
    bar.hidden = !state.has("from");
    if (!bar.hidden)
      dom.show(
        bar,
        h(
          "a",
          { href: router.href({ trajectory: state.get("from"), mark: state.get("mark") }) },
          `← back to ${state.get("from")}`,
        ),
        " whose guidance quotes this trajectory",
      );
  }

  return {
    show,
    close,
    turnOf,
    get shown() {
      return shown;
    },
  };
})();

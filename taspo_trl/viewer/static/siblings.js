"use strict";

/* The members of a group side by side: actions by turn, credit as colour. */
const siblings = (() => {
  const { h } = dom;
  async function show(container, number, state) {
    const group = await store.group(number);
    if (router.state !== state) return;
    const { index } = store;
    const rows = group.members.map((member) => member.row);
    const height = Math.max(0, ...group.members.map((member) => member.turns.length));
    dom.show(
      container,
      h(
        "header.page-head",
        h("h2", "Group ", index.groups.key[number]),
        h("p.task", { dir: "auto" }, index.groups.task[number]),
        h("p.quiet", facts(rows)),
        legend(),
        reading.panel("group"),
      ),
      h(
        "div.matrix-frame",
        { tabindex: 0, role: "region", "aria-label": "Actions by turn" },
        h(
          "table.matrix",
          { style: { "min-width": `${48 + 132 * rows.length}px` } },
          h("thead", h("tr", h("th", { scope: "col" }, "turn"), group.members.map(head))),
          h(
            "tbody",
            Array.from({ length: height }, (_, turn) => line(group.members, turn)),
          ),
        ),
      ),
      guidance.extraction({ group }),
    );
  }

  function facts(rows) {
    const { step, rollout, outcome } = store.rows;
    const solved = rows.filter((row) => outcome[row] === "success").length;
    return `step ${step[rows[0]] ?? "–"} · rollout ${rollout[rows[0]] ?? "–"} · ${solved} of ${rows.length} solved`;
  }

  function head(member) {
    const { rows } = store;
    const { row } = member;
    const [mark, outcome] = list.MARKS[rows.outcome[row]];
    return h(
      "th",
      { scope: "col" },
      h(
        "a",
        { href: router.href({ trajectory: rows.key[row] }), title: rows.key[row] },
        `#${rows.member[row] ?? "–"} `,
        h("span", { class: `outcome ${rows.outcome[row]}`, role: "img", "aria-label": outcome }, mark),
      ),
      h("span.under.quiet", words.reason(rows.stop[row])),
      h("span.under.quiet", `r ${words.short(rows.reward[row])} · A ${words.signed(rows.advantage[row], 2)}`),
      h("span.under.quiet", rows.guided[row] ? "guided" : words.reason(rows.credit[row])),
    );
  }

  function line(members, number) {
    return h(
      "tr",
      h("th", { scope: "row" }, String(number)),
      members.map((member) => {
        const turn = member.turns[number];
        const advantage = store.rows.advantage[member.row];
        if (!turn) return h("td.none");
        return h(
          "td",
          { style: { "--weight": words.tiltColour(turn.weight === null ? null : turn.tilt) } },
          h(
            "a",
            {
              href: router.href({ trajectory: store.rows.key[member.row], turn: number }),
              class: turn.valid === false ? "invalid" : "",
              title: `${turn.action}\n${words.tiltWords(turn.tilt, advantage)}`,
            },
            h("span.action-text", { dir: "auto" }, turn.action || "(no action)"),
            h(
              "span.under",
              `w ${words.fixed(turn.weight, 3)}`,
              turn.valid === false && " · refused",
              turns.isFlagged(turn, advantage) && h("b.flag", { title: "refused, yet credited" }, " ⚑"),
            ),
          ),
        );
      }),
    );
  }

  /** What the colours mean. */
  function legend() {
    const ends = [
      [-1, "more blame, less credit"],
      [-0.5, ""],
      [0, "as the outcome says"],
      [0.5, ""],
      [1, "more credit, less blame"],
    ];
    return h(
      "p.scale",
      { "aria-label": "Colours" },
      ends.map(([factor, label]) =>
        h("span", { style: { "--weight": words.tiltColour(factor * words.span) } }, label || "\u00a0"),
      ),
    );
  }

  return { show, legend };
})();

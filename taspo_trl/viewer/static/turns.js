"use strict";

/* The turns of a trajectory: observation, reply with the executed action, weight, support, and shifts by token. */
const turns = (() => {
  const { h } = dom;
  const LONG = { characters: 900, lines: 12 };

  /** All turns as cards. `at` is { row, group, member }. */
  function cards({ row, group, member }) {
    const advantage = store.rows.advantage[row];
    return member.turns.map((turn, number) => {
      const next = member.turns[number + 1];
      const answered = !next || next.before !== turn.after; // else the next card shows the same text
      return h(
        "article.turn",
        {
          id: `turn-${number}`,
          "data-turn": number,
          tabindex: -1,
          style: { "--weight": words.weightColour(turn.weight) },
        },
        head(turn, number, row, advantage),
        textBlock("observation", "Observation", group.texts[turn.before]),
        reply(turn),
        shifts(turn, group.texts),
        answered &&
          (group.texts[turn.after] !== "" || !next) &&
          textBlock("answer", "Answer of the environment", group.texts[turn.after]),
      );
    });
  }

  function head(turn, number, row, advantage) {
    const credit = turn.weight !== null && advantage !== null ? advantage * turn.weight : null;
    return h(
      "header",
      h(
        "a.turn-number",
        { href: router.href({ trajectory: store.rows.key[row], turn: number }), title: "Link to this turn" },
        `Turn ${number}`,
      ),
      h("span.weight", { title: "w: factor of the advantage in this turn" }, "w ", words.fixed(turn.weight, 3)),
      figure("support", words.signed(turn.support, 3), "d: mean clipped shift of the action's tokens"),
      credit !== null && figure("A·w", words.signed(credit, 3), "the advantage that this turn's tokens carry"),
      turn.valid === false && h("span.tag.bad", "invalid"),
      turn.valid === null && h("span.tag", "validity not recorded"),
      turn.finish === "length" && h("span.tag.bad", "reply cut at its limit"),
      turn.cuts > 0 &&
        h("span.tag", { title: "history items dropped and observation cuts" }, `prompt cut ${turn.cuts}×`),
      turn.unscorable && h("span.tag.bad", `not scorable: ${words.reason(turn.unscorable)}`),
      turn.reward ? figure("reward", words.signed(turn.reward, 3), "the environment's own reward") : null,
      h(
        "span.quiet.tokens",
        turn.prompt_tokens === null ? "" : `${turn.prompt_tokens} + `,
        words.count(turn.reply_tokens, "token"),
      ),
    );
  }

  function figure(name, value, title) {
    return h("span.figure", { title }, h("span.quiet", `${name} `), value);
  }

  /** A labelled text; a long one is folded until it is asked for. */
  function textBlock(name, label, text) {
    const isLong = text.length > LONG.characters || text.split("\n", LONG.lines + 1).length > LONG.lines;
    const block = h(
      "div",
      { class: `block-text ${name}`, "data-block": name },
      h("span.label", label),
      text === "" ? h("p.empty", "(empty)") : h("pre", { class: isLong ? "is-folded" : "", dir: "auto" }, text),
    );
    if (isLong) block.append(unfolder(block));
    return block;
  }

  function unfolder(block) {
    const button = h(
      "button",
      {
        type: "button",
        class: "unfold",
        "aria-expanded": "false",
        onclick: () => {
          const isFolded = block.querySelector("pre").classList.toggle("is-folded");
          button.textContent = isFolded ? "Show all" : "Show less";
          button.setAttribute("aria-expanded", String(!isFolded));
        },
      },
      "Show all",
    );
    return button;
  }

  function reply(turn) {
    const marked = turn.reply.map((part, k) =>
      k % 2 ? h("mark", { class: turn.valid === false ? "action bad" : "action", title: "executed" }, part) : part,
    );
    const isFound = turn.reply.length > 1;
    return h(
      "div.block-text.reply",
      { "data-block": "reply" },
      h("span.label", "Reply"),
      turn.reply.join("") === "" ? h("p.empty", "(empty reply)") : h("pre", { dir: "auto" }, marked),
      !isFound &&
        h(
          "p.empty",
          turn.action ? ["executed: ", h("mark.action", turn.action)] : "no action block, nothing was executed",
        ),
    );
  }

  /** One cell for each action token: its text, a bar from the middle, and the number. */
  function shifts(turn, texts) {
    const { tokens } = turn;
    if (!tokens || tokens.shift.length === 0) return null;
    const cells = tokens.shift.map((shift, k) => {
      const name = tokens.text[k] === null || tokens.text[k] === undefined ? null : texts[tokens.text[k]];
      const plain = tokens.plain[k];
      const weight = tokens.weight?.[k];
      const place = tokens.at[k];
      return h(
        "span",
        {
          class: "token",
          title: `token ${place ?? "?"} of the reply: log-probability ${words.fixed(plain, 3)} without guidance, shift ${words.signed(shift, 3)}${weight === undefined ? "" : `, weight ${words.fixed(weight, 3)}`}`,
          style: weight === undefined ? {} : { background: words.weightColour(weight) },
        },
        h("span.token-text", name === null ? `#${place ?? k}` : visible(name)),
        h("span", {
          class: `shift ${shift < 0 ? "down" : "up"}`,
          style: { "--size": String(Math.min(1, Math.abs(shift ?? 0) / 2)) },
        }),
        h("span.token-number", words.signed(shift, 2)),
      );
    });
    return h(
      "div.block-text.shifts",
      h("span.label", "Shift by action token", h("span.sr", ", how much more likely guidance makes it")),
      h("div.tokens-row", cells),
    );
  }

  /** Blanks that would not be seen. */
  function visible(text) {
    return text.replace(/^ /, "·").replace(/ $/, "·").replaceAll("\n", "↵").replaceAll("\t", "⇥");
  }

  /** The weights of all turns as bars around 1; a bar leads to its turn. */
  function minimap({ row, member }) {
    const key = store.rows.key[row];
    return h(
      "nav.minimap",
      { "aria-label": "Weights by turn" },
      member.turns.map((turn, number) => {
        const offset = turn.weight === null ? 0 : (turn.weight - 1) / words.span;
        return h(
          "a",
          {
            href: router.href({ trajectory: key, turn: number }),
            class: offset < 0 ? "below" : "above",
            "data-turn": number,
            title: `turn ${number}: w ${words.fixed(turn.weight, 3)} · ${turn.action || "no action"}`,
            "aria-label": `turn ${number}, weight ${words.fixed(turn.weight, 3)}`,
            style: { "--weight": words.weightColour(turn.weight), "--size": String(Math.min(1, Math.abs(offset))) },
          },
          h("span", { class: turn.valid === false ? "bar invalid" : "bar" }),
        );
      }),
    );
  }

  return { cards, minimap };
})();

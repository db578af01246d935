"use strict";

/* The turns of a trajectory: observation, reply with the executed action, and why it got its credit. */
const turns = (() => {
  const { h } = dom;
  const ANSWER = 160; // characters of an answer at a glance
  const LONG = { characters: 900, lines: 12 };

  /** All turns as cards. `at` is { row, group, member }. */
  function cards(at) {
    const { row, group, member } = at;
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
          style: { "--weight": colour(turn) },
        },
        head(turn, number, row, advantage),
        textBlock("observation", "Observation", group.texts[turn.before]),
        reply(turn),
        why(turn, at, advantage),
        answered &&
          (group.texts[turn.after] !== "" || !next) &&
          textBlock("answer", "Answer of the environment", group.texts[turn.after]),
      );
    });
  }

  const colour = (turn) => words.tiltColour(turn.weight === null ? null : turn.tilt);

  /** Whether the environment refused an action that a success yet credits with more than its share. */
  const isFlagged = (turn, advantage) => turn.valid === false && advantage > 0 && turn.tilt > 0.01;

  function head(turn, number, row, advantage) {
    const credit = turn.carried;
    return h(
      "header",
      h(
        "a.turn-number",
        { href: router.href({ trajectory: store.rows.key[row], turn: number }), title: "Link to this turn" },
        `Turn ${number}`,
      ),
      h(
        "span.weight",
        { title: "w: factor of the advantage in this turn; the colour says credit (blue) or blame (amber)" },
        "w ",
        words.fixed(turn.weight, 3),
        turn.weight !== null && h("span.tilt", words.tiltWords(turn.tilt, advantage)),
      ),
      turn.line.length === 0 &&
        turn.support !== null &&
        figure("support", words.signed(turn.support, 3), "what the weight was made of"),
      credit !== null && figure("carries", words.signed(credit, 3), "A·w: the advantage that this turn's tokens carry"),
      turn.valid === false && h("span.tag.bad", "refused"),
      isFlagged(turn, advantage) && h("span.tag.bad.flag", "⚑ yet credited"),
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

  /** The statement nearest to the action, the shifts of its tokens, and the way from them to the weight. */
  function why(turn, at, advantage) {
    const parts = [guidance.moved(turn, at), shifts(turn, at.group.texts, advantage), arithmetic(turn)].filter(Boolean);
    return parts.length > 0 && h("div.block-text.why", h("span.label", "Why"), parts);
  }

  /** [what, calculation, result] after each other: one line. */
  function arithmetic(turn) {
    if (turn.line.length === 0) return null;
    return h(
      "ol.arithmetic",
      { "aria-label": "From support to weight" },
      turn.line.map(([what, how, result]) =>
        h("li", { title: what }, h("span.how", how), result && [h("span.equals", " = "), h("b", result)]),
      ),
    );
  }

  /** One cell for each action token: its text, a bar from the middle, and the number. */
  function shifts(turn, texts, advantage) {
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
          style: weight === undefined ? {} : { background: words.tiltColour(words.tiltOf(weight, advantage)) },
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
      "div.shifts",
      h("span.label", "Shift by token", h("span.sr", ", how much more likely guidance makes it")),
      h("div.tokens-row", cells),
    );
  }

  /** Blanks that would not be seen. */
  function visible(text) {
    return text.replace(/^ /, "·").replace(/ $/, "·").replaceAll("\n", "↵").replaceAll("\t", "⇥");
  }

  /** All turns at a glance: action, answer, and the credit as a bar: to the right for credit, to the left for blame. */
  function minimap({ row, group, member }) {
    const key = store.rows.key[row];
    const advantage = store.rows.advantage[row];
    return h(
      "nav.minimap",
      { "aria-label": "Turns at a glance" },
      member.turns.map((turn, number) => {
        const size = turn.weight === null ? 0 : Math.max(-1, Math.min(1, turn.tilt / words.span));
        const meaning = words.tiltWords(turn.weight === null ? null : turn.tilt, advantage);
        return h(
          "a",
          {
            href: router.href({ trajectory: key, turn: number }),
            "data-turn": number,
            style: { "--weight": colour(turn), "--size": String(Math.abs(size)) },
          },
          h("span.quiet", String(number)),
          h("code", { class: turn.valid === false ? "bad" : "", dir: "auto" }, turn.action || "(no action)"),
          h("span.quiet.answered", { dir: "auto" }, group.texts[turn.after].slice(0, ANSWER)),
          h("span", { class: `lean ${size < 0 ? "blame" : "credit"}` }, h("span.lean-bar")),
          h("span.number", `w ${words.fixed(turn.weight, 2)}`),
          h("span.quiet.meaning", meaning, isFlagged(turn, advantage) && h("b.flag", { title: "refused, yet credited" }, " ⚑")),
        );
      }),
    );
  }

  return { cards, minimap, isFlagged };
})();

"use strict";

/*
 * What the guided pass was shown, and why: each statement with the quotes that carry it, and what was rejected.
 *
 * A quote is addressed inside its trajectory's guidance, so that a link can be resolved again later:
 * `e<evidence>.<source>.<field>` is a quote from a sibling, `s<statement>.<support>` one from the trajectory itself,
 * `x<evidence>.<source>.<field>` one in the evidence of the group.
 */
const guidance = (() => {
  const { h } = dom;
  const FIELDS = new Map([
    ["pre", "saw"],
    ["action", "did"],
    ["post", "got"],
  ]);
  const SOURCES_SHOWN = 2;

  /** The panel of a trajectory. */
  function panel(at) {
    const { member } = at;
    const given = member.guidance;
    if (!given)
      return frame(
        "Guidance",
        h("p.empty", "Not recorded: the run ended before guidance was collected, or the record is older than it."),
      );
    const used = new Set(given.statements.flatMap((one) => one.evidence_ids));
    const others = given.evidence.filter((one) => !used.has(one.id));
    return frame(
      "Guidance",
      h(
        "p.quiet",
        given.tokens > 0
          ? `${given.construction.replaceAll("_", " ")} · ${words.count(given.tokens, "token")}`
          : `${given.construction.replaceAll("_", " ")} · none`,
      ),
      given.tokens === 0 &&
        h("p.reason", `No guidance: ${words.reason(given.abstain_reason || "no reason recorded")}`),
      given.statements.length > 0 &&
        h(
          "ol.statements",
          given.statements.map((one, number) => statement(one, number, given, at)),
        ),
      given.text !== "" &&
        h(
          "details",
          { open: given.statements.length === 0 },
          h("summary", "The block as the model saw it"),
          h("pre", { dir: "auto" }, given.text),
        ),
      others.length > 0 &&
        h(
          "details",
          h("summary", `Evidence not used (${others.length})`),
          h(
            "ul.evidence-list",
            others.map((one) => h("li", evidence(one, given.evidence.indexOf(one), at))),
          ),
        ),
      rejections(given.rejections),
    );
  }

  /** Folded where it does not stand beside the turns. */
  const frame = (title, ...content) =>
    h(
      "aside.guidance",
      { "aria-label": title },
      h("details.fold", { open: matchMedia("(min-width: 900px)").matches }, h("summary", h("h3", title)), content),
    );

  function statement(one, number, given, at) {
    const own = one.support.map((support, k) =>
      quote({
        at,
        turn: support.turn,
        field: support.field,
        text: support.quote,
        mark: `s${number}.${k}`,
        row: at.row,
        place:
          support.field === "task"
            ? "here · task"
            : `here · turn ${support.turn ?? "?"} · ${FIELDS.get(support.field) ?? support.field}`,
      }),
    );
    return h(
      "li",
      { id: `statement-${number}`, "data-statement": number },
      h("p.statement", one.text),
      own.length > 0 && h("ul.quotes.own", own),
      one.evidence_ids.map((id) => {
        const position = given.evidence.findIndex((item) => item.id === id);
        return position < 0
          ? h("p.empty", `Evidence ${id} is not in the record.`)
          : evidence(given.evidence[position], position, at);
      }),
    );
  }

  /** An item of evidence with its sources, the first two at once. */
  function evidence(item, position, at) {
    const sources = item.sources.map((source, k) => h("li", sourceQuotes(source, position, k, at)));
    const rest = sources.slice(SOURCES_SHOWN);
    return h(
      "div.evidence",
      h("p", h("b", item.id), item.kind && h("span.tag", item.kind), " ", item.statement),
      h("ul.quotes", sources.slice(0, SOURCES_SHOWN)),
      rest.length > 0 &&
        h(
          "details",
          h("summary", `${rest.length} more ${rest.length === 1 ? "source" : "sources"}`),
          h("ul.quotes", rest),
        ),
    );
  }

  function sourceQuotes(source, position, k, at) {
    const sibling = at.group.members.find((member) => member.uid === source.uid);
    return h(
      "ul.quotes-of-turn",
      { "aria-label": `${source.uid}, turn ${source.turn}` },
      h("li.place", `${source.uid} · turn ${source.turn ?? "?"}`),
      ["pre", "action", "post"]
        .filter((field) => source[field] !== "")
        .map((field) =>
          quote({
            at,
            turn: source.turn,
            field,
            text: source[field],
            mark: `${at.member ? "e" : "x"}${position}.${k}.${field}`,
            row: sibling?.row,
            place: FIELDS.get(field),
          }),
        ),
    );
  }

  /** A quote that leads to the turn it comes from; plain text when that trajectory is not in this page. */
  function quote({ at, turn, field, text, mark, row, place }) {
    const content = [h("span.place", place), h("q", { dir: "auto" }, text)];
    if (row === undefined) return h("li", h("span.quote", { title: "this trajectory is not in the page" }, content));
    const key = store.rows.key[row];
    const href = router.href({
      trajectory: key,
      turn: field === "task" ? null : turn,
      mark,
      from: at.member && at.row !== row ? store.rows.key[at.row] : null,
    });
    return h("li", h("a.quote", { href, "data-mark": mark }, content));
  }

  /** { turn, field, text } of an address in the guidance of a member, or in its group; null when it leads nowhere. */
  function resolve(group, member, mark) {
    const [, kind, first, second, field] = /^([esx])(\d+)\.(\d+)(?:\.(pre|action|post))?$/.exec(mark) ?? [];
    const given = kind === "x" ? group.extraction : member?.guidance;
    if (!given || !kind) return null;
    if (kind === "s") {
      const support = given.statements[first]?.support[second];
      return support ? { turn: support.turn, field: support.field, text: support.quote } : null;
    }
    const source = given.evidence[first]?.sources[second];
    return source && field ? { turn: source.turn, field, text: source[field] } : null;
  }

  function rejections(items) {
    return (
      items.length > 0 &&
      h(
        "details.rejections",
        h("summary", `Rejected (${items.length})`),
        h(
          "ul",
          items.map((one) =>
            h(
              "li",
              h("span.tag.bad", `${one.stage}: ${one.reason.replaceAll("_", " ")}`),
              h("code", { dir: "auto" }, one.item),
            ),
          ),
        ),
      )
    );
  }

  /** The evidence of the whole group, with what its extraction rejected. */
  function extraction(at) {
    const found = at.group.extraction;
    if (!found)
      return frame(
        "Evidence of the group",
        h("p.empty", "None recorded: the group was not eligible, or the run ended before."),
      );
    return frame(
      "Evidence of the group",
      found.fault && h("p.reason", `No evidence: ${words.reason(found.fault)}`),
      h(
        "ul.evidence-list",
        found.evidence.map((item, position) => h("li", evidence(item, position, at))),
      ),
      rejections(found.rejections),
    );
  }

  /** The statement nearest to a turn: what ties them, its text, and a quote with the episode that it comes from. */
  function moved(turn, at) {
    const given = at.member.guidance;
    if (!given || turn.support === null || given.statements.length === 0) return null;
    const found = turn.mover;
    if (!found)
      return h("p.mover.quiet", "No statement names this action: the block moved it as a whole.");
    const one = given.statements[found.statement];
    const sibling = found.uid === "" ? at.member : at.group.members.find((member) => member.uid === found.uid);
    const place = `${found.uid || "here"} · turn ${found.turn ?? "?"}`;
    const quoted = found.quote !== "" && [
      h("span.place", place),
      found.mark && sibling
        ? h(
            "a",
            {
              href: router.href({
                trajectory: store.rows.key[sibling.row],
                turn: found.turn,
                mark: found.mark,
                from: sibling === at.member ? null : store.rows.key[at.row],
              }),
            },
            h("q", { dir: "auto" }, found.quote),
          )
        : h("q", { dir: "auto" }, found.quote),
    ];
    return h(
      "p.mover",
      h("span.quiet", `${TIES.get(found.how) ?? found.how}: `),
      h("b", { dir: "auto" }, `${found.statement + 1}. ${one?.text ?? ""}`),
      " ",
      quoted && h("span.mover-quote", quoted),
    );
  }

  const TIES = new Map([
    ["same", "A success did the same"],
    ["names", "Nearest statement"],
    ["quotes", "Statement that quotes this turn"],
    ["only", "The only statement"],
  ]);

  return { panel, extraction, resolve, moved };
})();

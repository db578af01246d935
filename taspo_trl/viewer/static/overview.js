"use strict";

/* The first view: which method, its evaluations before and after, its curves, and where its trajectories fall. */
const overview = (() => {
  const { h } = dom;
  const share = { format: (value) => words.percent(value), tick: words.percentTick, low: 0 };
  const CURVES = [
    { name: "success", title: "Success in rollouts", ...share },
    { name: "reward", title: "Reward" },
    { name: "guidance/coverage", title: "Guidance coverage", ...share },
    { name: "credit/weight_std", title: "Weight spread", low: 0 },
    { name: "kl", title: "KL to the reference" },
    { name: "actions/invalid_share", title: "Invalid actions", ...share },
    { name: "turns/mean", title: "Turns of a trajectory", low: 0 },
    { name: "entropy", title: "Entropy per token", low: 0 },
    { name: "moving/entropy", title: "Entropy per token (A ≠ 0)", low: 0 },
  ];
  const STAGES = [
    ["time/rollout", "rollout"],
    ["time/logps", "log-probabilities"],
    ["time/analyzer_visible", "waiting for the analyzer"],
    ["time/scoring", "scoring"],
    ["time/update", "update"],
  ];
  let isDrawn = false;

  function show(container) {
    if (isDrawn) return; // it depends on nothing that changes
    isDrawn = true;
    const { index } = store;
    const linked = new charts.Linked();
    dom.show(
      container,
      method(index.method),
      reading.panel("overview"),
      evaluations.section(index.evaluations, linked),
      facts(index),
      curves(index, linked),
      breakdowns(index),
      notes(index.notes),
    );
  }

  // ---- the method ------------------------------------------------------------------------------------------------

  function method({ name, names, line, note, papers, equations, contexts, teacher, parts, distill, assumed }) {
    if (!name && names.length === 0) return null;
    const others = names.filter(([one]) => one !== name);
    return h(
      "header.method",
      h("p.method-line", h("b", name || names[0][0]), line && [" ", line]),
      h(
        "p.quiet",
        [
          contexts.length > 0 && `guidance: ${contexts.map((one) => one.replaceAll("_", " ")).join(", ")}`,
          teacher && `teacher: ${TEACHERS.get(teacher) ?? teacher}`,
          distill && `loss: ${distill.policy_share} · policy + ${distill.share} · term (${distill.reduction.replaceAll("_", " ")})`,
          others.length > 0 && `also in these records: ${others.map(([one, n]) => `${one} (${n})`).join(", ")}`,
        ]
          .filter(Boolean)
          .join(" · "),
      ),
      papers.length > 0 &&
        h(
          "p.quiet.cite",
          "Cite: ",
          papers.map(([reference, address], k) => [
            k > 0 && "; ",
            address ? h("a", { href: address, rel: "noopener noreferrer", target: "_blank" }, reference) : reference,
          ]),
        ),
      (equations || parts.length > 0) &&
        h(
          "details",
          h("summary", "Equations and options"),
          equations && h("pre.equations", equations),
          note && h("p.hint", note.replaceAll("`", "")),
          assumed && h("p.hint", "The run did not write its options down: these are the method's defaults."),
          h(
            "dl.options",
            parts.map(([part, rule, options]) => [
              h("dt", part),
              h(
                "dd",
                h("code", rule),
                options.length > 0 && [" ", options.map(([option, value]) => h("span.tag", `${option} ${value}`))],
              ),
            ]),
          ),
        ),
    );
  }

  const TEACHERS = new Map([
    ["rollout", "the policy itself"],
    ["stale", "an older copy of the policy"],
    ["ema", "an average of the policy's weights"],
    ["frozen", "the initial policy"],
    ["model", "another model"],
  ]);

  // ---- facts -----------------------------------------------------------------------------------------------------

  function facts({ rows, groups, history }) {
    const total = rows.key.length;
    const steps = rows.step.filter((step) => step !== null);
    const success = history.series.success ?? [];
    const guided = rows.guided.filter(Boolean).length;
    const moved = rows.credit.filter((credit) => credit === "weighted").length;
    const flagged = rows.flagged.reduce((sum, one) => sum + one, 0);
    const tiles = [
      ["Trajectories", total.toLocaleString("en"), words.count(groups.key.length, "group")],
      [
        "Steps",
        steps.length ? `${Math.min(...new Set(steps))} – ${Math.max(...new Set(steps))}` : "–",
        words.count(new Set(rows.rollout).size, "rollout batch", "rollout batches"),
      ],
      [
        "Success in rollouts",
        success.length ? words.percent(mean(success.slice(-5))) : "–",
        success.length > 5
          ? `last five steps; first five ${words.percent(mean(success.slice(0, 5)))}`
          : success.length
            ? "mean of the steps"
            : "not logged",
      ],
      [
        "With guidance",
        total ? words.percent(guided / total) : "–",
        words.count(guided, "trajectory", "trajectories"),
      ],
      ["Weights moved", total ? words.percent(moved / total) : "–", words.count(moved, "trajectory", "trajectories")],
      [
        "Refused, yet credited ⚑",
        flagged.toLocaleString("en"),
        flagged > 0
          ? h(
              "a",
              { href: "#view=trajectories&flagged=yes", "data-filters": true },
              `in ${words.count(rows.flagged.filter(Boolean).length, "success", "successes")}`,
            )
          : "actions in successes",
      ],
    ];
    return h(
      "dl.tiles",
      tiles.map(([name, value, detail]) => h("div", h("dt", name), h("dd", value), h("dd.quiet", detail))),
    );
  }

  const mean = (points) => points.reduce((sum, [, y]) => sum + y, 0) / points.length;

  function notes(texts) {
    return (
      texts.length > 0 &&
      h(
        "section.block.notes",
        { "aria-label": "Notes" },
        h("h2", "About the files"),
        h(
          "ul",
          texts.map((text) => h("li", text)),
        ),
      )
    );
  }

  // ---- curves ----------------------------------------------------------------------------------------------------

  function curves({ history: { source, series }, evaluations: held }, linked) {
    const head = [h("h2", "Learning curves, means of five steps")];
    if (Object.keys(series).length === 0)
      return block(head, h("p.hint", "This run left no log and no trajectories with a step."));
    if (source) head[0].title = `Logged numbers from ${source}`;
    head.push(
      h(
        "p.hint",
        source ? "" : "This run left no log, so these curves are computed from its trajectories. ",
        "The strong line is the mean of five steps, that one and the four before it; the thin line is each step. ",
        evaluations.beside(held),
      ),
    );
    const grid = h(
      "div.charts",
      CURVES.filter(({ name }) => series[name]).map((curve) => line(curve, series[curve.name], linked)),
      stages(series, linked),
    );
    const shown = new Set([...CURVES.map(({ name }) => name), ...STAGES.map(([name]) => name)]);
    return block(head, grid, adder(series, shown, grid, linked), valueTable(series, shown));
  }

  function line({ title, format = words.short, tick, low }, points, linked) {
    const smooth = points.length > 5;
    const series = [{ name: "", className: smooth ? "faint" : "main", points }];
    if (smooth) series.push({ name: "mean of 5", className: "main", points: charts.averaged(points) });
    return charts.chart({ title, format, tick, low, linked, series });
  }

  function stages(series, linked) {
    const shown = STAGES.filter(([name]) => series[name]);
    return (
      shown.length > 0 &&
      charts.chart({
        title: "Seconds per step, by stage",
        className: "stages",
        format: words.seconds,
        tick: words.short,
        low: 0,
        linked,
        isStacked: true,
        series: shown.map(([name, title]) => ({
          name: title,
          className: `stage-${STAGES.findIndex(([one]) => one === name)}`,
          points: series[name],
        })),
      })
    );
  }

  /** A menu of all other logged numbers, each drawn on demand. */
  function adder(series, shown, grid, linked) {
    const others = Object.keys(series)
      .filter((name) => !shown.has(name))
      .sort();
    if (others.length === 0) return null;
    const menu = h(
      "select",
      {
        onchange: () => {
          grid.append(line({ title: menu.value }, series[menu.value], linked));
          menu.selectedOptions[0].remove();
          menu.value = "";
        },
      },
      h("option", { value: "" }, `${others.length} other logged numbers`),
      others.map((name) => h("option", { value: name }, name)),
    );
    return h("label.adder", "Add a curve: ", menu);
  }

  function valueTable(series, shown) {
    const names = [...shown].filter((name) => series[name]);
    const details = h(
      "details.logged",
      {
        ontoggle: () => {
          if (details.open && details.children.length === 1) details.append(build());
        },
      },
      h("summary", "Values as a table"),
    );
    return details;

    function build() {
      const values = names.map((name) => new Map(series[name]));
      const steps = [...new Set(names.flatMap((name) => series[name].map(([step]) => step)))].sort((a, b) => a - b);
      return h(
        "div.table-frame.tall",
        { tabindex: 0, role: "region", "aria-label": "Logged numbers" },
        h(
          "table",
          h(
            "thead",
            h(
              "tr",
              ["step", ...names].map((name) => h("th", { scope: "col" }, name)),
            ),
          ),
          h(
            "tbody",
            steps.map((step) =>
              h(
                "tr",
                h("th", { scope: "row" }, String(step)),
                values.map((column) => h("td", words.short(column.get(step)))),
              ),
            ),
          ),
        ),
      );
    }
  }

  // ---- where trajectories fall -----------------------------------------------------------------------------------

  function breakdowns({ rows, rejections }) {
    const total = rows.key.length;
    if (total === 0) return null;
    return block(
      [h("h2", "Trajectories")],
      h(
        "div.breakdowns",
        bars("How they ended", tally(rows.stop), total, "stop"),
        families(rows),
        bars("Credit", tally(rows.credit), total, "credit"),
        rejections.length > 0 &&
          bars("Rejected analyzer items", rejections, Math.max(...rejections.map(([, n]) => n)), null),
      ),
    );
  }

  function tally(values) {
    const counts = new Map();
    for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]);
  }

  function bars(title, entries, total, filter) {
    return h(
      "div",
      h("h3", title),
      h(
        "ul.bars",
        entries.map(([code, n]) =>
          bar(
            filter ? words.reason(code) : code.replaceAll("_", " "),
            n / total,
            n.toLocaleString("en"),
            filter && { [filter]: code },
          ),
        ),
      ),
    );
  }

  function families({ family, outcome }) {
    const entries = tally(family)
      .sort(([a], [b]) => a.localeCompare(b))
      .map(([name]) => {
        const usable = outcome.filter((one, row) => family[row] === name && (one === "success" || one === "failure"));
        return [name, usable.filter((one) => one === "success").length, usable.length];
      });
    return h(
      "div",
      h("h3", "Success by family, whole run"),
      h(
        "ul.bars",
        entries.map(([name, solved, usable]) =>
          bar(
            name || "(none)",
            usable ? solved / usable : 0,
            `${usable ? words.percent(solved / usable, 0) : "–"} of ${usable.toLocaleString("en")}`,
            name && { family: name },
          ),
        ),
      ),
    );
  }

  function bar(label, length, value, filters) {
    const inside = [
      h("span.bar-fill", { style: { "--share": `${(100 * length).toFixed(1)}%` } }),
      h("span.bar-label", label),
      h("span.bar-value", value),
    ];
    const href = filters && `#${new URLSearchParams({ view: "trajectories", ...filters })}`;
    return h("li", filters ? h("a.bar", { href, "data-filters": true }, inside) : h("span.bar", inside));
  }

  const block = (head, ...content) => h("section.block", head, content);

  return { show };
})();

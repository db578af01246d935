"use strict";

/* The first view: what the run is, its curves, its evaluations, and where its trajectories fall. */
const overview = (() => {
  const { h } = dom;
  const share = { format: (value) => words.percent(value), tick: words.percentTick, low: 0 };
  const CURVES = [
    { name: "success", title: "Success in rollouts", ...share },
    { name: "reward", title: "Reward" },
    { name: "guidance/coverage", title: "Guidance coverage", ...share },
    { name: "credit/weight_std", title: "Spread of the weights", low: 0 },
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
      facts(index),
      notes(index.notes),
      curves(index.history, linked),
      evaluations.section(index.evaluations, linked),
      breakdowns(index),
    );
  }

  // ---- facts -----------------------------------------------------------------------------------------------------

  function facts({ rows, groups, history }) {
    const total = rows.key.length;
    const steps = rows.step.filter((step) => step !== null);
    const success = history.series.success ?? [];
    const guided = rows.guided.filter(Boolean).length;
    const moved = rows.credit.filter((credit) => credit === "weighted").length;
    const tiles = [
      ["Trajectories", total.toLocaleString("en"), words.count(groups.key.length, "group")],
      [
        "Steps",
        steps.length ? `${Math.min(...new Set(steps))} – ${Math.max(...new Set(steps))}` : "–",
        words.count(new Set(rows.rollout).size, "rollout batch", "rollout batches"),
      ],
      [
        "Success in rollouts",
        success.length ? words.percent(success.at(-1)[1]) : "–",
        success.length ? `first ${words.percent(success[0][1])}` : "not logged",
      ],
      [
        "With guidance",
        total ? words.percent(guided / total) : "–",
        words.count(guided, "trajectory", "trajectories"),
      ],
      ["Weights moved", total ? words.percent(moved / total) : "–", words.count(moved, "trajectory", "trajectories")],
    ];
    return h(
      "dl.tiles",
      tiles.map(([name, value, detail]) => h("div", h("dt", name), h("dd", value), h("dd.quiet", detail))),
    );
  }

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

  function curves({ source, series }, linked) {
    const head = [h("h2", "Learning curves")];
    if (Object.keys(series).length === 0)
      return block(head, h("p.hint", "This run left no log and no trajectories with a step."));
    head.push(
      h(
        "p.hint",
        source
          ? `Logged numbers from ${source}. Where there are more than five, the strong line is the mean of the last five.`
          : "This run left no log, so these curves are computed from its trajectories.",
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
    if (smooth) series.push({ name: "mean", className: "main", points: charts.averaged(points) });
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
      "details",
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

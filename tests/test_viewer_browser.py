"""The viewer's page in a real browser: it filters, links, escapes, and is fast with 5,000 trajectories."""

import dataclasses
import json

import pytest

from taspo_trl.records import to_json, write_records
from taspo_trl.types import Block
from taspo_trl.viewer import trajectory_html, write_viewer
from tests.browser import chromium
from tests.runs import small_group, without_guidance, write_large_run, write_method, write_small_run


ATTACK = (
    "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 2'>"
    "</script><script>window.attacked = 3</script><a href='javascript:window.attacked = 4'>x</a>"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        page.resize(1280, 800)
        yield page


@pytest.fixture
def page(browser):
    """The browser's tab; a test that leaves an error in it fails."""
    browser.visit("about:blank")
    yield browser
    assert browser.problems() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "about:", "data:"))] == []


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_viewer(write_small_run(tmp_path_factory.mktemp("small"))).as_uri()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return write_viewer(write_large_run(tmp_path_factory.mktemp("large"))).as_uri()


def keys(page):
    """Names of the trajectories in the list, in its order."""
    return page.run("list.found.map((row) => store.rows.key[row])")


def is_in_view(page, selector):
    return page.run(
        f"""(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();
        return box.bottom > 0 && box.top < innerHeight; }})()"""
    )


# ---- opening ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_five_thousand_trajectories_open_in_time(page, large):
    opened = page.open(f"{large}#view=trajectories")
    rows = page.run("document.querySelectorAll('.rows li').length")
    print(
        f"\n5,000 trajectories, {page.run('document.documentElement.outerHTML.length') / 1e6:.1f} MB: {opened:.2f} s"
    )
    assert page.texts(".count") == ["5,000 trajectories"]
    assert 10 < rows < 60  # only those on the screen are in the document
    assert opened < 3.0  # about 0.2 s on an idle machine
    page.run("document.querySelector('.viewport').scrollTop = 1e9")
    page.wait("document.querySelector('.rows li:last-child a').dataset.row === '4999'")
    started = page.run("performance.now()")
    page.run("router.filter({ q: 'fridge', outcome: 'success', sort: '-spread' })")
    page.wait("document.querySelector('.count').textContent.includes(' of 5,000')")
    assert page.run("performance.now()") - started < 3000
    page.click(".rows a")
    page.wait("document.querySelectorAll('.turn').length > 0")


def test_overview_shows_curves_evaluations_and_where_trajectories_fall(page, small):
    page.open(small)
    titles = page.texts(".chart-title")
    assert titles[:5] == [
        "Success in rollouts", "Reward", "Guidance coverage", "Weight spread", "KL to the reference",
    ]  # fmt: skip
    assert "Seconds per step, by stage" in titles
    page.wait(f"document.querySelectorAll('.chart svg').length === {len(titles)}")
    evaluations = page.texts("#evaluations tbody tr")
    assert "25.0 % 2/8" in evaluations[0] and "75.0 % 6/8" in evaluations[1]
    assert "+50.0 points, p = 0.13" in evaluations[1]
    (result,) = page.texts(".result")
    assert "25.0 %→75.0 %+50.0 points" in result
    assert "8 tasks in pairs: 4 solved only after, 0 only before, p = 0.13 (may be chance)" in result
    assert page.texts("#overview h2")[:2] == ["Evaluations, before and after", "Learning curves, means of five steps"]
    assert page.texts(".method-line, .cite a") == ["taspo turn weights", "A paper, arXiv:2608.31077"]
    assert page.texts(".breakdowns .bar-label")[:3] == ["solved", "limit of turns", "environment raised"]


def test_hovering_a_chart_reads_the_step_off_all_charts(page, small):
    def reads(number, start):
        page.wait(f"document.querySelectorAll('.chart-readout')[{number}].textContent.startsWith('{start}')")

    page.open(small)
    page.wait("document.querySelector('.chart svg')")
    page.run("document.querySelector('.chart').scrollIntoView({ block: 'center' })")
    left, top, width = page.run(
        """(() => { const box = document.querySelector('.chart svg').getBoundingClientRect();
        return [box.left, box.top, box.width]; })()"""
    )
    reads(0, "step 8 · 80.0 %")
    page.move(left + 46 + (width - 56) * 2 / 7, top + 60)  # the third of eight steps
    reads(0, "step 3 · 30.0 %")
    reads(1, "step 3 · 0.6")
    page.run("document.querySelector('.chart svg').focus()")
    page.press("ArrowRight")
    reads(1, "step 4 · 0.8")


def test_every_logged_number_can_be_drawn(page, small):
    page.open(small)
    page.run(
        """(() => { const menu = document.querySelector('.adder select');
        menu.value = 'learning_rate'; menu.dispatchEvent(new Event('change')); })()"""
    )
    page.wait("[...document.querySelectorAll('.chart-title')].some((one) => one.textContent === 'learning_rate')")
    page.click("details.logged summary")
    page.wait("document.querySelector('.table-frame.tall')")
    assert page.texts(".table-frame.tall tbody tr")[7].startswith("80.8")  # step 8, success 0.8


# ---- the list ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("", ["r0-g0-k0", "r0-g0-k1", "r0-g0-k2", "r1-g0-k0", "r1-g0-k1", "r1-g0-k2"]),
        ("outcome=success", ["r0-g0-k0", "r1-g0-k0"]),
        ("stop=env_error&steps=1", ["r1-g0-k2"]),
        ("guided=yes", ["r0-g0-k1", "r1-g0-k1"]),
        ("credit=no_other_success&rollout=0-0", ["r0-g0-k0"]),
        ("group=r1&sort=-turns", ["r1-g0-k1", "r1-g0-k0", "r1-g0-k2"]),
        ("steps=1-", ["r1-g0-k0", "r1-g0-k1", "r1-g0-k2"]),
        ("steps=x", []),
        ("family=none", []),
        ("q=LAMP+1", ["r0-g0-k1", "r1-g0-k1"]),  # an action
        ("q=mug+r1-g0-k0", ["r1-g0-k0"]),  # the task, and a name
        ("q=%22take+mug%22", ["r0-g0-k0", "r0-g0-k1", "r1-g0-k0", "r1-g0-k1"]),
        ("q=%22mug+take%22", []),
        ("sort=reward&steps=0", ["r0-g0-k1", "r0-g0-k2", "r0-g0-k0"]),
        ("sort=-spread", ["r0-g0-k1", "r1-g0-k1", "r0-g0-k0", "r0-g0-k2", "r1-g0-k0", "r1-g0-k2"]),
    ],
)
def test_address_filters_and_sorts(page, small, filters, expected):
    page.open(f"{small}#view=trajectories&{filters}")
    assert keys(page) == expected
    assert page.run("document.querySelectorAll('.rows li').length") == len(expected)


def test_filters_of_the_form_go_into_the_address_and_back(page, small):
    page.open(f"{small}#view=trajectories")
    page.run(
        """(() => { const [outcome] = document.querySelectorAll('.filter-grid select');
        outcome.value = 'success'; outcome.dispatchEvent(new Event('change')); })()"""
    )
    page.wait("list.found.length === 2")
    assert "outcome=success" in page.run("location.hash")
    page.press("/")
    page.wait("document.activeElement.id === 'search-field'")
    for letter in "r1":
        page.press(letter)
    page.wait("list.found.length === 1")
    assert page.texts(".count") == ["1 of 6 trajectories"]
    page.press("Escape")
    page.click(".reset")
    page.wait("list.found.length === 6")
    assert page.run("document.getElementById('search-field').value") == ""


def test_bars_of_the_overview_lead_to_their_trajectories(page, small):
    page.open(small)
    page.run("[...document.querySelectorAll('a.bar')].find((one) => one.textContent.startsWith('solved')).click()")
    page.wait("!document.getElementById('trajectories').hidden && list.found.length === 2")


def test_heads_sort_up_and_down(page, small):
    page.open(f"{small}#view=trajectories")
    page.click(".list-head .turns")
    page.wait("router.state.get('sort') === 'turns'")
    assert keys(page)[0] == "r0-g0-k2"
    page.click(".list-head .turns")
    page.wait("router.state.get('sort') === '-turns'")
    assert keys(page)[0] == "r0-g0-k1"


# ---- a trajectory -----------------------------------------------------------------------------------------------


def test_trajectory_shows_turns_weights_and_shifts(page, small):
    page.open(f"{small}#trajectory=r0-g0-k1")
    page.wait("document.querySelectorAll('.turn').length === 3")
    assert page.texts(".turn .weight") == ["w 1.125more blame", "w 1.000as the outcome says", "w 0.875less blame"]
    assert page.texts(".turn mark.action")[1] == "<action>take mug 1</action>"
    assert page.texts("#turn-0 .token-number") == ["\u22121.50", "0.00"]
    assert "refused" in page.texts("#turn-1 header")[0]
    assert "carries \u22120.787" in page.texts("#turn-0 header")[0]  # -0.7 * 1.125
    first, second, third = page.run(
        "[...document.querySelectorAll('.turn .weight')].map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert len({first, second, third}) == 3  # above, at and below 1
    (mover,) = page.texts("#turn-2 .mover")
    assert mover == "A success did the same: 1. Go to the desk. r0-g0-k0 · turn 0go to desk 1"
    assert page.texts("#turn-2 .arithmetic b") == ["w 0.875"]
    assert [row[0] for row in page.texts(".minimap a")] == ["0", "1", "2"]
    assert page.texts(".turn .answer pre") == ["A mug 1!"]  # the others are the next turns' observations


def test_guidance_shows_statements_evidence_and_rejects(page, small):
    page.open(f"{small}#trajectory=r0-g0-k1")
    page.wait("document.querySelector('.guidance')")
    assert page.texts(".statement") == ["Go to the desk."]
    (rejected,) = page.texts(".rejections li")
    assert "alignment: evidence id not allowed" in rejected and "E9" in rejected
    assert "Evidence not used (1)" in page.texts(".guidance summary")
    page.visit(f"{small}#trajectory=r0-g0-k0")
    page.wait("document.querySelector('.guidance .reason')")
    assert page.texts(".guidance .reason") == ["No guidance: no other success in the group"]


@pytest.mark.parametrize(
    ("mark", "trajectory", "turn", "quoted"),
    [
        ("s0.0", "r0-g0-k1", None, "Put a mug"),  # the target's task
        ("s0.1", "r0-g0-k1", 2, "Nothing happens."),
        ("s0.2", "r0-g0-k1", 0, "<action>go to lamp 1</action>"),
        ("e0.0.pre", "r0-g0-k0", 0, "a desk 1\nand a lamp 1"),  # white space is forgiven
        ("e0.0.action", "r0-g0-k0", 0, "<action>go to desk 1</action>"),
        ("e0.0.post", "r0-g0-k0", 1, "is a mug 1."),  # shown as the next turn's observation
    ],
)
def test_quote_leads_to_its_turn_and_is_highlighted(page, small, mark, trajectory, turn, quoted):
    page.open(f"{small}#trajectory=r0-g0-k1")
    page.wait("document.querySelector('.guidance')")
    page.click(f'a[data-mark="{mark}"]')
    page.wait(f"document.querySelector('.trajectory-head h2').textContent === '{trajectory}'")
    page.wait("document.querySelector('mark.quoted, .is-quoted')")
    assert page.texts("mark.quoted, .is-quoted") == [quoted]
    place = ".trajectory-head" if turn is None else f"#turn-{turn}"
    assert page.run(f"document.querySelector('{place}').contains(document.querySelector('mark.quoted, .is-quoted'))")
    page.wait(
        """(() => { const box = document.querySelector('mark.quoted, .is-quoted').getBoundingClientRect();
        return box.top >= 0 && box.bottom <= innerHeight; })()"""
    )
    if trajectory != "r0-g0-k1":
        assert is_in_view(page, ".from-bar")
        page.click(".from-bar a")
        page.wait("document.querySelector('.trajectory-head h2').textContent === 'r0-g0-k1'")
        page.wait(f"document.activeElement.dataset.mark === '{mark}'")  # back where one read


def test_quote_is_unmarked_when_one_goes_on(page, small):
    page.open(f"{small}#trajectory=r0-g0-k1&mark=s0.1")
    page.wait("document.querySelector('mark.quoted')")
    page.press("p")
    page.wait("document.querySelector('mark.quoted') === null")
    assert page.texts("#turn-2 .observation pre") == ["Nothing happens."]


def test_address_leads_to_a_turn(page, small):
    page.resize(1280, 500)
    try:
        page.open(f"{small}#trajectory=r1-g0-k1&turn=2")
        page.wait("document.querySelector('#turn-2.is-current')")
        page.wait("document.querySelector('#turn-2').getBoundingClientRect().bottom <= innerHeight + 150")
        assert is_in_view(page, "#turn-2")
    finally:
        page.resize(1280, 800)


@pytest.mark.parametrize(
    "address",
    [
        "trajectory=gone", "siblings=gone", "view=gone", "trajectory=r0-g0-k0&turn=1.5", "trajectory=r0-g0-k0&turn=99",
        "trajectory=r0-g0-k0&mark=e9.9.pre&from=r0-g0-k1", "trajectory=r0-g0-k0&mark=%22%5D&from=nobody", "%", "=&=",
        "trajectory=r0-g0-k2&turn=0&mark=s0.0", "sort=__proto__&view=trajectories",
    ],
)  # fmt: skip
def test_address_that_leads_nowhere_is_no_error(page, small, address):
    page.open(f"{small}#{address}")
    page.wait("document.querySelector('main > section:not([hidden])').textContent !== ''")
    assert page.run("document.getElementById('status').hidden")


def test_keys_go_through_trajectories_turns_and_groups(page, small):
    page.open(f"{small}#view=trajectories&outcome=failure")
    page.press("j")
    page.wait("trajectory.shown === store.rowOf('r0-g0-k1')")
    page.press("j")
    page.wait("trajectory.shown === store.rowOf('r1-g0-k1')")  # the next one that passes the filter
    page.press("k")
    page.wait("trajectory.shown === store.rowOf('r0-g0-k1')")
    page.press("n")
    page.press("n")
    page.wait("document.querySelector('#turn-1.is-current')")
    page.press("g")
    page.wait("!document.getElementById('siblings').hidden")
    page.press("j")
    page.wait("document.querySelector('#siblings h2').textContent === 'Group r1-g0'")
    page.press("Escape")
    page.wait("document.getElementById('siblings').hidden")
    page.press("Escape")
    page.wait("trajectory.shown === null")
    page.press("?")
    page.wait("document.getElementById('help').open")


def test_group_stands_side_by_side(page, small):
    page.open(f"{small}#siblings=r0-g0")
    page.wait("document.querySelector('.matrix')")
    rows = page.run(
        "[...document.querySelectorAll('.matrix tbody tr')].map((one) => [...one.cells].map((cell) => cell.innerText))"
    )
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert rows[0][1:] == ["go to desk 1\nw 1.000", "go to lamp 1\nw 1.125", ""]
    assert rows[1][2] == "take mug 1\nw 1.000 · refused"
    page.click('.guidance a[data-mark="x0.0.post"]')  # the group's evidence leads to its turns too
    page.wait("document.querySelector('mark.quoted')")
    assert page.texts("mark.quoted") == ["is a mug 1."]


# ---- what a run may be ------------------------------------------------------------------------------------------


def hostile_records():
    attacked = []
    for record in small_group():
        turns = tuple(
            dataclasses.replace(
                one,
                observation=ATTACK,
                next_observation=ATTACK,
                reply_text=f"<action>{ATTACK}</action>",
                action=ATTACK,
            )
            for one in record.trajectory.turns
        )
        one = dataclasses.replace(
            record.trajectory, turns=turns, task_text=ATTACK, family=ATTACK, error=ATTACK, task={ATTACK: ATTACK}
        )
        guidance = record.guidance
        statements = tuple(dataclasses.replace(line, text=ATTACK) for line in guidance.statements)
        blocks = {ATTACK: Block.whole((7,), len(turns), ATTACK)}
        guidance = dataclasses.replace(guidance, blocks=blocks, statements=statements, construction=ATTACK)
        attacked.append(dataclasses.replace(record, trajectory=one, guidance=guidance, group_id=ATTACK))
    return attacked


def test_markup_in_a_record_is_shown_as_text_and_does_not_run(page, tmp_path):
    write_records(tmp_path / "_trajectories" / "rollout_000000.jsonl", hostile_records())
    paper = {"reference": ATTACK, "address": "javascript:window.attacked = 5"}
    options = {"rule": ATTACK, "options": {ATTACK: ATTACK}}
    hostile = {"line": ATTACK, "equations": ATTACK, "papers": [paper], "contexts": [ATTACK], "weight": options}
    write_method(tmp_path / "_trajectories", {"name": "taspo"} | hostile)
    address = write_viewer(tmp_path).as_uri()
    page.open(f"{address}#trajectory=r0-g0-k1")
    page.wait("document.querySelectorAll('.turn').length === 3")
    assert page.texts("#turn-0 .observation pre") == [ATTACK]
    assert page.texts("#turn-0 mark.action") == [f"<action>{ATTACK}</action>"]
    assert page.texts(".statement") == [ATTACK]
    page.click('a[data-mark="s0.2"]')
    for place in (
        "view=trajectories",
        "view=overview",
        "siblings=" + page.run(f"encodeURIComponent({json.dumps(ATTACK)})"),
    ):
        page.visit(f"{address}#{place}")
        page.wait("[...document.querySelectorAll('main > section')].some((one) => !one.hidden && one.textContent)")
    assert page.run("window.attacked") is None
    assert page.run("document.querySelectorAll('main img, main script, main iframe, [href^=javascript]').length") == 0


@pytest.mark.parametrize("code", ["constructor", "__proto__", "toString"])
def test_codes_that_name_parts_of_the_language_are_only_texts(page, tmp_path, code):
    records = [json.loads(json.dumps(to_json(record))) for record in small_group()]
    for record in records:
        record["stop_reason"] = record["family"] = record["credit"]["fallback"] = code
        record["guidance"]["abstain_reason"] = record["guidance"]["construction"] = code
        record["rewards"] = {code: 1.0}
    for support in records[1]["guidance"]["statements"][0]["support"]:
        support["field"] = code
    path = tmp_path / "rollout_000000.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    write_method(tmp_path)
    state = {"log_history": [{"step": 1, code: 1.0}, {"step": 2, code: 2.0}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    address = write_viewer(tmp_path).as_uri()
    page.open(address)
    assert page.texts(".adder option")[1:] == [code]
    shown = code.replace("_", " ")
    assert page.texts(".breakdowns .bar-label")[:3] == [shown, code, shown]
    page.visit(f"{address}#trajectory=r0-g0-k1&mark=s0.0&sort={code}&guided={code}")
    page.wait("document.querySelectorAll('.turn').length === 3")
    assert f"All weights are 1: {shown}." in page.texts(".reason")
    assert page.texts(".statements .place")[0] == f"here · turn 0 · {code}"


def test_policy_refuses_code_that_is_not_the_pages_own(browser, small):
    browser.open(small)
    assert (
        browser.run("(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } })()")
        == "TypeError"
    )
    browser.run(
        """(() => { const one = document.createElement('img'); one.src = 'https://example.org/x.png';
        document.body.append(one); })()"""
    )
    browser.wait("true")
    assert browser.run("fetch('https://example.org').then(() => 'loaded', () => 'refused')") == "refused"
    assert any("Content Security Policy" in problem for problem in browser.problems())


def test_crashed_run_says_what_is_missing(page, tmp_path):
    records = [without_guidance(record) for record in small_group()]
    write_records(tmp_path / "_trajectories" / "rollout_000000.jsonl.partial", records)
    address = write_viewer(tmp_path).as_uri()
    page.open(address)
    assert "stopped while it wrote" in page.texts(".notes li")[0]
    assert "computed from its trajectories" in page.texts(".hint")[0]
    page.visit(f"{address}#trajectory=r0-g0-k1")
    page.wait("document.querySelectorAll('.turn').length === 3")
    assert page.texts(".turn .weight") == ["w –"] * 3
    assert page.texts(".guidance p")[0].startswith("Not recorded")
    assert "from a partial file" in page.texts(".title-line")[0]


def damaged_records():
    """The guided record with each of its fields gone, and with each being something else."""

    def places(record):
        credit, guidance = record["credit"], record["guidance"]
        yield from (record, record["turns"][0], credit, credit["scores"][0], guidance, guidance["statements"][0])
        yield from (guidance["statements"][0]["support"][0], guidance["evidence"][0], record["extraction"])
        yield guidance["evidence"][0]["sources"][0]

    def whole():
        return json.loads(json.dumps(to_json(small_group()[1])))

    for place, fields in enumerate(places(whole())):
        for field in fields:
            for value in ("gone", None, -1.5, "x", [None], {}):
                record = whole()
                holder = list(places(record))[place]
                holder[field] = value
                if value == "gone":
                    del holder[field]
                yield record if field == "group_id" else record | {"group_id": f"{place}-{field}-{value}"}


@pytest.mark.slow
def test_damaged_records_are_shown_without_an_error(page, tmp_path):
    path = tmp_path / "rollout_000000.jsonl"
    records = list(damaged_records())
    write_method(tmp_path)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    page.open(f"{write_viewer(path).as_uri()}#view=trajectories")
    assert page.run("store.rows.key.length") == len(records) > 400
    page.run(
        """(async () => {
          const settled = () => new Promise((resume) => setTimeout(resume));
          for (const [row, key] of store.rows.key.entries()) {
            router.go({ trajectory: key, mark: ["s0.0", "s0.1", "e0.0.post"][row % 3] }, true);
            for (let k = 0; trajectory.shown !== row; k++) {
              if (k > 5000) throw new Error(`${key} is not shown`);
              await settled();
            }
          }
          for (const siblings of store.index.groups.key) {
            router.go({ siblings }, true);
            await settled();
          }
          router.filter({ sort: "-advantage", q: "mug" });
          await settled();
        })()"""
    )


def test_run_without_trajectories_opens(page, tmp_path):
    write_small_run(tmp_path)
    for path in (tmp_path / "_trajectories").iterdir():
        path.unlink()
    page.open(write_viewer(tmp_path).as_uri())
    page.press("j")
    page.click("#nav-trajectories")
    page.wait("document.querySelector('.count').textContent === '0 trajectories'")


@pytest.mark.parametrize(
    ("width", "height", "is_dark"),
    [(1280, 720, False), (1280, 720, True), (390, 844, False), (390, 844, True)],
    ids=["laptop", "dark laptop", "phone", "dark phone"],
)
def test_nothing_is_cut_off(page, small, width, height, is_dark):
    page.resize(width, height, is_dark)
    try:
        for place in ("view=overview", "view=trajectories", "trajectory=r0-g0-k1", "siblings=r0-g0"):
            page.visit("about:blank")
            page.open(f"{small}#{place}")
            page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            assert page.run("document.documentElement.scrollWidth") <= width, place
            assert page.run("document.documentElement.scrollHeight") <= height, place  # panes scroll, not the page
            # What is wider than its pane stands in a box that scrolls.
            outside = page.run(
                f"""[...document.querySelectorAll('main > section:not([hidden]) *')].filter((one) =>
                one.getBoundingClientRect().right > {width} + 1 && one.checkVisibility() &&
                !one.closest('.table-frame, .matrix-frame, .equations')).map((one) => one.className || one.tagName)"""
            )
            assert outside == [], place
            if place != "view=trajectories":
                assert page.run("document.querySelector('main > section:not([hidden]) .reading') !== null"), place
    finally:
        page.resize(1280, 800)


def test_refused_actions_that_are_credited_can_be_found(page, tmp_path):
    records = [json.loads(json.dumps(to_json(record))) for record in small_group()]
    records[1]["credit"] |= {"advantage": 0.7, "weights": [0.9, 1.2, 0.9]}
    write_method(tmp_path)
    (tmp_path / "rollout_000000.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    page.open(write_viewer(tmp_path).as_uri())
    page.click('.tiles a[href*="flagged"]')
    page.wait("!document.getElementById('trajectories').hidden && list.found.length === 1")
    page.click(".rows a")
    page.wait("document.querySelectorAll('.turn').length === 3")
    assert page.texts(".turn header .flag") == ["⚑ yet credited"]
    assert "more credit ⚑" in page.texts(".minimap a")[1]
    # A success: above 1 is credit, blue; below it is amber. In the failure of the other tests it is the other way.
    colours = page.run(
        "[...document.querySelectorAll('.turn .weight')].map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert colours[0] == colours[2] != colours[1]


def test_page_of_a_run_that_goes_on_loads_itself_again(page, tmp_path):
    path = write_viewer(write_small_run(tmp_path), reload_seconds=0.2)
    page.open(f"{path.as_uri()}#trajectory=r0-g0-k1&turn=2")
    page.wait("document.querySelector('#turn-2.is-current')")
    page.run("window.isOld = true")
    write_viewer(tmp_path)
    page.wait("window.isOld === undefined && document.documentElement?.dataset.ready !== undefined")
    page.wait("document.querySelector('#turn-2.is-current')")  # where one was
    assert page.run("document.documentElement.dataset.reload") is None  # the run is over


def test_every_control_has_a_name(page, small):
    page.open(f"{small}#trajectory=r0-g0-k1")
    page.wait("document.querySelector('.guidance')")
    nameless = page.run(
        """[...document.querySelectorAll('button, a, input, select, summary')].filter((one) =>
        !(one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length))
        .map((one) => one.outerHTML)"""
    )
    assert nameless == []


def test_trajectory_in_a_notebook_stays_in_its_frame(page, tmp_path):
    notebook = tmp_path / "notebook.html"
    frame = trajectory_html(hostile_records()[1], hostile_records())
    # What a notebook does: the output becomes part of its document. (Same origin here, to look inside.)
    frame = frame.replace('sandbox="allow-scripts"', "")
    notebook.write_text(f"<!DOCTYPE html><html data-ready='0'><body><h1>Notebook</h1>{frame}</body></html>")
    page.open(notebook.as_uri())
    page.wait("document.querySelector('iframe').contentDocument?.querySelectorAll('.turn').length === 3")
    inside = "document.querySelector('iframe').contentDocument"
    page.run(f"""{inside}.querySelector('a[data-mark="e0.0.action"]').click()""")
    page.wait(f"{inside}.querySelector('.trajectory-head h2').textContent === 'r0-g0-k0'")
    page.wait(f"{inside}.querySelector('.is-quoted')")
    assert page.run("location.hash") == ""
    assert page.run(f"window.attacked ?? {inside}.defaultView.attacked ?? null") is None

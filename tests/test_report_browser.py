"""The HTML report in a real browser: it loads in silence, and search, sort, zoom and drill-down work."""

from __future__ import annotations

import re

import numpy as np
import pytest
from _browser import Browser, find_browser
from test_report import NAMES, hostile_plan, measured_run

import reshard_planner as rp
from benchmarks.whole import WHOLE, build_whole
from reshard_planner.compiler import outline
from reshard_planner.intset import parse_ints
from reshard_planner.render.hops.lines import LINES
from reshard_planner.render.report import Alternative, pairs, report_html
from reshard_planner.simulate import predict
from reshard_planner.topology import Link, Pod

PROGRAM = find_browser()

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")

LAYERS = 60

PAGES = (
    "predicted",
    "scheduled",
    "hostile",
    "nothing",
    "stays",
    "measured",
    "many",
    "pods",
    "slow",
    "routed",
)

PICTURE = "document.getElementById('r-picture-hops').shadowRoot"

DRAWN = "Boolean(document.getElementById('r-picture-hops'))"


def layered_plan():
    """Tensors on two domains of four GPUs each, enough for two pages of the table."""
    before = rp.Layout(rp.Mesh([0, 1, 2, 3], ["tp"]), ["S(0)"])
    after = rp.Layout(rp.Mesh([[4, 5], [6, 7]], ["dp", "tp"]), ["R", "S(1)"])
    tensors = [
        rp.TensorSpec(f"layers.{at}.w", (64 + at, 512), "bfloat16", before, after) for at in range(LAYERS)
    ]
    apart = rp.Layout(rp.Mesh([0, 1]), ["R"])
    tensors.append(rp.TensorSpec("stays", (8,), "float32", apart, apart))
    return rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(8, 4)))


def many_domains():
    """Every rank of 16 domains sends to every rank of 16 others: more than a picture has lines for."""
    before, after = rp.Layout(rp.Mesh(range(32)), ["S(0)"]), rp.Layout(rp.Mesh(range(32, 64)), ["S(1)"])
    tensors = [rp.TensorSpec(name, (64, 64), "bfloat16", before, after) for name in ("a", "b")]
    return rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(64, 2)))


def two_pods():
    """From four domains behind one uplink to four behind another."""
    domains, link = rp.Topology.uniform(16, 2), Link(10**10, 1.0, 0.0)
    topology = rp.Topology(
        domains.domains, domains.nics, pods=(Pod(tuple(range(4)), link), Pod(tuple(range(4, 8)), link))
    )
    before, after = rp.Layout(rp.Mesh(range(8)), ["S(0)"]), rp.Layout(rp.Mesh(range(8, 16)), ["S(1)"])
    return rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (64, 64), "bfloat16", before, after)], topology))


CHOOSE = (
    "(() => {{ const e = document.getElementById('{}'); e.value = '{}';"
    " e.dispatchEvent(new Event('change')); }})()"
)
"""Choose from a list."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    plan = layered_plan()
    others = [
        Alternative.of(rp.compile(plan.spec, "direct"), 1e-3),
        Alternative.without("gather-broadcast", "<b>"),
    ]
    routed = [Alternative.routed(name, found) for name, found in outline(plan.spec, ["direct", "striped"])]
    run = predict(plan)
    nothing = rp.compile(rp.ReshardSpec([], rp.Topology.uniform(1, 1)))
    alone = rp.Layout(rp.Mesh([0]), ["R"])
    stays = rp.compile(
        rp.ReshardSpec([rp.TensorSpec("w", (8,), "int8", alone, alone)], rp.Topology.uniform(1, 1))
    )
    texts = {
        "predicted": report_html(plan, alternatives=others, prediction=run, name="layers.reshard"),
        "scheduled": report_html(plan),
        "hostile": report_html(hostile_plan(), name=NAMES[0]),
        "nothing": report_html(nothing),
        "stays": report_html(stays, prediction=predict(stays)),
        "measured": report_html(plan, prediction=run, measured=measured_run(plan)),
        "many": report_html(many_domains()),
        "pods": report_html(two_pods()),
        "routed": report_html(plan, alternatives=routed),
        "slow": report_html(plan, prediction=run, measured=measured_run(plan, 190)),
        "whole": report_html(rp.compile(build_whole(WHOLE["qwen3-235b"]))),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser():
    with Browser(PROGRAM) as browser:
        browser.resize(1280, 900)
        yield browser


@pytest.fixture
def page(browser, pages):
    browser.prefer("light")
    browser.resize(1280, 900)
    browser.open(pages / "predicted.html")
    return browser


def names(browser):
    return browser.evaluate(
        "[...document.querySelectorAll('#table tbody td.name')].map((e) => e.textContent)"
    )


def text(browser, css):
    return browser.evaluate(f"document.querySelector({css!r}).textContent")


def hidden(browser, css):
    return browser.evaluate(f"document.querySelector({css!r}).hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_load_in_silence_and_load_nothing(browser, pages, name, scheme):
    browser.prefer(scheme)
    path = pages / f"{name}.html"
    browser.open(path)
    assert browser.evaluate("document.documentElement.dataset.ready") == "yes"
    assert browser.problems == []
    assert browser.requests == [path.as_uri()]


def test_names_are_shown_and_not_run(browser, pages):
    browser.open(pages / "hostile.html")
    assert browser.evaluate("document.title").startswith("</script>")
    assert browser.evaluate("document.querySelectorAll('script').length") == 2
    assert browser.evaluate("document.querySelectorAll('img, main svg[onload]').length") == 0
    shown = names(browser)
    assert set(NAMES[:4]) <= set(shown)
    browser.click("document.querySelector('#table tbody button')")
    assert text(browser, "#tensor .figure") == shown[0]
    assert browser.problems == []


def test_search_finds_words_of_names(page):
    page.click("document.getElementById('search')")
    page.type("layers.5 bfloat16")
    assert sorted(names(page)) == sorted(f"layers.{at}.w" for at in range(LAYERS) if str(at).startswith("5"))
    assert text(page, "#count").startswith("11 tensors of 61: ")
    assert re.search(r"iB; move [\d.]+ [KM]iB over the network \(copies counted\)$", text(page, "#count"))
    page.type(" nowhere")
    assert names(page) == []


def test_columns_sort_both_ways(page):
    head = "document.querySelectorAll('#table thead button')[{}]"
    page.click(head.format(0))
    assert names(page)[:3] == ["layers.0.w", "layers.1.w", "layers.2.w"]  # numbers by value
    assert page.evaluate("document.querySelector('#table th').ariaSort") == "ascending"
    page.click(head.format(0))
    assert names(page)[0] == "stays"
    page.click(head.format(3))
    assert names(page)[0] == "layers.59.w"
    page.click(head.format(3))
    assert names(page)[0] == "stays"


def test_shapes_sort_by_elements_and_sizes_by_bytes(browser, tmp_path):
    before, after = rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([1]), ["R"])
    tensors = [
        rp.TensorSpec(name, (elements,), dtype, before, after)
        for name, elements, dtype in (("a", 10, "int8"), ("b", 3, "float64"), ("c", 5, "bfloat16"))
    ]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(2, 1)))
    (tmp_path / "page.html").write_text(report_html(plan), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    assert sorted(names(browser)) == ["a", "b", "c"]
    for column, order in ((1, "bca"), (3, "bac")):
        browser.click(f"document.querySelectorAll('#table thead button')[{column}]")
        assert "".join(names(browser)) in {order, order[::-1]}


def test_long_tables_have_pages(page):
    assert len(names(page)) == 50
    page.click("document.querySelector('#pages button:last-child')")
    assert len(names(page)) == 11
    assert text(page, "#pages span") == "page 2 of 2"


def test_the_timeline_zooms_by_button_key_and_mouse(page):
    whole = text(page, "#range")
    assert "zoomed" not in whole
    page.click("document.querySelector('[data-zoom=in]')")
    assert "zoomed 2 times" in text(page, "#range")
    page.evaluate("document.getElementById('rows').focus()")
    page.key("+", 187, "+")
    assert "zoomed 4 times" in text(page, "#range")
    before = text(page, "#range")
    page.key("ArrowLeft", 37)
    assert text(page, "#range") != before
    page.key("Home", 36)
    assert text(page, "#range") == whole
    x, y = page.middle("document.getElementById('rows')")
    page.press(x, y, to_x=x + 200)
    times = float(re.search(r"zoomed ([\d.]+) times", text(page, "#range"))[1])
    width = page.evaluate("(e => e.clientWidth - e.dataset.gutter)(document.getElementById('rows'))")
    assert times == pytest.approx((width - 4) / 200, rel=0.02)
    page.click("document.querySelector('[data-zoom=all]')")
    assert text(page, "#range") == whole


def test_cells_of_the_timeline_can_be_read(page):
    x, y = page.middle("document.getElementById('rows')")
    page.press(x, y)
    assert re.match(r"rank \d, ([\d.]+) to ([\d.]+) µs: NIC, out \d+(\.\d)? %", text(page, "#cell"))
    begin, end = re.search(r"([\d.]+) to ([\d.]+) µs", text(page, "#cell")).groups()
    assert float(begin) < float(end)
    assert "busy" in page.evaluate("document.getElementById('rows').ariaLabel")


def test_the_timeline_has_ink(page):
    ink = """(() => {
      const canvas = document.getElementById('rows');
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      let full = 0;
      for (let at = 3; at < data.length; at += 4) full += data[at] > 0;
      return full / (data.length / 4);
    })()"""
    assert page.evaluate(ink) > 0.02


def test_a_rank_of_the_picture_is_chosen_by_mouse_and_by_key(page):
    node = "document.getElementById('r-picture-hops').shadowRoot.getElementById('rank_5')"
    if not page.evaluate("Boolean(document.getElementById('r-picture-hops'))"):
        pytest.skip("nothing that draws DOT is installed")
    page.click(node)
    assert "Only rank 5" in text(page, "#chosen")
    assert page.evaluate("document.getElementById('focus').value") == "rank 5"
    flows = page.evaluate("[...document.querySelectorAll('#flows tbody tr')].map((e) => e.textContent)")
    assert flows
    assert all("rank 5" in flow for flow in flows)
    ports = page.evaluate("[...document.querySelectorAll('.port')].map((e) => e.firstChild.textContent)")
    assert set(ports) == {"nic of gpu 5, in", "nvlink of rank 5, in", "nvlink of rank 5, out"}
    assert "Timeline of 1 row" in page.evaluate("document.getElementById('rows').ariaLabel")
    assert text(page, "#count").startswith("60 tensors")  # not the one that stays on ranks 0 and 1
    page.click("document.querySelector('#chosen button')")
    assert hidden(page, "#chosen")
    page.evaluate(f"{node}.focus()")
    page.key("Enter", 13, "\r")
    assert "Only rank 5" in text(page, "#chosen")
    assert page.problems == []


def test_a_domain_is_chosen_from_the_list_and_from_the_ports(page):
    page.evaluate(CHOOSE.format("focus", "domain 1"))
    assert "Only domain 1 (ranks 4-7)" in text(page, "#chosen")
    assert "Timeline of 4 rows" in page.evaluate("document.getElementById('rows').ariaLabel")
    page.evaluate(CHOOSE.format("focus", ""))
    assert hidden(page, "#chosen")
    page.evaluate(CHOOSE.format("port-by", "domain"))
    value = text(page, ".port .value")
    assert re.fullmatch(r"busiest [\d.]+ [µm]s \([\d.]+ [KM]iB\); 4 ports, [\d.]+ [KM]iB", value)
    page.click("document.querySelector('.port button')")
    assert "Only domain" in text(page, "#chosen")


def test_uplinks_stand_under_their_pods_and_choose_all_of_their_ranks(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages / "pods.html")
    browser.evaluate(CHOOSE.format("port-by", "domain"))
    bars = "[...document.querySelectorAll('.port button')]"
    shown = browser.evaluate(f"{bars}.map((e) => e.textContent)")
    expected = {"pod 0: uplink, out", "pod 1: uplink, in"}
    expected |= {f"domain {at}: NIC, {'out' if at < 4 else 'in'}" for at in range(8)}
    assert set(shown) == expected
    assert "the busiest of one domain or pod and kind" in text(browser, "#port-summary")
    browser.evaluate(f"{bars}.find((e) => e.textContent.startsWith('pod 1')).click()")
    assert "Only pod 1 (ranks 8-15)" in text(browser, "#chosen")
    ports = browser.evaluate("[...document.querySelectorAll('.port')].map((e) => e.firstChild.textContent)")
    assert set(ports) == {"uplink of pod 1, in", *(f"nic of gpu {gpu}, in" for gpu in range(8, 16))}
    browser.open(pages / "predicted.html")
    browser.evaluate(CHOOSE.format("port-by", "domain"))
    assert "the busiest of one domain and kind" in text(browser, "#port-summary")


def test_a_tensor_shows_its_facts_its_time_and_its_layout(page):
    page.click("document.querySelector('#table tbody button')")
    assert text(page, "#tensor .figure") == "layers.59.w"
    facts = text(page, "#tensor")
    assert "Held by ranks 0-3; needed by ranks 4-7." in facts
    assert "explain PLAN --tensor 'layers.59.w'" in facts
    assert "Marked the time of layers.59.w" in text(page, "#chosen")
    assert text(page, "#chosen button") == "Unmark"
    page.click("[...document.querySelectorAll('#tensor button')].at(-1)")
    assert hidden(page, "#tensor")


def test_a_layout_filters_the_table(page):
    page.click("document.querySelector('[data-layout]')")
    assert text(page, "#count").startswith("1 tensor of 61")
    shown = page.evaluate(
        "document.querySelector('#layouts .picture').shadowRoot.querySelector('svg') !== null"
    )
    assert shown


def test_the_theme_is_that_of_the_system_until_one_is_chosen(page):
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    page.prefer("dark")
    assert page.evaluate(back) == "rgb(20, 23, 28)"
    page.evaluate(CHOOSE.format("theme", "light"))
    assert page.evaluate(back) == "rgb(255, 255, 255)"


def test_pictures_have_the_theme_of_the_page_and_paper_is_white(page):
    root = "document.querySelector('#layouts .picture').shadowRoot"
    paper = f"getComputedStyle({root}.querySelector('.paper')).fill"
    line = f"getComputedStyle({PICTURE}.querySelector('g.network path')).stroke"
    drawn = page.evaluate(DRAWN)
    light, dark = ("rgb(255, 255, 255)", rgb("#0072B2")), ("rgb(22, 24, 27)", rgb("#4FA3E0"))
    seen = []
    for scheme, theme in (("light", ""), ("dark", ""), ("dark", "light"), ("light", "dark"), ("light", "")):
        page.prefer(scheme)
        page.evaluate(CHOOSE.format("theme", theme))
        seen.append((page.evaluate(paper), page.evaluate(line) if drawn else None))
    expected = [light, dark, light, dark, light]
    assert seen == [(ground, colour if drawn else None) for ground, colour in expected]
    page.prefer("dark", "print")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_the_narrowest_windows(browser, pages, name):
    browser.resize(360, 800)
    browser.open(pages / f"{name}.html")
    for at in range(min(10, len(names(browser)))):
        browser.evaluate(f"document.querySelectorAll('#table tbody .name button')[{at}].click()")
        browser.evaluate("document.querySelector('#tensor .line')?.dispatchEvent(new Event('click'))")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    cells = "[...document.querySelectorAll('.compare td, .compare th')].filter((e) => e.offsetParent)"
    right = f"Math.max(0, ...{cells}.map((e) => e.getBoundingClientRect().right))"
    assert browser.evaluate(right) <= 360
    assert browser.evaluate(f"{cells}.every((e) => e.scrollWidth <= e.clientWidth)")
    assert browser.problems == []


def test_figures_of_the_comparison_have_their_names_in_narrow_windows(page):
    page.resize(360, 800)
    said = "getComputedStyle(document.querySelector('.compare td'), '::before').content"
    assert page.evaluate(said) in {'attr(data-head) ": "', '"network: "', '"network" ": "'}
    page.resize(1280, 900)
    assert page.evaluate(said) == "none"


def test_pages_fit_paper(page):
    page.prefer("dark", "print")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF-")


# ------------------------------------------------------------------------------------ drill-down


def facts(browser, css):
    """What the details of a flow say, by name."""
    return browser.evaluate(
        f"Object.fromEntries([...document.querySelectorAll('{css} dt')]"
        ".map((e) => [e.textContent, e.nextSibling.textContent]))"
    )


def flow_of(plan, src, dst):
    """Transfers and bytes from one rank to another, from operations."""
    ops = plan.ops()
    mine = (ops.src == src) & (ops.dst == dst)
    rows = set(zip(ops.row[mine].tolist(), ops.tensor[mine].tolist(), strict=True))
    return len(rows), int(ops.nbytes[mine].sum())


def test_every_line_of_the_picture_opens_its_details(page):
    if not page.evaluate(DRAWN):
        pytest.skip("nothing that draws DOT is installed")
    plan = layered_plan()
    lines = page.evaluate(
        f"[...{PICTURE}.querySelectorAll('[role=button]')].map((e) => e.getAttribute('aria-label'))"
        ".filter((e) => e.startsWith('Details of '))"
    )
    ops = plan.ops()
    pairs = {(int(src), int(dst)) for src, dst in zip(ops.src, ops.dst, strict=True) if src != dst}
    named = {tuple(map(int, re.findall(r"rank (\d+)", line)[:2])) for line in lines}
    assert named == pairs
    for at in range(len(lines)):
        line = f"{PICTURE}.querySelectorAll('[aria-label^=Details]')[{at}]"
        page.evaluate(f"{line}.dispatchEvent(new Event('click'))")
        found = facts(page, "#flow")
        src, dst = (int(found[name].removeprefix("rank ")) for name in ("From", "To"))
        transfers, nbytes = flow_of(plan, src, dst)
        assert found["Transfers"] == f"{transfers:,}"
        assert f"({nbytes:,})" in found["Bytes"]
        assert found["Medium"] in {"network", "NVLink"}
        assert found["Role"].startswith(("inject", "fan-out", "relay"))
        mine = (ops.src == src) & (ops.dst == dst)
        by_tensor = np.bincount(ops.tensor[mine], ops.nbytes[mine])
        shown = text(page, "#flow .most button")
        assert by_tensor[int(shown.split(".")[1])] == by_tensor.max()
    assert page.problems == []


def test_a_line_is_chosen_by_mouse_and_by_key_and_escape_goes_back_to_it(page):
    if not page.evaluate(DRAWN):
        pytest.skip("nothing that draws DOT is installed")
    line = f"{PICTURE}.querySelector('[aria-label^=Details]')"
    page.click(line)
    assert not hidden(page, "#flow")
    assert page.evaluate("document.activeElement.id") == "flow"
    page.key("Escape", 27)
    assert hidden(page, "#flow")
    focused = f"{PICTURE}.activeElement === {line}"
    assert page.evaluate(focused)
    page.key("Enter", 13, "\r")
    assert not hidden(page, "#flow")
    name = text(page, "#flow .most button")
    page.click("document.querySelector('#flow .most button')")
    assert text(page, "#tensor .figure") == name
    page.key("Escape", 27)
    page.key("Escape", 27)
    assert hidden(page, "#tensor")
    assert page.problems == []


def test_joined_domains_are_chosen_together(browser, pages):
    browser.open(pages / "many.html")
    if not browser.evaluate(DRAWN):
        pytest.skip("nothing that draws DOT is installed")
    node = f"{PICTURE}.querySelector('[id^=domain_][role=button]')"
    browser.click(node)
    chosen = re.match(r"Only domains ([\d,-]+) \(ranks ([\d,-]+)\)", text(browser, "#chosen"))
    domains, ranks = (parse_ints(part) for part in chosen.groups())
    assert ranks == [rank for domain in domains for rank in (2 * domain, 2 * domain + 1)]
    assert browser.evaluate("document.getElementById('focus').value") == "custom"
    look = f"(e => [e.outlineStyle, e.filter === 'none'])(getComputedStyle({node}))"
    assert browser.evaluate(look) == ["none", False]  # no frame, which would hide what is beside it
    browser.key("Escape", 27)
    assert hidden(browser, "#chosen")


def test_a_tensor_has_its_own_diagram_with_lines_and_places_to_choose(page):
    plan = layered_plan()
    page.click("document.querySelector('#table tbody button')")
    ops = plan.ops()
    tensor = LAYERS - 1
    mine = (ops.tensor == tensor) & (ops.src != ops.dst)
    pairs = {(int(src), int(dst)) for src, dst in zip(ops.src[mine], ops.dst[mine], strict=True)}
    lines = "[...document.querySelectorAll('#tensor .line')]"
    labels = page.evaluate(f"{lines}.map((e) => e.getAttribute('aria-label'))")
    assert {tuple(map(int, re.findall(r"rank (\d+)", label)[:2])) for label in labels} == pairs
    x, y = page.evaluate(
        "(() => { const e = document.querySelector('#tensor .line path.near');"
        " e.scrollIntoView({block: 'center', behavior: 'instant'});"
        " const p = e.getPointAtLength(e.getTotalLength() / 2).matrixTransform(e.getScreenCTM());"
        " return [p.x, p.y]; })()"
    )
    page.press(x, y)
    found = facts(page, "#tensor .flow")
    src, dst = (int(found[name].removeprefix("rank ")) for name in ("From", "To"))
    nbytes = int(ops.nbytes[mine & (ops.src == src) & (ops.dst == dst)].sum())
    assert f"({nbytes:,})" in found["Bytes"]
    page.key("Escape", 27)
    assert page.evaluate("document.activeElement.classList.contains('line')")
    page.evaluate("document.querySelector('#tensor .node').focus()")
    page.key("Enter", 13, "\r")
    assert text(page, "#chosen").startswith("Only rank ")
    assert page.evaluate("document.activeElement.classList.contains('node')")
    assert page.problems == []


def test_a_tensor_that_stays_says_so(page):
    page.click("document.getElementById('search')")
    page.type("stays")
    page.click("document.querySelector('#table tbody button')")
    assert "All of its bytes stay within these places." in text(page, "#tensor")


def test_predicted_and_measured_runs_have_one_scale(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages / "measured.html")
    ends = browser.evaluate("JSON.parse(document.getElementById('data').textContent).timeline.runs")
    assert [kind for kind, _ in ends] == ["predicted", "measured"]
    browser.evaluate(CHOOSE.format("lane", "all"))
    aria = browser.evaluate("document.getElementById('rows').ariaLabel")
    for name in ("NIC, out", "NVLink, in"):
        assert f"{name}, predicted: busy" in aria
        assert f"{name}, measured: busy" in aria
    x, y = browser.middle("document.getElementById('rows')")
    browser.press(x, y)
    cell = text(browser, "#cell")
    assert "NIC, out, predicted" in cell
    assert "NIC, out, measured" in cell
    browser.evaluate(CHOOSE.format("lane", "0"))
    aria = browser.evaluate("document.getElementById('rows').ariaLabel")
    assert aria.count("NIC, out") == 2
    assert "NIC, in" not in aria
    assert browser.problems == []


def test_runs_of_very_different_lengths_both_fill_the_timeline(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages / "slow.html")
    timeline = browser.evaluate("JSON.parse(document.getElementById('data').textContent).timeline")
    (_, first_s), (_, other_s) = timeline["runs"]
    assert timeline["stretch"] == [1, pytest.approx(other_s / first_s)]
    assert re.fullmatch(r"0 to [\d.]+ µs predicted, 0 to [\d.]+ ms measured", text(browser, "#range"))
    heights = browser.evaluate(HEIGHTS)
    assert max(heights) > 10
    assert len(heights) > 20  # of both runs
    x, y = browser.middle("document.getElementById('rows')")
    browser.press(x, y)
    cell = text(browser, "#cell")
    assert re.match(r"rank \d, [\d.]+ to [\d.]+ µs predicted, [\d.]+ to [\d.]+ ms measured: ", cell)
    top = min(timeline["tops"])
    measured = [float(share) for share in re.findall(r", measured (?:at least )?([\d.]+) %", cell)]
    assert len(measured) >= 4
    assert max(measured[:4]) <= 100 * top + 0.1  # of datasheet rates, not of what the bar can show
    assert browser.problems == []


# ------------------------------------------------------------------------------------ layout


SIZES = """[...document.querySelectorAll('.picture, .hops')].filter((e) => e.offsetParent).flatMap((host) =>
  [...(host.shadowRoot || host).querySelectorAll('text')].map((e) =>
    parseFloat(getComputedStyle(e).fontSize) * Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b)))"""


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["predicted", "hostile", "many", "whole"])
def test_text_of_pictures_can_be_read_in_windows_of_any_width(browser, pages, name, width):
    browser.resize(width, 800)
    browser.open(pages / f"{name}.html")
    browser.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    browser.evaluate("document.querySelector('#table tbody button').click()")
    sizes = browser.evaluate(SIZES)
    assert len(sizes) > 10
    assert min(sizes) >= 9.9
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [360, 1280])
def test_a_button_gives_pictures_another_size_only_where_there_is_one(browser, pages, width):
    browser.resize(width, 800)
    browser.open(pages / "whole.html")
    browser.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    browser.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    names = browser.evaluate("[...document.querySelectorAll('[data-size]')].map((e) => e.dataset.size)")
    assert len(names) > 1
    shown = 0
    for name in names:
        button = f"document.querySelector('[data-size={name}]')"
        svg = f"document.getElementById('r-picture-{name}').shadowRoot.querySelector('svg')"
        wide = f"{svg}.getBoundingClientRect().width"
        room = browser.evaluate(f"document.getElementById('r-picture-{name}').clientWidth - 16")
        natural = browser.evaluate(f"{svg}.width.baseVal.value")
        assert browser.evaluate(f"{button}.hidden") == (natural <= room + 1)
        if natural > room + 1:
            shown += 1
            before = browser.evaluate(wide)
            words = text(browser, f"[data-size={name}]")
            browser.evaluate(f"{button}.click()")
            after = browser.evaluate(wide)
            expected = natural if words == "Full size" else room
            assert after == pytest.approx(expected, abs=1)
            assert abs(after - before) > 1
            browser.evaluate(f"{button}.click()")
            assert browser.evaluate(wide) == before
    assert shown or width > 360


def test_sides_of_layouts_stand_above_one_another_where_they_do_not_fit_beside(browser, pages):
    root = "document.querySelector('#layouts .picture').shadowRoot"
    place = (
        f"[...{root}.querySelectorAll('text')].filter((e) => /before|after/.test(e.textContent))"
        ".slice(-2).map((e) => { const b = e.getBoundingClientRect(); return [b.left, b.top]; })"
    )
    cells = (
        f"[...{root}.querySelectorAll('.cell rect')].every((e) => {{"
        f" const [a, b] = [e, {root}.querySelector('.paper')].map((each) => each.getBoundingClientRect());"
        " return a.right <= b.right + 1 && a.bottom <= b.bottom + 1; })"
    )
    for width, stacked in ((1280, False), (360, True), (1280, False)):
        browser.resize(width, 800)
        if width == 1280 and not stacked:
            browser.open(pages / "predicted.html")
        browser.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        (left, top), (after_left, after_top) = browser.evaluate(place)
        assert (after_top > top + 50 and abs(after_left - left) < 2) == stacked
        assert (after_left > left + 50 and abs(after_top - top) < 2) == (not stacked)
        assert browser.evaluate(cells)


@pytest.mark.parametrize("width", [360, 1280])
def test_rows_of_the_timeline_and_their_mean_have_one_scale(browser, pages, width):
    browser.resize(width, 800)
    browser.open(pages / "many.html")
    browser.evaluate(CHOOSE.format("lane", "all"))
    for id_ in ("rows", "mean"):
        shown, own = browser.evaluate(
            "(e => [e.getBoundingClientRect().width, e.width / devicePixelRatio])"
            f"(document.getElementById('{id_}'))"
        )
        assert shown == own == browser.evaluate("document.getElementById('rows-box').clientWidth")
    box = "document.getElementById('rows-box')"
    assert browser.evaluate(f"{box}.scrollHeight > {box}.clientHeight")
    browser.resize(width + 300, 800)
    browser.wait_for(
        "document.getElementById('rows').clientWidth === document.getElementById('rows-box').clientWidth"
    )
    assert browser.evaluate("document.getElementById('rows').clientWidth > 400")


def test_the_timeline_opens_on_the_lane_that_binds_and_all_of_them_have_names_and_heights(page):
    assert page.evaluate("document.getElementById('lane').selectedOptions[0].textContent") == "NIC, in"
    page.evaluate(CHOOSE.format("focus", "rank 0"))  # only sends
    assert page.evaluate("document.getElementById('lane').selectedOptions[0].textContent") == "NIC, out"
    page.evaluate(CHOOSE.format("focus", ""))
    page.evaluate(CHOOSE.format("lane", "all"))
    assert "The higher a bar, the busier the port" in text(page, "#timeline-key")
    assert "named on the left" in text(page, "#timeline-key")
    assert page.evaluate("document.getElementById('rows').clientHeight") >= 8 * 4 * 12
    heights = page.evaluate(HEIGHTS)
    assert len(set(heights)) > 2  # of bars, and not all or nothing


def test_the_first_row_of_the_lane_that_is_not_empty_is_in_view(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages / "whole.html")
    timeline = browser.evaluate("JSON.parse(document.getElementById('data').textContent).timeline")
    first = next(at for at, (_, ranks) in enumerate(timeline["rows"]) if ranks == "128")
    box = "document.getElementById('rows-box')"
    tall = browser.evaluate("document.getElementById('rows').clientHeight") / len(timeline["rows"])
    top, high = browser.evaluate(f"[{box}.scrollTop, {box}.clientHeight]")
    assert top <= first * tall < top + high / 2


HEIGHTS = """(() => {
  const canvas = document.getElementById('rows');
  const { width, height } = canvas;
  const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
  const found = [];
  for (let x = Number(canvas.dataset.gutter) + 2; x < width - 8; x += 7) {
    let run = 0;
    for (let y = 0; y < height; y += 1) {
      const at = (y * width + x) * 4;
      const blue = data[at] < 30 && data[at + 2] > 150 && data[at + 3] > 200;
      if (blue) run += 1;
      else { if (run) found.push(run); run = 0; }
    }
  }
  return found;
})()"""


# ------------------------------------------------------------------------------------ one palette


def rgb(colour):
    return f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})"


def test_lines_of_diagrams_have_the_colours_of_the_picture_their_bytes_and_a_key(browser, pages):
    browser.prefer("light")
    browser.resize(1280, 900)
    browser.open(pages / "whole.html")
    browser.evaluate("document.querySelector('#table tbody button').click()")
    data = browser.evaluate("JSON.parse(document.getElementById('data').textContent)")
    row = browser.evaluate(
        "[...document.querySelectorAll('#table tbody tr')].findIndex((e) => e.classList.contains('picked'))"
    )
    assert row == 0
    lines = browser.evaluate(
        "[...document.querySelectorAll('#tensor .line')].map((e) => [e.getAttribute('aria-label'),"
        " getComputedStyle(e.querySelector('.seen')).stroke, e.querySelector('text').textContent])"
    )
    looks = {line.name: rgb(line.colour) for line in LINES.values()}
    roles = set()
    for label, stroke, nbytes in lines:
        [role] = [name for name in looks if f" {name}, " in label]
        roles.add(role)
        assert stroke == looks[role]
        assert label.endswith(nbytes)
    keys = browser.evaluate(
        "[...document.querySelectorAll('#tensor .keys li')].map((e) => e.textContent.split(':')[0])"
    )
    assert set(keys) == roles == {"inject", "relay"}
    assert keys == [line.name for line in LINES.values() if line.name in roles]
    assert [kind[1] for kind in data["kinds"].values()][:2] == ["inject", "relay"]


def test_what_is_chosen_keeps_its_colour_and_has_a_halo(page):
    page.click("document.querySelector('#table tbody button')")
    look = "(e => [getComputedStyle(e.querySelector('.seen')).stroke, getComputedStyle(e).filter])"
    line = "document.querySelector('#tensor .line')"
    before = page.evaluate(f"{look}({line})")
    page.evaluate(f"{line}.dispatchEvent(new Event('click'))")
    stroke, halo = page.evaluate(f"{look}({line})")
    assert before == [stroke, "none"]
    assert "drop-shadow" in halo
    page.key("Escape", 27)
    page.evaluate("document.activeElement.blur()")
    if page.evaluate(DRAWN):
        line = f"{PICTURE}.getElementById({PICTURE}.querySelector('[id$=_start]').id)"
        look = "(e => [getComputedStyle(e.querySelector('path')).stroke, getComputedStyle(e).filter])"
        before = page.evaluate(f"{look}({line})")
        page.evaluate(f"{line}.dispatchEvent(new Event('click'))")
        stroke, halo = page.evaluate(f"{look}({line})")
        assert before == [stroke, "none"]
        assert "drop-shadow" in halo


# ------------------------------------------------------------------------------------ a rank of many


def test_a_rank_of_a_joined_picture_has_its_own_diagram(browser, pages):
    plan = many_domains()
    browser.resize(1280, 900)
    browser.open(pages / "many.html")
    assert hidden(browser, "#own")
    ops = plan.ops()
    for rank in (5, 40):
        browser.evaluate(CHOOSE.format("focus", f"rank {rank}"))
        assert text(browser, "#own h3") == f"Sent and received by rank {rank}"
        lines = "[...document.querySelectorAll('#own .line')]"
        labels = browser.evaluate(f"{lines}.map((e) => e.getAttribute('aria-label'))")
        assert labels
        total = 0
        for at in range(len(labels)):
            browser.evaluate(f"{lines}[{at}].dispatchEvent(new Event('click'))")
            found = facts(browser, "#flow")
            assert f"rank {rank}" in {found["From"], found["To"]}
            total += int(re.search(r"\(([\d,]+)\)", found["Bytes"])[1].replace(",", ""))
        mine = ((ops.src == rank) | (ops.dst == rank)) & (ops.src != ops.dst)
        assert total == int(ops.nbytes[mine].sum())
    browser.key("Escape", 27)
    browser.key("Escape", 27)
    assert hidden(browser, "#own")
    assert browser.problems == []


def test_where_pairs_are_too_many_the_page_says_what_draws_them(browser, monkeypatch, tmp_path):
    monkeypatch.setattr(pairs, "MAX_PAIRS", 10)
    (tmp_path / "page.html").write_text(report_html(many_domains()), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    browser.evaluate(CHOOSE.format("focus", "domain 3"))
    assert "draw PLAN --rank RANK" in text(browser, "#own")
    assert browser.problems == []


def test_lists_that_go_on_say_how_much_of_them_is_shown(browser, pages):
    browser.open(pages / "many.html")
    assert re.fullmatch(r"12 of [\d,]+, show more", text(browser, "#flows-more"))
    browser.evaluate(CHOOSE.format("port-by", "port"))
    assert re.fullmatch(r"16 of [\d,]+, show more", text(browser, "#port-more"))

"""The HTML report in a real browser: it loads in silence, and search, sort, zoom and drill-down work."""

from __future__ import annotations

import re

import pytest
from _browser import Browser, find_browser
from test_report import NAMES, hostile_plan

import reshard_planner as rp
from reshard_planner.render.report import Alternative, report_html
from reshard_planner.simulate import predict

PROGRAM = find_browser()

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")

LAYERS = 60


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


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    plan = layered_plan()
    others = [
        Alternative.of(rp.compile(plan.spec, "direct"), 1e-3),
        Alternative.without("gather-broadcast", "<b>"),
    ]
    run = predict(plan)
    nothing = rp.compile(rp.ReshardSpec([], rp.Topology.uniform(1, 1)))
    texts = {
        "predicted": report_html(plan, alternatives=others, prediction=run, name="layers.reshard"),
        "scheduled": report_html(plan),
        "hostile": report_html(hostile_plan(), name=NAMES[0]),
        "nothing": report_html(nothing),
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
@pytest.mark.parametrize("name", ["predicted", "scheduled", "hostile", "nothing"])
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
    assert text(page, "#count").startswith("11 tensors of 61")
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
    width = page.evaluate("document.getElementById('rows').clientWidth")
    assert times == pytest.approx((width - 136) / 200, rel=0.02)
    page.click("document.querySelector('[data-zoom=all]')")
    assert text(page, "#range") == whole


def test_cells_of_the_timeline_can_be_read(page):
    x, y = page.middle("document.getElementById('rows')")
    page.press(x, y)
    assert re.match(r"rank \d, [\d.]+ µs to [\d.]+ µs: NIC, out \d+(\.\d)? %", text(page, "#cell"))
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
    choose = (
        "(() => {{ const e = document.getElementById('{}'); e.value = '{}';"
        " e.dispatchEvent(new Event('change')); }})()"
    )
    page.evaluate(choose.format("focus", "domain 1"))
    assert "Only domain 1 (ranks 4-7)" in text(page, "#chosen")
    assert "Timeline of 4 rows" in page.evaluate("document.getElementById('rows').ariaLabel")
    page.evaluate(choose.format("focus", ""))
    assert hidden(page, "#chosen")
    page.evaluate(choose.format("port-by", "domain"))
    page.click("document.querySelector('.port button')")
    assert "Only domain" in text(page, "#chosen")


def test_a_tensor_shows_its_facts_its_time_and_its_layout(page):
    page.click("document.querySelector('#table tbody button')")
    assert text(page, "#tensor .figure") == "layers.59.w"
    facts = text(page, "#tensor")
    assert "Held by ranks 0-3; needed by ranks 4-7." in facts
    assert "explain PLAN --tensor 'layers.59.w'" in facts
    assert "Marked the time of layers.59.w" in text(page, "#chosen")
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
    page.evaluate(
        "(() => { const e = document.getElementById('theme'); e.value = 'light';"
        " e.dispatchEvent(new Event('change')); })()"
    )
    assert page.evaluate(back) == "rgb(255, 255, 255)"


def test_pages_fit_narrow_windows_and_paper(page):
    page.resize(420, 800)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    page.resize(1280, 900)
    page.prefer("dark", "print")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF-")

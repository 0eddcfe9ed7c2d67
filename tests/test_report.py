"""The HTML report: its sums are those of the plan, its words fit, its text is safe, and the verb says no."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from html.parser import HTMLParser
from typing import get_args

import numpy as np
import pytest
from _plans import HOSTILE_NAME, sample_plans
from hypothesis import given
from strategies import specs
from test_cli import assert_refused, call, result

import reshard_planner as rp
from reshard_planner.bounds.cut import CutKind
from reshard_planner.errors import ReshardError
from reshard_planner.intset import parse_ints
from reshard_planner.ir.forms import save_as
from reshard_planner.render.report import Alternative, report_html
from reshard_planner.render.report.document import MAX_NAME
from reshard_planner.render.report.loads import LANES, measure_loads
from reshard_planner.render.report.pictures import draw_pictures, element
from reshard_planner.render.report.ports import port_loads
from reshard_planner.render.report.timeline import (
    FULL,
    MAX_ROWS,
    PACKING,
    timeline_of_prediction,
    timeline_of_schedule,
)
from reshard_planner.render.report.words import WHY, claims
from reshard_planner.routing import STRATEGIES
from reshard_planner.simulate import Costs, predict
from reshard_planner.topology import Link, Pod
from reshard_planner.transfer import Medium

SPEC = """\
version: 1
meshes:
  train: {ranks: "0-3", axes: {tp: 4}}
  serve: {ranks: [[4, 5], [6, 7]], axes: [dp, tp]}
topology: {gpus_per_domain: 4}
tensors:
  - {name: w, shape: [64, 64], dtype: bfloat16,
     src: {mesh: train, placements: [S(0)]}, dst: {mesh: serve, placements: [R, S(1)]}}
  - {name: norm, shape: [64], dtype: float32,
     src: {mesh: train, placements: [R]}, dst: {mesh: serve, placements: [R, R]}}
"""

NAMES = (
    "</script><script>document.title = 1</script>",
    '<img src="x" onerror="document.title = 1">',
    "</style><svg onload=alert(1)>",
    "<!--",
    "</template></textarea></title>",
    "\"'`&amp;\\",
    "a\nb\r\N{LINE SEPARATOR}\x00",
    "\N{RIGHT-TO-LEFT OVERRIDE}txt.\N{ARABIC LETTER ALEF}",
    "x" * 10_000,
    HOSTILE_NAME,
)
"""Names with all that could end an element, an attribute or a string."""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def hostile_plan():
    before = rp.Layout(rp.Mesh([0, 1], ["<b>"]), ["S(0)"])
    after = rp.Layout(rp.Mesh([[2, 3], [4, 5]], ['"', "</svg>"]), ["R", "S(1)"])
    tensors = [
        rp.TensorSpec(name, (4 * at + 4, 6), "bfloat16", before, after) for at, name in enumerate(NAMES)
    ]
    return rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(8, 2)))


class Page(HTMLParser):
    """What a browser would make of a page: elements, attributes, and the content of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.text = [], [], [], []
        self.feed(text)
        self.close()
        [self.data] = [json.loads(content) for kind, content in self.scripts if kind == "application/json"]

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend((tag, name, value or "") for name, value in attrs)
        if tag == "script":
            self.scripts.append([dict(attrs).get("type"), ""])

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script" and self.cdata_elem == "script":
            self.scripts[-1][1] += data
        else:
            self.text.append(data)


# ------------------------------------------------------------------------------------ sums


def check_sums(plan):
    """Loads are what adding up operations one by one gives."""
    loads, ops = measure_loads(plan, 7), plan.ops()
    number = {rank: at for at, rank in enumerate(loads.ranks.tolist())}
    lanes = np.zeros_like(loads.lanes)
    moved = np.zeros_like(loads.moved)
    slots = {}
    for row in zip(ops.src, ops.dst, ops.medium, ops.slot, ops.tensor, ops.nbytes, strict=True):
        src, dst, medium, slot, tensor, nbytes = map(int, row)
        moved[medium, tensor] += nbytes
        slots.setdefault(tensor, []).append(slot)
        if medium != Medium.LOCAL:
            span = int(np.searchsorted(loads.bins, slot, side="right")) - 1
            first = 0 if medium == Medium.NETWORK else 2
            lanes[first, number[src], span] += nbytes
            lanes[first + 1, number[dst], span] += nbytes
    assert np.array_equal(lanes, loads.lanes)
    assert np.array_equal(moved, loads.moved)
    for tensor, used in slots.items():
        assert (loads.first_slot[tensor], loads.last_slot[tensor]) == (min(used), max(used))
    assert loads.begin_s[-1] == pytest.approx(plan.certificate.schedule.time_s)
    assert loads.flows.nbytes.sum() == ops.nbytes.sum()
    check_ports(plan, loads)
    return loads


def check_ports(plan, loads):
    """The busiest port of each kind is that of the certificate."""
    ports = port_loads(loads)
    times = [port.time_s for port in ports]
    assert times == sorted(times, reverse=True)
    certificate = plan.certificate
    for kind, claim in (
        ("NIC", certificate.busiest_nic),
        ("NVLink", certificate.busiest_nvlink),
        ("uplink", certificate.busiest_uplink),
    ):
        mine = [port for port in ports if port.kind.startswith(kind)]
        assert max((port.time_s for port in mine), default=0.0) == pytest.approx(claim.time_s)
        if claim.nbytes:
            assert claim.resource in {port.name for port in mine}


@pytest.mark.parametrize("name", sample_plans())
def test_sums_are_those_of_all_operations(name):
    check_sums(sample_plans()[name])


@given(specs())
def test_sums_are_those_of_all_operations_for_any_spec(spec):
    try:
        plan = rp.compile(spec)
    except ReshardError:
        return
    check_sums(plan)


def test_uplinks_of_pods_are_ports():
    domains, link = rp.Topology.uniform(8, 2), Link(10**9, 1.0, 0.0)
    pods = (Pod((0, 1), link), Pod((2, 3), link))
    topology = rp.Topology(domains.domains, domains.nics, pods=pods)
    before, after = rp.Layout(rp.Mesh([0, 2]), ["S(0)"]), rp.Layout(rp.Mesh([4, 6]), ["S(1)"])
    plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "bfloat16", before, after)], topology))
    loads = check_sums(plan)
    assert loads.uplink.tolist() == [[128, 0], [0, 128]]


def amounts(loads, timeline, lane, at):
    """Bytes of one rank that the cells of a timeline stand for, and how far rounding may be off."""
    rate = loads.ports.nvlink_bytes_per_s[loads.ranks[at]]
    if lane < 2:
        rate = loads.ports.nic_bytes_per_s[loads.ports.nic_group[loads.ranks[at]]]
    room = np.diff(timeline.edges_s) * rate / FULL
    cells = timeline.cells[lane, at].astype(float)
    return (cells * room).sum(), (room * (cells > 0)).sum() + 1e-6 * (room * FULL).sum()


@pytest.mark.parametrize("predicted", [False, True])
def test_cells_of_the_timeline_hold_all_bytes(spec, predicted):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    loads = measure_loads(plan, 480)
    if predicted:
        timeline = timeline_of_prediction(plan, loads, predict(plan))
    else:
        timeline = timeline_of_schedule(loads)
    assert timeline.lanes == LANES
    assert timeline.rows == tuple((rank,) for rank in range(8))
    for lane in range(len(LANES)):
        for at in range(8):
            found, error = amounts(loads, timeline, lane, at)
            assert found == pytest.approx(loads.lanes[lane, at].sum(), abs=error)
    begin_s, end_s = timeline.tensor_s
    assert (begin_s < end_s).all()
    assert (end_s <= timeline.elapsed_s * (1 + 1e-9)).all()


def test_what_ranks_do_themselves_is_a_lane_of_predictions_with_such_costs(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    found = predict(plan, Costs(pack_bytes_per_s=10**9))
    timeline = timeline_of_prediction(plan, measure_loads(plan, 480), found)
    assert timeline.lanes == (*LANES, PACKING)
    spent = found.spent(4)
    shown = (timeline.cells[-1, 4] * np.diff(timeline.edges_s) / FULL).sum()
    assert spent.pack_s + spent.unpack_s > 0
    assert shown == pytest.approx(spent.pack_s + spent.unpack_s, rel=0.05)


def test_neighbours_share_rows_where_there_are_too_many_ranks():
    ranks = 4 * MAX_ROWS
    before = rp.Layout(rp.Mesh(range(ranks // 2)), ["S(0)"])
    after = rp.Layout(rp.Mesh(range(ranks // 2, ranks)), ["S(0)"])
    tensor = rp.TensorSpec("w", (ranks, 2), "bfloat16", before, after)
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(ranks, 8)))
    data = Page(report_html(plan)).data
    rows = [parse_ints(text) for _, text in data["timeline"]["rows"]]
    assert len(rows) <= MAX_ROWS
    assert sorted(rank for row in rows for rank in row) == list(range(ranks))
    assert {len(row) for row in rows} == {4}


# ------------------------------------------------------------------------------------ words


def test_every_cut_that_can_bind_has_its_words():
    assert set(WHY) == set(get_args(CutKind)) - {"none"}


@pytest.mark.parametrize("name", sample_plans())
def test_claims_say_what_the_certificate_does(name):
    plan = sample_plans()[name]
    found = {claim.title: claim for claim in claims(plan)}
    payload = plan.certificate.payload
    assert found["Payload"].good == (payload.network_nbytes == payload.minimum_network_nbytes)
    assert ("one cut binds" in found["Bound T*"].text) == (plan.certificate.bound.cut_nbytes > 0)
    assert not any("{" in claim.text.replace(HOSTILE_NAME, "") for claim in claims(plan))


def test_a_strategy_that_moves_too_much_is_said_to():
    plan = rp.compile(
        rp.ReshardSpec(sample_plans()["optimal"].spec.tensors, rp.Topology.uniform(6, 3)), "direct"
    )
    [payload] = [claim for claim in claims(plan) if claim.title == "Payload"]
    assert payload.good is False
    assert "times the least possible" in payload.text


def test_times_beside_one_another_are_of_one_sort(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    other = rp.compile(plan.spec, "direct")
    scheduled = report_html(plan, alternatives=[Alternative.of(other)])
    assert "Time by schedule" in scheduled
    run = predict(plan)
    mixed = report_html(plan, alternatives=[Alternative.of(other, None, "not <predicted>")], prediction=run)
    assert "Time predicted" in mixed
    assert "not &lt;predicted&gt;" in mixed
    assert "were not planned" in report_html(plan)


# ------------------------------------------------------------------------------------ pages


def check_page(text, known=None):
    """The page loads nothing, runs nothing but its own script, and is one document."""
    page = Page(text)
    assert page.tags[0] == "html"
    assert page.tags.count("html") == page.tags.count("body") == 1
    assert len(page.scripts) == 2
    assert not {"iframe", "object", "embed", "base", "form", "foreignobject"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in {"src", "href", "xlink:href", "action", "data", "srcset"}:
            assert value.startswith("#") or value == "data:,", (tag, name, value)
    if known is not None:
        assert set(page.tags) <= known
    return page


@pytest.mark.parametrize("name", sample_plans())
def test_pages_load_nothing_and_are_the_same_each_time(name):
    plan = sample_plans()[name]
    text = report_html(plan)
    check_page(text)
    assert text == report_html(plan)


def test_names_are_text_whatever_they_are(spec):
    harmless = rp.compile(rp.ReshardSpec.load(spec))
    others = [Alternative.without("<i>x</i>", "</td><script>1</script>")]
    known = set(check_page(report_html(harmless, alternatives=others)).tags)
    plan = hostile_plan()
    page = check_page(
        report_html(plan, alternatives=others, name="<u>.reshard"), known | {"path", "polyline"}
    )
    shown = page.data["tensors"]["name"]
    assert shown[:2] == list(NAMES[:2])
    assert all(len(name) <= MAX_NAME and name.isprintable() for name in shown)
    assert "\\u202etxt." in shown[NAMES.index(NAMES[7])]


def test_nothing_in_the_data_ends_the_script():
    text = report_html(hostile_plan())
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert not re.search(r"[<>&]", data)
    json.loads(data)


def test_the_policy_of_a_page_lets_its_own_script_run_and_no_other(spec):
    text = report_html(rp.compile(rp.ReshardSpec.load(spec)))
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    script = Page(text).scripts[1][1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_all_tensors_and_their_layouts_are_there(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    tensors = Page(report_html(plan)).data["tensors"]
    assert tensors["name"] == ["w", "norm"]
    assert tensors["nbytes"] == [8192, 256]
    assert [tensors["sides"][at] for at in tensors["side"]] == [["0-3", "4-7"]] * 2
    assert tensors["network"] == measure_loads(plan, 1).moved[Medium.NETWORK].tolist()
    assert tensors["picture"] == [0, 1]
    assert [picture.tensors for picture in draw_pictures(plan).layouts] == [(0,), (1,)]


def test_pictures_keep_to_white_paper():
    media = "@media (prefers-color-scheme: dark)"
    dark = f"<?xml?><svg><style>{media} {{a{{}}}}</style><text>{media}</text></svg>"
    assert element(dark) == f"<svg><style>@media not all {{a{{}}}}</style><text>{media}</text></svg>"


def test_thousands_of_tensors_take_seconds_and_a_few_megabytes():
    before, after = rp.Layout(rp.Mesh(range(64)), ["S(0)"]), rp.Layout(rp.Mesh(range(64, 128)), ["S(1)"])
    names = [f"layers.{at}.weight" for at in range(3000)]
    tensors = [rp.TensorSpec(name, (256, 256), "bfloat16", before, after) for name in names]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(128, 8)))
    begin = time.process_time()
    text = report_html(plan)
    assert time.process_time() - begin < 10
    assert len(text) < 5_000_000
    assert len(Page(text).data["tensors"]["name"]) == 3000


# ------------------------------------------------------------------------------------ the verb


def test_the_verb_writes_the_page_with_every_other_strategy(spec, tmp_path, capsys):
    page = tmp_path / "plan.html"
    code, out, _ = call(capsys, "report", spec, "-o", page)
    assert code == 0
    assert out.startswith(f"wrote {page}, ")
    text = page.read_text(encoding="utf-8")
    check_page(text)
    for name in STRATEGIES:
        assert f"<bdi>{name}</bdi>" in text
    assert "Time predicted" in text
    found = result(capsys, "report", spec, "-o", page, "--no-baselines", "--no-simulate")
    assert found == {
        "file": str(page),
        "nbytes": page.stat().st_size,
        "simulated": False,
        "strategies": None,
    }
    assert "were not planned" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", ["reshard", "json", "txt"])
def test_plans_of_all_forms_are_reported_alike(spec, tmp_path, capsys, suffix):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    file = tmp_path / f"plan.{suffix}"
    save_as(plan, file)
    page = tmp_path / "plan.htm"
    result(capsys, "report", file, "-o", page, "--no-baselines")
    assert page.read_text(encoding="utf-8") == report_html(plan, prediction=predict(plan), name=file.name)


def test_strategies_that_take_too_long_are_left_out_with_the_reason(spec, tmp_path, capsys):
    page = tmp_path / "plan.html"
    found = result(capsys, "report", spec, "-o", page, "--limit", "1e-9")
    assert found["strategies"] == [name for name in STRATEGIES if name != "optimal"]
    assert page.read_text(encoding="utf-8").count("takes more than 1e-09 s") >= len(STRATEGIES) - 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "plan.pdf"), "its suffix is '.pdf'; expected .html or .htm"),
        (("-o", "plan.html", "--limit", "0"), "--limit is 0.0; expected a number of seconds above 0"),
        (("-o", "plan.html", "--limit", "nan"), "--limit is nan; expected"),
        (("-o", "plan.html", "--strategy", "best"), "strategy 'best' is unknown; expected one of"),
        (("-o", "missing/plan.html", "--no-baselines"), "cannot write"),
    ],
)
def test_what_cannot_be_written_is_refused(spec, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert_refused(call(capsys, "report", spec, *arguments), words)
    assert not (tmp_path / "plan.html").exists()


def test_the_file_that_is_read_is_not_written_over(spec, tmp_path, capsys):
    odd = tmp_path / "spec.html"
    odd.write_text(spec.read_text())
    assert_refused(call(capsys, "report", odd, "-o", odd), "is the file that is read")

"""Importer of `nvidia-smi topo -m`: matrices of real machines, random ones, pasted ones and damaged ones."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imported_facts import assert_refused_or_found, in_time
from topology_damage import SAMPLES, damages

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.checks import check
from reshard_planner.topology.cluster.facts import FindingKind
from reshard_planner.topology.cluster.model import Nearness
from reshard_planner.topology.importers import topo_matrix
from reshard_planner.topology.importers.reading import Reading

SAMPLE = (SAMPLES / "nvidia_smi_topo_m_gb200_ansi.txt").read_text()
LEGEND = "\nLegend:\n\n  X    = Self\n  NODE = Connection traversing PCIe\n\n"
TITLES = "CPU Affinity\tNUMA Affinity\tGPU NUMA ID"


def read(text):
    return topo_matrix.read(text, Reading("h", "file"))


def host_of(imported):
    (host,) = imported.cluster.hosts
    return host


def values(facts):
    return [None if fact is None else fact.value for fact in facts]


def islands(imported):
    """Sets of positions of GPUs with equal islands."""
    found = {}
    for position, gpu in enumerate(host_of(imported).gpus):
        found.setdefault(gpu.island.value, set()).add(position)
    return list(found.values())


def matrix(cells, gpus, nics=(), *, numa=None, titles=TITLES, legend=()):
    """The text of a matrix with tabs; cells[i][j] for GPUs, then NICs; numa per GPU."""
    names = [f"GPU{i}" for i in range(gpus)] + list(nics)
    lines = ["\t\x1b[4m" + "\t".join([*names, titles]) + "\x1b[0m"]
    for i, name in enumerate(names):
        row = [" X " if i == j else cells[i][j] for j in range(len(names))]
        tail = (
            (["0-35", str(numa[i]), "", "N/A"] if i < gpus else ["", "", "", ""]) if numa is not None else []
        )
        lines.append("\t".join([name, *row, *tail]))
    text = "\n".join(lines) + "\n" + LEGEND
    if legend:
        text += "NIC Legend:\n\n" + "".join(f"  {nic}: {name}\n" for nic, name in legend)
    return text


def nv_matrix(count, link="NV18"):
    return [[link] * count for _ in range(count)]


# -- the sample: nvl72 tray of four GPUs, read by eye


def test_the_sample_of_a_gb200_tray():
    assert topo_matrix.recognises(SAMPLE)
    imported = read(SAMPLE)
    host = host_of(imported)
    assert host.name == "h"
    assert imported.findings == ()
    assert [gpu.name for gpu in host.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert values(gpu.nvlinks for gpu in host.gpus) == [18] * 4
    assert values(gpu.numa for gpu in host.gpus) == [0, 0, 1, 1]
    assert islands(imported) == [{0, 1, 2, 3}]
    assert [nic.name for nic in host.nics] == [f"mlx5_{i}" for i in range(6)]
    assert values(nic.near for nic in host.nics) == [(Nearness.NODE,) * 4] * 6
    assert {gpu.nvlinks.source for gpu in host.gpus} == {"file"}


# -- cases of real machines


def test_rc_097_an_underlined_header_is_read():
    text = (
        "\x1b[4m\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tNV18\t0-71\t0\tN/A\nGPU1\tNV18\t X \t72-143\t1\tN/A\n"
    )
    imported = read(text)
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [18, 18]
    assert values(gpu.numa for gpu in host_of(imported).gpus) == [0, 1]
    assert imported.findings == ()


def test_rc_099_sixteen_gpus_and_device_names_in_the_header():
    cells = [["NV6"] * 18 for _ in range(18)]
    for nic in (16, 17):
        for gpu in range(16):
            near = "PIX" if gpu // 2 == (nic - 16) * 4 else "PXB" if gpu // 4 == (nic - 16) * 2 else "SYS"
            cells[gpu][nic] = cells[nic][gpu] = near
    cells[16][17] = cells[17][16] = "SYS"
    lines = matrix(cells, 16, ["mlx5_0", "mlx5_1"], titles="CPU Affinity").split("\n")
    text = "\n".join(f"{line}\t0-23" if line.startswith("GPU") else line for line in lines)
    imported = read(text)
    host = host_of(imported)
    assert islands(imported) == [set(range(16))]
    assert values(gpu.nvlinks for gpu in host.gpus) == [6] * 16
    assert values(gpu.numa for gpu in host.gpus) == [None] * 16
    assert [nic.name for nic in host.nics] == ["mlx5_0", "mlx5_1"]
    distances = [nic.near.value[0].distance for nic in host.nics]
    assert distances[0] < distances[1]
    assert host.nics[0].near.value[:5] == (*(Nearness.PIX,) * 2, *(Nearness.PXB,) * 2, Nearness.SYS)
    assert imported.findings == ()


def test_rc_100_a_tray_without_nics_is_one_island_and_has_no_fabric():
    imported = read(matrix(nv_matrix(4), 4, numa=[0, 0, 1, 1]))
    assert islands(imported) == [{0, 1, 2, 3}]
    assert host_of(imported).nics == ()
    assert values(gpu.fabric for gpu in host_of(imported).gpus) == [None] * 4
    assert imported.findings == ()


def degraded(imported):
    """What checks say is less than its like."""
    return [finding for finding in check(imported.cluster) if finding.kind is FindingKind.DEGRADED]


def test_rc_103_a_gpu_without_nvlinks_is_an_island_of_its_own_and_checks_name_it():
    cells = nv_matrix(8)
    for gpu in range(8):
        cells[2][gpu] = cells[gpu][2] = "NODE" if gpu < 4 else "SYS"
    imported = read(matrix(cells, 8, numa=[0] * 4 + [1] * 4))
    assert islands(imported) == [{0, 1, 3, 4, 5, 6, 7}, {2}]
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [18, 18, 0, *[18] * 5]
    assert imported.findings == ()
    [finding] = degraded(imported)
    assert finding.place == "host h, GPU2"
    assert "it has no NVLink, its peers 18" in finding.text


def test_without_a_switch_the_links_to_all_peers_are_added_up():
    # DGX-1 with V100: two links to some peers, one to others, none to the rest; six in all
    one = {(0, 1), (0, 2), (1, 3), (2, 3)}
    two = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 6), (3, 7)}
    cells = [["SYS"] * 8 for _ in range(8)]
    for pairs, link in ((one, "NV1"), (two, "NV2")):
        for a, b in pairs:
            upper = [(a, b)] if b - a == 4 else [(a, b), (a + 4, b + 4)]
            for i, j in upper:
                cells[i][j] = cells[j][i] = link
    imported = read(matrix(cells, 8))
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [6] * 8
    assert islands(imported) == [set(range(8))]


@pytest.mark.parametrize(("link", "total"), [("NV4", 12), ("NV6", 18)])
def test_equal_links_to_few_peers_could_be_a_switch_and_are_said_to_be_assumed(link, total):
    imported = read(matrix(nv_matrix(4, link), 4, titles="CPU Affinity"))
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [total] * 4
    assert [finding.kind for finding in imported.findings] == [FindingKind.ASSUMED]


def test_islands_of_unequal_size_are_named_where_their_gpus_have_equal_counts():
    cells = nv_matrix(8)
    for a in (0, 1):
        for b in range(2, 8):
            cells[a][b] = cells[b][a] = "SYS"
    imported = read(matrix(cells, 8, numa=[0] * 8))
    assert islands(imported) == [{0, 1}, {2, 3, 4, 5, 6, 7}]
    [finding] = imported.findings
    assert (finding.kind, finding.place) == (FindingKind.DEGRADED, "host h, GPU0, GPU1")
    assert degraded(imported) == []


def test_a_gpu_with_fewer_links_than_others_is_left_to_checks():
    cells = nv_matrix(8)
    for gpu in range(8):
        cells[5][gpu] = cells[gpu][5] = "NV17"
    imported = read(matrix(cells, 8, numa=[0] * 8))
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [18] * 5 + [17] + [18] * 2
    assert imported.findings == ()
    assert [finding.place for finding in degraded(imported)] == ["host h, GPU5"]


# -- pasted and damaged by hand


def pasted(text):
    """As copied from a terminal: tabs are spaces, empty cells are gone."""
    return re.sub(r"\t+", "    ", text.replace("\x1b[4m", "").replace("\x1b[0m", ""))


def test_a_pasted_matrix_gives_the_same_links():
    imported = read("$ nvidia-smi topo -m\n" + pasted(SAMPLE) + "user@host:~$ ")
    host, whole = host_of(imported), host_of(read(SAMPLE))
    assert host.nics == whole.nics
    assert [replace(gpu, numa=None) for gpu in host.gpus] == [replace(gpu, numa=None) for gpu in whole.gpus]
    # the CPU affinity of two GPUs is empty: without tabs nobody can tell what the number left is
    assert values(gpu.numa for gpu in host.gpus) == [0, 0, None, None]
    assert [finding.place for finding in imported.findings] == ["host h, GPU2, GPU3"]


@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
@pytest.mark.parametrize("before", ["", "Tue Mar  3\n", "[user@n1 ~]$ nvidia-smi topo -m\n\n"])
@pytest.mark.parametrize("after", ["", "\nuser@n1$ exit\n", "GPU 00000000:01:00.0 is fine\n"])
def test_line_ends_and_text_around_the_matrix_change_nothing(line_end, before, after):
    imported = read((before + SAMPLE + after).replace("\n", line_end))
    assert imported == read(SAMPLE)


def test_escape_codes_anywhere_change_nothing():
    colours = re.sub(r"(NV18|NODE| X |GPU0)", "\x1b[1;32m\\1\x1b[0m", SAMPLE)
    assert read(colours) == read(SAMPLE)
    assert read(SAMPLE.replace("\x1b", "")) == read(SAMPLE)  # as some terminals paste them


def test_cells_that_ran_together_are_taken_apart_and_said():
    damaged = SAMPLE.replace(
        "NODE\tNODE\tNODE\tNODE\tNODE\tNODE\t0-35", "NODENODE\tNODE\tNODE\tNODE\tNODE\t0-35", 1
    )
    assert damaged != SAMPLE
    imported = read(damaged)
    assert imported.cluster == read(SAMPLE).cluster
    assert ["NODENODE" in finding.text for finding in imported.findings] == [True]


@pytest.mark.parametrize("tabs", [True, False])
def test_a_missing_cell_is_taken_from_the_other_row_and_said(tabs):
    cells = nv_matrix(4)
    whole = matrix(cells, 4, numa=[0, 0, 1, 1])
    damaged = whole.replace("GPU1\tNV18\t X \tNV18\tNV18", "GPU1\tNV18\t X \tNV18", 1)
    imported = read(damaged if tabs else pasted(damaged))
    assert [g.island for g in host_of(imported).gpus] == [g.island for g in host_of(read(whole)).gpus]
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [18] * 4
    assert any("row of GPU1" in finding.text for finding in imported.findings)


def test_rows_that_contradict_each_other_are_a_conflict_and_join_nothing():
    cells = nv_matrix(2)
    cells[1][0] = "NODE"
    imported = read(matrix(cells, 2))
    assert values(gpu.island for gpu in host_of(imported).gpus) == [None, None]
    assert imported.findings[0].kind == FindingKind.CONFLICT
    assert "GPU0 says NV18 to GPU1, and that of GPU1 says NODE" in imported.findings[0].text


def test_links_that_no_row_states_leave_their_number_open():
    cells = nv_matrix(4, "NV1")
    cells[0][1] = cells[1][0] = ""
    imported = read(matrix(cells, 4, numa=[0] * 4))
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [None, None, 3, 3]
    assert islands(imported) == [{0, 1, 2, 3}]  # over the others
    assert {finding.kind for finding in imported.findings} == {FindingKind.UNKNOWN}


@pytest.mark.parametrize(
    "row",
    ["NV18\tNV18\t X \tNV18", "NV18\t X \t X \tNV18", "NV18\t X \tNV18\tNV18\tNV18", "NV18\t X \t0-35\tNV18"],
    ids=["shifted", "two selves", "too long", "an affinity"],
)
def test_a_row_that_does_not_fit_its_columns_is_not_used(row):
    whole = matrix(nv_matrix(4), 4, numa=[0, 0, 1, 1])
    damaged = whole.replace("GPU1\tNV18\t X \tNV18\tNV18", f"GPU1\t{row}", 1)
    imported = read(damaged)
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [18] * 4
    assert islands(imported) == [{0, 1, 2, 3}]
    assert "row of GPU1 does not fit the 4 columns of line 1" in imported.findings[0].text
    assert imported.findings[0].place == "file, line 3"


def test_a_row_that_is_given_twice_and_differs_is_a_conflict():
    lines = matrix(nv_matrix(3, "NV12"), 3, numa=[0] * 3).split("\n")
    imported = read("\n".join([*lines[:4], lines[3].replace("NV12", "SYS"), *lines[4:]]))
    assert imported.findings[0].kind == FindingKind.CONFLICT
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [12] * 3


def test_rows_of_nics_are_compared_with_those_of_gpus():
    damaged = SAMPLE.replace("NIC0\tNODE\tNODE", "NIC0\tNODE\tPIX", 1)
    imported = read(damaged)
    assert host_of(imported).nics[0].near is None
    assert imported.findings[0].kind == FindingKind.CONFLICT
    assert imported.findings[0].place == "host h, GPU1 and NIC0"


def test_a_second_matrix_is_said_to_be_left_out():
    imported = read(SAMPLE + SAMPLE)
    assert imported.cluster == read(SAMPLE).cluster
    assert "second table" in imported.findings[0].text


@pytest.mark.parametrize("option", ["-mp", "--matrix-pci"])
def test_a_matrix_without_nvlinks_by_request_is_refused(option):
    with pytest.raises(TopologyError, match="leaves NVLinks out"):
        read(f"$ nvidia-smi topo {option}\n" + SAMPLE.replace("NV18", "NODE"))


def test_a_matrix_of_peer_access_is_refused():
    text = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
    assert not topo_matrix.recognises(text)
    with pytest.raises(TopologyError, match="file has no links such as NV18 or SYS below line 1"):
        read(text)


def test_gpus_without_any_nvlink_are_islands_of_their_own_and_not_degraded():
    imported = read(matrix([["PHB"] * 4] * 4, 4, numa=[0] * 4))
    assert islands(imported) == [{0}, {1}, {2}, {3}]
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [0] * 4
    assert imported.findings == ()


def test_a_host_of_one_gpu_says_nothing_of_nvlinks():
    imported = read(matrix([["X"]], 1, numa=[0]))
    assert values(gpu.nvlinks for gpu in host_of(imported).gpus) == [None]
    assert imported.findings == ()


# -- random machines


@st.composite
def machines(draw):
    """Cells, islands, NVLinks of GPUs, NUMA nodes and names of NICs of a machine."""
    gpus = draw(st.integers(1, 12))
    nics = draw(st.integers(0, 6))
    island = draw(st.lists(st.integers(0, 2), min_size=gpus, max_size=gpus))
    total = draw(st.sampled_from([0, 12, 18]))
    near = st.sampled_from([near.value for near in Nearness])
    size = gpus + nics
    cells = [["X"] * size for _ in range(size)]
    for i in range(size):
        for j in range(i):
            joined = total and i < gpus and island[i] == island[j]
            cells[i][j] = cells[j][i] = f"NV{total}" if joined else draw(near)
    sets = {}
    for gpu in range(gpus):
        sets.setdefault(island[gpu] if total else gpu, set()).add(gpu)
    links = [total if total and island.count(island[gpu]) > 1 else 0 for gpu in range(gpus)]
    numa = draw(st.lists(st.integers(0, 7), min_size=gpus, max_size=gpus))
    names = draw(
        st.lists(
            st.from_regex(r"(mlx5_|ibp|rocep)[0-9]{1,3}", fullmatch=True),
            min_size=nics,
            max_size=nics,
            unique=True,
        )
    )
    return cells, list(sets.values()), links if gpus > 1 else [None], numa, names


@settings(max_examples=150, deadline=None)
@given(machines(), st.booleans(), st.booleans())
def test_what_a_matrix_says_is_read_back(machine, direct, crlf):
    cells, sets, links, numa, names = machine
    columns = names if direct else [f"NIC{i}" for i in range(len(names))]
    text = matrix(
        cells, len(numa), columns, numa=numa, legend=[] if direct else list(zip(columns, names, strict=True))
    )
    imported = read(text.replace("\n", "\r\n") if crlf else text)
    host = host_of(imported)
    assert topo_matrix.recognises(text)
    assert islands(imported) == sets
    assert values(gpu.nvlinks for gpu in host.gpus) == links
    assert values(gpu.numa for gpu in host.gpus) == numa
    assert [nic.name for nic in host.nics] == names
    expected = [tuple(cells[gpu][len(numa) + nic] for gpu in range(len(numa))) for nic in range(len(names))]
    assert values(nic.near for nic in host.nics) == expected
    # nothing but what is wrong with the machine is found
    uneven = any(1 < len(members) < max(map(len, sets)) for members in sets)
    assert {finding.kind for finding in imported.findings} == ({FindingKind.DEGRADED} if uneven else set())


# -- damage

UNSEEN = {"flip byte", "drop character", "huge number", "control character", "insert junk"}
"""Damage that can turn one name or number into another that is as good."""


def shape(imported):
    """All that another line of the matrix confirms."""
    host = host_of(imported)
    return (
        [(gpu.name, gpu.nvlinks, gpu.island) for gpu in host.gpus],
        [nic.near for nic in host.nics],
    )


def test_damaged_matrices_never_give_other_links_in_silence():
    whole = read(SAMPLE)
    seen = 0
    for damage in damages(SAMPLE, 1500):
        imported = in_time(read, damage.text, "file")
        if imported is None:
            continue
        same = shape(imported) == shape(whole) if damage.kind in UNSEEN else imported.cluster == whole.cluster
        seen += not same
        assert same or imported.findings, (damage.kind, damage.text)
    assert seen > 100


def test_every_cut_gives_an_error_a_finding_or_all_of_it():
    whole = read(SAMPLE)
    for end in range(len(SAMPLE)):
        try:
            imported = read(SAMPLE[:end])
        except TopologyError:
            continue
        assert imported.findings or imported.cluster == whole.cluster, SAMPLE[max(0, end - 40) : end]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU0",
        "A" * 10_000_000,
        "GPU0 " * 2_000_000,
        "\x1b]" * 1_000_000,
        "\x1b[" * 1_000_000,
        "GPU0\tGPU1\tCPU Affinity\n" + "GPU0\t" + "NV18" * 2_000_000,
        "\n" * 1_000_000,
        "[1;" * 1_000_000,
        "\t" + "\t".join(f"GPU{i}" for i in range(100)) + "\tCPU Affinity\n",
        "\tGPU0\tGPU0\tCPU Affinity\n",
        "\tGPU0\t" + "\t".join(f"NIC{i}" for i in range(300)) + "\tCPU Affinity\n",
        "GPU0\tGPU1\nGPU0\tOK\tOK\n" * 1000,
    ],
    ids=range(13),
)
def test_hostile_texts_are_refused_or_read_in_time(text):
    assert_refused_or_found(topo_matrix, read, text)


@pytest.mark.parametrize(
    "name", ["nvidia_smi_qx_h100x8.xml", "ibnetdiscover_dgx_h100_ndr.out", "slurm_topology.yaml"]
)
def test_other_formats_are_not_recognised(name):
    assert not topo_matrix.recognises((SAMPLES / name).read_text())

"""Host lists: reading and writing are each other's reverse, and reading agrees with counting by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soon import soon

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.hostlist import MAX_HOSTS, brief_names, expand_hosts, fold_hosts

NAMES = st.one_of(
    st.from_regex(r"(?:n|rack-1-|gpu0|x9y)\d{1,4}", fullmatch=True),
    st.from_regex(r"[a-z0-9.\-]{1,12}", fullmatch=True),
    st.from_regex(r"[0-9]{1,40}", fullmatch=True),
)


@given(st.lists(NAMES, min_size=1, max_size=40))
def test_expanding_what_was_folded_gives_the_names_in_their_order(names):
    assert expand_hosts(fold_hosts(names)) == tuple(names)


@given(
    st.text(alphabet="n0189-", min_size=1, max_size=3),
    st.integers(0, 1200),
    st.integers(1, 150),
    st.integers(1, 5),
)
def test_consecutive_numbers_of_one_width_fold_into_one_range(prefix, first, count, width):
    prefix = prefix.rstrip("0123456789") or "n"
    names = [f"{prefix}{number:0{width}d}" for number in range(first, first + count)]
    folded = fold_hosts(names)
    assert folded == (
        names[0] if count == 1 else f"{prefix}[{names[0][len(prefix) :]}-{names[-1][len(prefix) :]}]"
    )


def by_hand(text):
    """Reads a host list letter by letter, counting up with a carry instead of with integers."""
    items, item, depth = [], "", 0
    for letter in text + ",":
        depth += (letter == "[") - (letter == "]")
        if depth == 0 and letter in ",\t\n ":
            items += [item] if item else []
            item = ""
        else:
            item += letter
    return [name for item in items for name in opened(item)]


def opened(item):
    if "[" not in item:
        return [item]
    before, rest = item.split("[", 1)
    inside, after = rest.split("]", 1)
    numbers = []
    for part in inside.split(","):
        lo, _, hi = part.strip().partition("-")
        numbers.append(lo)
        while hi and numbers[-1].lstrip("0") != hi.lstrip("0"):
            numbers.append(counted_on(numbers[-1]))
    return [before + number + tail for number in numbers for tail in opened(after)]


def counted_on(number):
    digits = list(number)
    for place in reversed(range(len(digits))):
        if digits[place] != "9":
            digits[place] = str(int(digits[place]) + 1)
            return "".join(digits)
        digits[place] = "0"
    return "1" + "".join(digits)


@st.composite
def host_lists(draw):
    def span():
        lo = draw(st.integers(0, 120))
        text = f"{lo:0{draw(st.integers(1, 4))}d}"
        if draw(st.booleans()):
            text += f"-{lo + draw(st.integers(0, 12)):0{draw(st.integers(1, 4))}d}"
        return text

    def item():
        text = draw(st.sampled_from(["n", "rack", "b04-", "foo0", ""]))
        for _ in range(draw(st.integers(0, 2))):
            text += f"[{','.join(span() for _ in range(draw(st.integers(1, 3))))}]" + draw(
                st.sampled_from(["", "-g"])
            )
        return text or "m"

    items = [item() for _ in range(draw(st.integers(1, 4)))]
    return draw(st.sampled_from([",", ", ", " ,\t", ",,"])).join(items)


@given(host_lists())
def test_expanding_agrees_with_counting_letter_by_letter(text):
    assert list(expand_hosts(text)) == by_hand(text)


NINETEEN = (
    "foo003 foo010 foo011 foo012 foo013 foo014 foo015 foo016 foo017 foo018 foo019 foo020"
    " foo103 foo104 foo10 foo12 foo13 foo14 foo-m11-16"
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("b04-[09-10]", "b04-09 b04-10"),
        ("nid[008-011]", "nid008 nid009 nid010 nid011"),
        ("n[9-11]", "n9 n10 n11"),
        ("nodeA,nodeB[001,003],nodeC", "nodeA nodeB001 nodeB003 nodeC"),
        ("foo003,foo0[10-20],foo[103-104],foo[10,12-14],foo-m11-16", NINETEEN),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[98-101]", "n98 n99 n100 n101"),
        ("n[08-0011]", "n08 n09 n10 n11"),
        ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
        ("n[1-2].gpu.example", "n1.gpu.example n2.gpu.example"),
        (" a,b,\tc ,, d\n", "a b c d"),
        ("n[ 1 , 3-4 ]", "n1 n3 n4"),
        ("a,a", "a a"),
    ],
)
def test_lists_of_real_clusters(text, names):
    assert expand_hosts(text) == tuple(names.split())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n[1-2", "do not match"),
        ("n1-2]", "do not match"),
        ("n[[1]]", "do not match"),
        ("", "names nothing"),
        (" ,\n", "names nothing"),
        ("a b", "a space between names; expected commas"),
        ("n[1-2] m", "a space between names; expected commas"),
        ("n[]", "'' in brackets"),
        ("n[1,,2]", "'' in brackets"),
        ("n[-3]", "'-3' in brackets"),
        ("n[3-]", "'3-' in brackets"),
        ("n[1--3]", "'1--3' in brackets"),
        ("n[a-c]", "'a-c' in brackets"),
        ("n[1-2-3]", "'1-2-3' in brackets"),
        ("bgq[000x113]", "'000x113' in brackets"),
        ("n[\u0661-\u0662]", "in brackets"),
        ("n[" + "9" * 19 + "]", "in brackets"),
        ("n[4-1]", "4-1, which runs backwards"),
        ("x" * 257, "257 characters"),
    ],
)
def test_what_is_no_host_list_is_refused_in_one_sentence(text, says):
    with pytest.raises(TopologyError, match=r"^host list ") as caught:
        expand_hosts(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "text",
    [
        "n[0-999999999]",
        "n[0-99999][0-99999]",
        "n[" + ",".join(["0-99999"] * 100_000) + "]",
        "n" + "[0-9]" * 200_000,
        "x" * 3_000_000,
        "x" * 3_000_000 + "[1-100000]",
        "[" * 3_000_000,
        "[" + "1" * 3_000_000 + "]",
        "[" + "1," * 1_000_000 + "1]",
        "," * 3_000_000 + "[",
        "a," * (MAX_HOSTS + 1),
    ],
    ids=range(11),
)
def test_huge_lists_are_refused_at_once(text):
    with soon(2), pytest.raises(TopologyError):
        expand_hosts(text)


def test_the_limit_itself_is_read():
    assert len(expand_hosts(f"n[1-{MAX_HOSTS - 1}],m")) == MAX_HOSTS
    with pytest.raises(TopologyError, match="more than 131072 names"):
        expand_hosts(f"n[1-{MAX_HOSTS}],m")


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a[1]", "n\n", "x" * 257])
def test_names_that_no_list_can_hold_are_not_folded(name):
    with pytest.raises(TopologyError, match="cannot stand in a host list"):
        fold_hosts(["n1", name])


def test_damaged_lists_give_names_or_one_sentence():
    rng = random.Random(7)  # noqa: S311 - not for secrets
    text = "foo003,foo0[10-20],rack[1-4]n[103-104],foo[10,12-14],foo-m11-16"
    for _ in range(1500):
        damaged = list(text)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice(
                ["", "[", "]", ",", "-", "0", "9", " ", "\x00", "\u0663", "99"]
            )
        damaged = "".join(damaged)
        try:
            names = expand_hosts(damaged)
        except TopologyError as error:
            assert "\n" not in str(error)  # noqa: PT017 - damage may leave a list that reads
        else:
            assert list(names) == by_hand(damaged)


@given(st.lists(NAMES, max_size=60))
def test_brief_lists_stay_brief(names):
    assert len(brief_names(names)) <= 90


@given(st.lists(st.one_of(NAMES, st.text(max_size=300)), max_size=60))
def test_brief_lists_say_something_of_any_names_and_stay_brief(names):
    brief = brief_names(names)
    assert 0 < len(brief) <= 90
    if len(names) == 1 and len(names[0]) < 15:
        assert brief in (names[0], repr(names[0]))

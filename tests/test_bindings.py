"""Plans turn Megatron's storage into vLLM's, byte for byte, as the published formulas have both."""

from __future__ import annotations

from itertools import product
from math import gcd, lcm

import pytest
from _bindings import check, make, megatron, place, vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard_planner.errors import SpecError

TPS = tuple(range(1, 17))


@pytest.fixture
def thorough(request):
    return request.config.getoption("--thorough")


def divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]


def groups_of(heads, tp):
    """Numbers of heads of keys and values that vLLM spreads over tp ranks."""
    return [kv for kv in divisors(heads) if kv % tp == 0 or tp % kv == 0]


def size_of(heads, kv, tp, *, gated=False, times=1):
    """A size of heads at which the rows of linear_qkv divide over tp ranks of Megatron."""
    return times * tp // gcd(tp, heads * (1 + gated) + 2 * kv)


# every tp


@pytest.mark.parametrize("src_tp", TPS)
def test_attention_and_feed_forward_parts_arrive_from_every_tp_at_every_tp(src_tp, thorough):
    for dst_tp in TPS if thorough else [tp for tp in TPS if (src_tp // 3 + tp) % 3 == 0]:
        heads = lcm(src_tp, dst_tp)
        choices = groups_of(heads, dst_tp)
        some = {choices[0], choices[len(choices) // 2], choices[-1]}
        for kv in sorted(some) if thorough else [choices[(src_tp + dst_tp) % len(choices)]]:
            size = size_of(heads, kv, src_tp, times=1 if heads > 100 else 3)
            model = make("attention+dense", heads=heads, kv_heads=kv, head_dim=size, size=heads)
            strategy = "optimal" if thorough else "direct"
            check(model, megatron(tp=src_tp), vllm(tp=dst_tp), strategy=strategy)


@pytest.mark.parametrize("src_tp", TPS)
def test_vocabularies_arrive_from_every_tp_at_every_tp(src_tp, thorough):
    for dst_tp in TPS if thorough else TPS[src_tp % 4 :: 4]:
        pad = (128, 1, 3, 64)[dst_tp % 4 if thorough else dst_tp // 4 % 4]
        for vocab in (64 * dst_tp - 5, 64 * dst_tp, 1) if thorough else [64 * dst_tp - 5]:
            if -(-vocab // 64) * 64 % dst_tp == 0:
                model = make("", outside=True, vocab=vocab)
                check(model, megatron(tp=src_tp, pad=pad), vllm(tp=dst_tp))


@pytest.mark.parametrize("src_tp", TPS)
def test_latent_attention_arrives_from_every_tp_at_every_tp(src_tp, thorough):
    for dst_tp in TPS if thorough else (17 - src_tp, 1 + src_tp * 5 % 16):
        model = make("latent+dense", "direct", heads=lcm(src_tp, dst_tp), size=lcm(src_tp, dst_tp))
        check(model, megatron(tp=src_tp), vllm(tp=dst_tp))


@pytest.mark.parametrize("size", TPS)
def test_experts_arrive_from_every_ep_and_etp(size, thorough):
    for other in TPS if thorough else (17 - size, 1 + size * 5 % 16):
        experts = size * -(-(other + 1) // size)
        whole = {"experts": experts, "shared": other, "size": 3}
        check(make("routed", **whole), megatron(dp=size, ep=size), vllm(dp=other, ep=other))
        round_robin = vllm(dp=other, ep=other, expert_placement="round_robin")
        check(make("stacked", **whole), megatron(dp=size, ep=size, grouped=True), round_robin)
        cut = {"experts": 3, "shared": other, "size": lcm(size, other)}
        check(make("stacked", **cut), megatron(dp=size, etp=size), vllm(tp=other))


# heads of many sizes

HEADS = [
    (12, 3, 3),
    (12, 3, 4),
    (8, 2, 3),
    (16, 4, 1),
    (16, 2, 3),
    (24, 6, 5),
    (14, 2, 3),
    (10, 5, 7),
    (15, 3, 5),
    (11, 1, 1),
    (13, 13, 1),
    (6, 2, 2),
    (9, 3, 3),
]


def divides(heads, kv, size, gated):
    """Sizes of tp at which both frameworks spread such attention."""
    rows = (heads * (1 + gated) + 2 * kv) * size
    src = [tp for tp in TPS if heads % tp == 0 and rows % tp == 0]
    return src, [tp for tp in TPS if heads % tp == 0 and (kv % tp == 0 or tp % kv == 0)]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("heads", "kv", "size"), HEADS)
def test_heads_of_any_numbers_arrive(heads, kv, size, gated, thorough):
    src, dst = divides(heads, kv, size, gated)
    model = make("attention", heads=heads, kv_heads=kv, head_dim=size, output_gate=gated)
    pairs = list(product(src, dst))
    if not thorough:
        count = max(len(src), len(dst))
        pairs = [(src[i % len(src)], dst[-1 - i % len(dst)]) for i in range(count)]
    for src_tp, dst_tp in pairs:
        check(model, megatron(tp=src_tp), vllm(tp=dst_tp), strategy="optimal" if thorough else "direct")


def refusal(framework, options, model):
    with pytest.raises(SpecError) as caught:
        place(framework, options, model)
    told = str(caught.value)
    assert "\n" not in told
    assert ". " not in told
    assert not told.endswith(".")
    return told


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("heads", "kv", "size"), HEADS)
def test_heads_that_tp_does_not_divide_are_refused(heads, kv, size, gated):
    model = make("attention", heads=heads, kv_heads=kv, head_dim=size, output_gate=gated)
    rows = (heads * (1 + gated) + 2 * kv) * size
    for tp in TPS:
        if rows % tp or heads * size % tp:
            assert f"megatron tp is {tp}, but tiny has " in refusal("megatron", {"tp": tp}, model)
        if heads % tp or (kv % tp and tp % kv):
            assert f"vllm tp is {tp}, but tiny has " in refusal("vllm", {"tp": tp}, model)


REFUSED = [
    ("megatron", {"tp": 3}, "dense", "megatron tp is 3, but tiny has 10 rows or columns of role"),
    ("vllm", {"tp": 4}, "dense", "vllm tp is 4, but tiny has 10 rows or columns of role"),
    ("megatron", {"etp": 3, "dp": 3}, "routed", "megatron etp is 3, but tiny has 10 rows or columns of role"),
    ("megatron", {"ep": 4, "dp": 4}, "routed", "megatron ep is 4, but tiny has 6 experts"),
    ("vllm", {"tp": 4}, "stacked", "vllm tp is 4, but tiny has 10 rows or columns of role"),
    ("vllm", {"dp": 7, "ep": 7}, "routed", "vllm ep is 7, but tiny has 6 experts"),
    ("vllm", {"dp": 4, "ep": 4, "redundant": 1}, "routed", "redundant is 1, and ep=4 does not divide 6 + 1"),
    ("vllm", {"tp": 2, "dp": 2, "ep": 3}, "routed", "vllm ep is 3"),
    ("vllm", {"tp": 5}, "", "vllm tp is 5, but tiny has 128 rows of padded vocabulary"),
]


@pytest.mark.parametrize(("framework", "options", "kind", "told"), REFUSED)
def test_sizes_that_do_not_divide_are_refused(framework, options, kind, told):
    model = make(kind, outside=not kind, vocab=100, experts=6, size=10, shared=420)
    assert told in refusal(framework, options, model)


# several kinds of parallelism at once

TOGETHER = [
    ({"tp": 2, "ep": 2}, {"tp": 2, "ep": 2}, 6),
    ({"tp": 2, "dp": 2, "ep": 2, "etp": 2}, {"tp": 2, "dp": 2, "ep": 4}, 6),
    ({"tp": 2, "cp": 2, "dp": 3, "ep": 3, "etp": 2}, {"tp": 4}, 6),
    ({"tp": 2, "cp": 2, "ep": 2}, {"tp": 1, "dp": 4, "ep": 4, "redundant": 2}, 10),
    ({"tp": 1, "dp": 5, "ep": 5}, {"tp": 2, "dp": 2, "ep": 2}, 5),
    ({"dp": 6, "ep": 2, "etp": 3, "grouped": True}, {"tp": 4, "dp": 2}, 4),
    ({"pp": 2, "tp": 2, "dp": 2, "ep": 4}, {"tp": 2, "dp": 4, "ep": 4}, 8),
    ({"pp": 2, "tp": 4, "ep": 2}, {"dp": 4, "ep": 4, "redundant": 10}, 6),
    ({"pp": 2, "cp": 3, "etp": 3}, {"tp": 2, "dp": 4, "ep": 8, "redundant": 13}, 11),
    (
        {"tp": 4, "dp": 1, "etp": 4, "pad": 5},
        {"tp": 1, "dp": 3, "ep": 3, "expert_placement": "round_robin"},
        7,
    ),
    ({"tp": 8, "ep": 8}, {"tp": 4, "dp": 2, "ep": 8, "expert_placement": "round_robin"}, 16),
]


@pytest.mark.parametrize(("src", "dst", "experts"), TOGETHER)
def test_models_with_experts_arrive(src, dst, experts, thorough):
    kinds = ("attention+routed", "attention+stacked", "latent+dense", "attention+dense")
    sizes = {"heads": 24, "kv_heads": 4, "head_dim": 3, "size": 24, "shared": 24, "vocab": 131}
    for tied in (False, True) if thorough else [src.get("pp", 1) > 1]:
        model = make(*kinds, outside=True, tied=tied, experts=experts, **sizes)
        check(model, megatron(**src), vllm(**dst), strategy="optimal")


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_head_arrive_from_the_stages_that_have_them(pp, tied):
    model = make("dense", "dense", outside=True, tied=tied, vocab=300, size=6)
    check(model, megatron(pp=pp, tp=3), vllm(tp=2))


def test_stages_use_one_name_for_layers_of_their_own():
    model = make("dense", "dense", size=4)
    check(model, megatron(pp=2, tp=2), vllm(tp=4))


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ({"dp": 3, "tp": 2}, {"tp": 4}),
        ({"dp": 5}, {"tp": 2, "dp": 2}),
        ({"dp": 16}, {"tp": 2, "dp": 3}),
        ({"replicas": 2, "dp": 2, "tp": 3}, {"tp": 12}),
        ({"dp": 2, "tp": 7}, {"tp": 1}),
    ],
)
def test_models_under_fsdp_arrive(src, dst):
    sizes = {"heads": 12, "kv_heads": 4, "head_dim": 3, "size": 12, "vocab": 190}
    model = make("attention+dense", outside=True, **sizes)
    check(model, ("fsdp", src), vllm(**dst), strategy="optimal")


# anything together


@st.composite
def cases(draw):
    src_tp, dst_tp = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    both = lcm(src_tp, dst_tp)
    heads = both * (draw(st.integers(1, 2)) if both < 12 else 1)
    kv, gated = draw(st.sampled_from(groups_of(heads, dst_tp))), draw(st.booleans())
    src = {"tp": src_tp, "cp": draw(st.integers(1, 2)), "dp": draw(st.integers(1, 3))}
    stage = src_tp * src["cp"] * src["dp"]
    src["etp"] = draw(st.sampled_from(divisors(stage)))
    src["ep"] = draw(st.sampled_from(divisors(stage // src["etp"])))
    src |= {
        "pp": draw(st.integers(1, 2)),
        "grouped": draw(st.booleans()),
        "pad": draw(st.sampled_from((1, 7, 128))),
    }
    experts = src["ep"] * draw(st.integers(1, 3 if src["ep"] < 6 else 1))
    dst = {"tp": dst_tp, "dp": draw(st.integers(1, 3))}
    choices = [1] + [dst_tp * n for n in divisors(dst["dp"]) if dst_tp * n <= experts]
    dst["ep"] = draw(st.sampled_from(choices))
    if dst["ep"] > 1:
        dst["expert_placement"] = draw(st.sampled_from(("linear", "round_robin")))
        if dst["expert_placement"] == "linear" and draw(st.booleans()):
            dst["redundant"] = -experts % dst["ep"] + dst["ep"] * draw(st.integers(0, 2))
    attentions, others = (
        st.sampled_from(("attention", "latent", "direct")),
        st.sampled_from(("dense", "routed", "stacked")),
    )
    layers = [f"{draw(attentions)}+{draw(others)}" for _ in range(src["pp"] * draw(st.integers(1, 2)))]
    tied = draw(st.booleans())
    model = make(
        *layers,
        outside=True,
        tied=tied,
        heads=heads,
        kv_heads=kv,
        head_dim=size_of(heads, kv, src_tp, gated=gated, times=draw(st.integers(1, 3))),
        output_gate=gated,
        size=lcm(both, src["etp"]),
        shared=both,
        experts=experts,
        vocab=64 * dst_tp // gcd(64, dst_tp) * draw(st.integers(1, 2)) - draw(st.integers(0, 63)),
    )
    return model, src, dst


@settings(max_examples=settings().max_examples // 2)
@given(cases(), st.data())
def test_any_model_arrives_on_any_ranks(case, data):
    model, src, dst = case
    src_gpus, dst_gpus = src["tp"] * src["cp"] * src["dp"] * src["pp"], dst["tp"] * dst["dp"]
    known = range(src_gpus + dst_gpus if data.draw(st.booleans()) else max(src_gpus, dst_gpus))
    ranks = [data.draw(st.permutations(known)), data.draw(st.permutations(known))]
    strategy = data.draw(st.sampled_from(("optimal", "direct", "gather-broadcast")))
    check(model, megatron(**src), vllm(**dst), strategy=strategy, ranks=ranks)

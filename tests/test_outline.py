"""Routes alone: their figures are those of the plans that are scheduled from them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from strategies import ALL_STRATEGIES, specs

import reshard_planner as rp
from reshard_planner.compiler import Outline, outline
from reshard_planner.errors import UnsupportedError


@given(specs(strategies=("optimal",)))
@settings(max_examples=60)
def test_outlines_have_the_payload_and_the_busiest_port_of_the_plans(spec: rp.ReshardSpec) -> None:
    found = dict(outline(spec, ALL_STRATEGIES))
    assert list(found) == list(ALL_STRATEGIES)
    for name, figures in found.items():
        if isinstance(figures, UnsupportedError):
            with pytest.raises(UnsupportedError):
                rp.compile(spec, name)
            continue
        assert isinstance(figures, Outline)
        claims = rp.compile(spec, name).certificate
        assert figures.network_nbytes == claims.payload.network_nbytes
        assert figures.nvlink_nbytes == claims.payload.nvlink_nbytes
        busiest = max(
            port.time_s for port in (claims.busiest_nic, claims.busiest_nvlink, claims.busiest_uplink)
        )
        assert figures.busiest_s == pytest.approx(busiest, rel=1e-12)

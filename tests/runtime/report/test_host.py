"""Device and host apart, where transfers go on beside computing."""

from typing import Any

import pytest

import hloipu
from hloipu_runtime.report.profile import Profile
from tests.support.io_tile_steps import SLOW_HOST, built
from tests.support.pipeline_trials import Cut, compiled

CUT = Cut("mlp_adam", 2, "grouped", 3, loop=2)
STEP = """
HloModule step

ENTRY e {
  s = f32[64,32] parameter(0)
  x = f32[64,32] parameter(1)
  t = f32[64,32] tanh(s)
  new = f32[64,32] add(t, x)
  ROOT out = (f32[64,32]) tuple(new)
}
"""


def looped(**options: Any) -> Profile:
    given: dict[str, Any] = {"role": {"0": "carry"}, "feed": {"x": [1]}, "loop": 50, **options}
    return hloipu.compile(STEP, target="tiny", cache=False, **given).profile()


@pytest.mark.large
def test_the_device_takes_as_long_whatever_its_host_does() -> None:
    for profiles in (
        [looped(set=x) for x in ((), SLOW_HOST)],
        [looped(set=x, io_tiles=1) for x in ((), SLOW_HOST)],
        [built(CUT, set=x).profile() for x in ((), SLOW_HOST)],
        [compiled(CUT, set=x).profile() for x in ((), SLOW_HOST)],
    ):
        quick, slow = profiles
        assert quick.device == slow.device
        assert quick.host.stops_cycles < slow.host.stops_cycles
        for profile in profiles:
            total = profile.device_cycles + profile.host.stops_cycles
            assert total == profile.lower_bound_cycles


def test_transfers_beside_computing_do_not_stop_it() -> None:
    stopped, beside = looped(), looped(io_tiles=1)
    assert stopped.host.beside_cycles == 0 < beside.host.beside_cycles
    assert beside.host.stops_cycles < stopped.host.stops_cycles
    assert stopped.host.bytes_in == beside.host.bytes_in == 50 * 64 * 32 * 4


def test_state_is_loaded_once() -> None:
    host = looped().host
    assert (host.once_bytes_in, host.once_is_counted) == (64 * 32 * 4, False)
    assert host.each_run_cycles == host.stops_cycles
    assert host.once_cycles > 0

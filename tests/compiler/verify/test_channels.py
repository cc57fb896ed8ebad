"""Send and recv: users, channels, host transfers."""

import pytest

from tests.support.verifier_cases import check_accepted, check_refused


def _module(lines: str) -> str:
    return (
        "HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n  t = token[] after-all()\n"
        f"{lines}  ROOT r = f32[4] negate(p)\n}}\n"
    )


@pytest.mark.parametrize(
    "lines",
    [
        "  s = (f32[4], u32[], token[]) send(p, t), channel_id=1\n"
        "  sd = token[] send-done(s), channel_id=1\n",
        "  s = (f32[4], u32[], token[]) recv(t), channel_id=1, is_host_transfer=true\n"
        "  sd = (f32[4], token[]) recv-done(s), channel_id=1, is_host_transfer=true\n",
    ],
)
def test_a_pair_is_accepted(lines: str) -> None:
    """The done repeats the channel."""
    check_accepted(_module(lines))


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (
            "  s = (f32[4], u32[], token[]) send(p, t), channel_id=1, is_host_transfer=true\n"
            "  sd = token[] «send-done»(s), channel_id=1\n",
            "E0321",
        ),
        ("  «s» = (f32[4], u32[], token[]) send(p, t), channel_id=1\n", "E0320"),
    ],
)
def test_a_done_that_differs_is_refused(lines: str, code: str) -> None:
    """Another kind of transfer, or no done; another channel is the parser's fault already."""
    check_refused(_module(lines), code)


_HOST = "channel_id=1, is_host_transfer=true"


def test_different_host_transfers_on_one_channel_are_refused() -> None:
    """Opcode and shapes are compared, operands are not."""
    check_refused(
        _module(
            f"  s = (f32[4], u32[], token[]) send(p, t), {_HOST}\n"
            f"  sd = token[] send-done(s), {_HOST}\n"
            f"  q = (f32[4], u32[], token[]) recv(sd), «channel_id=1», is_host_transfer=true\n"
            f"  qd = (f32[4], token[]) recv-done(q), {_HOST}\n"
        ),
        "E0322",
    )
    check_accepted(
        _module(
            f"  s = (f32[4], u32[], token[]) send(p, t), {_HOST}\n"
            f"  sd = token[] send-done(s), {_HOST}\n"
            f"  z = (f32[4], u32[], token[]) send(p, sd), {_HOST}\n"
            f"  zd = token[] send-done(z), {_HOST}\n"
        )
    )

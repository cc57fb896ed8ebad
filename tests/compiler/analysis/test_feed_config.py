"""Feed configurations: messages as Graphcore's backend prints them, and plain names."""

import pytest

from hloipu_compiler.analysis.feed_config import FeedConfig, feed_config, feed_name


def test_a_printed_message() -> None:
    """Field 2 is "1", field 4 the packed codes of float32 and int32, field 5 is 3."""
    assert feed_config('\x12\x011"\x02\x01\x03(\x03') == FeedConfig("1", False, (1, 3), 3)


def test_mode_one_takes_the_last() -> None:
    assert feed_config("\x12\x04loss\x18\x01") == FeedConfig("loss", True)


@pytest.mark.parametrize("text", ["data", "a b", "x.y-1", "", "\x12", "\x12\x09short", "\x12\x05"])
def test_what_is_no_message_is_a_name(text: str) -> None:
    assert feed_name(text) == "".join(c for c in text if c.isprintable())


def test_hostile_names_are_short_and_printable() -> None:
    assert feed_name("\n\x1b[31m" + "x" * 500) == "[31m" + "x" * 124


def test_a_message_without_a_name_is_no_name() -> None:
    assert feed_name("\x18\x01") == ""

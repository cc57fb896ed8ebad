"""Bindings of queues to parameters and results."""

import re
from collections.abc import Mapping, Sequence, Set

from hloipu_compiler.plan.wrapping import EntryArray, FeedBinding, WrappingRequest
from hloipu_runtime.errors import StreamError, UsageError

_NOT_FED = frozenset({"weight", "opt_state", "rng", "carry", "const", "hyper", "call"})
_LONGEST_NAME = 128
_OUTFEED = re.compile(r"([^:=]+)(?::(every[=-][0-9]+|[^:=]*))?(?:=(.*))?", re.DOTALL)


def feeds_of(
    asked: Mapping[str, tuple[int, ...]], parameters: Sequence[EntryArray], roles: Mapping[int, str]
) -> tuple[FeedBinding, ...]:
    """Return the feeds that are asked for; parameters that are data otherwise make up `data`."""
    feeds = [FeedBinding(name, tuple(numbers)) for name, numbers in asked.items()]
    feed_by_parameter: dict[int, str] = {}
    for feed in feeds:
        for number in feed.places:
            if number >= len(parameters):
                raise _no_such("feed", feed.name, "parameter", number, len(parameters))
            if number in feed_by_parameter:
                raise UsageError(
                    "E3151",
                    f"parameter {number} is fed by {feed_by_parameter[number]!r} and {feed.name!r}",
                )
            if roles.get(number) in _NOT_FED:
                raise UsageError(
                    "E3151",
                    f"{feed.name!r} feeds parameter {parameters[number]}, said to be "
                    f"{roles[number]}",
                    hint="what a queue feeds is data",
                )
            feed_by_parameter[number] = feed.name
    unfed = tuple(
        n for n, role in sorted(roles.items()) if role == "data" and n not in feed_by_parameter
    )
    if unfed:
        feeds.append(FeedBinding("data", unfed))
    return tuple(named_feed(feed, parameters) for feed in feeds)


def named_feed(feed: FeedBinding, parameters: Sequence[EntryArray]) -> FeedBinding:
    """Return a feed with the names of the parameters that it feeds."""
    return feed._replace(names=tuple(parameters[number].name for number in feed.places))


def outfeeds_of(
    request: WrappingRequest,
    results: Sequence[EntryArray],
    state_results: Set[int],
    feeds: Sequence[FeedBinding],
) -> tuple[tuple[FeedBinding, ...], tuple[int, ...]]:
    """Return the outfeeds, and the results that no queue takes.

    Results without one are handed over at the end of a run: of the last step. Where queues take
    all, as in steps that are cut, they go to queues `result.N`.
    """
    named = [_outfeed_binding(text, results) for text in request.outfeeds]
    queued = {number for outfeed in named for number in outfeed.places}
    left_over = tuple(
        array.number
        for array in results
        if array.number not in queued | state_results and array.element_type != "token"
    )
    open_ones = [n for n, outfeed in enumerate(named) if not outfeed.places]
    if open_ones:
        if len(open_ones) > 1 or not left_over:
            raise UsageError(
                "E3151",
                f"--outfeed {named[open_ones[-1]].name} takes the results that are left: "
                + ("several outfeeds do" if left_over else "there are none"),
                hint="say which: --outfeed NAME=N,…",
            )
        named[open_ones[0]] = named[open_ones[0]]._replace(places=left_over)
        left_over = ()
    for outfeed in named:
        _check_reduction(outfeed, results, request.loop)
    if request.queues_take_all:
        named += [FeedBinding(f"result.{number}", (number,)) for number in left_over]
        left_over = ()
    names = [queue.name for queue in (*feeds, *named)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                "E3152", f"two queues are named {name!r}", hint="give each queue its own name"
            )
        if not name or len(name) > _LONGEST_NAME or not name.isprintable():
            raise UsageError("E3151", f"{name[:_LONGEST_NAME]!r} is not a name for a queue")
    return tuple(named), left_over


def _outfeed_binding(text: str, results: Sequence[EntryArray]) -> FeedBinding:
    """Read `NAME[:MODE][=N,…]`, where `=MODE:N,…` says the same; `KEY=N` names an array of it."""
    match = _OUTFEED.fullmatch(text)
    if match is None:
        raise UsageError(
            "E3151", f"--outfeed {text[:80]}: expected is NAME, NAME=N,… or NAME:MODE=N,…",
            hint="--outfeed loss=4, --outfeed loss:last=4",
        )  # fmt: skip
    name, mode_text, numbers = (part or "" for part in match.groups())
    before, colon, after = numbers.partition(":")
    if colon:
        if mode_text:
            raise UsageError("E3151", f"--outfeed {text}: two modes are given")
        mode_text, numbers = before.strip(), after
    mode = _mode(text, mode_text) if mode_text else ""
    reduction = mode if mode in ("sum", "mean") else ""
    binding = FeedBinding(name.strip(), (), reduction, "" if reduction else mode)
    if not numbers and not text.endswith(("=", ":")):
        return binding
    words, keys = [], []
    for part in numbers.split(","):
        key, equals, number = part.rpartition("=")
        words.append(number.strip())
        keys += [key.strip()] if equals else []
    if keys and (len(keys) < len(words) or not all(keys) or len(frozenset(keys)) < len(keys)):
        raise UsageError(
            "E3151", f"--outfeed {text}: every array of an element has a name of its own, or none",
            hint="--outfeed metrics=loss=4,accuracy=5",
        )  # fmt: skip
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise UsageError(
            "E3151", f"--outfeed {text}: expected are numbers of results", hint="--outfeed loss=4"
        )
    places = tuple(map(int, words))
    for number in places:
        if number >= len(results) or results[number].element_type == "token":
            raise _no_such("outfeed", name, "result", number, len(results))
    if len(frozenset(places)) != len(places):
        raise UsageError("E3151", f"--outfeed {text}: a result is named twice")
    return binding._replace(places=places, names=tuple(keys))


def _mode(text: str, mode_text: str) -> str:
    """Return a mode as outfeeds know it; UsageError E3151 for any other."""
    from hloipu_runtime.streams.settings import parse_mode  # plain steps have no outfeeds

    try:
        return str(parse_mode(mode_text.replace("every=", "every-")))
    except StreamError:
        raise UsageError(
            "E3151", f"--outfeed {text}: there is no mode {mode_text[:40]!r}",
            hint="modes: all, last, first, every=N, and sum or mean on the device",
        ) from None  # fmt: skip


def _check_reduction(outfeed: FeedBinding, results: Sequence[EntryArray], loop: int | None) -> None:
    """Raise UsageError E3151 where there is nothing to add up, or no way to."""
    if not outfeed.reduction:
        return
    if loop is None:
        raise UsageError(
            "E3151", f"--outfeed {outfeed.name}: {outfeed.reduction} is taken over a loop's steps",
            hint="give --loop N",
        )  # fmt: skip
    for number in outfeed.places:
        if results[number].element_type == "pred":
            raise UsageError(
                "E3151", f"--outfeed {outfeed.name}: result {number} is not a number but pred"
            )


def _no_such(option: str, name: str, kind: str, number: int, count: int) -> UsageError:
    return UsageError(
        "E3151",
        f"--{option} {name}: there is no {kind} {number}",
        hint=f"{kind}s are numbered from 0 to {count - 1}, arrays counted",
    )

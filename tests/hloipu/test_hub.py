"""Calls to hosts: interrupted ones, those of several threads, and strangers who connect."""

import _thread
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Client

import pytest

from hloipu.hosts import hub as hub_module
from hloipu.hosts.hub import Hub
from hloipu.hosts.messages import Answer, Line
from hloipu_runtime.errors import HostError


def _serve(hub: Hub, host: int) -> None:
    """Answer each call with what it gives, after as many seconds as it says."""
    line = Line(Client(hub.address, authkey=hub.key))
    line.send(host)
    try:
        while True:
            call = line.receive()
            time.sleep(call.keywords.get("seconds", 0))
            line.send(Answer(call.number, call.keywords["value"]))
    except EOFError:
        pass


@contextmanager
def _connected(hosts: int) -> Iterator[Hub]:
    hub = Hub(hosts, hosts, 10.0, "127.0.0.1")
    try:
        for host in range(hosts):
            threading.Thread(target=_serve, args=(hub, host), daemon=True).start()
        hub.connect(lambda: [])
        yield hub
    finally:
        hub.close()


def test_the_answer_to_an_interrupted_call_is_dropped() -> None:
    with _connected(2) as hub:
        # Shells start background jobs without a handler.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Timer(0.1, _thread.interrupt_main).start()
            with pytest.raises(KeyboardInterrupt):
                hub.call("f", value=1, seconds=0.4)
        finally:
            signal.signal(signal.SIGINT, before)
        assert hub.call("f", value=2) == [2, 2]


def test_hosts_that_may_lack_a_call_are_not_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with _connected(2) as hub:
        with monkeypatch.context() as patched:
            patched.setattr(Line, "send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                hub.call("f", value=1)
        with pytest.raises(HostError) as error:
            hub.call("f", value=2)
        assert error.value.code == "E2083"


def test_threads_get_answers_to_their_own_calls() -> None:
    with _connected(2) as hub, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: hub.call("f", value=n, seconds=0.005), range(40)))
    assert found == [[n, n] for n in range(40)]
    with pytest.raises(HostError) as error:
        hub.call("f", value=0)
    assert error.value.code == "E2081"


@pytest.mark.parametrize("kind", ["silent", "garbage", "reset", "other key"])
def test_strangers_keep_no_host_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "CONNECT_SECONDS", 2.0)
    hub = Hub(1, 1, 1.0, "127.0.0.1")
    with ThreadPoolExecutor(1) as pool, socket.create_connection(hub.address) as stranger:
        connecting = pool.submit(hub.connect, lambda: [])
        if kind == "garbage":
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        elif kind == "other key":
            stranger.sendall(struct.pack("!i", 20) + bytes(20))
        elif kind == "reset":
            linger = struct.pack("ii", 1, 0)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            stranger.close()
        time.sleep(0.1)
        threading.Thread(target=_serve, args=(hub, 0), daemon=True).start()
        connecting.result()
        assert hub.call("f", value=3) == [3]
    hub.close()


def test_a_silent_stranger_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "HANDSHAKE_SECONDS", 1)
    hub = Hub(1, 1, 1.0, "127.0.0.1")
    with ThreadPoolExecutor(1) as pool, socket.create_connection(hub.address, 5) as stranger:
        connecting = pool.submit(hub.connect, lambda: [])
        while stranger.recv(1000):
            pass
        threading.Thread(target=_serve, args=(hub, 0), daemon=True).start()
        connecting.result()
        assert hub.call("f", value=1, seconds=1.2) == [1]  # the limit is not for hosts
    hub.close()

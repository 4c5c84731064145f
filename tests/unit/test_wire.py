"""The framed protocol: what is sent comes, and nothing that a hostile writer sends does more than end the talk."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.isolation.wire import MAX_FDS, Channel, WireAbuse, WireClosed, WireTimeout, close_all

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
#: What sends a frame by hand: the length, and the body.
LENGTH = struct.Struct("<I")


@contextmanager
def channel_and_socket(**limits: int) -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, **limits), theirs


def frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@given(st.lists(st.tuples(st.dictionaries(st.text(), JSON, max_size=4), st.integers(0, MAX_FDS)), max_size=3))
def test_messages_and_descriptors_come_in_order(messages: list[tuple[dict[str, Any], int]]) -> None:
    with channel_and_socket() as (ours, sock):
        theirs = Channel(sock)
        for message, count in messages:
            fds = [os.memfd_create(f"file {number}") for number in range(count)]
            for number, fd in enumerate(fds):
                os.write(fd, bytes([number]))
            theirs.send(message, fds)
            close_all(fds)
        for message, count in messages:
            received, fds = ours.receive(1.0)
            assert received == message
            assert [os.pread(fd, 2, 0) for fd in fds] == [bytes([number]) for number in range(count)]
            close_all(fds)


def test_a_frame_larger_than_any_buffer_comes_whole() -> None:
    text = "x" * 2**22
    with channel_and_socket() as (ours, sock):
        sender = threading.Thread(target=Channel(sock).send, args=({"text": text},))
        sender.start()
        assert ours.receive(20.0)[0] == {"text": text}
        sender.join()


def test_what_is_no_json_is_not_sent() -> None:
    with channel_and_socket() as (ours, sock):
        with pytest.raises(ValueError, match="not JSON compliant"):
            Channel(sock).send({"number": float("nan")})
        with pytest.raises(WireTimeout):
            ours.receive(0.0)


@pytest.mark.parametrize("sent", [b"", b"\x05\x00", frame(b'{"a": 1}')[:-1]], ids=["nothing", "half a head", "half"])
def test_half_a_frame_is_waited_for_and_no_longer(sent: bytes) -> None:
    with channel_and_socket() as (ours, sock):
        sock.sendall(sent)
        start = time.monotonic()
        with pytest.raises(WireTimeout):
            ours.receive(0.1)
        assert 0.09 < time.monotonic() - start < 5.0


@pytest.mark.parametrize("sent", [b"", b"\x05\x00", frame(b'{"a": 1}')[:-1]], ids=["nothing", "half a head", "half"])
def test_an_end_within_a_frame_is_the_end(sent: bytes) -> None:
    with channel_and_socket() as (ours, sock):
        sock.sendall(sent)
        sock.close()
        with pytest.raises(WireClosed):
            ours.receive(None)


def test_who_trickles_does_not_get_more_time() -> None:
    with channel_and_socket() as (ours, sock):

        def trickle() -> None:
            try:
                for byte in frame(b" " * 1000):
                    sock.send(bytes([byte]))
                    time.sleep(0.02)
            except OSError:
                return

        writer = threading.Thread(target=trickle)
        writer.start()
        start = time.monotonic()
        with pytest.raises(WireTimeout):
            ours.receive(0.2)
        assert time.monotonic() - start < 5.0
        ours.close()
        writer.join()


def test_who_does_not_read_is_not_waited_for() -> None:
    with channel_and_socket() as (ours, _), pytest.raises(WireTimeout):
        ours.send({"text": "x" * 2**24}, timeout_s=0.1)


def test_sending_to_nobody() -> None:
    with channel_and_socket() as (ours, sock):
        sock.close()
        with pytest.raises(WireClosed):
            ours.send({})


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"3", b"null", b"\xff\xfe", b"{'a': 1}", b"[" * 20_000, b'{"a":' * 20_000],
    ids=["empty", "open", "list", "text", "number", "null", "bytes", "quotes", "deep lists", "deep objects"],
)
def test_what_is_no_object_is_abuse(body: bytes) -> None:
    with channel_and_socket() as (ours, sock):
        sock.sendall(frame(body))
        with pytest.raises(WireAbuse, match="not"):
            ours.receive(1.0)


def test_a_long_frame_is_refused_by_its_head() -> None:
    with channel_and_socket(max_frame_bytes=100) as (ours, sock):
        sock.sendall(frame(b'{"a":' + b" " * 94 + b"1}")[:104])
        with pytest.raises(WireAbuse, match="101 bytes; at most 100"):
            ours.receive(1.0)
    with channel_and_socket(max_frame_bytes=100) as (ours, sock):
        sock.sendall(frame(b'{"a":' + b" " * 93 + b"1}"))
        assert ours.receive(1.0) == ({"a": 1}, [])


@given(st.binary(max_size=100) | st.builds(frame, st.binary(max_size=60)))
def test_any_bytes_are_a_message_or_the_end(data: bytes) -> None:
    with channel_and_socket(max_frame_bytes=64) as (ours, sock):
        sock.sendall(data)
        sock.close()
        try:
            message, fds = ours.receive(1.0)
        except (WireAbuse, WireClosed):
            return
        assert isinstance(message, dict)
        assert not fds


def test_descriptors_are_dropped_where_none_are_wanted() -> None:
    with channel_and_socket(max_fds=0) as (ours, sock):
        before = open_descriptors()
        Channel(sock).send({"have": "these"}, [0, 1, 2])
        assert ours.receive(1.0) == ({"have": "these"}, [])
        assert open_descriptors() == before


@pytest.mark.parametrize(
    "send",
    [
        lambda sock: socket.send_fds(sock, [frame(b"no JSON")], [0, 1]),
        lambda sock: socket.send_fds(sock, [LENGTH.pack(2**31)], [0, 1]),
        lambda sock: socket.send_fds(sock, [b"\x05"], [0, 1]),
        lambda sock: (socket.send_fds(sock, [b"\x05"], [0, 1]), sock.close()),
        lambda sock: socket.send_fds(sock, [frame(b'{"a": 1}')[:-1]], [0, 1]),
        lambda sock: (sock.send(frame(b'{"a": 1}')[:5]), socket.send_fds(sock, [b'"a": '], [0, 1])),
        lambda sock: socket.send_fds(sock, [frame(b"no JSON")], [0] * (MAX_FDS + 20)),
    ],
    ids=["no JSON", "too long", "half a head", "closed in its head", "half", "in its middle", "more than allowed"],
)
def test_descriptors_of_a_broken_frame_are_closed(send: Callable[[socket.socket], object]) -> None:
    with channel_and_socket() as (ours, sock):
        before = open_descriptors()
        send(sock)
        closed = sock.fileno() < 0
        with pytest.raises((WireAbuse, WireClosed, WireTimeout)):
            ours.receive(0.05)
        assert open_descriptors() == before - closed

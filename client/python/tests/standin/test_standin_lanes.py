"""Lanes of a GPU's session, with the stand-in for the driver."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import pytest

import gpu
import topkd
from gpu_session import client, daemon, draw, until  # noqa: F401  the first two are fixtures
from topkd.testing import check

MIB = 1 << 20


@pytest.mark.parametrize(
    ("options", "wait", "poll_us"),
    [
        ({}, 1, 0),
        ({"device_mailbox": True}, 2, 0),
        ({"device_mailbox": True, "wait": "driver"}, 1, 0),
        ({"device_mailbox": True, "wait": "kernel", "poll_us": 100_000}, 2, 1000),
    ],
)
def test_a_lane(
    client: topkd.Client, rng: Any, options: dict[str, Any], wait: int, poll_us: int
) -> None:
    """Steps in a stream: each takes what lies in the tensors when the stream gets there."""
    stream = gpu.Stream()
    scores = gpu.Tensor(gpu.alloc(MIB), (4, 2000), stream=stream)
    lengths = gpu.Tensor(gpu.alloc(4096), (4,), "<i4")
    live = gpu.Tensor(gpu.alloc(4096), (1,), "<i4")
    live.host[0] = 4
    source = gpu.Tensor(gpu.alloc(MIB), (4, 2000))
    with client.lane(scores, lengths, 32, values=True, live_rows=live, **options) as lane:
        for turn in range(20):
            wanted = draw(rng, source).copy()
            lengths.host[:] = rng.integers(-1, 2003, 4)
            live.host[0] = turn % 5
            stream.copy(scores.pointer, source.pointer, source.nbytes)
            indices, values = lane()
            assert indices is lane.indices and values is lane.values
            stream.wait()
            rows = turn % 5
            check(wanted[:rows], gpu.host(indices)[:rows], lengths.host[:rows],
                  values=gpu.host(values)[:rows])
        lane.check()
        assert lane.info() == {
            "is_served": 1, "status": 0, "num_failed": 0, "num_renewals": 0,
            "wait": wait, "poll_us": poll_us,
        }
    for late in (lane, lane.check, lane.info):
        with pytest.raises(topkd.errors.ClosedError, match="lane is closed"):
            late()
    lane.close()
    with pytest.raises(topkd.errors.InvalidError, match="on the device"):
        client.lane(scores, [1, 2, 3, 4], 5)
    with pytest.raises(topkd.errors.InvalidError, match="'spin' is none of"):
        client.lane(scores, k=5, wait="spin")
    with pytest.raises(topkd.errors.InvalidError, match="poll_us: -1"):
        client.lane(scores, k=5, poll_us=-1)
    with pytest.raises(topkd.errors.InvalidError, match="device_mailbox as well"):
        client.lane(scores, k=5, wait="kernel")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(lane)


def test_forgotten_lanes_are_closed(client: topkd.Client, rng: Any) -> None:
    scores = gpu.Tensor(gpu.alloc(MIB), (4, 2000), stream=gpu.Stream())
    draw(rng, scores)
    for _ in range(5):
        lanes = [client.lane(scores, k=8) for _ in range(3)]
        for lane in lanes:
            lane()
        assert scores.stream is not None
        scores.stream.wait()
        check(scores.host, gpu.host(lanes[0].indices))
        del lanes, lane
        gc.collect()
        assert until(lambda: not client._session.lanes)
    lane = client.lane(scores, k=8)
    client.close()
    with pytest.raises(topkd.errors.ClosedError):
        lane()
    lane.close()


def test_a_closed_lane_has_nothing_to_do_with_the_next(client: topkd.Client, rng: Any) -> None:
    """Objects of closed lanes go when others have taken their places in memory."""
    scores = gpu.Tensor(gpu.alloc(MIB), (4, 2000), stream=gpu.Stream())
    draw(rng, scores)
    closed = [client.lane(scores, k=8) for _ in range(12)]
    for lane in closed:
        lane.close()
    lanes = [client.lane(scores, k=8) for _ in range(12)]
    del lane, closed
    gc.collect()
    lanes[0].close()  # after what the janitor was told before
    client.trim()
    assert until(client._session._told.empty)
    for lane in lanes[1:]:
        lane()
    assert scores.stream is not None
    scores.stream.wait()
    for lane in lanes[1:]:
        lane.check()
        check(scores.host, gpu.host(lane.indices))
        lane.close()


def test_all_lanes_are_taken(client: topkd.Client, rng: Any) -> None:
    """The next one is refused; one that is closed makes room."""
    scores = gpu.Tensor(gpu.alloc(MIB), (4, 1000), stream=gpu.Stream())
    draw(rng, scores)
    lanes: list[topkd.Lane] = []
    with pytest.raises(topkd.errors.LimitError, match="lanes open.*close one"):
        for _ in range(100):
            lanes.append(client.lane(scores, k=5))
    assert len(lanes) >= 4
    lanes.pop().close()
    lanes.append(client.lane(scores, k=5))
    for lane in lanes:
        lane()
    assert scores.stream is not None
    scores.stream.wait()
    for lane in lanes:
        check(scores.host, gpu.host(lane.indices))
        lane.close()

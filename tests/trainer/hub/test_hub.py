"""The hub and its workers in this process, over real sockets: meeting, tokens, losses, returns, the end of the hub."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from cluster_processes import wait_for

from config import Config
from esync.clock import RealClock
from esync.protocol import NoAnswer
from trainer.hub import connections, frames, hub as hub_module
from trainer.hub.frames import NotAFrame
from trainer.hub.hub import Hub
from trainer.hub.hub_link import HubLink
from trainer.hub.server_part import KEPT, WANTS_STOP, about
from trainer.hub.shared_memory import SharedMemory
from trainer.hub.sums import NUMBER, HubSums
from trainer.hub.wire import HELLO, SILENT_S, Wire, local_name, tell_failure
from trainer.membership import Change, lost_of
from trainer.rendezvous import addresses
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.joining import Joining
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, PeerLost, SetupError

WAIT_S = 20.0
until = partial(wait_for, what="it", deadline_s=WAIT_S)
SHAPES = ((3, 2), (40_000,), (5,))  # the second one is larger than a piece


def model(value=0.0):
    return [np.full(shape, value, np.float32) for shape in SHAPES]


def values_of(arrays):
    return sorted({float(number) for array in arrays for number in array.reshape(-1)})


class RunningHub:
    """A hub in a thread."""

    def __init__(self, num_workers=2, mode="wbsp", port=0, shares=False):
        """`shares`: it has a Unix socket, too, so that it shares memory with workers, where the server part may."""
        self.listener = addresses.listen("127.0.0.1", port or None, "")
        self.port = self.listener.getsockname()[1]
        self.ended: tuple[str, int] | None = None
        self._loop = asyncio.new_event_loop()
        listeners = [self.listener]
        if shares:
            local = socket.socket(socket.AF_UNIX)
            local.bind(local_name("127.0.0.1", self.port))
            local.listen(8)
            listeners.append(local)
        self.hub = Hub(listeners, "127.0.0.1", mode, num_workers)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):  # killed
            self.ended = self._loop.run_until_complete(self.hub.run())
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(RuntimeError):
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def result(self):
        self._thread.join(WAIT_S)
        return self.ended

    def kill(self):
        """Ends it without a word, as SIGKILL does: all its sockets are closed."""

        def close():
            self.hub._state = hub_module.State.OVER  # it tells no worker
            self.listener.close()
            for connection in [*self.hub._joins, *self.hub._strangers]:
                connection.close()
            self._loop.stop()

        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(close)
        self._thread.join(WAIT_S)


@pytest.fixture(autouse=True)
def workers_end():
    """The threads of a test's workers end with it."""
    yield
    while Worker.all:
        cut(Worker.all.pop())


class Worker:
    """A worker's link, and what ended it."""

    all: ClassVar[list[Worker]] = []

    def __init__(self, hub, device, on_worker_death="end", num_workers=2, mode="wbsp", **setup):
        self.config = Config(mode=mode, on_worker_death=on_worker_death)
        self.ends: list[tuple[str, int]] = []
        cluster = ClusterSpec("worker", "127.0.0.1", hub.port, 1, num_workers, has_hub=True)
        self.link = HubLink(cluster, self.config, lambda text, code: self.ends.append((text, code)))
        flags = {"--on-worker-death": on_worker_death, "--min-workers": "1", **setup}
        described = {"num_workers": num_workers, "device": {"host": "here", "device": device}, "setup": flags}
        self.joining = Joining(self.link, RealClock(), "hub", described, server="the hub")
        self.held, self.device = model(), device
        self.all.append(self)

    def meet(self):
        self.link.begin_training(self.joining.wait(WAIT_S))
        return self

    def begin(self, value=0.0):
        """Comes to the point at which the training begins."""
        said = about(self.config, (True, False, False), (), None)
        answer = self.link.begin(said, model(value), lambda: self.held)
        self.link.gather("loads", 1)
        return answer

    def begin_to_sum(self, value=0.0):
        """As `begin`, in a mode whose workers sum."""
        self.sums = HubSums(self.link, self.config, self.link.gather)
        arrays = model(value)
        self.sums.broadcast(arrays)
        self.link.gather("loads", 1)
        return arrays

    def sum(self, value):
        """The one value of each array of the sum; with zeros where it has taken a state."""
        arrays = model(value)
        self.sums.begin_sum(arrays)
        self.sums.finish_sum(arrays)
        return values_of(arrays)

    def upload(self, value, step_s=0.1, stop=False):
        message = {"report": (1, 2, step_s, 0.0), WANTS_STOP: stop}
        return self.link.ask(message, model(value), lambda: False)


def beside(work):
    """Begins it in a thread."""
    return RealClock().start(work, "")


def together(*works):
    """Runs them in threads; returns their results, or raises the first error."""
    return [begun.result(WAIT_S) for begun in [beside(work) for work in works]]


@pytest.fixture
def job():
    """Starts a hub and its workers, which have begun; they survive losses if told so."""
    hubs = []

    def start(on_worker_death="continue", count=2, mode="wbsp", shares=False):
        hub = RunningHub(count, mode, shares=shares)
        hubs.append(hub)
        workers = [Worker(hub, f"cpu{rank}", on_worker_death, count, mode) for rank in range(count)]
        together(*(worker.meet for worker in workers))
        workers.sort(key=lambda worker: worker.link.rank)
        begin = Worker.begin_to_sum if mode == "sync" else Worker.begin
        together(*(lambda worker=worker: begin(worker, 1.0 + worker.link.rank) for worker in workers))
        return hub, workers

    yield start
    for hub in hubs:
        if hub.ended is None:
            hub.kill()


# ------------------------------------------------------------------------------------------------------ the frames


def test_a_frame_is_read_as_it_was_written():
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(0, np.float32), np.ones(100_000, np.float32)]
    content = b"".join(map(bytes, frames.outgoing({"a": [1, 2.5]}, arrays)))
    length = frames.length_in(content[:4])
    message, shapes = frames.read(content[4 : 4 + length])
    assert message == {"a": [1, 2.5]}
    assert shapes == [(2, 3), (0,), (100_000,)]
    assert content[4 + length :] == b"".join(array.tobytes() for array in arrays)


def test_arrays_of_other_types_do_not_travel():
    with pytest.raises(TypeError, match="float64"):
        list(frames.outgoing({}, [np.zeros(2)]))


@pytest.mark.parametrize("head", [b"GET ", b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_what_is_no_frame_is_told(head):
    with pytest.raises(NotAFrame):
        frames.length_in(head)


@pytest.mark.parametrize("text", [b"{}", b"[1, 2]", b'[{}, [["a"]]]', b"\xff", b"[" * 100_000])
def test_a_message_of_another_form_is_told(text):
    with pytest.raises(NotAFrame):
        frames.read(text)


# ----------------------------------------------------------------------------------------------------- the meeting


def test_workers_meet_and_train(job):
    hub, (one, other) = job()
    assert (one.link.rank, other.link.rank) == (0, 1)
    first = one.upload(2.0)
    assert first.message["action"] in ("SYNC", "TRAIN")
    second = other.upload(4.0, step_s=0.3)
    assert second.message[KEPT] == {"release": 1, "samples": 4}
    for array in second.arrays:  # 1 of the initial model, and the mean of both uploads
        np.testing.assert_array_equal(array, np.full_like(array, 1 + (2.0 + 4.0) / 2))
    assert one.link.take_traffic()["bytes_pushed"] == 2 * sum(array.nbytes for array in model())
    one.link.leave()
    other.link.leave()
    assert hub.result() == ("all workers are done", EXIT_OK)


def test_workers_with_other_flags_are_refused_together():
    hub = RunningHub()
    workers = [Worker(hub, "cpu0", **{"-b": "64"}), Worker(hub, "cpu1", **{"-b": "32"})]

    def refusal(worker):
        with pytest.raises(SetupError, match="-b"):
            worker.meet()

    together(*(lambda worker=worker: refusal(worker) for worker in workers))
    assert hub.result()[1] == EXIT_SETUP


def test_one_worker_too_many_is_sent_away(job):
    hub, _ = job()
    with pytest.raises(SetupError, match="is one too many"):
        Worker(hub, "cpu7", "continue").meet()


def test_a_failure_before_the_job_begins_is_told_to_the_others():
    hub = RunningHub()
    waiting, failing = Worker(hub, "cpu0"), Worker(hub, "cpu1")

    def wait():
        with pytest.raises(SetupError, match="no such data"):
            waiting.meet()

    together(wait, lambda: tell_failure(failing.link._cluster, "no such data", "wbsp"))


@pytest.mark.parametrize(("of_hub", "of_worker"), [("a", "b"), ("a", ""), ("", "b")])
def test_a_wrong_token_is_refused_within_a_round_trip(monkeypatch, of_hub, of_worker):
    monkeypatch.setenv("ESYNC_TOKEN", of_hub)
    hub = RunningHub()
    monkeypatch.setenv("ESYNC_TOKEN", of_worker)
    begin = time.monotonic()
    with pytest.raises(SetupError, match="ESYNC_TOKEN"):
        Worker(hub, "cpu0").meet()
    assert time.monotonic() - begin < 5
    hub.kill()


def test_a_token_that_both_know_is_taken(monkeypatch, job):
    monkeypatch.setenv("ESYNC_TOKEN", "secret")
    _, (one, _) = job()
    assert one.upload(1.0).message[KEPT]["samples"] == 2


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HELLO + struct.pack("!I", 1 << 30),
        HELLO + struct.pack("!I", 8) + b"[{}, []]" * 2,
        HELLO,
        b"",
    ],
)
def test_a_stranger_disturbs_nothing(job, said):
    hub, (one, _) = job()
    with socket.create_connection(("127.0.0.1", hub.port)) as stranger:
        stranger.sendall(said)
        assert one.upload(1.0).message[KEPT]["samples"] == 2


def test_a_message_that_may_not_come_ends_that_connection_alone(job):
    hub, (one, other) = job()
    other.link._wire.send({"ask": {"report": (1, 2, 0.1, 0.0), WANTS_STOP: False}}, [np.zeros(3, np.float32)])
    until(lambda: one.link.changes or one.upload(0.0) is None)
    assert hub.ended is None


def test_a_process_of_the_kvstore_is_told_that_this_is_a_hub():
    hub = RunningHub()
    with pytest.raises(SetupError, match="here is the hub of mode wbsp, and no scheduler: give every process the same"):
        Wire(ClusterSpec("worker", "127.0.0.1", hub.port, 1, 2), WAIT_S)
    hub.kill()


def test_what_is_no_hub_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            connection.recv(100)
            connection.sendall(b'{"welcome": true}\n')

        threading.Thread(target=answer, daemon=True).start()
        cluster = ClusterSpec("worker", "127.0.0.1", server.getsockname()[1], 1, 2, has_hub=True)
        with pytest.raises(SetupError, match="no hub of mode wbsp"):
            Wire(cluster, 5.0, "wbsp")


def test_nobody_there_is_no_error_yet():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    cluster = ClusterSpec("worker", "127.0.0.1", port, 1, 2, has_hub=True)
    with pytest.raises(NoAnswer):
        Wire(cluster, 5.0, "wbsp")


# ------------------------------------------------------------------------------------------------------ the losses


def cut(worker):
    """As the end of its process."""
    worker.link._is_over = True
    if worker.link._wire is not None:
        worker.link._wire.close()


def test_the_others_go_on_without_a_lost_worker(job):
    _, (one, other) = job()
    cut(other)
    until(lambda: one.upload(0.0) and one.link.changes)
    assert one.link.changes == {1: Change(1, is_lost=True)}
    before = one.upload(0.0).message[KEPT]["release"]
    assert one.upload(3.0).message[KEPT]["release"] == before + 1


def test_a_loss_ends_a_job_that_does_not_survive(job):
    hub, (one, other) = job("end")
    cut(other)
    assert hub.result()[1] == EXIT_PEER_LOST
    until(lambda: one.ends)
    assert "worker 1" in one.ends[0][0]


def test_half_an_upload_does_not_count(job):
    _, (one, other) = job()
    pieces = list(frames.outgoing({"ask": {"report": (1, 2, 0.1, 0.0), WANTS_STOP: False}}, model(7.0)))
    other.link._wire._socket.sendall(b"".join(map(bytes, pieces))[:-1])
    cut(other)
    until(lambda: one.upload(0.0) and one.link.changes)
    newest = one.upload(0.0)
    until(lambda: one.upload(0.0).arrays)
    for array in one.upload(0.0).arrays or newest.arrays:
        np.testing.assert_array_equal(array, np.ones_like(array))


def test_a_new_process_takes_the_place_of_a_lost_one(job):
    hub, (one, other) = job()
    cut(other)
    again = Worker(hub, other.device, "continue").meet()
    assert again.link.rank == 1
    assert again.link.job_age_s() is not None
    assert again.link.changes == {1: Change(2)}  # the second one, a return
    again.begin()
    until(lambda: one.upload(0.0) and one.link.changes == {1: Change(2)})
    assert again.upload(1.0).message[KEPT]["samples"] > 0


def test_a_worker_whose_connection_breaks_comes_back_by_itself(job):
    _, (one, other) = job()
    other.upload(1.0)
    other.link._wire._socket.shutdown(socket.SHUT_RDWR)
    back = other.upload(1.0)
    assert back.arrays and "anew" not in back.message  # the newest model, of the same hub
    assert other.upload(1.0).message[KEPT]["samples"] >= 4
    assert one.upload(0.0).arrays is not None


def test_a_silent_worker_is_lost(monkeypatch, job):
    monkeypatch.setattr(hub_module, "SILENT_S", 2.5)
    _, (one, other) = job()
    other.link._is_over = True  # its thread sends no more
    until(lambda: one.upload(0.0) and one.link.changes)


def test_the_job_ends_with_too_few_workers(job):
    hub, (one, other) = job()
    cut(one)
    cut(other)
    text, code = hub.result()
    assert code == EXIT_PEER_LOST
    assert "--min-workers is 1" in text


# ------------------------------------------------------------------------------------------- the end of the hub itself


def test_a_new_hub_goes_on_with_the_newest_model(job):
    hub, (one, other) = job()
    together(lambda: one.upload(2.0), lambda: other.upload(4.0, step_s=0.3))
    newest = other.upload(0.0, step_s=0.3)
    other.held = model(9.0)  # what it has of the newest answer
    other.link._version += 1
    hub.kill()
    new = RunningHub(port=hub.port)
    one_back, other_back = together(lambda: one.upload(1.0), lambda: other.upload(1.0, step_s=0.3))
    for answer in (one_back, other_back):
        assert answer.message["anew"]
        assert answer.message[KEPT] == newest.message[KEPT]
        for array in answer.arrays:
            np.testing.assert_array_equal(array, np.full_like(array, 9.0))
    together(lambda: one.upload(2.0), lambda: other.upload(2.0, step_s=0.3))
    one.link.leave()
    other.link.leave()
    assert new.result() == ("all workers are done", EXIT_OK)


def test_a_new_hub_goes_on_without_a_worker_that_does_not_come(monkeypatch, job):
    monkeypatch.setattr(hub_module, "RECOVER_S", 0.5)
    hub, (one, other) = job()
    together(lambda: one.upload(2.0), lambda: other.upload(4.0, step_s=0.3))
    hub.kill()
    cut(other)
    new = RunningHub(port=hub.port)
    assert one.upload(1.0).message["anew"]
    until(lambda: one.upload(0.0) and one.link.changes)
    one.link.leave()
    assert new.result() == ("all workers are done", EXIT_OK)


def test_without_survival_the_end_of_the_hub_is_that_of_the_job(job):
    hub, (one, _) = job("end")
    one.upload(1.0)
    hub.kill()
    with pytest.raises(PeerLost, match="is gone"):
        one.upload(1.0)


def test_workers_of_another_job_are_sent_away(job):
    hub, (one, _) = job()
    one.upload(1.0)
    hub.kill()
    other_hub = RunningHub(port=hub.port)
    workers = [Worker(other_hub, f"gpu{rank}", "continue") for rank in range(2)]
    together(*(worker.meet for worker in workers))
    together(*(lambda worker=worker: worker.begin() for worker in workers))
    with contextlib.suppress(PeerLost, SetupError):
        one.upload(1.0)
    until(lambda: one.ends)
    assert "another job" in one.ends[0][0]
    other_hub.kill()


# ------------------------------------------------------------------------------------------------------------- the sums


def sums_of(*workers, value=1.0):
    """What each gets when all send this value."""
    return together(*(lambda worker=worker: worker.sum(value) for worker in workers))


def shares(worker):
    return worker.link._memory is not None


@pytest.mark.parametrize("shared", [False, True], ids=["over sockets", "in shared memory"])
def test_workers_sum_on_the_hub(job, shared):
    hub, workers = job(count=3, mode="sync", shares=shared)
    assert [*map(shares, workers)] == [shared] * 3
    for value in (2.0, 1.0, 3.0, 4.0):
        sent = hub.hub._part._number
        assert sums_of(*workers, value=value) == [[3 * value]] * 3
        assert hub.hub._part._number == sent + 1
    assert shared or workers[1].link._spare[0] is not None  # the answer was read beside what was sent
    traffic = [worker.sums.take_traffic() for worker in workers]
    assert traffic[0] == traffic[1] and traffic[0]["bytes_pushed"] == traffic[0]["bytes_pulled"] > 0
    together(*(lambda worker=worker: (worker.sums.end(), worker.link.leave()) for worker in workers))
    assert hub.result() == ("all workers are done", EXIT_OK)


def catches_up(work, one):
    """Does `work` of another worker, which waits in it for the state of `one`; meanwhile that sums alone."""
    behind = beside(work)
    until(lambda: one.sum(1.0) == [1.0] and one.sums.gives)
    one.sums.give({"rounds": 7}, model(5.0))
    behind.result(WAIT_S)


def in_place_of(lost, hub, one):
    """A new process, which has the state of `one`."""
    cut(lost)
    assert one.sum(1.0) == [1.0]
    again = Worker(hub, lost.device, "continue", mode="sync").meet()
    catches_up(again.begin_to_sum, one)
    return again


def test_the_sum_goes_on_without_a_lost_worker_and_a_new_one_gets_a_state(job):
    hub, (one, other) = job(mode="sync")
    assert sums_of(one, other) == [[2.0]] * 2
    again = in_place_of(other, hub, one)
    said, state = again.sums.taken
    assert said == {"rounds": 7} and values_of(state) == [5.0]
    assert sums_of(one, again) == [[2.0]] * 2


@pytest.mark.parametrize("shared", [False, True], ids=["over sockets", "in shared memory"])
def test_half_an_upload_is_in_no_sum(job, shared):
    """Whether its worker is lost, or comes back over another connection."""
    _, (one, other, third) = job(count=3, mode="sync", shares=shared)
    sums_of(one, other, third)
    half = b"".join(map(bytes, frames.outgoing({"ask": {NUMBER: other.sums._number}}, model(7.0))))[:-1]
    with other.link._wire._sending:  # else a beat is the rest
        other.link._wire._socket.sendall(half)
        time.sleep(0.1)  # the hub adds it
        waits = beside(lambda: one.sum(1.0))
        time.sleep(0.1)
        other.link._wire._socket.shutdown(socket.SHUT_RDWR)
    thirds = third.sum(1.0)
    assert waits.result(WAIT_S) == thirds and thirds in ([2.0], [3.0])  # without it, or with its second try
    for value in (1.0, 2.0):
        assert sums_of(one, third, value=value)[0] in ([2 * value], [3 * value])


def test_large_uploads_come_one_after_the_other_but_none_waits_for_a_slow_one():
    async def turns():
        its = connections.Turns()
        end = await its.next()
        waiting = asyncio.ensure_future(its.next())
        await asyncio.sleep(connections.TURN_S / 5)
        assert not waiting.done()
        end()
        end()  # counts once
        await waiting  # and does not end its turn
        begin, slow = time.monotonic(), asyncio.ensure_future(its.next())
        await slow
        assert time.monotonic() - begin > connections.TURN_S / 2
        (await asyncio.wait_for(its.next(), WAIT_S))()

    asyncio.run(turns())


@pytest.mark.parametrize("is_sent", [True, False])
def test_an_upload_waits_for_one_that_comes_only_for_a_moment(job, monkeypatch, is_sent):
    """And is answered as one that did not wait, also where the one before it breaks off."""
    monkeypatch.setattr(connections, "LARGE", 1)
    _, (one, other) = job(on_worker_death="continue")
    message = {"ask": {"report": (1, 2, 0.1, 0.0), WANTS_STOP: False}}
    whole = b"".join(map(bytes, frames.outgoing(message, model(1.0))))
    with one.link._wire._sending:
        one.link._wire._socket.sendall(whole[:-1])
        assert other.upload(1.0).message["uploads"] == [0, 0]
        one.link._wire._socket.sendall(whole[-1:]) if is_sent else cut(one)
    until(lambda: other.upload(1.0).message["uploads"][0] == is_sent)


# ---------------------------------------------------------------------------------------------------- shared memory


def test_who_comes_again_sends_over_its_socket(job):
    """The process before it may still write to the memory."""
    hub, (one, other) = job(mode="sync", shares=True)
    assert sums_of(one, other) == [[2.0]] * 2
    again = in_place_of(other, hub, one)
    assert shares(one) and not shares(again)
    for value in (1.0, 2.0, 3.0):
        assert sums_of(one, again, value=value) == [[2 * value]] * 2
    one.link._wire._socket.shutdown(socket.SHUT_RDWR)
    until(lambda: one.link._is_back)
    assert not shares(one)


def test_an_asynchronous_update_is_made_in_the_memory_of_the_upload(job):
    _, (one, other) = job(mode="async", shares=True)
    ask = {WANTS_STOP: False, "round": 1, "step_s": 0.1}
    assert shares(one) and shares(other)
    before = one.link.ask(ask, model(0.0), lambda: False).arrays
    after = other.link.ask(ask, model(1.0), lambda: False).arrays
    rate = one.config.settings.learning_rate
    for old, new in zip(before, after, strict=True):
        assert np.allclose(old - new, rate, rtol=1e-5)
    assert values_of(one.link.ask(ask, model(0.0), lambda: False).arrays) == values_of(after)
    assert other.link.ask({**ask, WANTS_STOP: True, "bad": True}, (), lambda: False).message["stop"]


def test_the_memory_of_another_process_is_not_taken():
    memory = SharedMemory.made(10, 2)
    path, token, size = memory.place
    found = SharedMemory.found([path, token, size])
    memory.upload(1)[...] = 3.0
    assert values_of([found.slots[3]]) == [3.0] and values_of([found.sum(0), found.sum(1), found.upload(0)]) == [0.0]
    assert memory.slot_of([memory.sum(3)[:4]]) == 1 and memory.slot_of([np.zeros(3, np.float32)]) is None
    assert SharedMemory.found([path, "00" * 16, size]) is None
    assert SharedMemory.found(["/proc/self/fd/999", token, size]) is None
    assert SharedMemory.found(["/dev/null", token, size]) is None


def test_a_sum_is_repeated_where_the_hub_was_lost(job):
    hub, (one, other) = job(mode="sync")
    assert sums_of(one, other) == [[2.0]] * 2
    hub.kill()
    new = RunningHub(mode="sync", port=hub.port)
    assert sums_of(one, other, value=4.0) == [[8.0]] * 2
    new.kill()


def test_a_worker_whose_connection_breaks_gets_a_state_where_the_others_have_gone_on(job):
    _, (one, other) = job(mode="sync")
    sums_of(one, other)
    other.link._wire._socket.shutdown(socket.SHUT_RDWR)
    assert one.sum(1.0) == [1.0]
    catches_up(lambda: other.sum(1.0), one)
    assert values_of(other.sums.taken[1]) == [5.0]
    assert sums_of(one, other) == [[2.0]] * 2
    assert not lost_of(one.link.changes)  # it counts again, so its next loss is noticed
    cut(other)
    assert one.sum(1.0) == [1.0]


def test_the_others_wait_for_a_silent_worker_by_the_length_of_their_rounds(job):
    """Rounds take some milliseconds here, so one second is enough."""
    _, (one, other) = job(mode="sync")
    for _ in range(6):
        sums_of(one, other)
    other.link._is_over = True  # its thread sends no more
    began = time.monotonic()
    assert one.sum(1.0) == [1.0]
    assert time.monotonic() - began < SILENT_S / 2
    assert lost_of(one.link.changes) == {1}

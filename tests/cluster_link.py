"""Two Ray nodes in network namespaces of their own, joined by a relay that delays every packet.

The kernel's own delay (netem) needs a module that many machines lack, so this program carries the
packets between two TUN devices itself: all ports, both directions, each packet after `--delay`
milliseconds. The near namespace has the head node without CPUs, the far one a node with `--cpus`.
It needs /dev/net/tun and permission to make user namespaces (Linux).

It prints one JSON line when both nodes run: Ray's address, and the process whose namespace a run
has to join (`joining`). Then it answers each line on stdin, and ends with the last one:
``bytes`` prints the bytes carried so far, ``cut`` drops every packet from now on.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import psutil

NEAR, FAR, MTU = "10.77.0.1", "10.77.0.2", 9000
DEVICE = "relay0"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
STORE = 80_000_000
"""Bytes of each node's object store."""

INSIDE = ["unshare", "--map-root-user", "--net"]
"""Begins a command that runs in new user and network namespaces."""


def joining(pid: int) -> list[str]:
    """Return the beginning of a command that runs in the namespaces of a process."""
    return ["nsenter", "--target", str(pid), "--user", "--net", "--preserve-credentials"]


@contextlib.contextmanager
def linked_nodes(
    env: Mapping[str, str], delay_ms: float = 0.0, port: int = 6399, cpus: int = 2,
    quiet: bool = False,
) -> Iterator[tuple[str, list[str], Callable[[str], list[int]]]]:  # fmt: skip
    """Start two linked nodes.

    Args:
        env: the environment variables of the nodes.
        delay_ms: in each direction.
        port: of Ray; two links at a time need two.
        cpus: of the far node.
        quiet: do not show what the nodes print to stderr.

    Yields:
        Ray's address, the beginning of a command that runs on the near node, and a function that
        sends a line to the program and returns its answer: the bytes carried in each direction.

    Raises:
        RuntimeError: the nodes did not start.
    """
    process = subprocess.Popen(
        [*INSIDE, sys.executable, __file__, "--delay", str(delay_ms), "--port", str(port),
         "--cpus", str(cpus)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        stderr=subprocess.DEVNULL if quiet else None,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(line: str) -> list[int]:
        print(line, file=stdin, flush=True)
        return json.loads(stdout.readline())

    try:
        if not (said := stdout.readline()):
            raise RuntimeError("the linked nodes did not start")
        started = json.loads(said)
        yield started["address"], joining(started["pid"]), ask
    finally:
        stdin.close()
        process.wait(60)
        stdout.close()


def device(address: str) -> int:
    """Make this namespace's only network device besides loopback; return its descriptor."""
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    for words in (
        ["address", "add", f"{address}/24", "dev", DEVICE],
        ["link", "set", DEVICE, "mtu", str(MTU), "up"],
        ["link", "set", "lo", "up"],
    ):
        subprocess.run(["ip", *words], check=True)
    return tun


class Direction:
    """One direction of the link: a thread that reads packets, and one that writes them later.

    Attributes:
        carried: bytes so far.
        cut: whether packets are dropped.
    """

    def __init__(self, source: int, target: int, delay_s: float) -> None:
        self.carried, self.cut = 0, False
        self._source, self._target, self._delay_s = source, target, delay_s
        self._packets: collections.deque[tuple[float, bytes]] = collections.deque()
        self._more = threading.Semaphore(0)
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        while True:
            packet = os.read(self._source, 65536)
            if not self.cut:
                self._packets.append((time.monotonic() + self._delay_s, packet))
                self._more.release()

    def _write(self) -> None:
        while True:
            self._more.acquire()
            due, packet = self._packets.popleft()
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            os.write(self._target, packet)
            self.carried += len(packet)


def node(*words: str) -> subprocess.Popen[bytes]:
    """Start a Ray node in this namespace."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words,
               "--object-store-memory", str(STORE), "--disable-usage-stats"]  # fmt: skip
    return subprocess.Popen(command, stdout=sys.stderr)


def end(ray: subprocess.Popen[bytes]) -> None:
    """End a Ray node at once; by itself it would first wait half a minute for its work."""
    for one in (*psutil.Process(ray.pid).children(recursive=True), ray):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    ray.wait()


def far(channel: int, port: int, cpus: int) -> None:
    """Run the far node, whose packets the near process carries."""
    near_end = socket.socket(fileno=channel)
    tun = device(FAR)
    socket.send_fds(near_end, [b"x"], [tun])
    near_end.recv(1)  # the head node runs
    ray = node("--address", f"{NEAR}:{port}", "--node-ip-address", FAR, "--num-cpus", str(cpus))
    near_end.recv(1)  # until the near process ends
    end(ray)


def reachable(port: int) -> bool:
    """Return whether the head node answers."""
    try:
        socket.create_connection((NEAR, port), 1.0).close()
    except OSError:
        return False
    return True


def nodes(port: int) -> int:
    """Return how many nodes are alive."""
    from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]

    return sum(info.state == 0 for info in GcsClient(f"{NEAR}:{port}").get_all_node_info().values())


def near(delay_s: float, port: int, cpus: int) -> None:
    """Run the head node and the relay."""
    tun = device(NEAR)
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    other = subprocess.Popen(
        ["unshare", "--net", sys.executable, __file__, "--channel", str(theirs.fileno()),
         "--port", str(port), "--cpus", str(cpus)], pass_fds=[theirs.fileno()], stdout=sys.stderr,
    )  # fmt: skip
    theirs.close()
    _, (across,), _, _ = socket.recv_fds(ours, 1, 1)
    ways = [Direction(tun, across, delay_s), Direction(across, tun, delay_s)]
    ray = node("--head", "--node-ip-address", NEAR, "--port", str(port), "--num-cpus", "0",
               "--include-dashboard", "false")  # fmt: skip
    try:
        wait(lambda: reachable(port))
        ours.send(b"x")
        wait(lambda: nodes(port) == 2)
        print(json.dumps({"address": f"{NEAR}:{port}", "pid": os.getpid()}), flush=True)
        for line in sys.stdin:
            if line.strip() == "cut":
                for way in ways:
                    way.cut = True
            print(json.dumps([way.carried for way in ways]), flush=True)
    finally:
        ours.close()
        other.wait()
        end(ray)


def wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it does not, in time.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the Ray nodes did not start")
        time.sleep(0.2)


def main(words: Sequence[str] | None = None) -> None:
    """Run one end of the link."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--delay", type=float, default=5.0, help="milliseconds in each direction")
    parser.add_argument("--cpus", type=int, default=2, help="of the far node")
    parser.add_argument("--port", type=int, default=6399, help="of Ray; two links need two")
    parser.add_argument("--channel", type=int, help="for the far end only")
    args = parser.parse_args(words)
    if args.channel is None:
        near(args.delay / 1e3, args.port, args.cpus)
    else:
        far(args.channel, args.port, args.cpus)


if __name__ == "__main__":
    main()

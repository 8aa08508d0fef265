"""Scenarios in which disks lose what they had, or are full."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chaos_parts import Crew, plan, stop_and_copy
from qafel.federation import Broker


class Unavailable(Exception):  # noqa: N818
    """This machine does not allow what a scenario needs."""


def _wipe(broker: Broker) -> None:
    broker.kill()
    shutil.rmtree(broker.folder / "store")
    broker.start()


def wiped(folder: Path, times: int = 3) -> dict[str, Any]:
    """The broker comes back empty while the server runs; server and clients keep their folders."""
    with Broker(folder / "broker") as broker:
        crew = Crew(folder, plan(), broker.url)
        done, back = 0, True
        for _ in range(times):
            crew.progress(6)
            before = crew.version
            _wipe(broker)
            done += 1
            back = back and crew.until(lambda before=before: crew.version > before)  # type: ignore[misc]
        checks = crew.finish()
    return {"faults": {"broker wiped": done}, "went on": back} | checks | {"held": checks["held"] and back}


def wiped_while_down(folder: Path, times: int = 4) -> dict[str, Any]:
    """The server is stopped or killed, the broker comes back empty, the server is started again."""
    with Broker(folder / "broker") as broker:
        crew = Crew(folder, plan(), broker.url)
        done, back = 0, True
        for k in range(times):
            crew.progress(6)
            before = crew.version
            crew.down.add("server")
            if k % 2:
                crew.processes["server"].terminate()
                crew.processes["server"].join()
                del crew.processes["server"]
            else:
                crew.kill("server")
            _wipe(broker)
            crew.down.clear()
            done += 1
            back = back and crew.until(lambda before=before: crew.version > before)  # type: ignore[misc]
        checks = crew.finish()
    faults = {"server down": done, "broker wiped": done}
    return {"faults": faults, "went on": back} | checks | {"held": checks["held"] and back}


def server_disk(folder: Path, times: int = 2) -> dict[str, Any]:
    """The server is killed and its folder deleted: it continues from the broker."""
    with Broker(folder / "broker") as broker:
        crew = Crew(folder, plan(lease_seconds=1.0), broker.url)
        done, back = 0, True
        for _ in range(times):
            crew.progress(6)
            before = crew.version
            crew.kill("server")
            shutil.rmtree(crew.path("server"))
            done += 1
            back = back and crew.until(lambda before=before: crew.version > before)  # type: ignore[misc]
        checks = crew.finish()
    return {"faults": {"server's folder": done}, "went on": back} | checks | {"held": checks["held"] and back}


def client_disk(folder: Path, times: int = 8) -> dict[str, Any]:
    """Clients are killed and their folders deleted, one after the other."""
    with Broker(folder / "broker") as broker:
        crew = Crew(folder, plan(), broker.url)
        done = 0
        for k in range(times):
            crew.progress(2)
            if not crew.serving:
                break
            crew.wipe_client(k % len(crew.clients))
            done += 1
        return {"faults": {"client's folder": done}} | crew.finish()


def lost_tail(folder: Path, times: int = 4) -> dict[str, Any]:
    """The broker's store is put back to an older state: what it acknowledged since is gone.

    Every second time the server is down meanwhile.
    """
    with Broker(folder / "broker") as broker:
        crew = Crew(folder, plan(), broker.url)
        done, back, noticed = 0, True, 0
        for k in range(times):
            crew.progress(4)
            copy = folder / "copy"
            stop_and_copy(broker, copy)
            crew.progress(4)
            before = crew.version
            if k % 2:
                crew.down.add("server")
                crew.kill("server")
            broker.kill()
            shutil.rmtree(broker.folder / "store")
            copy.rename(broker.folder / "store")
            broker.start()
            crew.down.clear()
            done += 1
            back = back and crew.until(lambda before=before: crew.version > before)  # type: ignore[misc]
        checks = crew.finish()
        noticed = crew.noted("server", "the log lost its tail")
    faults = {"older store": done, "server down": done // 2}
    facts = {"went on": back, "noticed": noticed}
    return {"faults": faults, **facts, **checks, "held": checks["held"] and back}


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    """A disk of its own, which is soon full; Unavailable where this user may not mount one."""
    path.mkdir(parents=True, exist_ok=True)
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.name != "posix" or os.geteuid() != 0 or mount is None or umount is None:
        raise Unavailable("mounting a small disk needs root")
    command = [mount, "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        raise Unavailable("a small disk cannot be mounted")
    try:
        yield path
    finally:
        subprocess.run([umount, "-l", str(path)], check=False, capture_output=True)


@contextlib.contextmanager
def full(path: Path) -> Iterator[None]:
    """No byte is free on the disk of a folder until the block ends."""
    ballast = path / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            taken = 0
            for size in (1 << 24, 1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), taken, size)
                        taken += size
        yield
    finally:
        ballast.unlink()


def disk_full(folder: Path) -> dict[str, Any]:
    """The disks of a client, of the server and of the broker are full for a while, one after the other."""
    disks = contextlib.ExitStack()
    with disks:
        for name, size in (("disk-client", 4), ("disk-server", 8), ("disk-broker", 600)):
            disks.enter_context(small_disk(folder / name, size))
        (folder / "client-0").symlink_to(folder / "disk-client")
        (folder / "server").symlink_to(folder / "disk-server")
        (folder / "broker").mkdir()
        (folder / "broker" / "store").symlink_to(folder / "disk-broker")
        broker = disks.enter_context(Broker(folder / "broker"))
        crew = Crew(folder, plan(), broker.url)
        went = crew.progress(4)
        with full(folder / "disk-client"):
            noted = crew.until(lambda: crew.noted(0, "cannot write") > 0)
            went = went and crew.progress(4)
        went = went and crew.progress(2)
        with full(folder / "disk-server"):
            noted = noted and crew.until(lambda: crew.noted("server", "cannot write") > 0)
            before = crew.version
            crew.pause(1.0, 1.5)
            broker.kill()
            broker.start()
            crew.pause(1.0, 1.5)
            held_back = crew.version <= before + 1
        went = went and crew.progress(4)
        with full(folder / "disk-broker"):
            log = folder / "broker" / "broker.log"
            noted = noted and crew.until(lambda: "no space left" in log.read_text(encoding="utf-8").lower())
        broker.stop()  # a broker whose disk was full wants to be started again
        broker.start()
        went = went and crew.progress(4)
        checks = crew.finish()
    facts = {"noticed": noted, "went on": went, "nothing told while unwritten": held_back}
    faults = {"client": 1, "server": 1, "broker": 1, "broker killed": 1}
    return {"faults": faults, **facts, **checks, "held": checks["held"] and all(facts.values())}

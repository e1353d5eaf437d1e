"""Ray: which cluster is meant and whether it answers, what a run asks of it, and how many runs fit."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from csada.errors import InputError, RunError
from csada.processes import own_sigterm
from csada.reading import fields_from

PATIENCE = 10  # seconds, with a cluster that is asked whether it is one


@dataclass(frozen=True)
class Resources:
    """What one run asks a cluster for."""

    cpus: float = 1.0
    gpus: float | None = None  # by default one where there are any
    memory_gb: float | None = None

    @classmethod
    def read(cls, text: str) -> Resources:
        """From cpus=2,gpus=0.5,memory_gb=4."""
        words = [word.partition("=")[::2] for word in text.split(",") if word.strip()]
        try:
            given = {name.strip(): float(value) for name, value in words}
        except ValueError:
            raise InputError(f"{text!r} is no list of resources; write cpus=2,gpus=0.5,memory_gb=4") from None
        return cls(**fields_from(cls, given, "resources"))

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0.01 <= value < math.inf and (name, value) != ("gpus", 0):
                raise InputError(f"{name} must be at least 0.01, got {value:g}")
        if self.gpus is not None and self.gpus > 1 and self.gpus % 1:
            raise InputError(f"gpus above 1 must be whole, got {self.gpus:g}")


@contextmanager
def ray_cluster(
    engine: str, asked: Resources, call: Callable[..., Any], unfit: Mapping[str, str]
) -> Iterator[tuple[Callable[..., Any], Callable[[], int]]]:
    """A cluster that is running, or one on this machine that ends with us: how to make that call there, how many fit at once.

    engine: ray or ray://HOST. asked: for each call. unfit: nodes that get none, by Ray's name.
    """
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

        address = running() if engine == "ray" else reachable(engine)
    except ImportError:
        raise InputError(f"--engine {engine} needs Ray: pip install 'csada[ray]', or leave it out") from None
    dashboard = False if address == "local" else None
    for again in (address.startswith("ray://"), False):  # a busy one may not start a client's server in time
        try:
            with own_sigterm():
                ray.init(address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
            break
        except Exception as error:  # Ray's own exceptions share no other base
            if not again:
                raise RunError(f"no Ray cluster at {address}: {' '.join(str(error).split())[:200]}") from None

    def nodes() -> list[dict[str, float]]:
        every = ray.nodes()  # type: ignore[no-untyped-call]
        fit = [node["Resources"] for node in every if node["Alive"] and node["NodeID"] not in unfit]
        return [{k: n.get(k, 0) for k in ("CPU", "GPU")} | {"GB of memory": n.get("memory", 0) / 1e9} for n in fit]

    def fitting() -> int:
        return sum(min(int(node[name] / number) for name, number in needed.items()) for node in nodes())

    try:
        gpus = asked.gpus if asked.gpus is not None else float(any(node["GPU"] >= 1 for node in nodes()))
        wanted = {"CPU": asked.cpus, "GPU": gpus, "GB of memory": asked.memory_gb}
        needed = {name: number for name, number in wanted.items() if number}
        if not fitting():
            what, *there = (", ".join(f"{n[k]:.3g} {k}" for k in needed) for n in (needed, *nodes()))
            raise InputError(f"a run asks for {what}, and no node has that; they have {' | '.join(sorted(set(there)))}")
        memory = None if asked.memory_gb is None else int(asked.memory_gb * 1e9)
        # no retries by Ray, which does not count those of a run that takes too much memory
        own: Any = {"num_cpus": asked.cpus, "num_gpus": gpus, "memory": memory, "max_retries": 0}

        def remote(*given: Any) -> Any:
            others = NodeLabelSchedulingStrategy({"ray.io/node-id": NotIn(*unfit)}) if unfit else None  # type: ignore[no-untyped-call]
            return ray.remote(call).options(**own, scheduling_strategy=others).remote(*given)

        yield remote, fitting
    finally:
        ray.shutdown()


class Silent(InputError):
    """No cluster answers at an address."""


def running() -> str:
    """The cluster that RAY_ADDRESS names, or the one that was started on this machine; local where there is none."""
    if given := os.environ.get("RAY_ADDRESS"):
        return reachable(given)
    with suppress(OSError, Silent):  # a cluster that was killed leaves its address
        place = Path(os.environ.get("RAY_TMPDIR") or gettempdir(), "ray", "ray_current_cluster")
        reachable(place.read_text().strip(), ours=True)
        return "auto"  # that one: with its address Ray would not look for the token
    return "local"


def reachable(address: str, ours: bool = False) -> str:
    """Refused within seconds, by a call with a deadline, where Ray itself would try for minutes or for ever."""
    import grpc

    client, host = address.startswith("ray://"), address.removeprefix("ray://")
    if (not client and ":" not in host) or os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return address  # one of Ray's words, auto or local; or Ray alone has the keys
    if ":" not in host:
        host, address = f"{host}:10001", f"{address}:10001"  # where clients are served
    call, port = ("RayletDriver/ClusterInfo", 10001) if client else ("NodeInfoGcsService/CheckAlive", 6379)
    mode, file = os.environ.get("RAY_AUTH_MODE", "token" if ours else ""), os.environ.get("RAY_AUTH_TOKEN_PATH")
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    with suppress(OSError):
        token = token or Path(file or "~/.ray/auth_token").expanduser().read_text().strip()
    told = [("authorization", f"Bearer {token}")] if mode == "token" else None
    with grpc.insecure_channel(host, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=PATIENCE, metadata=told)
        except grpc.RpcError as error:
            code, details = error.code().name, error.details()
            if code == "UNAUTHENTICATED":
                raise InputError(
                    f"the Ray cluster at {address} wants its token: put it into ~/.ray/auth_token or RAY_AUTH_TOKEN, and set "
                    "RAY_AUTH_MODE=token"
                ) from None
            why = {
                "UNAVAILABLE": details.rpartition(": ")[2].rstrip("]"),
                "DEADLINE_EXCEEDED": "what is there is silent",
                "UNIMPLEMENTED": f"another service is there; the usual port is {port}",
            }.get(code)
            if why is not None:  # else the cluster has answered
                raise Silent(f"no Ray cluster answers at {address}: {why}; start one with ray start --head") from None
    return address

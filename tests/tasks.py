"""Runs that the tests of an engine hand to other processes, which import this module and none of pytest or of the tests."""

import os
import time

import torch

from csada.errors import Diverged


def nowhere(tell):
    raise FileNotFoundError("/data/photos is not there")


def dies(tell, file=None):
    if file is not None:
        with file.open("a") as log:
            log.write("started\n")
    os._exit(1)


def waits(file, tell):
    if not file.exists():
        file.touch()
        os._exit(1)


def threads(tell):
    return torch.get_num_threads()


def sleeps(seconds, tell):
    time.sleep(seconds)
    return seconds


def forever(tell):
    tell(1, 2)
    while True:
        time.sleep(0.1)


def diverges(tell):
    raise Diverged("the loss became nan", lambda: "cannot be pickled")


def meets(own, other, seen, tell):
    """Each waits until it sees that the other is under way, and then until the driver has seen both."""
    own.touch()
    for file in (other, seen):
        deadline = time.monotonic() + 300
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        tell(1, 2)
    return own.name


class Sent:
    """A run that notes when it is pickled, and says how many were when it began."""

    def __init__(self, folder, number):
        self.folder, self.number = folder, number

    def __getstate__(self):
        (self.folder / f"{self.number}.sent").touch()
        return vars(self)

    def __call__(self, tell):
        return len(list(self.folder.glob("*.sent")))


class Reads:
    """A run over mapped pixels."""

    def __init__(self, pixels):
        self.pixels = pixels

    def __setstate__(self, state):
        self.pixels = state["pixels"].opened()

    def __call__(self, tell):
        time.sleep(0.3)
        return int(self.pixels.sum())

"""fit(): one loop for every method (loop.py), its step as a CUDA graph (step.py), several processes (parallel.py)."""

from csada.training.loop import Epoch, Fitted, Loop, Settings, fit, make_method

__all__ = ["Epoch", "Fitted", "Loop", "Settings", "fit", "make_method"]

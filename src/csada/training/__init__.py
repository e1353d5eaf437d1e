"""fit(): one loop for every method (loop), its settings, its checkpoints, its step as a CUDA graph, several processes."""

from csada.training.checkpoints import Epoch
from csada.training.loop import Fitted, Loop, fit
from csada.training.settings import Settings, make_method, split_options

__all__ = ["Epoch", "Fitted", "Loop", "Settings", "fit", "make_method", "split_options"]

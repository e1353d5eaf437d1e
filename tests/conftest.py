import torch

torch.set_num_threads(1)  # tests run side by side, one process a core

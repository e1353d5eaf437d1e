"""Records and arrays to tables, figures and pages. Nothing here imports PyTorch."""

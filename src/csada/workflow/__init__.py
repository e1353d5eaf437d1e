"""What a command does, without printing: train, fit, tune, compare, predict, and the project file."""

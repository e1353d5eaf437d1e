"""Everything that exists for the paper alone: its toy, the demo, specs, sweeps, tables and figures."""

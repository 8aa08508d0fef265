"""One run, in the simulator or in a federation: its tracker, its folder, its result."""

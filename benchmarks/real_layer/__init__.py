"""The parts of ``python benchmarks/bench_real_layer.py``: a checkpoint, a pass over it, and what is right."""

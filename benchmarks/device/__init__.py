"""The parts of the device check, one a file; ``python benchmarks/device_check.py`` runs them."""

# In the order in which times are taken: time may run out, so what matters least stands last.
PARTS = (
    "ceilings",
    "fusion",
    "int4",
    "attention",
    "selection",
    "trees",
    "native",
    "draft_loop",
    "streaming",
    "compiled",
)
